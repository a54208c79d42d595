"""Models by name. Each is a frozen dataclass whose `build` gives the two pure functions for a task's inputs and classes. A config may name
a function of the user's instead (`own`), and `adapters` make a Model of another library's network."""

from fedcodist.models.adapters import from_equinox, from_flax, from_haiku, from_keras
from fedcodist.models.cnn import CNN
from fedcodist.models.lstm import LSTM
from fedcodist.models.mlp import MLP
from fedcodist.models.own import Own
from fedcodist.models.subclass import Subclass
from fedcodist.registry import Registry

MODELS = Registry("models", CNN, LSTM, MLP, Subclass)

__all__ = ["CNN", "LSTM", "MLP", "MODELS", "Own", "Subclass", "from_equinox", "from_flax", "from_haiku", "from_keras"]
