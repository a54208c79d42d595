"""SGD of two models that learn from labels and from each other: what a client of QuPeD does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.methods.quantise import eased, pulled, quantised
from fedcodist.types import Array, Data, Model, Objective, Params, Reply
from fedcodist.work import LocalSGD, descend


@tree.node("sgd", "weight", "labels", "temperature", "pull", "centre_lr")
@dataclass(frozen=True)
class Mutual:
    """SGD of a personal and a common model together. It is sent (the common model, t, whether the personal one is on its centres for
    good), keeps (personal model, centres), and replies with the common model's gradient."""

    sgd: LocalSGD
    weight: float
    labels: float
    temperature: float
    pull: float
    centre_lr: float
    bits: int = 0

    def __call__(self, model: Model, objective: Objective, sent: tuple[Params, Array, Array], data: Data, key: Any) -> Reply:
        common, t, frozen = sent
        both: Any = _Both(self, objective)

        def apply(params: Any, x: Array, key: Any = None) -> tuple[Array, ...]:
            own, books, copy = params
            said = [model.apply(own, x, key), model.apply(copy, x, key)]
            hard = quantised(jax.lax.stop_gradient(own), eased(books, jnp.asarray(self.centre_lr / self.sgd.lr)))
            return (*said, model.apply(hard, x, key)) if self.bits else tuple(said)

        def onto(params: Any) -> Any:
            own, books, copy = params
            soft, hard = pulled(own, books, self.sgd.lr * self.pull * t), quantised(own, books)
            return jax.tree.map(lambda s, h: jnp.where(frozen, h, s), soft, hard), books, copy

        start, two = (*data.own, common), model._replace(apply=apply)
        (own, books, copy), loss = descend(self.sgd, two, both, start, data, key, prox=onto if self.bits else None)
        return Reply(tree.sub(common, copy), data.n.astype(jnp.float32), {"loss": loss}, (own, books))


@dataclass(frozen=True)
class _Both:
    """The loss of a row: of the personal model, in full and quantised, and of the common one."""

    how: Mutual
    of: Objective

    def inputs(self, x: Array, key: Any = None) -> Array:
        return self.of.inputs(x, key)

    def loss(self, logits: tuple[Array, ...], y: Array) -> Array:
        (own, common, *hard), how = logits, self.how
        teacher = jax.nn.log_softmax(common / how.temperature)

        def term(z: Array) -> Array:
            kd = jnp.sum(jnp.exp(teacher) * (teacher - jax.nn.log_softmax(z)), -1)
            kd = jnp.mean(kd.reshape(len(kd), -1), -1)  # of text, over its positions
            return (1 - how.weight) * self.of.loss(z, y) + how.weight * how.temperature**2 * kd

        return sum(map(term, hard), term(own)) + how.labels * self.of.loss(common, y)
