"""Where the clients are. An engine is an argument of a federation; all engines agree on what a round computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedcodist.types import Folded, Key, Tree

if TYPE_CHECKING:
    from fedcodist.pool import Pool
    from fedcodist.task import Task


class Ask(NamedTuple):
    """What is asked of a cohort: to do the pool's work with what it is sent."""

    pool: Pool
    sent: Tree
    cohort: Sequence[str]
    key: Key


class Engine(Protocol):
    """Gathers the replies of cohorts, and maps server work over the machine."""

    def gather(self, task: Task, asks: Sequence[Ask]) -> list[Folded]:
        """Let every client of every ask work, and fold each ask's replies in an order that nothing can change.

        All pools are asked at once, so that an engine can keep its cores busy with one while another comes to its end.
        """
        ...

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """function(item) for each item, side by side where there are cores, results in the order of the items."""
        ...

    def beside(self, function: Callable[[], Any]) -> Future:
        """Begin function() beside whatever comes next, where there are threads. A failure of `gather` cancels it."""
        ...
