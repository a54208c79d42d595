"""Clients for data without clients: ways to partition the rows of a table among clients.

Each is a frozen dataclass with `deal(y, key, coarse)`, which gives the sorted rows of every client (its hand), no row twice; the same key
deals the same hands. Data with a column of clients needs no partition: name that column as the task's `client`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Protocol

import numpy as np

from fedcodist import keys
from fedcodist.errors import data_error
from fedcodist.settings import Problem, checked, read_kind, setting
from fedcodist.types import Key

MOST_CLIENTS = 10_000_000
NUMBER = {"ge": 1e-3, "le": 1e6}  # the range of a Dirichlet's concentration


class Partition(Protocol):
    """A way to deal rows to clients."""

    def deal(self, y: np.ndarray, key: Key, coarse: np.ndarray | None = None) -> list[np.ndarray]:
        """The rows of each client, sorted and disjoint."""
        ...


@dataclass(frozen=True)
@checked
class Iid:
    """Every client is a random sample, and all are of one size.

    >>> [len(hand) for hand in Iid(clients=3).deal(np.zeros(10, int), keys.root(0))]
    [4, 3, 3]
    """

    kind: ClassVar[str] = "iid"
    clients: int = setting(100, ge=1, le=MOST_CLIENTS)  # how many clients

    def deal(self, y: np.ndarray, key: Key, coarse: np.ndarray | None = None) -> list[np.ndarray]:
        _check_rows(self.clients, len(y))
        return _cut(keys.generator(key).permutation(len(y)), self.clients)


@dataclass(frozen=True)
@checked
class Dirichlet:
    """Clients of equal size whose label shares are drawn from a Dirichlet: a small concentration is skewed.

    >>> hands = Dirichlet(4, 0.5).deal(np.repeat([0, 1], 10), keys.root(0))
    >>> [len(hand) for hand in hands], len(set(np.concatenate(hands)))
    ([5, 5, 5, 5], 20)
    """

    kind: ClassVar[str] = "dirichlet"
    clients: int = setting(100, ge=1, le=MOST_CLIENTS)  # how many clients
    concentration: float = setting(0.3, **NUMBER)  # concentration of the label shares; small is skewed

    def deal(self, y: np.ndarray, key: Key, coarse: np.ndarray | None = None) -> list[np.ndarray]:
        """Each client draws its label shares, then its rows without replacement from what is left, with the shares renormalised over the
        labels that still have rows."""
        _check_rows(self.clients, len(y))
        draw = keys.generator(key)
        labels, y = _codes(y)
        piles = [draw.permutation(np.flatnonzero(y == label)) for label in range(len(labels))]
        left = np.array([len(pile) for pile in piles])
        hands = []
        for _ in range(self.clients):
            shares = draw.dirichlet(np.full(len(piles), self.concentration))
            hand = []
            for u in draw.random(len(y) // self.clients):
                open_shares = np.where(left > 0, shares, 0.0)
                if open_shares.sum() <= 0:  # no label of this client has rows left
                    open_shares = (left > 0).astype(float)
                edges = np.cumsum(open_shares)
                label = int(np.searchsorted(edges, u * edges[-1], side="right"))
                left[label] -= 1
                hand.append(piles[label][left[label]])
            hands.append(np.sort(np.array(hand, np.int64)))
        return hands


@dataclass(frozen=True)
@checked
class Shards:
    """Rows sorted by label and cut into shards, of which each client gets a few at random: most clients see few labels.

    >>> skew(Shards(clients=5, shards_per_client=2).deal(np.repeat(np.arange(10), 10), keys.root(0)), np.repeat(np.arange(10), 10))
    {'clients': 5, 'examples': 20.0, 'labels': 2.0}
    """

    kind: ClassVar[str] = "shards"
    clients: int = setting(100, ge=1, le=MOST_CLIENTS)  # how many clients
    shards_per_client: int = setting(2, ge=1, le=10_000)  # shards that each client gets

    def deal(self, y: np.ndarray, key: Key, coarse: np.ndarray | None = None) -> list[np.ndarray]:
        count = self.clients * self.shards_per_client
        _check_rows(count, len(y), "shards")
        draw = keys.generator(key)
        order = draw.permutation(len(y))  # rows of one label are put into shards at random
        shards = np.array_split(order[np.argsort(y[order], kind="stable")], count)
        owners = draw.permutation(count).reshape(self.clients, self.shards_per_client)
        return [np.sort(np.concatenate([shards[i] for i in mine])) for mine in owners]


@dataclass(frozen=True)
@checked
class Quantity:
    """Every client is a random sample, but of sizes whose shares are drawn from a Dirichlet, at least the smallest.

    >>> sorted(len(hand) for hand in Quantity(3, 0.5, smallest=2).deal(np.zeros(30, int), keys.root(0)))
    [6, 9, 15]
    """

    kind: ClassVar[str] = "quantity"
    clients: int = setting(100, ge=1, le=MOST_CLIENTS)  # how many clients
    concentration: float = setting(0.5, **NUMBER)  # concentration of the sizes; small is skewed
    smallest: int = setting(1, ge=1)  # rows that every client has at least

    def deal(self, y: np.ndarray, key: Key, coarse: np.ndarray | None = None) -> list[np.ndarray]:
        spare = len(y) - self.clients * self.smallest
        _check_rows(self.clients * self.smallest, len(y), f"clients x {self.smallest} examples")
        draw = keys.generator(key)
        edges = np.rint(spare * np.cumsum(draw.dirichlet(np.full(self.clients, self.concentration)))).astype(int)
        edges[-1] = spare
        ends = edges + self.smallest * np.arange(1, self.clients + 1)
        return [np.sort(hand) for hand in np.split(draw.permutation(len(y)), ends[:-1])]


@dataclass(frozen=True)
@checked
class Pachinko:
    """Labels in two stages, as federated CIFAR-100 was made: each client draws coarse shares and, in each coarse label, fine shares."""

    kind: ClassVar[str] = "pachinko"
    clients: int = setting(500, ge=1, le=MOST_CLIENTS)  # how many clients
    coarse: float = setting(0.1, **NUMBER)  # concentration over the coarse labels; small is skewed
    fine: float = setting(10.0, **NUMBER)  # concentration over the fine labels of one coarse label
    examples: int = setting(100, ge=1, le=MOST_CLIENTS)  # rows of each client
    column: str = "coarse_label"  # the column of coarse labels

    def deal(self, y: np.ndarray, key: Key, coarse: np.ndarray | None = None) -> list[np.ndarray]:
        """Each example is a draw of a coarse label, then of one of its fine labels, then of one of its remaining rows. A label without rows
        left is taken out of the draw, and the other shares grow in proportion.

        >>> fine = np.repeat(np.arange(4), 6)
        >>> sorted(np.concatenate(Pachinko(4, examples=6).deal(fine, keys.root(0), fine // 2)).tolist()) == list(range(24))
        True
        """
        if coarse is None:
            raise data_error("partition", "no coarse labels", f"a column {self.column} with a coarse label for each row")
        _check_rows(self.clients * self.examples, len(y), f"clients x {self.examples} examples")
        draw = keys.generator(key)
        groups = _tree(y, coarse)
        piles = [[draw.permutation(rows).tolist() for rows in group] for group in groups]
        hands = []
        for _ in range(self.clients):
            top = draw.dirichlet(np.full(len(groups), self.coarse)).tolist()
            low = [draw.dirichlet(np.full(len(group), self.fine)).tolist() for group in groups]
            hands.append(np.sort(_hand(piles, top, low, draw.random((self.examples, 2)).tolist())))
        return hands


def _hand(piles: list[list[list[int]]], top: list[float], low: list[list[float]], chances: list[list[float]]) -> np.ndarray:
    """The rows of one client, removed from the piles."""
    hand = []
    edges = _edges(top, [any(group) for group in piles])
    inner: dict[int, list[float]] = {}
    for one, other in chances:
        c = _pick(edges, one)
        if c not in inner:
            inner[c] = _edges(low[c], [bool(pile) for pile in piles[c]])
        f = _pick(inner[c], other)
        hand.append(piles[c][f].pop())
        if not piles[c][f]:
            del inner[c]
            if not any(piles[c]):
                edges = _edges(top, [any(group) for group in piles])
    return np.array(hand, np.int64)


def _pick(edges: list[float], chance: float) -> int:
    """The label into whose share a number in [0, 1) falls; rounding at the upper end cannot lead past the last label."""
    return min(bisect_right(edges, chance * edges[-1]), bisect_left(edges, edges[-1]))


def _edges(shares: Sequence[float], there: Sequence[bool]) -> list[float]:
    """The cumulated shares of the labels that have rows left; equal shares if these sum to zero."""
    kept = [share if is_there else 0.0 for share, is_there in zip(shares, there, strict=True)]
    return list(accumulate(kept if sum(kept) > 0 else map(float, there)))


def _tree(y: np.ndarray, coarse: np.ndarray) -> list[list[np.ndarray]]:
    """[coarse label][fine label]: rows; DataError if a fine label has two coarse labels."""
    if len(coarse) != len(y):
        raise data_error("partition", f"{len(coarse)} coarse labels for {len(y)} rows", "one for each row")
    fines, fine = _codes(y)
    tops, top = _codes(coarse)
    parent = np.zeros(len(fines), int)
    parent[fine] = top
    wrong = np.flatnonzero(parent[fine] != top)
    if len(wrong):
        label, both = fines[fine[wrong[0]]], sorted({str(tops[top[wrong[0]]]), str(tops[parent[fine[wrong[0]]]])})
        raise data_error("partition", f"label {label} under the coarse labels {' and '.join(both)}", "one coarse label for each label")
    order = np.argsort(fine, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(fine))[:-1])
    return [[rows[f] for f in np.flatnonzero(parent == c)] for c in range(len(tops))]


def client_names(count: int) -> list[str]:
    """Names for clients without names, all of one length, so that they sort by number.

    >>> client_names(2), client_names(1001)[-1]
    (['client-000', 'client-001'], 'client-1000')
    """
    width = max(3, len(str(count - 1)))
    return [f"client-{k:0{width}d}" for k in range(count)]


def owners(hands: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The rows of several clients one after the other, and the index of the client that each belongs to.

    >>> [a.tolist() for a in owners([np.array([4, 7]), np.array([5])])]
    [[4, 7, 5], [0, 0, 1]]
    """
    hands = list(hands)
    return np.concatenate(hands), np.repeat(np.arange(len(hands)), [len(hand) for hand in hands])


def skew(hands: Sequence[np.ndarray], y: np.ndarray) -> dict[str, Any]:
    """The number of clients, and the means of their sizes and of their numbers of different labels.

    >>> skew([np.array([0, 1]), np.array([2, 3])], np.array([5, 5, 5, 7]))
    {'clients': 2, 'examples': 2.0, 'labels': 1.5}
    """
    sizes, labels = [len(hand) for hand in hands], [len(np.unique(y[hand])) for hand in hands]
    return {"clients": len(hands), "examples": float(np.mean(sizes)), "labels": float(np.mean(labels))}


PARTITIONS = {cls.kind: cls for cls in (Iid, Dirichlet, Shards, Quantity, Pachinko)}


def read_partition(value: Any, path: str, problems: list[Problem]) -> Partition | None:
    """A partition from a config: None, a kind, or a table with its kind."""
    return None if value is None else read_kind(PARTITIONS, value, path, problems)


def _codes(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.unique(labels, return_inverse=True)


def _cut(order: np.ndarray, clients: int) -> list[np.ndarray]:
    return [np.sort(hand) for hand in np.array_split(order, clients)]


def _check_rows(needed: int, rows: int, what: str = "clients") -> None:
    if needed > rows:
        raise data_error("partition", f"{rows} rows", f"at least {needed}", f"for its {what}")


def group(column: Sequence[str]) -> dict[str, np.ndarray]:
    """Rows by the value of a column: {client: rows}.

    >>> {k: v.tolist() for k, v in group(["b", "a", "b"]).items()}
    {'a': [1], 'b': [0, 2]}
    """
    names, codes = np.unique(np.asarray(column), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(codes, minlength=len(names)))[:-1])
    return {str(name): part for name, part in zip(names, parts, strict=True)}
