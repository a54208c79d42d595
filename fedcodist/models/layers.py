"""Layers as plain functions, written for XLA on a CPU, with haiku's initialisation (A5).

A 3x3 convolution is a native kernel where there is one, and otherwise im2col and one matrix product; a max-pool is the maximum of strided
slices: XLA's own forms of both are many times slower inside a scan on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import native
from fedcodist.types import Array


def dense_init(key: Any, fan_in: int, fan_out: int) -> dict[str, Array]:
    """Truncated normal with standard deviation 1/sqrt(fan_in) before truncation at two of them, as haiku draws it; zero bias."""
    w = jax.random.truncated_normal(key, -2.0, 2.0, (fan_in, fan_out)) * fan_in**-0.5
    return {"w": w, "b": jnp.zeros(fan_out)}


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


def conv_init(key: Any, channels: int, filters: int) -> dict[str, Array]:
    """A 3x3 kernel, [3, 3, channels, filters]."""
    flat = dense_init(key, 9 * channels, filters)
    return {"w": flat["w"].reshape(3, 3, channels, filters), "b": flat["b"]}


def conv3x3(params: Any, x: Array, padding: str) -> Array:
    """A 3x3 convolution with stride 1; [batch, height, width, channels]."""
    if native.fits(x, params["w"], params["b"], padding):
        return native.conv3x3(x, params["w"], params["b"], padding)
    return im2col3x3(params, x, padding)


def im2col3x3(params: Any, x: Array, padding: str) -> Array:
    """The portable form of conv3x3: the nine shifted images on top of each other, and one matrix product."""
    return _swap(_im2col(params, _swap(x), padding))


def conv_stack(stack: Sequence[tuple[Any, bool]], x: Array, padding: str) -> Array:
    """Convolutions with ReLU, those whose flag says so followed by a max-pool; [batch, height, width, channels]."""
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
