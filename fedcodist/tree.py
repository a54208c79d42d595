"""The paper's vector algebra on parameter trees: one global L2 norm (A26), plus, minus, times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from fedcodist.types import Array, Tree

T = TypeVar("T", bound=type)


def node(*leaves: str) -> Callable[[T], T]:
    """A class decorator: make a dataclass a pytree with these fields as its leaves (or subtrees). A compiled program takes them as
    arguments, so that another value compiles nothing; the other fields belong to the program's identity.

    >>> @node("lr")
    ... @dataclasses.dataclass(frozen=True)
    ... class Steps:
    ...     lr: float
    ...     many: int
    >>> jax.tree.map(lambda leaf: 2 * leaf, Steps(0.5, 3))
    Steps(lr=1.0, many=3)
    """

    def register(cls: T) -> T:
        rest = [field.name for field in dataclasses.fields(cls) if field.init and field.name not in leaves]

        def flatten(part: Any) -> tuple[list[Any], tuple[Any, ...]]:
            # The class is part of the structure: otherwise JAX takes two classes with equal fields for equal, and shares their programs.
            return [getattr(part, name) for name in leaves], (cls, *(getattr(part, name) for name in rest))

        def unflatten(fixed: tuple[Any, ...], given: Any) -> Any:
            return cls(**dict(zip(leaves, given, strict=True)), **dict(zip(rest, fixed[1:], strict=True)))

        jax.tree_util.register_pytree_node(cls, flatten, unflatten)
        return cls

    return register


def add(a: Tree, b: Tree) -> Tree:
    """a + b, leaf by leaf."""
    return jax.tree.map(jnp.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """a - b, leaf by leaf."""
    return jax.tree.map(jnp.subtract, a, b)


def scale(a: Tree, c: Array | float) -> Tree:
    """c a, leaf by leaf."""
    return jax.tree.map(lambda leaf: leaf * c, a)


def zeros(a: Tree) -> Tree:
    """Zeros in the shape of a."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), a)


@partial(jax.jit, inline=True)  # one program where it is called by itself, and nothing more inside another
def dot(a: Tree, b: Tree) -> Array:
    """The inner product over all leaves."""
    return jnp.asarray(sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)))


@partial(jax.jit, inline=True)
def norm(a: Tree) -> Array:
    """The L2 norm of the whole tree as one vector.

    >>> import jax.numpy as jnp
    >>> float(norm({"w": jnp.array([3.0]), "b": jnp.array([4.0])}))
    5.0
    """
    return jnp.sqrt(dot(a, a))


def finite(a: Tree) -> Array:
    """True where every number of the tree is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(a)]))


def nbytes(a: Tree) -> int:
    """How many bytes its arrays, or their shapes, have.

    >>> import numpy as np
    >>> nbytes({"w": np.zeros((2, 3), np.float32)})
    24
    """
    return sum(int(leaf.size) * leaf.dtype.itemsize for leaf in jax.tree.leaves(a))


def size(a: Tree) -> int:
    """How many numbers the tree holds.

    >>> import numpy as np
    >>> size({"w": np.zeros((2, 3)), "b": np.zeros(3)})
    9
    """
    return sum(int(leaf.size) for leaf in jax.tree.leaves(a))
