"""Training on labels that another model gives, and an ensemble of such models: what AKD, AvgKD and EKD are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.types import Array, Data, Model, Objective, Params, Reply, Work


@tree.node("work", "own_weight")
@dataclass(frozen=True)
class Labelled:
    """A work whose labels are mixed with a labeller's predictions. It is sent (model, labeller's parameters, whether there is one)."""

    work: Work
    own_weight: float
    labeller: Model

    def __call__(self, model: Model, objective: Objective, sent: tuple[Params, Params, Array], data: Data, key: Any) -> Reply:
        params, other, there = sent
        share = jnp.where(there, self.own_weight, 1.0)

        def apply(params: Params, x: Array, key: Any = None) -> tuple[Array, Array]:
            return model.apply(params, x, key), jax.lax.stop_gradient(self.labeller.apply(other, x, None))

        mixed: Any = _Mixed(objective, share)
        return self.work(model._replace(apply=apply), mixed, params, data, key)


@dataclass(frozen=True)
class _Mixed:
    of: Objective
    share: Array

    def inputs(self, x: Array, key: Any = None) -> Array:
        return self.of.inputs(x, key)

    def loss(self, logits: tuple[Array, Array], y: Array) -> Array:
        own, labels = logits
        far = -jnp.sum(jax.nn.softmax(labels) * jax.nn.log_softmax(own), -1)
        return self.share * self.of.loss(own, y) + (1 - self.share) * jnp.mean(far.reshape(len(far), -1), -1)


@lru_cache(maxsize=64)  # one model for the same architectures: its programs are compiled once
def alternating(models: tuple[Model, ...]) -> Model:
    """The models of all periods, stacked by pool: the sum of their probabilities with alternating signs, as logits. Parameters
    of periods that are to come are zeros; what these say of all classes is the same, and moves no prediction."""

    def apply(params: tuple[Params, ...], x: Array, key: Any = None) -> Array:
        total = jnp.zeros(())
        for model, past in zip(models, params, strict=True):
            said = jax.lax.map(lambda p, m=model: jax.nn.softmax(m.apply(p, x, None)), past)
            total = total + jnp.tensordot(jnp.where(jnp.arange(len(said)) % 2, -1.0, 1.0), said, 1)
        return jnp.asarray(total)

    return Model(lambda key: tuple(model.init(key) for model in models), apply)
