"""Robust folds, for clients that cannot be trusted: a norm bound, the median, a trimmed mean, Krum.

All but the norm bound look at all replies of a round at once (`each`), and so do not fit secure aggregation; they weigh clients equally,
since a weight is a client's own claim.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.fold import Total, Weighted
from fedcodist.settings import checked, setting
from fedcodist.types import Array, Each, Folded, Key, Reply, Tree

TINY = 1e-30  # a shorter reply is treated as zero


class _OfAll(Weighted):
    """Folds that need all replies of a round at once: `combine` makes one value of the stacked ones, [clients, ...]."""

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


@tree.node("bound")
@dataclass(frozen=True)
@checked
class NormBound(Weighted):
    """The weighted mean of replies whose norm is cut down to `bound`: no client can move the model by more than its share of that."""

    kind: ClassVar[str] = "norm_bound"
    bound: float = setting(1.0, gt=0, le=1e9)  # the largest norm that a reply may have

    def summed(self, reply: Reply) -> Tree:
        return tree.scale(reply.value, jnp.minimum(1.0, self.bound / jnp.maximum(tree.norm(reply.value), TINY)))


@tree.node()
@dataclass(frozen=True)
class Median(_OfAll):
    """The median of each coordinate (Yin et al. 2018): correct as long as more than half of the clients are honest."""

    kind: ClassVar[str] = "median"

    def combine(self, values: Tree) -> Tree:
        return jax.tree.map(lambda leaf: jnp.median(leaf, 0), values)


@tree.node()
@dataclass(frozen=True)
@checked
class TrimmedMean(_OfAll):
    """The mean of each coordinate without its largest and its smallest values, a share of `trim` of the replies each (Yin et al. 2018)."""

    kind: ClassVar[str] = "trimmed_mean"
    trim: float = setting(0.1, ge=0, lt=0.5)  # share of the replies that is cut off at either end

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
    faulty: int = setting(1, ge=0, le=10**6)  # how many clients of a cohort may send anything
    keep: int = setting(1, ge=1, le=10**6)  # how many replies are averaged

    def combine(self, values: Tree) -> Tree:
        rows = jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(values)], 1)  # [clients, numbers]
        # A row at a time: all differences at once would take the memory of clients^2 models.
        apart = jax.lax.map(lambda row: jnp.sum((rows - row) ** 2, -1), rows)
        near = jnp.sort(apart, 1)[:, 1 : 1 + max(1, len(rows) - self.faulty - 2)]  # the nearest is the reply itself
        chosen = jnp.sort(jnp.argsort(jnp.sum(near, 1), stable=True)[: self.keep])
        return jax.tree.map(lambda leaf: jnp.mean(leaf[chosen], 0), values)
