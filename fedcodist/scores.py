"""What metrics are made of: the predicted class, and the loss of a label."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from fedcodist.types import Array

MANY = 512  # classes


def argmax(logits: Array) -> Array:
    """argmax over the last axis. Of many classes in two stages, since XLA's argmax on a CPU takes one value at a time: the maxima of
    pieces, which is as fast as memory, then the first piece that has the largest.

    >>> argmax(jnp.zeros((1, 1000)).at[0, 777].set(1.0)).tolist(), argmax(jnp.zeros((1, 1000))).tolist()
    ([777], [0])
    """
    classes = logits.shape[-1]
    if classes < MANY:
        return jnp.argmax(logits, -1)
    width = math.isqrt(classes)
    pieces = classes // width
    table = logits[..., : pieces * width].reshape(*logits.shape[:-1], pieces, width)
    piece = jnp.argmax(jnp.max(table, -1), -1)
    inside = jnp.take_along_axis(table, piece[..., None, None], -2)[..., 0, :]
    found, value = piece * width + jnp.argmax(inside, -1), jnp.max(inside, -1)
    rest = logits[..., pieces * width :]
    if not rest.shape[-1]:
        return found
    return jnp.where(jnp.max(rest, -1) > value, pieces * width + jnp.argmax(rest, -1), found)


def cross_entropy(logits: Array, y: Array) -> Array:
    """The negative log-probability of each label."""
    picked = jnp.take_along_axis(logits, y[..., None].astype(jnp.int32), -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - picked
