"""Clients as a mapping from id to examples, read one at a time.

Nothing here copies the data of all clients: a client is a list of rows in arrays that may be memory-mapped. Any other mapping with
`clients[id]`, iteration and `len(clients)` works as well; tests usually have a plain dict of Examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedcodist.types import Array, Examples


@dataclass(frozen=True, eq=False)
class Spans(Mapping[str, np.ndarray]):
    """Contiguous rows: client k has those from start[k] to stop[k]. A million clients cost two arrays and their names.

    >>> spans = Spans(["a", "b"], np.array([0, 2]), np.array([2, 6]))
    >>> spans["b"].tolist(), spans.of("b"), spans.sizes()
    ([2, 3, 4, 5], slice(2, 6, None), {'a': 2, 'b': 4})
    """

    names: Sequence[str]
    start: np.ndarray
    stop: np.ndarray

    @classmethod
    def ending(cls, names: Sequence[str], ends: np.ndarray) -> Spans:
        """Clients one after the other; each begins where the previous one ends.

        >>> Spans.ending(["a", "b"], np.array([2, 6])).sizes()
        {'a': 2, 'b': 4}
        """
        return cls(names, np.concatenate([np.zeros(1, np.int64), ends[:-1]]), ends)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def of(self, client: str) -> slice:
        """The client's rows as a slice, which is read from a memory map without a copy."""
        k = self._place[client]
        return slice(int(self.start[k]), int(self.stop[k]))

    def __getitem__(self, client: str) -> np.ndarray:
        k = self._place[client]
        return np.arange(self.start[k], self.stop[k])

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, client: object) -> bool:
        return client in self._place

    def sizes(self) -> dict[str, int]:
        """How many rows each client has."""
        return dict(zip(self.names, (self.stop - self.start).tolist(), strict=True))

    def only(self, ids: Iterable[str]) -> Spans:
        """These clients, without those that have no rows."""
        ids = list(ids)
        places = np.array([self._place[client] for client in ids], np.int64)
        full = np.flatnonzero(self.stop[places] > self.start[places])
        return Spans([ids[k] for k in full], self.start[places[full]], self.stop[places[full]])


@dataclass(frozen=True, eq=False)
class Clients(Mapping[str, Examples]):
    """Clients as lists of rows in shared arrays.

    >>> rows = Clients(np.arange(6), np.zeros(6), {"a": np.array([0, 1]), "b": np.array([2, 3, 4, 5])})
    >>> rows["a"].x.tolist(), rows.sizes()
    ([0, 1], {'a': 2, 'b': 4})
    >>> list(rows.only(["b"]))
    ['b']
    """

    x: Array
    y: Array
    rows: Mapping[str, np.ndarray]
    domain: np.ndarray | None = None  # [rows of x] domain index of each example

    def __getitem__(self, client: str) -> Examples:
        rows = self.rows.of(client) if isinstance(self.rows, Spans) else self.rows[client]
        return Examples(self.x[rows], self.y[rows])

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, client: object) -> bool:
        return client in self.rows  # without reading any row

    def sizes(self) -> dict[str, int]:
        """How many examples each client has."""
        return self.rows.sizes() if isinstance(self.rows, Spans) else {client: len(rows) for client, rows in self.rows.items()}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The clients in the order of their ids."""
        return tuple(sorted(self.rows))

    @cached_property
    def largest(self) -> int:
        """How many examples the largest client has."""
        return max(self.sizes().values(), default=0)

    def only(self, ids: Iterable[str], domain: int | None = None) -> Clients:
        """These clients, restricted to one domain if one is named. Clients without any examples are left out."""
        if domain is None and isinstance(self.rows, Spans):
            return Clients(self.x, self.y, self.rows.only(ids), self.domain)
        rows = {client: self.rows[client] for client in ids}
        if domain is not None:
            assert self.domain is not None
            rows = {client: r[self.domain[r] == domain] for client, r in rows.items()}
        return Clients(self.x, self.y, {client: r for client, r in rows.items() if len(r)}, self.domain)


def grows(clients: Mapping[str, Examples]) -> bool:
    """Whether more clients may join during a run."""
    return getattr(clients, "grows", False)


def sizes(clients: Mapping[str, Examples]) -> dict[str, int]:
    """How many examples each client of any mapping has."""
    known = getattr(clients, "sizes", None)
    return known() if known is not None else {client: len(clients[client].x) for client in clients}


def ids(clients: Mapping[str, Examples]) -> tuple[str, ...]:
    """The clients of any mapping in the order of their ids."""
    known = getattr(clients, "ids", None)
    return known if known is not None else tuple(sorted(clients))


def largest(clients: Mapping[str, Examples]) -> int:
    """How many examples the largest client of any mapping has."""
    known = getattr(clients, "largest", None)
    return known if known is not None else max(sizes(clients).values(), default=0)
