"""The reference engine: one client after another, unpadded, uncompiled, every operation on its own. Slow and obviously right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import keys
from fedcodist.engines import Ask
from fedcodist.profile import spent
from fedcodist.types import Data, Folded, Key, Tree

if TYPE_CHECKING:
    from fedcodist.pool import Pool
    from fedcodist.task import Task


@dataclass(frozen=True)
class Serial:
    """A Python loop over the clients; put a breakpoint anywhere."""

    kind: ClassVar[str] = "serial"

    def gather(self, task: Task, asks: Sequence[Ask]) -> list[Folded]:
        with jax.disable_jit(), spent("clients"):
            return [_gather(task, *ask) for ask in asks]

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(function, items)

    def beside(self, function: Callable[[], Any]) -> Future:
        later: Future = Future()
        try:
            later.set_result(function())
        except Exception as error:
            later.set_exception(error)
        return later


def _gather(task: Task, pool: Pool, sent: Tree, cohort: Sequence[str], key: Key) -> Folded:
    total = None
    for client in sorted(cohort):
        x, y = pool.clients[client]
        data = Data(jnp.asarray(x), jnp.asarray(y), jnp.int32(len(x)))
        reply = pool.work(pool.model, task.objective, sent, data, keys.derive(key, client))
        total = pool.fold.add(pool.fold.zero(reply) if total is None else total, reply)
    return pool.fold.done(total)
