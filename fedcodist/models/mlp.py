"""A multi-layer perceptron on flattened inputs, for vectors and for tests."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import numpy as np

from fedcodist.models.layers import dense, dense_inits, relu
from fedcodist.models.narrow import dense_places, narrowed, scaled
from fedcodist.settings import checked, setting
from fedcodist.types import Array, Model, Narrow, Spec


@dataclass(frozen=True)
@checked
class MLP:
    """Dense layers of these widths with ReLU; none at all is logistic regression."""

    kind: ClassVar[str] = "mlp"
    widths: ClassVar[tuple[str, ...]] = ("hidden",)  # the fields that a wider or narrower one multiplies
    hidden: tuple[int, ...] = setting((32,), ge=1, le=10**6)  # widths of the hidden layers; an empty list is logistic regression
    leak: float = setting(0.0, ge=0, lt=1, silent=True)  # slope below zero of a leaky ReLU; 0 is ReLU

    @lru_cache  # one model for one description: equal experiments share compiled programs
    def build(self, shape: tuple[int, ...], classes: int) -> Model:
        """For inputs of any shape."""
        built = _Build((math.prod(shape), *self.hidden, classes), self.leak)
        return Model(built.init, built.apply, built.features, built.narrow, Spec(self, shape, classes), f"dense{len(self.hidden)}")


@dataclass(frozen=True)
class _Build:
    widths: tuple[int, ...]
    leak: float = 0.0

    def init(self, key: Any) -> dict[str, Any]:
        sizes = list(itertools.pairwise(self.widths))
        return {f"dense{i}": layer for i, layer in enumerate(dense_inits(jax.random.split(key, len(sizes)), sizes))}

    def apply(self, params: Any, x: Array, key: Any = None) -> Array:
        x = x.reshape(len(x), -1)
        for i in range(len(self.widths) - 1):
            x = dense(params[f"dense{i}"], relu(x, self.leak) if i else x)
        return x

    def features(self, params: Any, x: Array, key: Any = None) -> tuple[Array, dict[str, Array]]:
        x, seen, last = x.reshape(len(x), -1), {}, len(self.widths) - 2
        for i in range(last):
            seen[f"dense{i}"] = x = relu(dense(params[f"dense{i}"], x), self.leak)
        return dense(params[f"dense{last}"], x), seen

    def narrow(self, rate: float) -> Narrow:
        first, *hidden, classes = self.widths
        part = MLP(scaled(hidden, rate), self.leak)
        widths = (first, *part.hidden, classes)
        places = {f"dense{i}": dense_places(np.arange(a), np.arange(b)) for i, (a, b) in enumerate(itertools.pairwise(widths))}
        return narrowed(part.build((first,), classes), places)
