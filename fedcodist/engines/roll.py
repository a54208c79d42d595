"""The devices of a federation: each is asked once what data it has, and is then a client of the pools that it may train for.

Devices come and go. A device that joins late is sampled from the next round on. One that leaves is remembered by its id, so that the
cohorts of later rounds are drawn from the same population.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedcodist.engines import wire
from fedcodist.engines.roster import Roster
from fedcodist.engines.wire import Fault, Parcel, Post, Rejected
from fedcodist.task import Spec

QUERY = "query"
MOST_ATTRIBUTES = 64
PATIENCE_SECONDS = 300.0  # for the answer to a query


class Declared(NamedTuple):
    """What a device says of itself."""

    examples: int
    attributes: dict[str, str]


def question(spec: Spec) -> Parcel:
    """What a device is asked when it comes: how many examples of this kind it has, and what else there is to know of it."""
    rows = {"x": [list(spec.x.shape), spec.x.dtype], "y": [list(spec.y.shape), spec.y.dtype], "classes": spec.classes}
    return Parcel(wire.written({"rows": rows}), {})


def declared(parcel: Parcel, most_examples: int) -> Declared:
    """The answer. Rejected, if it is none."""
    table = wire.read(parcel.text)
    examples, attributes = table.get("examples"), table.get("attributes")
    if isinstance(examples, bool) or not isinstance(examples, int) or not 1 <= examples <= most_examples:
        raise Rejected("weight")
    if not isinstance(attributes, dict) or len(attributes) > MOST_ATTRIBUTES:
        raise Rejected("malformed")
    if not all(isinstance(value, str) and len(name) <= 64 and len(value) <= 256 for name, value in attributes.items()):
        raise Rejected("malformed")
    return Declared(examples, attributes)


class Roll:
    """All devices that declared themselves. `pools` says which pools a device belongs to; `keep` is told of a newcomer before it counts."""

    def __init__(
        self,
        names: Sequence[str],
        spec: Spec,
        pools: Callable[[str, Mapping[str, str]], Sequence[str]],
        most_examples: int,
        known: Mapping[str, Declared] | None = None,
        keep: Callable[[Mapping[str, Declared]], None] = lambda known: None,
        say: Callable[[str], Any] = lambda text: None,
    ) -> None:
        self.rosters = {name: Roster() for name in names}
        self.known: dict[str, Declared] = {}
        self._query, self._pools, self._most, self._keep, self._say = question(spec), pools, most_examples, keep, say
        self._asked: dict[str, str] = {}  # {message: client}
        self._refused: set[str] = set()
        self._heard: set[str] = set()  # who answered since this process began
        for client, one in (known or {}).items():
            self._join(client, one)

    def call(self, post: Post, there: Mapping[str, int]) -> None:
        """Ask those who have not been asked since this process began."""
        waiting = set(self._asked.values())
        new = {client: node for client, node in there.items() if client not in waiting | self._refused | self._heard}
        if new:
            sent = post.push(QUERY, dict.fromkeys(new.values(), self._query), PATIENCE_SECONDS)
            of = {node: client for client, node in new.items()}
            self._asked |= {message: of[node] for message, node in sent.items()}

    def hear(self, post: Post) -> None:
        """Take in the answers that have come."""
        for message, answer in (post.pull(list(self._asked)) if self._asked else {}).items():
            client = self._asked.pop(message)
            if isinstance(answer, Fault):
                self._say(f"{client} did not say what it has: {answer.reason} {answer.said}".rstrip())
                if answer.reason == "failed":  # its own settings are wrong: asking again would start a process every second
                    self._refused.add(client)
                continue
            try:
                self._welcome(client, declared(answer, self._most))
            except Rejected as error:
                self._refused.add(client)
                self._say(f"{client} is refused: what it declares is wrong ({error})")

    def forget(self, client: str) -> None:
        """Ask this device again."""
        self._heard.discard(client)
        self._refused.discard(client)

    def _welcome(self, client: str, one: Declared) -> None:
        self._heard.add(client)
        before = self.known.get(client)
        if before is not None and before.attributes != one.attributes:  # or it would change its pools in the middle of a run
            self._refused.add(client)
            self._say(f"{client} is refused: it declared {before.attributes}, and now {one.attributes}")
            return
        if not self._pools(client, one.attributes):
            self._refused.add(client)
            self._say(f"{client} is refused: no pool takes a client with {one.attributes or 'no attributes'}")
            return
        if before != one:
            self._keep(self.known | {client: one})
            self._join(client, one)
            self._say(f"{client} came with {one.examples} examples: {', '.join(self._pools(client, one.attributes))}")

    def refused(self, client: str) -> bool:
        """Whether this device is not asked at all."""
        return client in self._refused

    def _join(self, client: str, one: Declared) -> None:
        self.known[client] = one
        for pool in self._pools(client, one.attributes):
            self.rosters[pool].join(client, one.examples)
