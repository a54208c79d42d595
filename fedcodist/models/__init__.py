"""Models by name. Each is a frozen dataclass whose `build` gives the two pure functions for a task's inputs and classes."""

from fedcodist.models.cnn import CNN
from fedcodist.models.lstm import LSTM
from fedcodist.models.mlp import MLP
from fedcodist.registry import Registry

MODELS = Registry("models", CNN, LSTM, MLP)
