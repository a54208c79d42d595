"""An ensemble of narrow base networks in the place of one wide model, as Split-Mix trains it: the mean of the bases' logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fedcodist import keys
from fedcodist.rules.scaler import scaled
from fedcodist.types import Array, Key, Model, Params, Spec

if TYPE_CHECKING:
    from fedcodist.pool import Pool


@dataclass(frozen=True)
class Mix:
    """So many bases of this rate of `of`; the parameters are theirs, stacked: [bases, ...]. With `scaler` a base begins as a prefix of a
    wide network, and what its layers give is divided by the rate."""

    of: Any
    rate: float
    bases: int
    scaler: bool = False

    def base(self, shape: tuple[int, ...], classes: int) -> Model:
        """One of the base networks."""
        wide = self.of.build(shape, classes)
        sub = wide.narrow(self.rate)
        return scaled(sub.model, self.rate) if self.scaler else sub.model

    @lru_cache  # one model for one description: equal experiments share compiled programs
    def build(self, shape: tuple[int, ...], classes: int) -> Model:
        """For inputs of this shape."""
        wide, base = self.of.build(shape, classes), self.base(shape, classes)

        def begin(key: Any) -> Params:
            return wide.narrow(self.rate).cut(wide.init(key)) if self.scaler else base.init(key)

        def init(key: Any) -> Params:
            keys = [key] if self.bases == 1 else jax.random.split(key, self.bases)
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(begin, keys))

        def apply(params: Params, x: Array, key: Any = None) -> Array:
            if self.bases == 1:
                return base.apply(jax.tree.map(lambda leaf: leaf[0], params), x, key)
            return jnp.mean(jax.lax.map(lambda p: base.apply(p, x, key), params), 0)

        return Model(init, apply, spec=Spec(self, shape, classes))


def mix_of(pool: Pool) -> Mix:
    """What a pool of Split-Mix has for a model."""
    assert pool.model.spec is not None
    return pool.model.spec.part


def drawn(key: Key, rank: int, t: int, cohort: int, bases: int, carried: Mapping[str, int]) -> dict[str, list[int]]:
    """{client: the bases that it trains in round t}: one by turns, over an order that is drawn anew in each cycle and counted on from round
    to round, so that every base gets its share of clients; the rest of what the client carries at random."""
    found = {}
    for turn, (client, many) in enumerate(carried.items(), (t - 1) * cohort):
        first = int(keys.permutation(keys.derive(key, "cycle", rank, turn // bases), bases)[turn % bases])
        others = keys.permutation(keys.derive(key, "bases", t, rank, client), bases)
        found[client] = [first, *[int(base) for base in others if base != first][: many - 1]]
    return found
