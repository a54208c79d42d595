"""HeteroFL (Diao, Ding and Tarokh 2021): every client trains the share of the model's width that it carries.

A client of rate r is sent a prefix of every hidden dimension, and each number of the wide model becomes the mean over the clients that hold
it; numbers that nobody held keep their value, and the server's optimizer leaves them alone. With one width and without its switches it is
FedAvg to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.rules.scaler import scaled
from fedcodist.rules.slices import Slices
from fedcodist.rules.submodels import Held
from fedcodist.settings import checked
from fedcodist.types import Answer, Array, Consumed, Data, Model, Narrow, Objective, Params, Reply, Work

if TYPE_CHECKING:
    from fedcodist.pool import Pool


def present(data: Data, classes: int) -> Array:
    """Which classes a client has examples of: [classes], 0 or 1."""
    y = jnp.asarray(data.y)
    real = (jnp.arange(len(y)) < data.n).reshape(-1, *[1] * (y.ndim - 1))
    return jnp.zeros(classes).at[y].max(jnp.broadcast_to(real, y.shape).astype(jnp.float32))


@tree.node("work")
@dataclass(frozen=True)
class OwnClasses:
    """A work that knows the client's classes: the logits of others are 0 in its loss (`mask`), and their rows of the output layer are left
    out of its gradient (`skip`), which then comes with the classes."""

    work: Work
    mask: bool
    skip: bool

    def __call__(self, model: Model, objective: Objective, sent: Params, data: Data, key: Any) -> Reply:
        own = present(data, jax.tree.leaves(sent[model.head])[0].shape[-1])

        def apply(params: Params, x: Array, key: Any = None) -> Array:
            logits = model.apply(params, x, key)
            return jnp.where(own > 0, logits, 0.0) if self.mask else logits

        reply = self.work(model._replace(apply=apply), objective, sent, data, key)
        if not self.skip:
            return reply
        rows = jax.tree.map(lambda leaf: jnp.where(own > 0, leaf, 0.0), reply.value[model.head])
        return reply._replace(value=({**reply.value, model.head: rows}, own))


@dataclass(frozen=True)
@checked
class HeteroFL(Slices):
    """Clients train sub-models of the widths that they carry; each number is averaged over those that hold it. `scaler` divides what a
    narrow layer gives by its rate, `mask_labels` keeps classes that a client lacks out of its loss, `skip_absent` their rows out of the
    mean."""

    kind: ClassVar[str] = "heterofl"
    consumes: ClassVar[tuple[Consumed, ...]] = ("label counts",)
    secure: ClassVar[bool] = True
    scaler: bool = True  # whether a layer's outputs are divided by the width's rate
    mask_labels: bool = True  # whether logits of classes that a client does not have are 0 in its loss
    skip_absent: bool = True  # whether the output rows of a class are the mean over the clients that have it only

    def network(self, sub: Narrow, rate: float) -> Model:
        return scaled(sub.model, rate) if self.scaler else sub.model

    def work(self, pool: Pool, k: int) -> Work:
        return OwnClasses(pool.work, self.mask_labels, self.skip_absent) if self.mask_labels or self.skip_absent else pool.work

    def held(self, pool: Pool, k: int, answer: Answer) -> tuple[Params, dict[int, Held]]:
        if not self.skip_absent:
            return super().held(pool, k, answer)
        sums, classes = answer.value
        return sums, {k: (answer.weight, classes)}

    def nobody(self, pool: Pool) -> Held:
        rows = jax.tree.leaves(pool.shapes[pool.model.head])[0].shape[-1:] if self.skip_absent else ()
        return jnp.zeros(()), jnp.zeros(rows)
