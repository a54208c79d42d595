"""The paper's CNN: three 3x3 convolutions, two 2x2 max-pools, two hidden dense layers, ReLU; no norm, no dropout (A1, A4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from fedcodist.models.layers import as_conv, conv_stack, dense, dense_inits, relu
from fedcodist.models.narrow import blocks, dense_places, narrowed, prefix, scaled
from fedcodist.settings import checked, setting
from fedcodist.types import Array, Model, Narrow, Spec


@dataclass(frozen=True)
@checked
class CNN:
    """`layout` 24/same: SAME convolutions, pools after the first two; 32/valid: VALID, pools after the last two (A1).

    On 24x24x3 and 32x32x3 images both end in a 6x6 map, so both have 109,348 parameters (the default) or 410,084 for
    filters (32, 64, 64) and dense (128, 256), with 100 classes.
    """

    kind: ClassVar[str] = "cnn"
    widths: ClassVar[tuple[str, ...]] = ("filters", "dense")  # the fields that a wider or narrower one multiplies
    filters: tuple[int, ...] = setting((16, 32, 32), ge=1, le=10**5)  # filters of the three convolutions
    dense: tuple[int, ...] = setting((64, 128), ge=1, le=10**6)  # widths of the dense layers before the last one
    layout: Literal["24/same", "32/valid"] = "24/same"  # size of the input and kind of padding (A1)
    leak: float = setting(0.0, ge=0, lt=1, silent=True)  # slope below zero of a leaky ReLU; 0 is ReLU, as in the paper

    @lru_cache  # one model for one description: equal experiments share compiled programs
    def build(self, shape: tuple[int, ...], classes: int) -> Model:
        """For inputs of this shape, [height, width, channels]."""
        built = _Build(self, shape, classes)
        return Model(built.init, built.apply, built.features, built.narrow, Spec(self, shape, classes), f"dense{len(self.dense)}")


@dataclass(frozen=True)
class _Build:
    cnn: CNN
    shape: tuple[int, ...]
    classes: int

    def init(self, key: Any) -> dict[str, Any]:
        convs = list(zip((self.shape[-1], *self.cnn.filters), self.cnn.filters, strict=False))
        stack = {f"conv{i}": {"w": _floats(3, 3, a, b), "b": _floats(b)} for i, (a, b) in enumerate(convs)}
        width = jax.eval_shape(self._flat, stack, _floats(1, *self.shape)).shape[-1]
        units = (*self.cnn.dense, self.classes)
        sizes = [*((9 * a, b) for a, b in convs), *zip((width, *units), units, strict=False)]
        drawn = dense_inits(jax.random.split(key, len(sizes)), sizes)
        names = [*stack, *(f"dense{i}" for i in range(len(units)))]
        return {name: as_conv(layer) if name in stack else layer for name, layer in zip(names, drawn, strict=True)}

    def apply(self, params: Any, x: Array, key: Any = None) -> Array:
        x = self._flat(params, x)
        for i in range(len(self.cnn.dense)):
            x = relu(dense(params[f"dense{i}"], x), self.cnn.leak)
        return dense(params[f"dense{len(self.cnn.dense)}"], x)

    def features(self, params: Any, x: Array, key: Any = None) -> tuple[Array, dict[str, Array]]:
        seen = {}
        for i, layer in enumerate(self._stack(params)):
            seen[f"conv{i}"] = x = conv_stack([layer], x, self._padding, self.cnn.leak)
        x = x.reshape(len(x), -1)
        for i in range(len(self.cnn.dense)):
            seen[f"dense{i}"] = x = relu(dense(params[f"dense{i}"], x), self.cnn.leak)
        return dense(params[f"dense{len(self.cnn.dense)}"], x), seen

    def narrow(self, rate: float) -> Narrow:
        part = replace(self.cnn, filters=scaled(self.cnn.filters, rate), dense=scaled(self.cnn.dense, rate))
        sub = part.build(self.shape, self.classes)
        shapes = jax.eval_shape(sub.init, jax.ShapeDtypeStruct((2,), "uint32"))
        places: dict[str, Any] = {
            f"conv{i}": {k: prefix(*v.shape) for k, v in shapes[f"conv{i}"].items()} for i in range(len(part.filters))
        }
        pixels = shapes["dense0"]["w"].shape[0] // part.filters[-1]
        inputs = blocks(pixels, self.cnn.filters[-1], part.filters[-1])
        for i, units in enumerate((*part.dense, self.classes)):
            places[f"dense{i}"] = dense_places(inputs, np.arange(units))
            inputs = np.arange(units)
        return narrowed(sub, places)

    def _flat(self, params: Any, x: Array) -> Array:
        return conv_stack(self._stack(params), x, self._padding, self.cnn.leak).reshape(len(x), -1)

    def _stack(self, params: Any) -> list[tuple[Any, bool]]:
        """Each convolution's parameters, and whether a max-pool follows it."""
        last, same = len(self.cnn.filters) - 1, self.cnn.layout == "24/same"
        return [(params[f"conv{i}"], (i < 2) if same else (i >= last - 1)) for i in range(last + 1)]

    @property
    def _padding(self) -> str:
        return "SAME" if self.cnn.layout == "24/same" else "VALID"


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")
