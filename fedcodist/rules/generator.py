"""FedFTG's generator: inputs of a given class from noise, for images by two upsampling convolutions, for vectors by one hidden layer.

Batch normalisation goes by the batch alone, so nothing is tracked, and the output is normalised channel by channel without a scale of its
own: inputs of the tasks here have mean zero and variance one. A layer before a normalisation has no bias: its gradient would be rounding
errors, of which Adam makes whole steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import native
from fedcodist.types import Array, Params

WIDE, NARROW = 128, 64  # channels after the first and the second convolution; a vector's hidden layer is as wide as the first
TINY = 1e-5  # beside a variance


@dataclass(frozen=True)
class Generator:
    """A generator of inputs of this shape, [height, width, channels] or [features]."""

    shape: tuple[int, ...]
    classes: int
    noise: int  # numbers that an input is made from, besides its class

    def init(self, key: Any) -> Params:
        """Drawn as other layers are."""
        if len(self.shape) != 3:
            sizes = {"first": (self.noise + self.classes, WIDE), "last": (WIDE, math.prod(self.shape))}
            return self._drawn(key, sizes)
        sizes = {
            "first": (self.noise + self.classes, math.prod(self._start)),
            "middle": (3, 3, WIDE, WIDE),
            "late": (3, 3, WIDE, NARROW),
            "last": (3, 3, NARROW, self.shape[-1]),
        }
        return self._drawn(key, sizes)

    def apply(self, params: Params, noise: Array, y: Array) -> Array:
        """[batch, *shape] of these classes."""
        x = jnp.concatenate([noise, jax.nn.one_hot(y, self.classes)], -1) @ params["first"]["w"]
        if len(self.shape) != 3:
            x = jax.nn.leaky_relu(_normal(params["first"], x), 0.2)
            return _still(x @ params["last"]["w"]).reshape(-1, *self.shape)
        x = _normal(None, x.reshape(-1, *self._start))
        for name in ("middle", "late"):
            x = jax.nn.leaky_relu(_normal(params[name], _conv(params[name], _twice(x))), 0.2)
        x = _still(jnp.tanh(_normal(params["last"], _conv(params["last"], x))))
        return x[:, : self.shape[0], : self.shape[1]]

    def _drawn(self, key: Any, sizes: dict[str, tuple[int, ...]]) -> Params:
        return {name: _layer(jax.random.fold_in(key, i), size) for i, (name, size) in enumerate(sizes.items())}

    @property
    def _start(self) -> tuple[int, int, int]:
        """What is upsampled twice; where four does not divide an image, its edge is cut off."""
        return -(-self.shape[0] // 4), -(-self.shape[1] // 4), WIDE


def _layer(key: Any, shape: tuple[int, ...]) -> Params:
    w = jax.random.truncated_normal(key, -2.0, 2.0, shape) * math.prod(shape[:-1]) ** -0.5
    return {"w": w, "scale": jnp.ones(shape[-1]), "shift": jnp.zeros(shape[-1])}


def _conv(params: Params, x: Array) -> Array:
    w, none = params["w"], jnp.zeros(params["w"].shape[-1])
    if native.fits(x, w, none, "SAME"):
        return native.conv3x3(x, w, none, "SAME")
    return jax.lax.conv_general_dilated(jnp.asarray(x), w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _twice(x: Array) -> Array:
    return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)


def _still(x: Array) -> Array:
    axes = tuple(range(x.ndim - 1))
    return (x - x.mean(axes)) * jax.lax.rsqrt(x.var(axes) + TINY)


def _normal(params: Params | None, x: Array) -> Array:
    return _still(x) if params is None else _still(x) * params["scale"] + params["shift"]
