"""The clients of a W1 round of the benches, to be had again in each actor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from benches import workload
from benches.ours import Lazy
from fedcodist.types import Examples


@dataclass(frozen=True)
class Clients:
    """Those of one pool, made once in a process."""

    size: str
    many: int

    def __call__(self) -> dict[str, Mapping[str, Examples]]:
        return {self.size: made(self.many)}


@cache
def made(many: int) -> dict[str, Examples]:
    return dict(Lazy(many, of=workload.examples))
