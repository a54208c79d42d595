"""A network whose classes have subclasses, for subclass distillation (Müller et al. 2020): s logits a class, of which a class has the
sum of the probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax

from fedcodist.models.cnn import CNN
from fedcodist.models.lstm import LSTM
from fedcodist.models.mlp import MLP
from fedcodist.settings import Problem, checked, read_kind, setting
from fedcodist.types import Array, Model, Narrow, Spec

INNER = {part.kind: part for part in (CNN, LSTM, MLP)}
LAYER = "subclasses"


def read_network(value: Any, path: str, problems: list[Problem]) -> Any:
    """A network of this package."""
    return read_kind(INNER, value, path, problems)


@dataclass(frozen=True)
@checked
class Subclass:
    """Another network with `subclasses` logits for each class. Clients train on the classes as ever: a class has the sum of the
    probabilities of its subclasses. The loss `subclass` matches the subclasses."""

    kind: ClassVar[str] = "subclass"
    model: Any = setting(MLP(), reader=read_network)  # the network
    subclasses: int = setting(2, ge=1, le=1000)  # logits for each class; 1 is the network itself

    @lru_cache  # one model for one description: equal experiments share compiled programs
    def build(self, shape: tuple[int, ...], classes: int) -> Model:
        """For the inputs of the network."""
        inner = self.model.build(shape, classes * self.subclasses)
        return _grouped(inner, classes, self.subclasses)._replace(spec=Spec(self, shape, classes))


def _grouped(inner: Model, classes: int, many: int) -> Model:
    """The model of classes. Its head has no column a class, so it is not named."""

    def together(logits: Array) -> Array:
        return logits if many == 1 else jax.nn.logsumexp(logits.reshape(*logits.shape[:-1], classes, many), -1)

    def apply(params: Any, x: Array, key: Any = None) -> Array:
        return together(inner.apply(params, x, key))

    def features(params: Any, x: Array, key: Any = None) -> tuple[Array, dict[str, Array]]:
        logits, seen = inner.features(params, x, key)  # type: ignore[misc]
        return together(logits), {**seen, LAYER: logits}

    def narrow(rate: float) -> Narrow:
        sub = inner.narrow(rate)  # type: ignore[misc]
        return sub._replace(model=_grouped(sub.model, classes, many))

    return Model(
        inner.init, apply, features if inner.features else None, narrow if inner.narrow else None, None, inner.head if many == 1 else ""
    )
