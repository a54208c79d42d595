"""Splits: which clients are federated, public, held out or for the test, and which public rows are used.

Clients are divided whole, never by example (A10), and by the hash of their ids, so the part of a client depends on the split seed and not
on the order of a file. The seed of the split is not the seed of the run: runs with other seeds still learn from the same clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from fedcodist import keys
from fedcodist.errors import data_error
from fedcodist.settings import Problem, SettingError, show
from fedcodist.types import Key


def shuffled(ids: Iterable[str], key: Key) -> list[str]:
    """The ids in the order of their keyed hashes: a random order in which the place of an id does not depend on the other ids.

    >>> order = shuffled("abcdef", keys.root(0))
    >>> [c for c in order if c != "b"] == shuffled("acdef", keys.root(0))
    True
    """
    return sorted(ids, key=lambda name: (*keys.derive(key, name).tolist(), name))


def divide(ids: Iterable[str], shares: Mapping[str, float], rest: str, key: Key) -> dict[str, list[str]]:
    """{part: sorted ids}: parts of these shares, with at least one id each, and the part `rest` of all other ids.

    >>> {part: len(names) for part, names in divide(map(str, range(100)), {"a": 0.27, "b": 0.1}, "c", keys.root(0)).items()}
    {'c': 63, 'a': 27, 'b': 10}
    """
    order = shuffled(ids, key)
    counts = {part: max(1, round(share * len(order))) for part, share in shares.items()}
    if sum(counts.values()) >= len(order):
        taken = " + ".join(f"{count} {part}" for part, count in counts.items())
        raise data_error("clients", f"{len(order)}", f"more than {taken}")
    parts: dict[str, list[str]] = {rest: []}
    for part, count in counts.items():
        parts[part], order = sorted(order[:count]), order[count:]
    parts[rest] = sorted(order)
    return parts


def check_shares(part: object, *fields: str) -> None:
    """SettingError if these shares of a part leave nothing for the federated clients."""
    total = sum(getattr(part, field) for field in fields)
    if total >= 1:
        name = f"{type(part).__name__}.{fields[0]}"
        raise SettingError([Problem(name, show(getattr(part, fields[0])), f"{' + '.join(fields)} < 1", f"their sum is {total:g}")])


def choose_public(what: str, n: int, size: int, key: Key) -> np.ndarray:
    """The sorted indices of `size` of n public rows, chosen at random; `what` names the rows in the message.

    >>> len(choose_public("images", 10, 3, keys.root(0)))
    3
    """
    if size > n:
        raise data_error("task.public_size", str(size), f"at most the {n} public {what}")
    return np.sort(keys.permutation(keys.derive(key, "public_size"), n)[:size])
