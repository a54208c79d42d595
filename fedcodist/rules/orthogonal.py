"""Training that keeps a basis of filters near an orthonormal one: FLANC's work (rules/flanc.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.types import Array, Data, Model, Objective, Params, Reply, Tree
from fedcodist.work import LocalSGD, descend, reply


def apart(basis: Tree) -> Array:
    """How far the filters are from orthonormal: the sum over layers of the mean squared entry of B B^T - I."""

    def of_layer(leaf: Array) -> Array:
        rows = leaf.reshape(-1, leaf.shape[-1]).T  # [filters, numbers]
        return jnp.mean((rows @ rows.T - jnp.eye(len(rows))) ** 2)

    return sum(map(of_layer, jax.tree.leaves(basis)), jnp.zeros(()))


@tree.node("sgd", "weight")
@dataclass(frozen=True)
class Orthogonal:
    """LocalSGD on the loss plus `weight` times the distance of the basis from an orthonormal one (`on`: at all)."""

    sgd: LocalSGD
    weight: float
    on: bool

    def __call__(self, model: Model, objective: Objective, sent: Params, data: Data, key: Any) -> Reply:
        pull = jax.grad(lambda params: self.weight * apart(params["basis"])) if self.on else None
        return reply(sent, data, *descend(self.sgd, model, objective, sent, data, key, pull))
