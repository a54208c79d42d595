"""The inputs of a student's loss in a distillation, and the paper's own loss. All other losses are in `techniques/`, by name.

A target comes as logits too: any numbers whose softmax is the target distribution. With `mix = "probs"` they are log-probabilities.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedcodist.types import Array, Key, Objective, Voice


class Lesson(NamedTuple):
    """What is known before the first step of a distillation."""

    student: Voice  # as it is now
    teachers: tuple[Voice | None, ...]  # in the order of a batch's logits; None is the student itself
    weights: Array  # [teachers]
    temperatures: Array  # [teachers]
    objective: Objective
    public: Array  # [rows, ...] public data, raw
    key: Key


class Batch(NamedTuple):
    """What is known in one step."""

    inputs: Array
    labels: Array | None
    rows: Array | None  # [batch] their places in the public data, if the loss asked for them
    target: Array  # the student's, as logits
    logits: tuple[Array, ...]  # each teacher's
    features: tuple[dict[str, Array], ...]  # each teacher's activations, in the layers that the loss asked for
    weights: Array  # [teachers]
    temperatures: Array  # [teachers]
    how: Any  # the Distiller
    step: Array


def technique(loss: Any) -> Any:
    """Any loss, or its name, as a `techniques.Technique`."""
    return _techniques().technique(loss)


def named(loss: Any) -> Any:
    """A loss as it stands in a Distiller: SettingError, if there is none of this name."""
    return _techniques().named(loss)


def read(value: Any, path: str, problems: list[Any]) -> Any:
    """A loss from a config: a name, "module:function", or a table with a kind and its keys."""
    return _techniques().read(value, path, problems)


def _techniques() -> Any:
    return importlib.import_module("fedcodist.techniques")  # by name, because the core imports none


def kl(target: Array, logits: Array) -> Array:
    """KL(target || student), the paper's loss (A22): the student must cover everything that the target considers possible.

    >>> import jax.numpy as jnp
    >>> round(float(kl(jnp.log(jnp.array([0.5, 0.5])), jnp.log(jnp.array([0.25, 0.75])))), 4)
    0.1438
    """
    return divergence(jax.nn.log_softmax(target), jax.nn.log_softmax(logits))


def divergence(p: Array, q: Array) -> Array:
    """KL(p || q) of log-probabilities."""
    weight = jnp.exp(p)
    return jnp.sum(jnp.where(weight > 0, weight * (p - q), 0.0), -1)
