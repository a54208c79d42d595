"""How replies combine. The example-weighted mean (A12), guarded: a reply that is not finite is dropped and counted, never averaged in
(DEVIATION D7)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.types import Array, Fold, Folded, Reply, Tree


class _Sum(NamedTuple):
    value: Tree
    info: Tree
    weight: Array
    used: Array
    dropped: Array


def _zero(reply: Reply) -> _Sum:
    count = jnp.zeros((), jnp.int32)
    return _Sum(tree.zeros(reply.value), tree.zeros(dict(reply.info)), jnp.zeros((), jnp.float32), count, count)


def _add(total: _Sum, reply: Reply) -> _Sum:
    good = tree.finite((reply.value, reply.weight)) & (reply.weight > 0)
    absent = reply.weight == 0  # a place that was only padded into a block: neither used nor dropped
    weight = jnp.where(good, reply.weight, 0.0)

    def weighted(a: Array, b: Array) -> Array:
        return a + jnp.where(good, weight * b, 0.0)  # where, not times: 0 * NaN is NaN

    return _Sum(
        jax.tree.map(weighted, total.value, reply.value),
        jax.tree.map(weighted, total.info, dict(reply.info)),
        total.weight + weight,
        total.used + good,
        total.dropped + (~good & ~absent),
    )


def _done(total: _Sum) -> Folded:
    share = 1.0 / jnp.where(total.weight > 0, total.weight, 1.0)
    return Folded(tree.scale(total.value, share), total.weight, total.used, total.dropped, tree.scale(total.info, share))


mean = Fold(zero=_zero, add=_add, join=tree.add, done=_done)

FOLDS = {"mean": mean}
