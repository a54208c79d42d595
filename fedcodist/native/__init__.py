"""The 3x3 convolution, alone or with ReLU and a max-pool after it, how images are seen, a dense layer's gradients for a small batch,
and a few random bits: kernels for x86-64 processors behind XLA's foreign function interface.

Forward and gradients, several times as fast as what XLA makes of the portable forms on a CPU. Which instructions to use (AVX-512, AVX2 or
SSE2) is decided when a program is traced, by the processor that it runs on. float32, stride 1, any sizes; for anything else, on other
machines and without a compiled library `fits` says no and models/layers.py takes the portable forms. FEDCODIST_NATIVE=0 turns the kernels
off and FEDCODIST_NATIVE=avx2 (or another) takes these instructions. Deliberately absent: other kernel sizes and strides, threads (the
engine has them), and forward-mode or second derivatives (JAX says so when they are asked for; turn the kernels off for them).
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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
TARGETS = ("conv3x3", "conv3x3_dx", "conv3x3_dw", "pool", "pool_dx", "pool_dw", "see", "dense", "bits")
MOST_ROWS = 64  # of a dense layer's batch: of more rows XLA's own product turns the weights for less than it gains
FEW_BITS = 4096  # words: more of them XLA draws faster


_off: ContextVar[bool] = ContextVar("portable", default=False)


class Found(NamedTuple):
    """The instruction sets that can be used, best last, or why there are none."""

    paths: tuple[str, ...]
    why: str = ""


@contextmanager
def portable() -> Iterator[None]:
    """Whatever is traced inside takes the portable forms, as for counting: what a kernel does cannot be seen in a program."""
    before = _off.set(True)
    try:
        yield
    finally:
        _off.reset(before)


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


def fits_pool(x: Array, w: Array, b: Array, padding: str) -> bool:
    """The same for a convolution with a pool: there must be a window."""
    return fits(x, w, b, padding) and min(x.shape[1:3]) > 3 - 2 * PADS[padding]


def conv3x3(x: Array, w: Array, b: Array, padding: str) -> Array:
    """A 3x3 convolution with stride 1 of arrays that fit."""
    return _conv(x, w, b, PADS[padding], 1 + PATHS.index(path()))


def conv3x3_pool(x: Array, w: Array, b: Array, padding: str) -> Array:
    """A 3x3 convolution of arrays that fits_pool, ReLU, and a 2x2 max-pool with stride 2: in one kernel, so that the convolution's
    output, four times as large as the rest, is never in memory as a whole."""
    return _pool(x, w, b, PADS[padding], 1 + PATHS.index(path()))


def see(x: Array, corner: Array, flip: Array, size: int, floor: float) -> Array:
    """Images of bytes that fits_see, cropped at corner [batch, 2], flipped where flip [batch] says so, and standardised."""
    draws = jnp.concatenate([corner, flip[:, None]], 1, dtype=jnp.int32)
    out = jax.ShapeDtypeStruct((len(x), size, size, x.shape[-1]), jnp.float32)
    return _call("see", out, x, draws, floor=np.float32(floor), path=1 + PATHS.index(path()))


def fits_see(x: Array, size: int) -> bool:
    """Whether `see` can take it, [batch, height, width, channels]."""
    return bool(path()) and x.dtype == jnp.uint8 and x.ndim == 4 and min(x.shape) > 0 and min(x.shape[1:3]) >= size > 0


def fits_dense(x: Array, w: Array, b: Array) -> bool:
    """Whether `dense` can take it: x is [rows, inputs], w [inputs, outputs]."""
    shaped = x.ndim == 2 and 0 < len(x) <= MOST_ROWS and min(w.shape) > 0
    return bool(path()) and shaped and all(a.dtype == jnp.float32 for a in (x, w, b))


def dense(x: Array, w: Array, b: Array) -> Array:
    """x w + b of arrays that fits_dense. The product is XLA's, and both gradients are one kernel: XLA would turn all the weights first."""
    return _dense(x, w, b, 1 + PATHS.index(path()))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dense(x: Array, w: Array, b: Array, path: int) -> Array:
    return x @ w + b


def _dense_forward(x: Array, w: Array, b: Array, path: int) -> tuple[Array, tuple[Array, Array]]:
    return x @ w + b, (x, w)


def _dense_backward(path: int, kept: tuple[Array, Array], grad: Array) -> tuple[Array, Array, Array]:
    x, w = kept
    dx, dw = _call("dense", (_floats(*x.shape), _floats(*w.shape)), x, w, grad, path=path)
    return dx, dw, grad.sum(0)


_dense.defvjp(_dense_forward, _dense_backward)


def bits(key: Array, shape: tuple[int, ...]) -> Array:
    """jax.random.bits: the same words, and few of them without the loop that XLA makes of it."""
    if not (path() and threefry(key) and 0 < math.prod(shape) <= FEW_BITS):
        return jax.random.bits(key, shape)
    return _call("bits", jax.ShapeDtypeStruct(shape, jnp.uint32), key)


def threefry(key: Array) -> bool:
    """Whether `jax.random` makes of this key the words that are known here."""
    raw = jnp.shape(key) == (2,) and getattr(key, "dtype", None) == jnp.uint32
    default = getattr(jax.config, "jax_default_prng_impl", "") == "threefry2x32"
    return raw and default and bool(getattr(jax.config, "jax_threefry_partitionable", False))


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _conv(x: Array, w: Array, b: Array, pad: int, path: int) -> Array:
    return _call("conv3x3", _floats(*_map(x, w, pad)), x, w, b, pad=pad, path=path)


def _conv_forward(x: Array, w: Array, b: Array, pad: int, path: int) -> tuple[Array, tuple[Array, Array]]:
    return _conv(x, w, b, pad, path), (x, w)


def _backward(name: str, pad: int, path: int, kept: tuple[Array, ...], grad: Array) -> tuple[Array, Array, Array]:
    x, w, *winners = kept
    # Two calls and not one: nobody needs the input gradient of the first layer, and XLA leaves out a call that nobody needs.
    dx = _call(f"{name}_dx", _floats(*x.shape), grad, *winners, w, pad=pad, path=path)
    dw, db = _call(f"{name}_dw", (_floats(*w.shape), _floats(w.shape[-1])), x, grad, *winners, pad=pad, path=path)
    return dx, dw, db


_conv.defvjp(_conv_forward, partial(_backward, "conv3x3"))


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _pool(x: Array, w: Array, b: Array, pad: int, path: int) -> Array:
    return _pooled(x, w, b, pad, path)[0]


def _pooled(x: Array, w: Array, b: Array, pad: int, path: int) -> tuple[Array, Array]:
    """The pooled map, and in bits which pixels of a window are its maximum: all that the gradient needs to know of the map before."""
    batch, height, width, filters = _map(x, w, pad)
    pooled = batch, height // 2, width // 2, filters
    return _call("pool", (_floats(*pooled), jax.ShapeDtypeStruct(pooled, jnp.uint8)), x, w, b, pad=pad, path=path)


def _pool_forward(x: Array, w: Array, b: Array, pad: int, path: int) -> tuple[Array, tuple[Array, Array, Array]]:
    out, winners = _pooled(x, w, b, pad, path)
    return out, (x, w, winners)


_pool.defvjp(_pool_forward, partial(_backward, "pool"))


def _map(x: Array, w: Array, pad: int) -> tuple[int, int, int, int]:
    batch, height, width, _ = x.shape
    return batch, height + 2 * pad - 2, width + 2 * pad - 2, w.shape[-1]


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _call(target: str, out: Any, *args: Array, **numbers: Any) -> Any:
    # Under vmap one call after the other: on a CPU that loses nothing.
    call = jax.ffi.ffi_call(f"fedcodist_{target}", out, vmap_method="sequential")
    return call(*args, **{name: np.int32(n) if isinstance(n, int) else n for name, n in numbers.items()})


def _why_not() -> str:
    asked = os.environ.get(SWITCH, "1")
    if _off.get():
        return "portable forms were asked for"
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
        for target in (f"fedcodist_{target}" for target in TARGETS):
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, target)), platform="cpu")
        return Found(PATHS[: library.fedcodist_best_path()])
    except (OSError, AttributeError, RuntimeError, ValueError) as error:  # of another system, or for another XLA
        return Found((), f"the library cannot be used, {str(error).splitlines()[0]}; {again}")
