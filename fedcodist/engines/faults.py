"""Simulated faults for any engine: clients that are unavailable, drop out, reply late, or are malicious.

What happens to a client depends only on the run's seed, the round and the client's id. So all engines see the same faults, a resumed run
has those of an uninterrupted one, and a client that is asked twice in a round, or by two pools, fails in the same way each time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedcodist import keys, settings, tree
from fedcodist.settings import Problem, SettingError, setting
from fedcodist.types import Answer, Ask, Data, Engine, Examples, Host, Key, Model, Objective, Reply, Tree, Work

UNAVAILABLE, DROPOUT, LATE, SURPLUS = "unavailable", "dropout", "late", "surplus"  # why a client's reply is not used
Attack = Literal["sign_flip", "scaling", "noise", "nan"]


@dataclass(frozen=True)
class Faults:
    """The faults of the clients. The defaults change nothing.

    `over` times the cohort is asked, and the first replies that fill the cohort are used. A pool that gets fewer than the share `quorum` of
    its cohort is skipped in that round.
    """

    available: float | dict[str, float] = setting(
        1.0, gt=0, le=1
    )  # the share of clients that is available; a table by pool counts for the largest pool of a client
    day: int = setting(0, ge=0, le=10**6)  # rounds from noon to noon; 0: no day and night
    night: float = setting(0.75, ge=0, le=1)  # the fraction of that share that is lost at midnight
    zones: float = setting(0.0, ge=0, le=1)  # the fraction of a day over which the clients' time zones are spread
    dropout: float = setting(0.0, ge=0, le=1)  # the share of the available clients that never reply
    delay: float = setting(0.0, ge=0, le=10)  # standard deviation of the logarithm of the reply time, whose median is 1
    deadline: float | None = setting(None, gt=0, le=1e9)  # later replies are not used
    byzantine: float = setting(0.0, ge=0, le=1)  # the share of malicious clients, the same ones in every round
    attack: Attack = "sign_flip"  # what a malicious client sends: its reply with the opposite sign, scaled, with noise, or NaN
    strength: float = setting(10.0, ge=0, le=1e9)  # the factor of the attack; for noise, its size relative to the reply
    over: float = setting(1.0, ge=1, le=100)  # over-selection: the number of clients that are asked, as a multiple of the cohort
    quorum: float = setting(0.0, ge=0, le=1)  # the share of a cohort below which the pool is skipped in that round

    def __post_init__(self) -> None:
        settings.check(self)
        for pool, share in self.available.items() if isinstance(self.available, dict) else ():
            if not 0 < share <= 1:
                raise SettingError([Problem(f"Faults.available.{pool}", str(share), "a number > 0 and <= 1")])

    def problems(self, pools: Sequence[str]) -> list[Problem]:
        """The problems of these faults with these pools."""
        named = self.available if isinstance(self.available, dict) else dict.fromkeys(pools)
        found = [
            Problem(f"faults.available.{pool}", "an unknown pool", " | ".join(pools), settings.nearest(pool, pools))
            for pool in named
            if pool not in pools
        ]
        return found + [Problem(f"faults.available.{pool}", "nothing", "a share for every pool") for pool in pools if pool not in named]

    def spare(self, cohort: int) -> int:
        """How many clients are asked beyond a cohort.

        >>> Faults(over=1.3).spare(10), Faults().spare(10)
        (3, 0)
        """
        return math.ceil(round(self.over * cohort, 6)) - cohort

    def share(self, key: Key, t: int, client: str, pool: str) -> float:
        """The probability that a client is available in round t, if `pool` is the largest that it is in.

        >>> faults = Faults(available=0.8, day=4, night=0.5)
        >>> [round(faults.share(keys.root(0), t, "anna", "small"), 6) for t in (0, 1, 2, 3, 4)]
        [0.8, 0.6, 0.4, 0.6, 0.8]
        """
        base = self.available[pool] if isinstance(self.available, dict) else self.available
        if not self.day:
            return base
        hour = t / self.day + (self.zones * draw(key, "zone", client) if self.zones else 0.0)
        return base * (1 - self.night * (1 - math.cos(2 * math.pi * hour)) / 2)

    def fate(self, key: Key, t: int, client: str, pool: str) -> tuple[str, float]:
        """Why a client sends no usable reply in round t, or an empty string; and how long its reply takes."""
        if draw(key, "reach", t, client) >= self.share(key, t, client, pool):
            return UNAVAILABLE, 0.0
        if draw(key, "dropout", t, client) < self.dropout:
            return DROPOUT, 0.0
        time = math.exp(self.delay * NormalDist().inv_cdf(draw(key, "delay", t, client))) if self.delay else 1.0
        return (LATE if self.deadline is not None and time > self.deadline else ""), time

    def lies(self, key: Key, client: str) -> bool:
        """Whether a client is malicious."""
        return self.byzantine > 0 and draw(key, "byzantine", client) < self.byzantine


def draw(key: Key, *names: str | int) -> float:
    """A uniform number between 0 and 1, neither of them, by name."""
    high, low = (int(word) for word in keys.derive(key, *names))
    return (((high << 32 | low) >> 12) + 0.5) / 2**52


@tree.node("work", "strength")
@dataclass(frozen=True)
class Lying:
    """A work whose reply is attacked if the second half of the client's state says so."""

    work: Work
    attack: Attack
    strength: float

    def __call__(self, model: Model, objective: Objective, sent: Tree, data: Data, key: Any) -> Reply:
        own, lies = data.own
        reply = self.work(model, objective, sent, data._replace(own=own), key)
        return reply._replace(value=jax.tree.map(lambda lie, true: jnp.where(lies, lie, true), self.lie(reply.value, key), reply.value))

    def lie(self, value: Tree, key: Any) -> Tree:
        """The reply that a malicious client sends instead."""
        if self.attack == "nan":
            return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), value)
        if self.attack != "noise":
            return tree.scale(value, -self.strength if self.attack == "sign_flip" else self.strength)
        size = self.strength * tree.norm(value) / math.sqrt(tree.size(value))
        leaves, structure = jax.tree.flatten(value)
        salts = jax.random.split(jax.random.fold_in(key, 2**31), len(leaves))
        noise = [size * jax.random.normal(salt, leaf.shape, leaf.dtype) for salt, leaf in zip(salts, leaves, strict=True)]
        return tree.add(value, jax.tree.unflatten(structure, noise))


class _Asked(NamedTuple):
    """The part of a question that is asked, and what happened to the other clients."""

    ask: Ask | None  # None: no quorum
    reasons: Counter[str]


@dataclass(frozen=True, eq=False)
class Faulty:
    """An engine whose clients fail. `pools` are in their canonical order, the largest model last; an experiment sets `key` by its seed."""

    engine: Engine
    faults: Faults
    pools: tuple[str, ...]
    key: Key = field(default_factory=lambda: keys.derive(keys.root(0), "faults"))

    @property
    def host(self) -> Host:
        return self.engine.host

    def seeded(self, seed: int) -> Faulty:
        """The same for a run of this seed."""
        return replace(self, key=keys.derive(keys.root(seed), "faults"))

    @property
    def workers(self) -> int:
        """The engine's own."""
        return getattr(self.engine, "workers", 0)

    def gather(self, population: Mapping[str, Mapping[str, Examples]], asks: Sequence[Ask]) -> list[Answer | None]:
        asked = [self._ask(population, ask) for ask in asks]
        left = [one.ask for one in asked if one.ask is not None]
        answers = iter(self.engine.gather(population, left) if left else ())
        return [None if one.ask is None else _told(one.ask, next(answers), one.reasons) for one in asked]

    def _ask(self, population: Mapping[str, Mapping[str, Examples]], ask: Ask) -> _Asked:
        faults, goal, reasons = self.faults, len(ask.clients), Counter()
        came: list[tuple[float, int, str]] = []
        for place, client in enumerate((*ask.clients, *ask.spare)):
            why, time = faults.fate(self.key, ask.t, client, self._largest(population, client, ask.pool))
            if why:
                reasons[why] += 1
            else:
                came.append((time, place, client))
        liars = {client for _, _, client in came if faults.lies(self.key, client)}
        taken: list[str] = []
        valid = 0
        for _, _, client in sorted(came):
            if valid == goal:
                reasons[SURPLUS] += 1
                continue
            taken.append(client)
            valid += not (faults.attack == "nan" and client in liars)  # a server drops it on arrival and waits for another one
        if valid < max(1, math.ceil(round(faults.quorum * goal, 6))):
            return _Asked(None, reasons)
        left = ask._replace(clients=tuple(sorted(taken)), spare=())
        if faults.byzantine:
            own = {client: (ask.own[client] if ask.own else (), np.bool_(client in liars)) for client in taken}
            left = left._replace(work=Lying(ask.work, faults.attack, faults.strength), own=own)
        return _Asked(left, reasons)

    def _largest(self, population: Mapping[str, Mapping[str, Examples]], client: str, asking: str) -> str:
        if not isinstance(self.faults.available, dict):
            return asking
        return next(pool for pool in reversed(self.pools) if client in population[pool])


def instead(engine: Any, other: Engine) -> Engine:
    """Replace the innermost engine; wrappers such as simulated faults are kept."""
    return replace(engine, engine=instead(engine.engine, other)) if hasattr(engine, "engine") else other


def _told(ask: Ask, answer: Answer | None, reasons: Counter[str]) -> Answer | None:
    """The answer, with the reasons why replies are missing. Unavailable clients were never sent anything."""
    if answer is None:
        return None
    sent = sum(reasons[why] for why in (DROPOUT, LATE, SURPLUS))
    back = sum(reasons[why] for why in (LATE, SURPLUS))
    return answer._replace(
        dropped=np.int32(int(answer.dropped) + sent),
        reasons=dict(sorted((Counter(answer.reasons) + reasons).items())),
        bytes_down=answer.bytes_down + sent * tree.nbytes(ask.sent),
        bytes_up=answer.bytes_up + back * tree.nbytes(answer.value),
    )
