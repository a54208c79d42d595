"""A client's training of nested prefixes, and a transmission that may break: FedResCuE's work (rules/fedrescue.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import losses, tree
from fedcodist.types import Array, Data, Model, Objective, Params, Reply, Work

BREAK = 2**31 - 1  # of a client's key: no step of its work has this number


class _Nested:
    """An objective of what the whole and some prefixes say: each learns the labels, and the prefixes what the whole says."""

    def __init__(self, objective: Objective):
        self.inputs, self._objective = objective.inputs, objective

    def loss(self, said: tuple[Array, list[Array], Array], y: Array) -> Array:
        whole, parts, mask = said
        total = self._objective.loss(whole, y)
        for part in parts:
            apart = losses.kl(jax.lax.stop_gradient(whole), part) * mask
            rows = apart.reshape(len(y), -1).sum(1) / jnp.maximum(mask.reshape(len(y), -1).sum(1), 1)  # a mean over a row's predictions
            total = total + self._objective.loss(part, y) + rows
        return total


@tree.node("work", "loss")
@dataclass(frozen=True)
class Progressive:
    """A work on a model and on prefixes of it, of these rates, `samples` of them in each step.

    Each block of columns of the reply, from one prefix to the next, is lost with probability `loss`, and with it all that come after.
    `places` says where the prefixes, and last the model itself, stand among so many `widths`; a reply that may break (`breaks`) comes with
    a one at the place of what arrived.
    """

    work: Work
    loss: float
    rates: tuple[float, ...]
    samples: int
    places: tuple[int, ...]
    widths: int
    breaks: bool

    def __call__(self, model: Model, objective: Objective, sent: Params, data: Data, key: Any) -> Reply:
        assert model.narrow is not None
        subs = [model.narrow(rate) for rate in self.rates]

        def apply(params: Params, x: Array, key: Any = None) -> Any:
            speak = [lambda p, sub=sub: sub.model.apply(sub.cut(p), x, key) for sub in subs]
            few = self.samples < len(subs)
            chosen = jax.random.permutation(jax.random.fold_in(key, BREAK), len(subs))[: self.samples] if few else ()
            parts = [jax.lax.switch(i, speak, params) for i in chosen] if few else [say(params) for say in speak]
            return model.apply(params, x, key), parts, objective.mask(x)

        nested: Any = _Nested(objective)
        reply = self.work(model._replace(apply=apply), nested, sent, data, key) if subs else self.work(model, objective, sent, data, key)
        if not self.breaks:
            return reply
        arrived = jax.random.uniform(jax.random.fold_in(key, BREAK), (len(subs) + 1,)) >= self.loss
        many = jnp.sum(jnp.cumprod(arrived.astype(jnp.int32)))  # blocks, from the first
        block = jax.tree.map(lambda leaf: jnp.full(leaf.shape, len(subs)), sent)
        for i, sub in reversed(list(enumerate(subs))):
            block = sub.paste(block, jax.tree.map(lambda leaf, i=i: jnp.full(leaf.shape, i), sub.cut(block)))
        value = jax.tree.map(lambda leaf, at: jnp.where(at < many, leaf, 0.0), reply.value, block)
        place = jnp.array([-1, *self.places])[many]
        return reply._replace(value=(value, (jnp.arange(self.widths) == place).astype(jnp.float32)))
