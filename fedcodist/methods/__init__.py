"""One paper, one file. A method says what a round is, with a federation's four verbs."""

from fedcodist.methods.fedavg import FedAvg
from fedcodist.methods.merged import MergedCodist
from fedcodist.methods.periodic import PeriodicCodist

METHODS = {cls.kind: cls for cls in (FedAvg, PeriodicCodist, MergedCodist)}
