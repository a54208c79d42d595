"""What a node of a gossip network does when it wakes up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.types import Data, Model, Objective, Reply, Tree
from fedcodist.work import LocalSGD, descend, reply

NOISE = 2**32 - 1  # the place of the noise among a client's random numbers, beyond all epochs


@tree.node("sgd", "clip", "noise")
@dataclass(frozen=True)
class NodeSGD:
    """LocalSGD from the node's own model, with an update of norm `clip` at most and normal noise of `noise` times that; None: any."""

    sgd: LocalSGD
    clip: float | None
    noise: float

    def __call__(self, model: Model, objective: Objective, sent: Tree, data: Data, key: Any) -> Reply:
        said = reply(data.own, data, *descend(self.sgd, model, objective, data.own, data, key))
        grad = said.value
        if self.clip is not None:
            short = jnp.minimum(1.0, self.clip / jnp.maximum(tree.norm(grad), 1e-12))
            leaves, form = jax.tree.flatten(tree.scale(grad, short))
            width = self.noise * self.clip * (data.n > 0)  # a client without examples says nothing
            draws = jax.random.split(jax.random.fold_in(key, jnp.uint32(NOISE)), len(leaves))
            grad = jax.tree.unflatten(form, [g + width * jax.random.normal(k, g.shape) for k, g in zip(draws, leaves, strict=True)])
        return said._replace(value=grad, own=tree.sub(data.own, grad))
