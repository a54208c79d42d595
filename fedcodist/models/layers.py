"""Layers as plain functions, written for XLA on a CPU, with haiku's initialisation (A5).

A 3x3 convolution is a native kernel where there is one, and otherwise im2col and one matrix product; a max-pool is the maximum of strided
slices: XLA's own forms of both are many times slower inside a scan on a CPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

from fedcodist import native
from fedcodist.types import Array


def dense_init(key: Any, fan_in: int, fan_out: int) -> dict[str, Array]:
    """Truncated normal with standard deviation 1/sqrt(fan_in) before truncation at two of them, as haiku draws it; zero bias."""
    return dense_inits([key], [(fan_in, fan_out)])[0]


def dense_inits(keys: Any, sizes: Sequence[tuple[int, int]]) -> list[dict[str, Array]]:
    """`dense_init` of several layers, (fan_in, fan_out) each, every one by its own key."""
    return [{"w": w * w.shape[0] ** -0.5, "b": jnp.zeros(w.shape[1])} for w in normals(keys, sizes)]


def normals(keys: Any, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """`jax.random.truncated_normal(key, -2, 2, shape)` for each of several keys and shapes, to the bit. They are drawn as one vector: a
    draw of its own for each layer made the program of a model's first parameters take five times as long to compile."""
    if not native.threefry(keys[0]) or sum(map(math.prod, shapes)) >= 2**32:
        return [jax.random.truncated_normal(key, -2.0, 2.0, shape) for key, shape in zip(keys, shapes, strict=True)]
    starts = [0, *itertools.accumulate(math.prod(shape) for shape in shapes)]
    place = jax.lax.iota(jnp.uint32, starts[-1])
    high, low, first = (jnp.broadcast_to(value, place.shape) for value in (keys[0][0], keys[0][1], jnp.uint32(0)))
    for key, start in zip(keys[1:], starts[1:-1], strict=True):
        high, low, first = (jnp.where(place >= start, *pair) for pair in ((key[0], high), (key[1], low), (jnp.uint32(start), first)))
    words = jax.lax.bitwise_xor(*threefry2x32_p.bind(high, low, jnp.zeros_like(place), place - first))
    root, least, most = np.float32(np.sqrt(2)), np.float32(-2), np.float32(2)
    below, above = jax.lax.erf(least / root), jax.lax.erf(most / root)
    share = jax.lax.bitcast_convert_type(words >> 9 | np.float32(1).view(np.uint32), jnp.float32) - 1  # [0, 1)
    drawn = root * jax.lax.erf_inv(jnp.maximum(below, share * (above - below) + below))
    drawn = jnp.clip(drawn, np.nextafter(least, np.float32(np.inf)), np.nextafter(most, np.float32(-np.inf)))
    return [drawn[a:b].reshape(shape) for (a, b), shape in zip(itertools.pairwise(starts), shapes, strict=True)]


def dense(params: Any, x: Array) -> Array:
    """x w + b over the last axis. As one plain matrix product: the gradient of one with more axes would be transposed in memory."""
    rows, w, b = x.reshape(-1, x.shape[-1]), params["w"], params["b"]
    if native.fits_dense(rows, w, b):
        out = native.dense(rows, w, b)
    elif len(rows) <= native.MOST_ROWS and rows.dtype == w.dtype:
        out = _few_rows(rows, w) + b
    else:
        out = rows @ w + b
    return out.reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def _few_rows(x: Array, w: Array) -> Array:
    """x w. For the gradient of x XLA would transpose all the weights; behind optimization barriers it transposes the few rows."""
    return x @ w


def _few_rows_backward(kept: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, w = kept
    turned = jax.lax.optimization_barrier(w @ jax.lax.optimization_barrier(grad.T))
    return turned.T, x.T @ grad


_few_rows.defvjp(lambda x, w: (x @ w, (x, w)), _few_rows_backward)


def relu(x: Array, leak: float = 0.0) -> Array:
    """ReLU, or with a slope below zero the leaky one."""
    return jnp.where(x > 0, x, leak * x) if leak else jax.nn.relu(x)


def conv_init(key: Any, channels: int, filters: int) -> dict[str, Array]:
    """A 3x3 kernel, [3, 3, channels, filters]."""
    return as_conv(dense_init(key, 9 * channels, filters))


def as_conv(flat: dict[str, Array]) -> dict[str, Array]:
    """A dense layer's parameters, [9 channels, filters], as those of a 3x3 convolution."""
    return {"w": flat["w"].reshape(3, 3, -1, flat["w"].shape[1]), "b": flat["b"]}


def conv3x3(params: Any, x: Array, padding: str) -> Array:
    """A 3x3 convolution with stride 1; [batch, height, width, channels]."""
    if native.fits(x, params["w"], params["b"], padding):
        return native.conv3x3(x, params["w"], params["b"], padding)
    return im2col3x3(params, x, padding)


def im2col3x3(params: Any, x: Array, padding: str) -> Array:
    """The portable form of conv3x3: the nine shifted images on top of each other, and one matrix product."""
    return _swap(_im2col(params, _swap(x), padding))


def conv_stack(stack: Sequence[tuple[Any, bool]], x: Array, padding: str, leak: float = 0.0) -> Array:
    """Convolutions with ReLU, those whose flag says so followed by a max-pool; [batch, height, width, channels]."""
    if leak:  # no kernel joins it with its convolution
        for params, pooled in stack:
            x = relu(conv3x3(params, x, padding), leak)
            x = _swap(max_pool(_swap(x))) if pooled else x
        return x
    if stack and not native.fits(x, stack[0][0]["w"], stack[0][0]["b"], padding):
        x = _swap(x)  # once for the whole stack
        for params, pooled in stack:
            x = jax.nn.relu(_im2col(params, x, padding))
            x = max_pool(x) if pooled else x
        return _swap(x)
    for params, pooled in stack:
        x = conv_pool(params, x, padding) if pooled else jax.nn.relu(conv3x3(params, x, padding))
    return x


def conv_pool(params: Any, x: Array, padding: str) -> Array:
    """max_pool(relu(conv3x3)); in one native kernel where there is one."""
    if native.fits_pool(x, params["w"], params["b"], padding):
        return native.conv3x3_pool(x, params["w"], params["b"], padding)
    return max_pool(jax.nn.relu(im2col3x3(params, x, padding)))


def _swap(x: Array) -> Array:
    """[batch, height, width, channels] to [channels, height, width, batch], and back."""
    return x.transpose(3, 1, 2, 0)


def _im2col(params: Any, x: Array, padding: str) -> Array:
    """On [channels, height, width, batch]: shifts and pools then move whole runs of memory, and of the matrix products, gradients
    included, only small factors are transposed."""
    if padding == "SAME":
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    channels, height, width, batch = x.shape
    height, width, filters = height - 2, width - 2, params["w"].shape[-1]
    rows = jnp.concatenate([x[:, i : i + height] for i in range(3)])  # in two steps, or XLA computes x again for each of the nine
    patches = jnp.concatenate([rows[:, :, j : j + width] for j in range(3)]).reshape(9 * channels, -1)
    kernel = params["w"].transpose(1, 0, 2, 3).reshape(9 * channels, filters)
    return (kernel.T @ patches + params["b"][:, None]).reshape(filters, height, width, batch)


def max_pool(x: Array) -> Array:
    """2x2 max-pool with stride 2 of the middle axes; an odd last row or column is left out. Values that tie share the gradient."""
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = jnp.maximum(x[:, 0:height:2], x[:, 1:height:2])
    return jnp.maximum(x[:, :, 0:width:2], x[:, :, 1:width:2])
