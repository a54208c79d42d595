"""Mean inputs of each label, which clients of HFD share once, and training on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.methods.tables import Table, by_label, class_means, others
from fedcodist.types import Array, Data, Model, Objective, Reply, Work

ROWS = 20  # in one step of a pass that trains nothing


def mean_inputs(objective: Objective, data: Data, nothing: Table) -> Table:
    """The mean of a client's inputs of each label, as flat rows."""
    return by_label(lambda x: objective.inputs(x).reshape(len(x), -1), data, ROWS, nothing)


@tree.node()
@dataclass(frozen=True)
class Share:
    """A client's mean inputs, over its number of examples: the fold multiplies by that again. It is sent an empty table."""

    def __call__(self, model: Model, objective: Objective, sent: Table, data: Data, key: Any) -> Reply:
        mine = mean_inputs(objective, data, sent)
        return Reply(tree.scale(mine, 1 / jnp.maximum(data.n, 1)), data.n.astype(jnp.float32), {"loss": jnp.zeros(())})


@tree.node("work", "weight")
@dataclass(frozen=True)
class OnMeanInputs:
    """A work on the loss with the others' predictions of mean inputs in it; else as FD's."""

    work: Work
    weight: float

    def __call__(self, model: Model, objective: Objective, sent: tuple[Table, Table], data: Data, key: Any) -> Reply:
        total, inputs = sent
        params, table = data.own
        target, told = others(total, table)
        x, there = others(inputs, mean_inputs(objective, data, tree.zeros(inputs)))
        known = told & there

        def apply(params: Any, rows: Array, key: Any = None) -> tuple[Array, Array, Array]:
            drawn = jax.random.categorical(key, jnp.where(known, 0.0, -1e9), shape=(len(rows),))
            return model.apply(params, rows, key), model.apply(params, x[drawn].reshape(rows.shape), key), drawn

        both: Any = _Both(objective, target, known, self.weight)
        reply = self.work(model._replace(apply=apply), both, params, data._replace(own=()), key)
        params = tree.sub(params, reply.value)
        now = class_means(model, objective, params, data, ROWS)
        return Reply(tree.scale(tree.sub(now, table), 1 / jnp.maximum(data.n, 1)), reply.weight, reply.info, (params, now))


@dataclass(frozen=True)
class _Both:
    of: Objective
    target: Array  # [classes, classes]
    known: Array  # [classes]
    weight: Any

    def inputs(self, x: Array, key: Any = None) -> Array:
        return self.of.inputs(x, key)

    def loss(self, logits: tuple[Array, Array, Array], y: Array) -> Array:
        own, means, drawn = logits
        term = -jnp.sum(self.target[drawn] * jax.nn.log_softmax(means), -1)
        return self.of.loss(own, y) + self.weight * jnp.where(self.known[drawn], term, 0.0)
