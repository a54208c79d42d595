"""What clients have paid in privacy: one account for all pools, kept by whoever releases something, before it is released.

A release is one pool's noised sum of one round. A client that is in several pools pays for all of their releases. The arithmetic is
dp-accounting's; here stands only who is charged for what, and under which assumption.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import combinations
from typing import Any, Literal, NamedTuple

from fedcodist.errors import ConfigError
from fedcodist.settings import checked, setting

Sampling = Literal["none", "poisson", "without_replacement"]
ASSUMED: dict[str, str] = {
    "none": "cohorts are public: a client pays in full for each round in which it was asked; neighbours differ by one client's updates, "
    "which are there or are zero",
    "poisson": "assumed: each client is in a cohort by a draw of its own, which nobody sees (cohorts really have a fixed size, so "
    "this is no guarantee); neighbours differ by one client more or less",
    "without_replacement": "cohorts of a fixed size are drawn without replacement, and nobody sees them; neighbours differ by one "
    "client in another's place, which moves a sum by twice the clip",
}


@dataclass(frozen=True)
@checked
class Privacy:
    """What all clients together are promised: epsilon at most `budget`, at this `delta`. The run stops before it is passed."""

    budget: float = setting(gt=0, le=1e6)  # the largest epsilon of any client; the run stops before the round that would pass it
    delta: float = setting(1e-5, gt=0, lt=1)  # below one over the number of clients
    # what is known of who is in a cohort: all of it (none: no amplification); nothing, and clients are drawn singly (poisson, an
    # assumption) or as cohorts of a fixed size (without_replacement)
    sampling: Sampling = "none"


@dataclass(frozen=True)
@checked
class Noise:
    """What a pool does for it: updates are clipped, and their sum gets Gaussian noise of `noise` times the clip."""

    clip: float = setting(1.0, gt=0, le=1e9)  # the largest L2 norm of a client's whole update
    noise: float = setting(1.0, ge=1e-3, le=1e6)  # standard deviation of the noise on the sum, as a multiple of `clip`


class Charge(NamedTuple):
    """One release: which pool's sum of which round, over whom. `tag` tells apart sums of a round that was replayed with other replies."""

    pool: str
    round: int
    clients: tuple[str, ...]
    of: int  # clients in the pool
    tag: str = ""

    @property
    def place(self) -> tuple[str, int, str]:
        return self.pool, self.round, self.tag


class Account:
    """All releases so far. `keep` is told of each before it counts, and must have it on disk when it returns."""

    def __init__(self, how: Privacy, noise: Mapping[str, float]) -> None:
        if find_spec("dp_accounting") is None:
            raise ConfigError("privacy: dp-accounting is not installed; pip install 'fedcodist[privacy]'")
        self.how, self._noise = how, dict(noise)
        self._keep: Callable[[Mapping[str, Any]], None] = lambda row: None
        self._places: set[tuple[str, int, str]] = set()
        self._paid: Counter[str] = Counter()  # {client: the sum of 1 / noise^2 over its releases}
        self._drawn: Counter[tuple[str, int, int]] = Counter()  # {(pool, asked, of how many): releases}
        self._sets: list[frozenset[str]] = []  # of pools that some client is in, once that is known

    def open(self, rows: Iterable[Mapping[str, Any]], keep: Callable[[Mapping[str, Any]], None]) -> None:
        """Go on with what was paid before, and keep what is paid from now on."""
        for known in (self._places, self._paid, self._drawn):
            known.clear()
        for row in rows:
            if "pool" in row:
                self._count(Charge(row["pool"], row["round"], tuple(row["clients"]), row["of"], row["tag"]))
        self._keep = keep

    def meet(self, population: Mapping[str, Iterable[str]]) -> None:
        """Learn which pools share clients, once; until then some client may be in all of them."""
        if self.how.sampling == "none" or self._sets:
            return
        found: set[frozenset[str]] = set()
        ids = {pool: set(population[pool]) for pool in self._noise}
        for many in range(len(ids), 0, -1):
            for pools in map(frozenset, combinations(ids, many)):
                if not any(pools <= larger for larger in found) and set.intersection(*(ids[pool] for pool in pools)):
                    found.add(pools)
        self._sets = sorted(found, key=sorted)

    def knows(self, charge: Charge, any_tag: bool = False) -> bool:
        """Whether this release was paid for already: then it is the same one again."""
        return charge.place in self._places or (any_tag and any(place[:2] == charge.place[:2] for place in self._places))

    def pay(self, charges: Sequence[Charge]) -> None:
        """Write the charges down."""
        for charge in charges:
            if not self.knows(charge):
                self._keep(charge._asdict())
                self._count(charge)

    def stop(self, t: int, epsilon: float) -> None:
        """Write down that round t was not begun, since it would have come to this epsilon."""
        self._keep({"stopped_before": t, "epsilon": round(epsilon, 4), "budget": self.how.budget})

    def epsilon(self, more: Sequence[Charge] = ()) -> float:
        """What the client that has paid most has paid, with these charges on top."""
        if self.how.sampling == "none":
            paid = Counter(self._paid)
            for charge in more:
                paid.update(self._parts(charge))
            # Gaussian mechanisms compose to one, whatever was asked in between: 1 / noise^2 adds up.
            return _gaussian(max(paid.values(), default=0.0), self.how.delta)
        drawn = self._drawn + Counter((charge.pool, len(charge.clients), charge.of) for charge in more)
        return max(self._sampled({of: n for of, n in drawn.items() if of[0] in pools}) for pools in self._sets or [frozenset(self._noise)])

    def _sampled(self, drawn: Mapping[tuple[str, int, int], int]) -> float:
        if not drawn:
            return 0.0
        from dp_accounting.rdp import compute_epsilon  # pyright: ignore[reportMissingImports]

        curves = [(n, _curve(self.how.sampling, self._noise[pool], asked, of)) for (pool, asked, of), n in drawn.items()]
        orders = set.intersection(*(set(curve) for _, curve in curves))
        total = {order: sum(n * curve[order] for n, curve in curves) for order in sorted(orders)}
        return float(compute_epsilon(list(total), list(total.values()), self.how.delta)[0])

    def _count(self, charge: Charge) -> None:
        self._places.add(charge.place)
        self._paid.update(self._parts(charge))
        self._drawn[charge.pool, len(charge.clients), charge.of] += 1

    def _parts(self, charge: Charge) -> dict[str, float]:
        return dict.fromkeys(charge.clients, self._noise[charge.pool] ** -2)


def _gaussian(paid: float, delta: float) -> float:
    if paid == 0:
        return 0.0
    import dp_accounting  # pyright: ignore[reportMissingImports]

    return float(dp_accounting.get_epsilon_gaussian(paid**-0.5, delta))


@cache
def _curve(sampling: Sampling, noise: float, asked: int, of: int) -> dict[float, float]:
    """{order: Renyi divergence} of one release. It is the accountant's own; adding curves up here saves half a second a round."""
    import dp_accounting  # pyright: ignore[reportMissingImports]
    from dp_accounting import rdp  # pyright: ignore[reportMissingImports]

    if sampling == "poisson":
        event = dp_accounting.PoissonSampledDpEvent(asked / of, dp_accounting.GaussianDpEvent(noise))
        neighbours = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    else:
        event = dp_accounting.SampledWithoutReplacementDpEvent(of, asked, dp_accounting.GaussianDpEvent(noise / 2))
        neighbours = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = rdp.RdpAccountant(neighboring_relation=neighbours)
    level = logging.getLogger("absl").level
    logging.getLogger("absl").setLevel(logging.ERROR)  # it tells of each order whose series it leaves out
    try:
        accountant.compose(event)
    finally:
        logging.getLogger("absl").setLevel(level)
    return dict(zip(map(float, accountant._orders), map(float, accountant._rdp), strict=True))
