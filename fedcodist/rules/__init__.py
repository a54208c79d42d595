"""What a pool and its clients say to each other in a round: one paper, one file. The default, FedAvg's, is core (`rule.Average`)."""

from fedcodist.registry import Registry
from fedcodist.rule import Average
from fedcodist.rules.feddual import FedDual
from fedcodist.rules.feddualavg import FedDualAvg
from fedcodist.rules.fedftg import FedFTG
from fedcodist.rules.fedmid import FedMiD
from fedcodist.rules.fedrescue import FedResCuE
from fedcodist.rules.flanc import FLANC
from fedcodist.rules.heterofl import HeteroFL
from fedcodist.rules.scaffold import Scaffold
from fedcodist.rules.splitmix import SplitMix

RULES = Registry("rules", Average, Scaffold, FedMiD, FedDualAvg, HeteroFL, SplitMix, FedResCuE, FLANC, FedDual, FedFTG)
