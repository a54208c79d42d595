"""Losses that are functions of the target and the student's logits, one number a prediction: [..., classes] to [...].

A loss of your own has the same shape, `loss(target, logits)`, and is named in a config as "module:function".
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedcodist import losses
from fedcodist.losses import divergence
from fedcodist.types import Array

Loss = Callable[..., Array]


def declared(loss: Loss) -> Loss:
    """A decorator: what `fedcodist list losses` says of a loss that needs the logits alone, on public data at the server."""
    vars(loss).update(kind=getattr(loss, "__name__", ""), consumes=("public data",), secure=True, needs="")
    return loss


kl = declared(losses.kl)


@declared
def reverse_kl(target: Array, logits: Array) -> Array:
    """KL(student || target): the student may pick one mode of the target."""
    return divergence(jax.nn.log_softmax(logits), jax.nn.log_softmax(target))


@declared
def js(target: Array, logits: Array) -> Array:
    """The Jensen-Shannon divergence: symmetric, and at most log 2."""
    p, q = jax.nn.log_softmax(target), jax.nn.log_softmax(logits)
    middle = jnp.logaddexp(p, q) - jnp.log(2.0)
    return 0.5 * divergence(p, middle) + 0.5 * divergence(q, middle)


@declared
def mse_logits(target: Array, logits: Array) -> Array:
    """The mean squared difference of the logits themselves; most useful with mix = "logits"."""
    return jnp.mean((target - logits) ** 2, -1)
