"""How replies combine: the example-weighted mean (A12). Robust folds stand in `folds/`.

A reply that is not finite, or as good as infinite, is dropped and counted, never averaged in (DEVIATION D7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.types import Array, Each, Folded, Key, Reply, Tree


class Total(NamedTuple):
    """What a fold has summed so far."""

    value: Tree
    info: Tree
    weight: Array
    used: Array
    dropped: Array


def usable(reply: Reply) -> Array:
    """Whether a reply counts: its weight is positive, and all of its numbers are finite and below 2^64, whose square float32 still has."""
    return tree.finite(tree.scale((reply.value, reply.own, reply.weight), jnp.float32(2.0**64))) & (reply.weight > 0)


class Weighted:
    """Weighted sums of what `summed` takes from each reply, and the counts of replies: the common part of most folds."""

    each: ClassVar[bool] = False

    def summed(self, reply: Reply) -> Tree:
        return reply.value

    def zero(self, reply: Reply) -> Total:
        count = jnp.zeros((), jnp.int32)
        value = jax.eval_shape(self.summed, reply)
        return Total(tree.zeros(value), tree.zeros(dict(reply.info)), jnp.zeros((), jnp.float32), count, count)

    def add(self, total: Total, reply: Reply) -> Total:
        good = usable(reply)
        absent = reply.weight == 0  # a padded place of a block: neither used nor dropped
        weight = jnp.where(good, reply.weight, 0.0)

        def weighted(a: Array, b: Array) -> Array:
            return a + jnp.where(good, weight * b, 0.0)  # where, not times: 0 * NaN is NaN

        return Total(
            jax.tree.map(weighted, total.value, self.summed(reply)),
            jax.tree.map(weighted, total.info, dict(reply.info)),
            total.weight + weight,
            total.used + good,
            total.dropped + (~good & ~absent),
        )

    def join(self, a: Total, b: Total) -> Total:
        return tree.add(a, b)

    def done(self, total: Total, each: Each | None, key: Key) -> Folded:
        share = 1.0 / jnp.where(total.weight > 0, total.weight, 1.0)
        return Folded(tree.scale(total.value, share), total.weight, total.used, total.dropped, tree.scale(total.info, share))


@tree.node()
@dataclass(frozen=True)
class Mean(Weighted):
    """The mean of the replies, each weighted by its number of examples."""

    kind: ClassVar[str] = "mean"


@tree.node()
@dataclass(frozen=True)
class Sum(Weighted):
    """The weighted sums of the replies, for a rule that divides each number by a weight of its own."""

    def done(self, total: Total, each: Each | None, key: Key) -> Folded:
        return super().done(total, each, key)._replace(value=total.value)
