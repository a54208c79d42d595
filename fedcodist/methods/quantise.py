"""Weights on a few centres, as QuPeD has them: every array of a model but its biases has a codebook of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist.types import Array, Params, Tree

MOST = 10.0  # the sum of a centre's gradients is clipped at this, as in the authors' code


def centres(params: Params, bits: int) -> Tree:
    """2^bits centres for each kernel, at evenly spaced quantiles of its numbers; for biases, or 0 bits, a place that is not used.

    >>> centres({"w": jnp.array([[-2.0, -1.0, 1.0, 2.0, 0.0]]), "b": jnp.zeros(3)}, 1)["w"].tolist()
    [-1.0, 1.0]
    """
    shares = (jnp.arange(2**bits) + 0.5) / 2**bits

    def of(leaf: Array) -> Array:
        return jnp.quantile(jnp.asarray(leaf), shares) if bits and leaf.ndim > 1 else jnp.zeros(1)

    return jax.tree.map(of, params)


def quantised(params: Params, codebooks: Tree) -> Params:
    """Every number on its nearest centre; biases as they are. A centre's gradient is the sum of those of the numbers on it.

    >>> quantised({"w": jnp.array([[-2.0, 0.4]]), "b": jnp.ones(1)}, {"w": jnp.array([-1.0, 1.0]), "b": jnp.zeros(1)})["w"].tolist()
    [[-1.0, 1.0]]
    """
    return jax.tree.map(lambda leaf, book: book[_nearest(leaf, book)] if book.size > 1 else leaf, params, codebooks)


def pulled(params: Params, codebooks: Tree, by: Any) -> Params:
    """The proximal map of `by` times the L1 distance from the nearest centres: every number that much closer to its own, within [-1, 1].

    >>> pulled({"w": jnp.array([[0.5, 0.9]])}, {"w": jnp.array([-1.0, 1.0])}, 0.25)["w"].tolist()
    [[0.75, 1.0]]
    """

    def pull(leaf: Array, book: Array) -> Array:
        if book.size == 1:
            return leaf
        apart = leaf - (centre := book[_nearest(leaf, book)])
        return jnp.clip(centre + jnp.sign(apart) * jnp.maximum(jnp.abs(apart) - by, 0.0), -1.0, 1.0)

    return jax.tree.map(pull, params, codebooks)


@partial(jax.custom_vjp)
def eased(codebooks: Tree, share: Any) -> Tree:
    """The same centres, whose gradients are clipped and then multiplied by `share`: their learning rate over that of the weights."""
    return codebooks


def _forward(codebooks: Tree, share: Any) -> tuple[Tree, Any]:
    return codebooks, share


def _backward(share: Any, grad: Tree) -> tuple[Tree, Any]:
    return jax.tree.map(lambda g: share * jnp.clip(g, -MOST, MOST), grad), jnp.zeros_like(share)


eased.defvjp(_forward, _backward)


def _nearest(leaf: Array, book: Array) -> Array:
    return jnp.argmin(jnp.abs(jax.lax.stop_gradient(leaf)[..., None] - book), -1)
