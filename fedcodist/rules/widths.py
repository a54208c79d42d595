"""Which share of the model's widths each client of a pool carries: what HeteroFL, Split-Mix, FedResCuE and FLANC have in common.

A config lists the widths with their clients, each of which takes from those that the ones before it have left. `take` counts in the pool's
own order, in which pools take their clients too: a width with `take = 31` has the same clients as a pool with `take = 31`. With `dynamic`
every client draws its width anew in each round, by `share`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import jax
import numpy as np

from fedcodist import clients, keys, settings, tree
from fedcodist.rules.carriers import Carriers, Width
from fedcodist.settings import Problem, checked
from fedcodist.types import Ask, Info, Key, Rule

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@dataclass(frozen=True)
@checked
class Widths(Rule):
    """A rule whose clients carry models of several widths; each width's clients are asked a question of their own."""

    # the widths that clients train; each takes clients from those that the ones before it have left
    widths: tuple[Width, ...] = (Width(1.0, Carriers(share=0.5)), Width(0.5))
    dynamic: bool = False  # whether every client draws its width anew in every round, with shares as probabilities

    def problems(self, pool: Pool) -> list[Problem]:
        path, rates = f"pools.{pool.name}.rule.widths", [width.rate for width in self.widths]
        if not rates or len(set(rates)) < len(rates):
            return [Problem(path, settings.show(rates), "at least one width, each rate once")]
        if self.dynamic:
            said = [width.clients for width in self.widths]
            drawn = all(Carriers(share=each.share) == each for each in said) and sum(each.share or 0 for each in said) <= 1 + 1e-9
            return [] if drawn else [Problem(path, "dynamic = true with other clients", "only shares, which add up to at most 1")]
        if clients.grows(pool.clients):
            return [Problem(f"pools.{pool.name}.rule.dynamic", "false", "true, where more clients may come")]
        for name, value in [item for width in self.widths for item in width.clients.where.items()]:
            known = sorted({str(v) for v in pool.attributes.get(name, {}).values()})
            if value not in known:
                allowed = " | ".join(known[:20]) or f"an attribute of the task: {', '.join(pool.attributes) or 'it has none'}"
                return [Problem(f"{path}.clients.where.{name}", settings.show(value), allowed, settings.nearest(value, known))]
        without = len(pool.clients) - len(fixed(pool))
        return [Problem(path, f"{without} clients without a width", "a last width without `clients`, for all others")] if without else []

    def shares(self, pool: Pool) -> list[float]:
        """Each width's share of the pool's clients; if they are drawn, its probability."""
        if not self.dynamic:
            return (np.bincount(list(fixed(pool).values()), minlength=len(self.widths)) / len(pool.clients)).tolist()
        said = np.array([width.clients.share or 0.0 for width in self.widths])
        silent = said == 0
        said[silent] = (1 - said.sum()) / max(1, silent.sum())
        return (said / said.sum()).tolist()

    def places(self, fed: Federation, pool: Pool, ids: Sequence[str], t: int, key: Key) -> dict[str, int]:
        """{client: the place of its width among the widths} in round t."""
        if not self.dynamic:
            return {client: fixed(pool)[client] for client in ids}
        limits, rank = np.cumsum(self.shares(pool)), fed.names.index(pool.name)
        draws = {client: int(keys.bits(keys.derive(key, "width", t, rank, client), 1)[0]) / 2**64 for client in ids}
        return {client: min(int(np.searchsorted(limits, draw, "right")), len(limits) - 1) for client, draw in draws.items()}

    def questions(self, fed: Federation, pool: Pool, ask: Ask, t: int, key: Key) -> dict[int, Ask]:
        """{place of a width: the question to its clients}, the widest first, without those that no client of the cohort carries."""
        place = self.places(fed, pool, (*ask.clients, *ask.spare), t, key)
        only = {k: [tuple(c for c in some if place[c] == k) for some in (ask.clients, ask.spare)] for k in range(len(self.widths))}
        order = sorted((k for k in only if only[k][0]), key=lambda k: -self.widths[k].rate)
        return {k: ask._replace(clients=only[k][0], spare=only[k][1]) for k in order}

    def expects(self, fed: Federation, pool: Pool) -> Info:
        sizes, cohort = clients.sizes(pool.clients).values(), [pool.cohort * share for share in self.shares(pool)]
        models = {label: model for label, (model, _) in self.trains(pool).items()}
        many = [tree.nbytes(jax.eval_shape(model.init, keys.root(0))) for model in models.values()]
        trained = {label: share * sum(sizes) / len(sizes) for label, share in zip(models, cohort, strict=True)}
        return {"client_bytes": 2 * sum(n * share for n, share in zip(many, cohort, strict=True)), "trained": trained}


@lru_cache(maxsize=16)
def fixed(pool: Pool) -> dict[str, int]:
    """{client: the place of its width}, for the whole run."""
    assert isinstance(pool.rule, Widths)
    left, found = list(pool.clients), {}
    for k, width in enumerate(pool.rule.widths):
        found |= dict.fromkeys(width.clients.of(left, len(pool.clients), pool.attributes), k)
        left = [client for client in left if client not in found]
    return found
