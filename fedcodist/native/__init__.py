"""The 3x3 convolution, ReLU with a max-pool, and how images are seen, as kernels for x86-64 processors behind XLA's foreign function
interface.

Forward and gradients, several times as fast as what XLA makes of the portable forms on a CPU. Which instructions to use (AVX-512, AVX2 or
SSE2) is decided when a program is traced, by the processor that it runs on. float32, stride 1, any sizes; for anything else, on other
machines and without a compiled library `fits` says no and models/layers.py takes the portable forms. FEDCODIST_NATIVE=0 turns the kernels
off and FEDCODIST_NATIVE=avx2 (or another) takes these instructions. Deliberately absent: other kernel sizes and strides, threads (the
engine has them), and forward-mode or second derivatives (JAX says so when they are asked for; turn the kernels off for them).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedcodist.errors import ConfigError
from fedcodist.native.build import HERE, LIBRARY, digest, supported
from fedcodist.settings import Problem, show
from fedcodist.types import Array

SWITCH = "FEDCODIST_NATIVE"
PATHS = ("sse2", "avx2", "avx512")  # in the order of the numbers that the library gives them, from 1
PADS = {"VALID": 0, "SAME": 1}
TARGETS = (
    "fedcodist_conv3x3", "fedcodist_conv3x3_dx", "fedcodist_conv3x3_dw", "fedcodist_relu_pool", "fedcodist_relu_pool_dx", "fedcodist_see",
)  # fmt: skip


class Found(NamedTuple):
    """The instruction sets that can be used, best last, or why there are none."""

    paths: tuple[str, ...]
    why: str = ""


def describe() -> str:
    """What convolutions run on: "avx512", "avx2", "sse2", or "none" and the reason."""
    return path() or f"none ({_why_not()})"


def path() -> str:
    """The instruction set that a program traced now would use; empty for none."""
    return "" if _why_not() else _asked() or _load().paths[-1]


def fits(x: Array, w: Array, b: Array, padding: str) -> bool:
    """Whether the kernels are there and made for such arrays; x is [batch, height, width, channels], w [3, 3, channels, filters]."""
    if not path() or padding not in PADS or any(a.dtype != jnp.float32 for a in (x, w, b)):
        return False
    room = 2 - 2 * PADS[padding]  # what a convolution takes off the height and the width
    return w.shape[:2] == (3, 3) and min(*x.shape, *w.shape) > 0 and min(x.shape[1:3]) > room


def conv3x3(x: Array, w: Array, b: Array, padding: str) -> Array:
    """A 3x3 convolution with stride 1 of arrays that fit."""
    return _conv(x, w, b, PADS[padding], 1 + PATHS.index(path()))


def relu_pool(x: Array) -> Array:
    """ReLU and then a 2x2 max-pool with stride 2, of an array that fits_pool; the same bits as the portable forms, gradient and all."""
    return _relu_pool(x, 1 + PATHS.index(path()))


def fits_pool(x: Array) -> bool:
    """Whether relu_pool can take it, [batch, height, width, channels]."""
    return bool(path()) and x.dtype == jnp.float32 and x.ndim == 4 and min(x.shape) > 0 and min(x.shape[1:3]) > 1


def see(x: Array, corner: Array, flip: Array, size: int, floor: float) -> Array:
    """Images of bytes that fits_see, cropped at corner [batch, 2], flipped where flip [batch] says so, and standardised."""
    draws = jnp.concatenate([corner, flip[:, None]], 1, dtype=jnp.int32)
    out = jax.ShapeDtypeStruct((len(x), size, size, x.shape[-1]), jnp.float32)
    call = jax.ffi.ffi_call(TARGETS[5], out, vmap_method="sequential")
    return call(x, draws, floor=np.float32(floor), path=np.int32(1 + PATHS.index(path())))


def fits_see(x: Array, size: int) -> bool:
    """Whether `see` can take it, [batch, height, width, channels]."""
    return bool(path()) and x.dtype == jnp.uint8 and x.ndim == 4 and min(x.shape) > 0 and min(x.shape[1:3]) >= size > 0


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _conv(x: Array, w: Array, b: Array, pad: int, path: int) -> Array:
    batch, height, width, _ = x.shape
    out = jax.ShapeDtypeStruct((batch, height + 2 * pad - 2, width + 2 * pad - 2, w.shape[-1]), jnp.float32)
    return _call(TARGETS[0], out, x, w, b, pad=pad, path=path)


def _conv_forward(x: Array, w: Array, b: Array, pad: int, path: int) -> tuple[Array, tuple[Array, Array]]:
    return _conv(x, w, b, pad, path), (x, w)


def _conv_backward(pad: int, path: int, kept: tuple[Array, Array], grad: Array) -> tuple[Array, Array, Array]:
    x, w = kept
    like_x, like_w, like_b = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (x.shape, w.shape, w.shape[-1:]))
    # Two calls and not one: nobody needs the input gradient of the first layer, and XLA leaves out a call that nobody needs.
    dx = _call(TARGETS[1], like_x, grad, w, pad=pad, path=path)
    dw, db = _call(TARGETS[2], (like_w, like_b), x, grad, pad=pad, path=path)
    return dx, dw, db


_conv.defvjp(_conv_forward, _conv_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _relu_pool(x: Array, path: int) -> Array:
    batch, height, width, channels = x.shape
    return _call(TARGETS[3], jax.ShapeDtypeStruct((batch, height // 2, width // 2, channels), jnp.float32), x, path=path)


def _relu_pool_forward(x: Array, path: int) -> tuple[Array, Array]:
    return _relu_pool(x, path), x


def _relu_pool_backward(path: int, x: Array, grad: Array) -> tuple[Array]:
    return (_call(TARGETS[4], jax.ShapeDtypeStruct(x.shape, jnp.float32), x, grad, path=path),)


_relu_pool.defvjp(_relu_pool_forward, _relu_pool_backward)


def _call(target: str, out: Any, *args: Array, **numbers: int) -> Any:
    # Under vmap one call after the other: on a CPU that loses nothing.
    return jax.ffi.ffi_call(target, out, vmap_method="sequential")(*args, **{name: np.int32(n) for name, n in numbers.items()})


def _why_not() -> str:
    asked = os.environ.get(SWITCH, "1")
    if asked == "0":
        return f"{SWITCH}=0"
    if asked not in ("", "1", *PATHS):
        raise ConfigError(str(Problem(SWITCH, show(asked), f"0, 1, {', '.join(PATHS)}")))
    if jax.default_backend() != "cpu":
        return f"the device is a {jax.default_backend()}"
    found = _load()
    if found.paths and asked in PATHS and asked not in found.paths:
        return f"{SWITCH}={asked}, which this processor does not have"
    return found.why


def _asked() -> str:
    asked = os.environ.get(SWITCH, "")
    return asked if asked in PATHS else ""


@cache
def _load() -> Found:
    again = "python -m fedcodist.native build"
    if not supported():
        return Found((), "the kernels are for Linux or macOS on x86-64")
    if not (HERE / LIBRARY).is_file():
        return Found((), f"no compiled library; {again} makes one if there is a C++ compiler")
    try:
        library = ctypes.cdll.LoadLibrary(str(HERE / LIBRARY))
        library.fedcodist_source.restype = ctypes.c_char_p
        if library.fedcodist_source().decode() != digest():
            return Found((), f"the library was compiled from other sources; {again}")
        for target in TARGETS:
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
        return Found(PATHS[: library.fedcodist_best_path()])
    except (OSError, AttributeError, RuntimeError, ValueError) as error:  # of another system, or for another XLA
        return Found((), f"the library cannot be used, {str(error).splitlines()[0]}; {again}")
