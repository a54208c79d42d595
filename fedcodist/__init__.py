"""Federated learning where devices differ: pools of clients train models of different sizes, and the server models teach each other."""

from typing import TYPE_CHECKING, Any

from fedcodist.clients import Clients
from fedcodist.config import Config, build, load, shipped
from fedcodist.config import read as read_config
from fedcodist.distill import Distiller
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.serial import Serial
from fedcodist.errors import ConfigError, DataError, Failure
from fedcodist.evaluate import evaluate
from fedcodist.federation import Federation
from fedcodist.methods import FedAvg, FedDF, MergedCodist, PeriodicCodist
from fedcodist.methods.merged import merge
from fedcodist.models import CNN, LSTM, MLP
from fedcodist.objectives.classify import Classify
from fedcodist.objectives.images import Images
from fedcodist.objectives.next_token import NextToken
from fedcodist.pool import Learns, Pool, Teaches
from fedcodist.rule import Average, Diverged
from fedcodist.rules import FLANC, FedMiD, FedResCuE, HeteroFL, Scaffold, SplitMix
from fedcodist.rules.carriers import Carriers, Width
from fedcodist.runs.trained import OpenRun, Trained, open_run
from fedcodist.schedule import After, Constant, Cosine, Every, Linear
from fedcodist.task import Task
from fedcodist.train import Experiment, Step, train
from fedcodist.types import Answer, Ask, Examples, Model, PoolState, Reply, Split, Told, Voice
from fedcodist.work import LocalSGD, Prox

if TYPE_CHECKING:
    from fedcodist.reports.running import run

__version__ = "0.1.0"

__all__ = [
    "CNN",
    "FLANC",
    "LSTM",
    "MLP",
    "After",
    "Answer",
    "Ask",
    "Average",
    "Carriers",
    "Classify",
    "Clients",
    "Compiled",
    "Config",
    "ConfigError",
    "Constant",
    "Cosine",
    "DataError",
    "Distiller",
    "Diverged",
    "Every",
    "Examples",
    "Experiment",
    "Failure",
    "FedAvg",
    "FedDF",
    "FedMiD",
    "FedResCuE",
    "Federation",
    "HeteroFL",
    "Images",
    "Learns",
    "Linear",
    "LocalSGD",
    "MergedCodist",
    "Model",
    "NextToken",
    "OpenRun",
    "PeriodicCodist",
    "Pool",
    "PoolState",
    "Prox",
    "Reply",
    "Scaffold",
    "Serial",
    "Split",
    "SplitMix",
    "Step",
    "Task",
    "Teaches",
    "Told",
    "Trained",
    "Voice",
    "Width",
    "build",
    "evaluate",
    "load",
    "merge",
    "open_run",
    "read_config",
    "run",
    "shipped",
    "train",
]


def __getattr__(name: str) -> Any:
    """`run` on its first use: it brings the reports, which training by hand does not need."""
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedcodist.reports.running import run

    globals()["run"] = run
    return run
