"""One paper, one file. A method says what a round is, with a federation's verbs, and declares what the rest must know of it."""

from fedcodist.methods.akd import AKD
from fedcodist.methods.dsfl import DSFL
from fedcodist.methods.faug import FAug
from fedcodist.methods.fd import FD
from fedcodist.methods.fedavg import FedAvg
from fedcodist.methods.feddf import FedDF
from fedcodist.methods.fedmd import FedMD
from fedcodist.methods.hfd import HFD
from fedcodist.methods.local import Local
from fedcodist.methods.merged import MergedCodist
from fedcodist.methods.periodic import PeriodicCodist
from fedcodist.methods.quped import QuPeD
from fedcodist.methods.steady import SteadyCodist
from fedcodist.methods.takfl import TAKFL
from fedcodist.registry import Registry

METHODS = Registry(
    "methods", FedAvg, PeriodicCodist, MergedCodist, SteadyCodist, FedDF, TAKFL, Local, FD, FedMD, DSFL, QuPeD, HFD, FAug, AKD
)
BASELINE = FedAvg  # the twin that every other method is measured against
