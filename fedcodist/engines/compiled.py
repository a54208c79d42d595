"""The fast engine: whole client epochs inside one compiled program, blocks of clients spread over the cores.

A cohort is sorted and cut into blocks of a fixed number of clients. One program takes a block: a scan over its clients that folds their
replies as it goes, so memory does not grow with the cohort. Threads run blocks side by side (the program holds no Python) while the next
clients are read, and blocks are joined in their order. Neither the number of workers nor the order of the clients can therefore change a
bit of the result.

On a GPU the clients of a block run under vmap instead, which fills the device; on a CPU that would be many times slower.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import jax
import numpy as np

from fedcodist import keys
from fedcodist.engines import Ask
from fedcodist.engines.threads import Crew
from fedcodist.profile import ready, spent
from fedcodist.settings import checked, setting
from fedcodist.types import Data, Fold, Folded, Key, Model, Objective, Tree

if TYPE_CHECKING:
    from fedcodist.pool import Pool
    from fedcodist.task import Task

AHEAD = 2  # blocks that are read while as many as there are workers are computed
SERVER, CLIENTS = 0, 1  # what is urgent: the server's work is a chain, the clients' a heap of blocks


@dataclass(frozen=True)
@checked
class Compiled:
    """`workers` threads (0: one a core) over blocks of `block` clients. `form` is chosen by the device unless it is given."""

    kind: ClassVar[str] = "compiled"
    workers: int = setting(0, ge=0, le=1024)
    block: int = setting(5, ge=1, le=1024)
    form: Literal["auto", "scan", "vmap"] = "auto"

    def gather(self, task: Task, asks: Sequence[Ask]) -> list[Folded]:
        form = self.form if self.form != "auto" else "scan" if jax.default_backend() == "cpu" else "vmap"
        blocks = [(a, block) for a, ask in enumerate(asks) for block in _blocks(ask.cohort, self.block)]
        workers = self.workers or cores()
        totals: dict[int, Tree] = {}
        flying: deque[tuple[int, Future]] = deque()

        def land() -> None:  # in the order of the blocks, whoever ran them
            a, part = flying.popleft()
            with spent("clients"):
                done = part.result()
            with spent("fold"):
                totals[a] = ready(_join(asks[a].pool.fold, totals[a], done)) if a in totals else done

        try:
            for place, (a, block) in enumerate(blocks):
                pack = partial(_pack, asks[a].pool, block, self.block, asks[a].key)
                if place >= workers:  # the first ones are read by whoever computes them, so that all begin at once
                    # This thread reads the next clients while the others compute: their rows may still be on disk.
                    with spent("gather"):
                        packed = pack()
                    pack = partial(_itself, packed)
                flying.append((a, _crew(workers).submit(CLIENTS, _work, task, asks[a], form, pack)))
                if len(flying) > workers + AHEAD:
                    land()
            while flying:
                land()
        except BaseException:  # an error or an interrupt: nothing of this round goes on behind the next one
            for _, part in flying:
                part.cancel()
            _crew(workers).give_up()
            raise
        with spent("fold"):
            return ready([_done(ask.pool.fold, totals[a]) for a, ask in enumerate(asks)])

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return _crew(self.workers or cores()).map(function, items, SERVER)

    def beside(self, function: Callable[[], Any]) -> Future:
        return _crew(self.workers or cores()).beside(function)


def _work(task: Task, ask: Ask, form: str, pack: Callable[[], tuple[Data, np.ndarray]]) -> Tree:
    with spent("gather"):
        data, client_keys = pack()
    work, rates = _rated(ask.pool.work)
    statics = ask.pool.model, task.objective, work, ask.pool.fold, form
    with _first_alone((statics, data.x.shape)), spent("clients"):
        return jax.block_until_ready(_run_block(*statics, rates, ask.sent, data, client_keys))


@lru_cache
def _rated(work: Any) -> tuple[Any, dict[str, np.float32]]:
    """The work without its rates, which are the program's arguments, and these."""
    rates = {name: np.float32(getattr(work, name)) for name in getattr(work, "rates", ())}
    return (replace(work, **dict.fromkeys(rates, 1.0)) if rates else work), rates


def _itself(value: Any) -> Any:
    return value


def cores() -> int:
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _run_block(
    model: Model, objective: Objective, work: Any, fold: Fold, form: str, rates: dict[str, Any], sent: Tree, data: Data, client_keys: Any
) -> Tree:
    """The folded replies of a block of clients: data is [clients, rows, ...], padded."""
    work = replace(work, **rates) if rates else work

    def reply(client: tuple[Data, Any]) -> Any:
        return work(model, objective, sent, *client)

    one = jax.tree.map(lambda leaf: leaf[0], (data, client_keys))
    zero = fold.zero(jax.eval_shape(reply, one))
    if form == "vmap":
        replies = jax.vmap(reply)((data, client_keys))
        return jax.lax.scan(lambda total, r: (fold.add(total, r), None), zero, replies)[0]
    return jax.lax.scan(lambda total, client: (fold.add(total, reply(client)), None), zero, (data, client_keys))[0]


@partial(jax.jit, static_argnums=0)
def _join(fold: Fold, a: Tree, b: Tree) -> Tree:
    return fold.join(a, b)


@partial(jax.jit, static_argnums=0)
def _done(fold: Fold, total: Tree) -> Folded:
    return fold.done(total)


def _pack(pool: Pool, block: list[str], places: int, key: Key) -> tuple[Data, np.ndarray]:
    """The clients of a block, all padded to the pool's largest so that a pool has one program for all its rounds.

    Places without a client have no rows, and so no weight.
    """
    like = pool.clients[block[0]]
    x, y = (np.zeros((places, pool.largest, *a.shape[1:]), a.dtype) for a in map(np.asarray, like))
    n = np.zeros(places, np.int32)
    client_keys = np.zeros((places, 2), np.uint32)
    for place, client in enumerate(block):
        examples = pool.clients[client]
        n[place] = len(examples.x)
        x[place, : n[place]], y[place, : n[place]] = examples.x, examples.y
        client_keys[place] = keys.derive(key, client)
    return Data(x, y, n), client_keys


def _blocks(cohort: Sequence[str], size: int) -> list[list[str]]:
    ids = sorted(cohort)
    return [ids[i : i + size] for i in range(0, len(ids), size)]


_compiling: defaultdict[Hashable, Lock] = defaultdict(Lock)
_compiled: set[Hashable] = set()


@contextmanager
def _first_alone(program: Hashable) -> Iterator[None]:
    """The first call of a program alone: threads that meet it for the first time together would each compile it."""
    if program in _compiled:
        yield
        return
    with _compiling[program]:
        yield
    _compiled.add(program)


@lru_cache
def _crew(workers: int) -> Crew:
    return Crew(workers)
