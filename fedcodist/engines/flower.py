"""The engine of real devices: questions go out as messages, and whatever comes back by the deadline is checked, and folded reply by reply
in the order of ids, so that a round is `Compiled(block=1)`'s to the bit.

One message goes to each node for all of its pools. More clients may be asked than are needed; the first that are good enough count. Who
fails is asked again while there is time. A pool that has fewer replies than its quorum has no answer in this round, and the others go on.
Deliberately absent: the transport (a `Post`, which `deploy` makes of Flower's Grid), and clients that keep something of their own.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from fedcodist import clients, keys, settings, tree
from fedcodist.engines import blocks, validation, wire
from fedcodist.engines.clipped import Clipped
from fedcodist.engines.roll import Roll
from fedcodist.engines.threads import PriorityThreads, cores, shared
from fedcodist.engines.validation import Strikes
from fedcodist.engines.wire import OFFENCES, Fault, Identity, Parcel, Post, Rejected
from fedcodist.errors import ConfigError, Failure
from fedcodist.profile import timed
from fedcodist.settings import Problem, checked, setting
from fedcodist.task import Spec
from fedcodist.types import Answer, Ask, Data, Examples, Reply, Tree
from fedcodist.work import WORKS

TRAIN = "train"


class NoClients(Failure):
    """Too few clients answered, again and again."""

    code = 8


@dataclass(frozen=True)
@checked
class Terms:
    """How long the server waits, for whom, and what it accepts. No result of a run without faults depends on them, but for `spare`."""

    deadline_seconds: float = setting(600.0, gt=0, le=86_400)  # of an exchange with the clients
    quorum: float = setting(0.5, gt=0, le=1)  # of the cohort; a pool with fewer replies is skipped in this round
    spare: float = setting(0.0, ge=0, le=4)  # so many more than the cohort are asked, and the first cohort-many good replies count
    tries: int = setting(3, ge=1, le=100)  # how often a client that failed is asked in one exchange
    most_norm: float = setting(1e4, gt=0)  # of a reply
    norm_factor: float = setting(10.0, gt=1)  # a reply may be so many times as long as the median of its round
    strikes: int = setting(3, ge=1, le=10**6)  # replies that cannot be used, until a client is not asked
    quarantine_rounds: int = setting(10, ge=0, le=10**7)  # for so many rounds
    patience: int = setting(5, ge=1, le=10**6)  # exchanges without a quorum in any pool, until the run stops
    most_examples: int = setting(100_000, ge=1, le=10**9)  # that a client may claim to have
    poll_seconds: float = setting(1.0, gt=0, le=60)
    first: int = setting(1, ge=1, le=10**6)  # devices that must be there before the first round


@dataclass
class _Open:
    """What is known of one question while its answers come in."""

    ask: Ask
    arrays: dict[str, bytes]
    model: str
    like: Reply
    places: int
    good: dict[str, Reply] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)  # {client: why its last reply does not count}
    asked: int = 0  # messages
    heard: int = 0  # replies

    @property
    def used(self) -> list[str]:
        """Whose replies count: the cohort's before the spares', as many as the cohort has; in the order of ids."""
        found = [client for client in (*sorted(self.ask.clients), *self.ask.spare) if client in self.good]
        return sorted(found[: len(self.ask.clients)])

    @property
    def full(self) -> bool:
        return len(self.good) >= len(self.ask.clients)


class Flower:
    """Clients behind a `Post`. `roll` is who they are; `say` gets one line for what an operator should see."""

    def __init__(
        self,
        post: Post,
        roll: Roll,
        spec: Spec,
        terms: Terms | None = None,
        say: Callable[[str], Any] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.run = os.urandom(8).hex()
        self._post, self._roll, self._spec, self._terms = post, roll, spec, terms or Terms()
        self._say, self._clock, self._sleep = say, clock, sleep
        self._strikes = Strikes(self._terms.strikes, self._terms.quarantine_rounds)
        self._without = 0

    @property
    def host(self) -> PriorityThreads:
        """The threads of the server's own work."""
        return shared(cores())

    def meet(self, seconds: float | None = None) -> None:
        """Wait until enough devices have said what they have."""
        end = None if seconds is None else self._clock() + seconds
        said = ""
        while True:
            there = self._post.nodes()
            self._roll.call(self._post, there)
            self._roll.hear(self._post)
            here = [client for client in self._roll.known if client in there]
            empty = [name for name, roster in self._roll.rosters.items() if not len(roster)]
            if len(here) >= self._terms.first and not empty:
                return
            lack = f"one for pool {', '.join(empty)}" if len(here) >= self._terms.first else f"at least {self._terms.first}"
            if end is not None and self._clock() > end:
                raise NoClients(f"devices: got {len(here)} within {seconds:g} seconds; allowed {lack}")
            if said != (said := f"{len(here)} devices are here; waiting for {lack}"):
                self._say(said)
            self._sleep(self._terms.poll_seconds)

    def gather(self, population: Mapping[str, Mapping[str, Examples]], asks: Sequence[Ask]) -> list[Answer | None]:
        """One exchange with the clients of all asks."""
        with timed("gather"):
            open_ = [self._open(ask, population[ask.pool]) for ask in asks]
        with timed("clients"):
            self._exchange(open_)
        with timed("fold"):
            answers = [self._answer(one) for one in open_]
        self._without = 0 if any(answer is not None for answer in answers) else self._without + 1
        if asks and self._without >= self._terms.patience:
            raise NoClients(f"quorum: got none in {self._without} exchanges; allowed {self._terms.quorum:g} of the cohort of some pool")
        return answers

    def _open(self, ask: Ask, examples: Mapping[str, Examples]) -> _Open:
        if ask.model.spec is None or ask.own is not None or getattr(type(ask.work), "kind", None) not in WORKS:
            what = "a model that no config describes" if ask.model.spec is None else f"the work {type(ask.work).__name__}"
            what = "clients that keep something of their own" if ask.own is not None else what
            raise ConfigError(str(Problem(f"pools.{ask.pool}", what, "models, works and rules that can be sent to devices as text")))
        places = clients.largest(examples)
        rows: Any = (*(row.rows(max(places, 1)) for row in (self._spec.x, self._spec.y)), jax.ShapeDtypeStruct((), np.int32))

        def reply(sent: Tree, data: Any, key: Any) -> Reply:
            return ask.work(ask.model, ask.objective, sent, Data(*data), key)

        like = jax.eval_shape(reply, ask.sent, rows, jax.ShapeDtypeStruct((2,), np.uint32))
        if jax.tree.leaves(like.own):
            raise ConfigError(
                str(Problem(f"pools.{ask.pool}", "clients that keep something of their own", "rules that keep nothing there"))
            )
        arrays = wire.tree_packed(ask.sent, "sent")
        return _Open(ask, arrays, wire.digest(arrays), like, places)

    def _exchange(self, open_: list[_Open]) -> None:
        """Send, and wait until all have enough, or nobody is left, or the time is over."""
        end, tries = self._clock() + self._terms.deadline_seconds, Counter[str]()
        flying: dict[str, tuple[str, list[tuple[_Open, Identity]]]] = {}  # {message: (client, what it was asked)}
        t = open_[0].ask.t if open_ else 0
        while open_:
            there = self._post.nodes()
            self._roll.call(self._post, there)
            busy = {client for client, _ in flying.values()}
            self._send(
                open_,
                [client for client in self._wanted(open_, tries, t) if client in there and client not in busy],
                there,
                tries,
                end,
                flying,
            )
            for message, reply in (self._post.pull(list(flying)) if flying else {}).items():
                client, asked = flying.pop(message)
                self._take(client, asked, reply, t)
            self._roll.hear(self._post)
            self._drop_far([one for one in open_ if one.full], t)
            if all(one.full for one in open_) or self._clock() >= end:
                break
            enough = all(len(one.good) >= self._quorum(one.ask) for one in open_)
            again = [client for client in self._wanted(open_, tries, t) if client in there or tries[client]]
            if not flying and not again and (enough or not any(self._wanted(open_, tries, t))):
                break
            self._sleep(self._terms.poll_seconds)
        self._drop_far(open_, t)
        for client, asked in flying.values():
            for one, _ in asked:
                if not one.full:
                    one.bad.setdefault(client, "late")

    def _wanted(self, open_: Sequence[_Open], tries: Counter[str], t: int) -> Iterator[str]:
        """Who is yet to be asked, or to be asked again."""
        for client in sorted({client for one in open_ for client in (*one.ask.clients, *one.ask.spare)}):
            if (
                tries[client] < self._terms.tries
                and not self._strikes.out(client, t)
                and not self._roll.refused(client)
                and any(self._left(open_, client))
            ):
                yield client

    def _left(self, open_: Sequence[_Open], client: str) -> Iterator[_Open]:
        """The questions to this client that have no answer, and are not full without it."""
        for one in open_:
            if (
                client in (*one.ask.clients, *one.ask.spare)
                and client not in one.good
                and one.bad.get(client) not in OFFENCES
                and not one.full
            ):
                yield one

    def _send(
        self,
        open_: Sequence[_Open],
        to: Sequence[str],
        there: Mapping[str, int],
        tries: Counter[str],
        end: float,
        flying: dict[str, tuple[str, list[tuple[_Open, Identity]]]],
    ) -> None:
        seconds = end - self._clock()
        if not to or seconds <= 0:
            return
        parcels, asked = {}, {}
        for client in to:
            tries[client] += 1
            mine = list(self._left(open_, client))
            asked[there[client]] = (client, [(one, Identity(self.run, one.ask.pool, one.ask.t, tries[client], one.model)) for one in mine])
            parcels[there[client]] = self._parcel(client, asked[there[client]][1], seconds)
            for one in mine:
                one.asked += 1
        flying |= {message: asked[node] for message, node in self._post.push(TRAIN, parcels, seconds).items()}

    def _parcel(self, client: str, asked: Sequence[tuple[_Open, Identity]], seconds: float) -> Parcel:
        questions, arrays = [], {}
        for place, (one, identity) in enumerate(asked):
            ask, spec = one.ask, one.ask.model.spec
            assert spec is not None
            arrays |= {f"{place}/{name}": data for name, data in one.arrays.items()}
            questions.append(
                {
                    "identity": list(identity),
                    "model": {"part": settings.plain(spec.part), "shape": list(spec.shape), "classes": spec.classes},
                    "objective": settings.plain(ask.objective),
                    "work": settings.plain(ask.work),
                    "form": wire.form(ask.sent),
                    "key": [int(word) for word in keys.derive(ask.key, client)],
                    "places": one.places,
                }
            )
        return Parcel(wire.written({"seconds": round(seconds, 3), "questions": questions}), arrays)

    def _take(self, client: str, asked: Sequence[tuple[_Open, Identity]], reply: Parcel | Fault, t: int) -> None:
        """Sort a reply, or what came in its place, into its questions."""
        if isinstance(reply, Fault):
            self._say(f"round {t}: {client} {reply.reason} {reply.said}".rstrip())
            for one, _ in asked:
                one.bad[client] = reply.reason
            return
        offences = set()
        try:
            said = validation.identities(reply)
            strange = "stale" if said != [identity for _, identity in asked] else "names" if validation.foreign(reply, len(asked)) else ""
        except Rejected as error:
            strange = str(error)
        for place, (one, _) in enumerate(asked):
            one.heard += 1
            try:
                if strange:
                    raise Rejected(strange)
                declared = self._roll.known[client].examples
                one.good[client] = validation.checked(reply, place, one.like, declared, self._terms.most_norm)
                one.bad.pop(client, None)
            except Rejected as error:
                one.bad[client] = str(error)
                offences.add(str(error))
        self._offended(client, offences, t)

    def _offended(self, client: str, offences: set[str], t: int) -> None:
        if not offences:
            return
        self._strikes.offend(client, t)
        if "weight" in offences:
            self._roll.forget(client)  # it may have other data by now
        self._say(f"round {t}: a reply of {client} is dropped: {', '.join(sorted(offences))}")

    def _drop_far(self, open_: Sequence[_Open], t: int) -> None:
        """Replies that are far longer than the others go; not where all are clipped, as one client must not decide about another then."""
        for one in open_:
            if getattr(one.ask.fold, "kind", "") == Clipped.kind:
                continue
            for client in validation.far({c: validation.norm(r.value) for c, r in one.good.items()}, self._terms.norm_factor):
                del one.good[client]
                one.bad[client] = "norm"
                self._offended(client, {"norm"}, t)

    def _quorum(self, ask: Ask) -> int:
        return max(1, math.ceil(self._terms.quorum * len(ask.clients)))

    def _answer(self, one: _Open) -> Answer | None:
        """The folded replies; None below the quorum."""
        ask, used = one.ask, one.used
        reasons = Counter(why for client, why in one.bad.items() if client not in one.good)
        absent = [client for client in ask.clients if client not in one.good and client not in one.bad]
        reasons.update(
            "quarantined" if self._strikes.out(client, ask.t) else "offline" for client in absent if len(used) < len(ask.clients)
        )
        if len(used) < self._quorum(ask):
            self._say(f"round {ask.t}: pool {ask.pool} has {len(used)} of {len(ask.clients)} replies, and is skipped ({_counted(reasons)})")
            return None
        part = blocks.alone(ask, used[0], one.good[used[0]])
        for client in used[1:]:
            part = blocks.join(ask, part, blocks.alone(ask, client, one.good[client]))
        answer = blocks.done(ask, part)
        down, up = one.asked * tree.nbytes(ask.sent), one.heard * tree.nbytes(answer.value)
        return answer._replace(dropped=np.int32(sum(reasons.values())), reasons=dict(sorted(reasons.items())), bytes_down=down, bytes_up=up)


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{many} {why}" for why, many in sorted(reasons.items())) or "nobody was there"
