"""The reference engine: one client after another, unpadded, uncompiled, every operation on its own. Slow and obviously right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedcodist import keys
from fedcodist.engines import blocks
from fedcodist.fold import usable
from fedcodist.profile import timed
from fedcodist.types import Answer, Ask, Data, Examples


class Inline:
    """A host that runs everything immediately, in the calling thread."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(function, items)

    def start(self, function: Callable[[], Any]) -> Future:
        later: Future = Future()
        try:
            later.set_result(function())
        except Exception as error:
            later.set_exception(error)
        return later


@dataclass(frozen=True)
class Serial:
    """A Python loop over the clients; put a breakpoint anywhere."""

    kind: ClassVar[str] = "serial"

    @property
    def host(self) -> Inline:
        return Inline()

    def gather(self, population: Mapping[str, Mapping[str, Examples]], asks: Sequence[Ask]) -> list[Answer | None]:
        with jax.disable_jit(), timed("clients"):
            return [_gather(ask, population[ask.pool]) for ask in asks]


def _gather(ask: Ask, examples: Mapping[str, Examples]) -> Answer:
    total, own, each = None, {}, []
    for client in sorted(ask.clients):
        x, y = examples[client]
        data = Data(jnp.asarray(x), jnp.asarray(y), jnp.int32(len(x)), ask.own[client] if ask.own else ())
        reply = ask.work(ask.model, ask.objective, ask.sent, data, keys.derive(ask.key, client))
        total = ask.fold.add(ask.fold.zero(reply) if total is None else total, reply)
        if usable(reply):
            own |= {client: jax.tree.map(np.asarray, reply.own)} if jax.tree.leaves(reply.own) else {}
            each.append((client, reply.value, float(reply.weight)))
    singles = blocks.stacked(each) if ask.each or ask.fold.each else None
    folded = ask.fold.done(total, singles, keys.derive(ask.key, "fold"))
    return blocks.answer(ask, folded, own, singles if ask.each else None)
