"""Whose data is whose: clients as a mapping from id to examples, read one at a time.

Nothing here copies the data of all clients: a client is a list of rows in arrays that may be memory-mapped. Any other mapping with
the same two questions, `clients[id]` and `len(clients)`, works as well; a plain dict of Examples is the usual one in tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedcodist.types import Array, Examples


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
        rows = self.rows[client]
        return Examples(self.x[rows], self.y[rows])

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def sizes(self) -> dict[str, int]:
        """How many examples each client has."""
        return {client: len(rows) for client, rows in self.rows.items()}

    def only(self, ids: Iterable[str], domain: int | None = None) -> Clients:
        """These clients, with only their examples of one domain if one is named. Clients left without examples go."""
        rows = {client: self.rows[client] for client in ids}
        if domain is not None:
            assert self.domain is not None
            rows = {client: r[self.domain[r] == domain] for client, r in rows.items()}
        return Clients(self.x, self.y, {client: r for client, r in rows.items() if len(r)}, self.domain)


def sizes(clients: Mapping[str, Examples]) -> dict[str, int]:
    """How many examples each client of any mapping has."""
    return clients.sizes() if isinstance(clients, Clients) else {client: len(clients[client].x) for client in clients}


def group(column: Sequence[str]) -> dict[str, np.ndarray]:
    """Rows by the value of a column: {client: rows}.

    >>> {k: v.tolist() for k, v in group(["b", "a", "b"]).items()}
    {'a': [1], 'b': [0, 2]}
    """
    names, codes = np.unique(np.asarray(column), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(codes, minlength=len(names)))[:-1])
    return {str(name): part for name, part in zip(names, parts, strict=True)}
