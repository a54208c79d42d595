"""Where the clients are. An engine is an argument of a federation; all engines agree on what a round computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fedcodist.types import Folded, Key, Tree

if TYPE_CHECKING:
    from fedcodist.pool import Pool
    from fedcodist.task import Task


class Engine(Protocol):
    """Gathers the replies of a cohort, and maps server work over the machine."""

    def gather(self, task: Task, pool: Pool, sent: Tree, cohort: Sequence[str], key: Key) -> Folded:
        """Send `sent` to these clients, let each do the pool's work, and fold their replies in an order that nothing can change."""
        ...

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """function(item) for each item, side by side where there are cores, results in the order of the items."""
        ...
