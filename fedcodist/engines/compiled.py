"""The fast engine: whole client epochs inside one compiled program, blocks of clients spread over the cores.

Threads run blocks in parallel (a compiled program does not hold the interpreter) while the next clients are read, and blocks are joined in
their order. Neither the number of workers nor the order of the clients can therefore change a bit of the result.

On a GPU the clients of a block run under vmap instead, which fills the device; on a CPU that would be many times slower.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import jax

from fedcodist.engines import blocks
from fedcodist.engines.blocks import Form, Part
from fedcodist.engines.threads import CLIENTS, PriorityThreads, cores, shared
from fedcodist.profile import ready, timed, timed_wait
from fedcodist.settings import checked, setting
from fedcodist.types import Answer, Ask, Examples

AHEAD = 2  # blocks that are read ahead while the workers compute


@dataclass(frozen=True)
@checked
class Compiled:
    """`workers` threads (0: one a core) over blocks of `block` clients. `form` is chosen by the device unless it is given."""

    kind: ClassVar[str] = "compiled"
    workers: int = setting(0, ge=0, le=1024)  # threads; 0: one for each core. The result does not depend on it
    block: int = setting(5, ge=1, le=1024)  # clients in one call of the compiled program; another value rounds differently
    form: Literal["auto", "scan", "vmap"] = "auto"  # how a block's clients are run: in turn, or as one batch; "auto" decides by the device

    @property
    def host(self) -> PriorityThreads:
        """The threads, which the server's own work shares with the clients'."""
        return shared(self.workers or cores())

    def gather(self, population: Mapping[str, Mapping[str, Examples]], asks: Sequence[Ask]) -> list[Answer | None]:
        form: Form = self.form if self.form != "auto" else "scan" if jax.default_backend() == "cpu" else "vmap"
        todo = [(a, block) for a, ask in enumerate(asks) for block in blocks.cut(ask.clients, self.block)]
        host, workers = self.host, self.workers or cores()
        parts: dict[int, Part] = {}
        flying: deque[tuple[int, Future]] = deque()

        def land() -> None:  # in the order of the blocks, whichever thread ran them
            a, part = flying.popleft()
            with timed("clients"):
                done = part.result()
            with timed("fold"):
                parts[a] = ready(blocks.join(asks[a], parts[a], done)) if a in parts else done

        try:
            for place, (a, block) in enumerate(todo):
                pack = partial(blocks.pack, asks[a], population[asks[a].pool], block, self.block)
                if place >= workers:  # each worker reads its own first block, so that all begin at once
                    # This thread reads the next clients while the others compute: their rows may still be on disk.
                    with timed("gather"):
                        packed = pack()
                    pack = partial(_itself, packed)
                flying.append((a, host.submit(CLIENTS, _work, asks[a], form, block, pack)))
                if len(flying) > workers + AHEAD:
                    land()
            while flying:
                land()
        except BaseException:  # an error or an interrupt: no work of this round may continue during the next
            for _, part in flying:
                part.cancel()
            host.give_up()
            raise
        with timed_wait("fold"):
            return list(host.map(_done, zip(asks, (parts[a] for a in range(len(asks))), strict=True)))


def _done(both: tuple[Ask, Part]) -> Answer:
    with timed("fold"):
        return blocks.done(*both)


def _work(ask: Ask, form: Form, block: list[str], pack: Callable[[], Any]) -> Part:
    with timed("gather"):
        packed = pack()
    with timed("clients"):
        return blocks.run(ask, form, block, *packed)


def _itself(value: Any) -> Any:
    return value
