"""Distillation losses: functions of the target and the student's logits, one number a prediction.

A target comes as logits too: any numbers whose softmax is the target distribution. With `mix = "probs"` they are log-probabilities.
A loss of your own has the same shape, `loss(target, logits) -> [...]` without the last axis, and goes where these go.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedcodist import imports
from fedcodist.types import Array

Loss = Callable[[Array, Array], Array]


def declared(loss: Loss) -> Loss:
    """A decorator: what `fedcodist list losses` says of a loss that needs the logits alone, on public data at the server."""
    vars(loss).update(consumes=("public data",), secure=True)
    return loss


@declared
def kl(target: Array, logits: Array) -> Array:
    """KL(target || student), the paper's loss (A22): the student must cover everything that the target considers possible.

    >>> import jax.numpy as jnp
    >>> round(float(kl(jnp.log(jnp.array([0.5, 0.5])), jnp.log(jnp.array([0.25, 0.75])))), 4)
    0.1438
    """
    return _kl(jax.nn.log_softmax(target), jax.nn.log_softmax(logits))


@declared
def reverse_kl(target: Array, logits: Array) -> Array:
    """KL(student || target): the student may pick one mode of the target."""
    return _kl(jax.nn.log_softmax(logits), jax.nn.log_softmax(target))


@declared
def js(target: Array, logits: Array) -> Array:
    """The Jensen-Shannon divergence: symmetric, and at most log 2."""
    p, q = jax.nn.log_softmax(target), jax.nn.log_softmax(logits)
    middle = jnp.logaddexp(p, q) - jnp.log(2.0)
    return 0.5 * _kl(p, middle) + 0.5 * _kl(q, middle)


@declared
def mse_logits(target: Array, logits: Array) -> Array:
    """The mean squared difference of the logits themselves; most useful with mix = "logits"."""
    return jnp.mean((target - logits) ** 2, -1)


LOSSES: dict[str, Loss] = {f.__name__: f for f in (kl, reverse_kl, js, mse_logits)}


def resolve(loss: str | Loss) -> Loss:
    """A loss by its name, by "module:function", or itself."""
    if not isinstance(loss, str):
        return loss
    if loss in LOSSES:
        return LOSSES[loss]
    if not all(loss.partition(":")):
        raise ValueError(f"distillation loss: got {loss!r}; allowed {', '.join(LOSSES)} or module:function")
    try:
        return imports.function(loss)
    except ValueError as error:
        raise ValueError(f"distillation loss: got {loss!r}, {error}") from None


def _kl(p: Array, q: Array) -> Array:
    weight = jnp.exp(p)
    return jnp.sum(jnp.where(weight > 0, weight * (p - q), 0.0), -1)
