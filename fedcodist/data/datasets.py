"""Datasets by name: how a publisher's files, or a user's, become a prepared store.

Each is a frozen dataclass: its fields are the settings of `fedcodist data prepare NAME --set key=value`, `prepare` reads the files and
writes columns, `published` says where the files can be found. A store is prepared once; which clients are federated in an experiment, and
what a model sees of a row, is left to the task wherever it can be decided later.
"""

from fedcodist.data.images import Cifar10Files, Cifar100Files
from fedcodist.data.own import OwnFiles
from fedcodist.data.text import C4Files, StackOverflowFiles, TextFiles

DATASETS = {cls.kind: cls for cls in (C4Files, Cifar100Files, Cifar10Files, OwnFiles, StackOverflowFiles, TextFiles)}

__all__ = ["DATASETS", "C4Files", "Cifar10Files", "Cifar100Files", "OwnFiles", "StackOverflowFiles", "TextFiles"]
