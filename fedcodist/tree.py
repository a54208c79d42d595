"""The paper's vector algebra on parameter trees: one global L2 norm (A26), plus, minus, times. Nothing clever."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from fedcodist.types import Array, Tree


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


def size(a: Tree) -> int:
    """How many numbers the tree holds.

    >>> import numpy as np
    >>> size({"w": np.zeros((2, 3)), "b": np.zeros(3)})
    9
    """
    return sum(int(leaf.size) for leaf in jax.tree.leaves(a))
