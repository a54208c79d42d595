"""How replies combine. The example-weighted mean (A12), and robust folds for clients that cannot be trusted.

A reply that is not finite is dropped and counted, never averaged in (DEVIATION D7). The robust folds look at all replies of a round at once
(`each`), and so do not fit secure aggregation; they weigh clients equally, since a weight is a client's own claim.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.registry import Registry
from fedcodist.settings import checked, setting
from fedcodist.types import Array, Each, Folded, Key, Reply, Tree

TINY = 1e-30  # a shorter reply is as good as none


class Total(NamedTuple):
    """What a fold has summed so far."""

    value: Tree
    info: Tree
    weight: Array
    used: Array
    dropped: Array


def usable(reply: Reply) -> Array:
    """Whether a reply counts: it has a weight, and all of it is finite."""
    return tree.finite((reply.value, reply.own, reply.weight)) & (reply.weight > 0)


class _Weighted:
    """Weighted sums of what `summed` takes from each reply, and the counts of replies: all that the folds below have in common."""

    each: ClassVar[bool] = False

    def summed(self, reply: Reply) -> Tree:
        return reply.value

    def zero(self, reply: Reply) -> Total:
        count = jnp.zeros((), jnp.int32)
        value = jax.eval_shape(self.summed, reply)
        return Total(tree.zeros(value), tree.zeros(dict(reply.info)), jnp.zeros((), jnp.float32), count, count)

    def add(self, total: Total, reply: Reply) -> Total:
        good = usable(reply)
        absent = reply.weight == 0  # a place that was only padded into a block: neither used nor dropped
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


class _OfAll(_Weighted):
    """Folds that see all replies of a round at once: `combine` makes one value of the stacked ones, [clients, ...]."""

    each: ClassVar[bool] = True

    def summed(self, reply: Reply) -> Tree:
        return ()

    @abstractmethod
    def combine(self, values: Tree) -> Tree: ...

    def done(self, total: Total, each: Each | None, key: Key) -> Folded:
        if each is None:
            raise ValueError(f"{type(self).__name__} needs the replies one by one")
        folded = super().done(total, each, key)
        return folded._replace(value=self.combine(each.values)) if each.clients else folded


@tree.node()
@dataclass(frozen=True)
class Mean(_Weighted):
    """The mean of the replies, each weighted by its number of examples."""

    kind: ClassVar[str] = "mean"


@tree.node("bound")
@dataclass(frozen=True)
@checked
class NormBound(_Weighted):
    """The weighted mean of replies whose norm is cut down to `bound`: no client can move the model by more than its share of that."""

    kind: ClassVar[str] = "norm_bound"
    bound: float = setting(1.0, gt=0, le=1e9)

    def summed(self, reply: Reply) -> Tree:
        return tree.scale(reply.value, jnp.minimum(1.0, self.bound / jnp.maximum(tree.norm(reply.value), TINY)))


@tree.node()
@dataclass(frozen=True)
class Median(_OfAll):
    """The median of each coordinate (Yin et al. 2018): right as long as more than half of the clients are honest."""

    kind: ClassVar[str] = "median"

    def combine(self, values: Tree) -> Tree:
        return jax.tree.map(lambda leaf: jnp.median(leaf, 0), values)


@tree.node()
@dataclass(frozen=True)
@checked
class TrimmedMean(_OfAll):
    """The mean of each coordinate without its largest and its smallest values, a share of `trim` of the replies each (Yin et al. 2018)."""

    kind: ClassVar[str] = "trimmed_mean"
    trim: float = setting(0.1, ge=0, lt=0.5)

    def combine(self, values: Tree) -> Tree:
        def trimmed(leaf: Array) -> Array:
            cut = int(self.trim * len(leaf))
            return jnp.mean(jnp.sort(leaf, 0)[cut : len(leaf) - cut], 0)

        return jax.tree.map(trimmed, values)


@tree.node()
@dataclass(frozen=True)
@checked
class Krum(_OfAll):
    """The mean of the `keep` replies that lie closest to their neighbours, if `faulty` clients may send anything (Blanchard et al. 2017).

    A reply's score is the sum of its squared distances to the n - faulty - 2 replies nearest to it; with `keep` above 1 it is Multi-Krum.
    """

    kind: ClassVar[str] = "krum"
    faulty: int = setting(1, ge=0, le=10**6)
    keep: int = setting(1, ge=1, le=10**6)

    def combine(self, values: Tree) -> Tree:
        rows = jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(values)], 1)  # [clients, numbers]
        # A row at a time: all differences at once would take the memory of clients^2 models.
        apart = jax.lax.map(lambda row: jnp.sum((rows - row) ** 2, -1), rows)
        near = jnp.sort(apart, 1)[:, 1 : 1 + max(1, len(rows) - self.faulty - 2)]  # the nearest is the reply itself
        chosen = jnp.sort(jnp.argsort(jnp.sum(near, 1), stable=True)[: self.keep])
        return jax.tree.map(lambda leaf: jnp.mean(leaf[chosen], 0), values)


FOLDS = Registry("folds", Mean, NormBound, Median, TrimmedMean, Krum)
