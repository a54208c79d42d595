"""Clients whose data is elsewhere, as on real devices: the server knows their ids and sizes, and more may join."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedcodist.types import Examples


class Roster(Mapping[str, Examples]):
    """Ids and sizes of clients, and none of their data. More may join during a run.

    >>> roster = Roster({"b": 3})
    >>> roster.join("a", 5)
    >>> roster.ids, roster.largest, "a" in roster
    (('a', 'b'), 5, True)
    """

    grows = True

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        self._sizes = dict(sizes or {})

    def join(self, client: str, size: int) -> None:
        """Add a client, or update its number of examples."""
        self._sizes = {**self._sizes, client: size}  # a new dict, because another thread may be sampling from the old one

    def sizes(self) -> dict[str, int]:
        """How many examples each client says it has."""
        return self._sizes

    @property
    def ids(self) -> tuple[str, ...]:
        """The clients in the order of their ids."""
        return tuple(sorted(self._sizes))

    @property
    def largest(self) -> int:
        """How many examples the largest client has."""
        return max(self._sizes.values(), default=0)

    def __getitem__(self, client: str) -> Examples:
        raise LookupError(f"the examples of client {client} are not here")

    def __contains__(self, client: object) -> bool:
        return client in self._sizes

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)
