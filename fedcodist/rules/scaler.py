"""HeteroFL's scaler: a narrow layer gives as much to the next one as the wide layer would.

In the authors' networks it acts in training only, and normalisation layers take the factor out again in evaluation. Ours have none, so a
sub-model is evaluated as it was trained, with its scaler.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedcodist import tree
from fedcodist.types import Array, Model, Params, Spec


@dataclass(frozen=True)
class Scaled:
    """A sub-model of this rate of `of`, with HeteroFL's scaler."""

    of: Any
    rate: float

    def build(self, shape: tuple[int, ...], classes: int) -> Model:
        """For inputs of this shape."""
        return scaled(self.of.build(shape, classes), self.rate)


@lru_cache(maxsize=64)  # one model for one rate: its programs are compiled once
def scaled(model: Model, rate: float) -> Model:
    """The scaler: what every hidden layer gives is divided by the rate, before the nonlinearity, so that the next layer sees as much as in
    the wide model. It is the same to divide the layer's weights. Nothing at rate 1."""
    if rate == 1:
        return model

    def divided(params: Params) -> Params:
        return {name: layer if name == model.head else tree.scale(layer, 1 / rate) for name, layer in params.items()}

    def apply(params: Params, x: Array, key: Any = None) -> Array:
        return model.apply(divided(params), x, key)

    spec = model.spec and Spec(Scaled(model.spec.part, rate), model.spec.shape, model.spec.classes)
    return Model(model.init, apply, spec=spec, head=model.head)
