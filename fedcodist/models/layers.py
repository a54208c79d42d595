"""Layers as plain functions, written for XLA on a CPU, with haiku's initialisation (A5).

A 3x3 convolution is a native kernel where there is one, and otherwise im2col and one matrix product; a max-pool is the maximum of strided
slices: XLA's own forms of both are many times slower inside a scan on a CPU.
"""

from __future__ import annotations

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
    return (x.reshape(-1, x.shape[-1]) @ params["w"] + params["b"]).reshape(*x.shape[:-1], -1)


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
    """The portable form of conv3x3: the nine shifted images side by side, and one matrix product."""
    if padding == "SAME":
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    batch, height, width, channels = x.shape
    height, width = height - 2, width - 2
    patches = jnp.concatenate([x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)], -1)
    filters = params["w"].shape[-1]
    out = patches.reshape(-1, 9 * channels) @ params["w"].reshape(9 * channels, filters) + params["b"]
    return out.reshape(batch, height, width, filters)


def max_pool(x: Array) -> Array:
    """2x2 max-pool with stride 2; an odd last row or column is left out. Where two values tie, they share the gradient."""
    height, width = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2
    x = jnp.maximum(x[:, 0:height:2], x[:, 1:height:2])
    return jnp.maximum(x[:, :, 0:width:2], x[:, :, 1:width:2])


def relu_pool(x: Array) -> Array:
    """max_pool(relu(x)), to the bit; in one native kernel where there is one."""
    return native.relu_pool(x) if native.fits_pool(x) else max_pool(jax.nn.relu(x))
