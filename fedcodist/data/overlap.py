"""Rows that occur in more than one part of the data: what was trained on must not be tested on.

Two rows are the same if their contents are, so every part is given as the digests of its rows. Parts are compared in their order: a row
belongs to the first part that has it, and in a later part it is a repetition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from fedcodist.errors import data_error
from fedcodist.types import Array

HINT = 'overlap = "drop" leaves them out, "allow" keeps them'


def digests(x: Array) -> np.ndarray:
    """A 64-bit hash of the content of every row: equal rows have equal hashes.

    >>> a = digests(np.array([[1, 2], [3, 4], [1, 2]]))
    >>> bool(a[0] == a[2] != a[1])
    True
    """
    hashes = b"".join(hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest() for row in x)
    return np.frombuffer(hashes, "<u8")


def repeated(parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A mask for each part: which of its rows are in any part before it.

    >>> {part: mask.tolist() for part, mask in repeated({"clients": np.array([1, 2]), "test": np.array([2, 3])}).items()}
    {'clients': [False, False], 'test': [True, False]}
    """
    earlier: list[np.ndarray] = []
    masks = {}
    for part, rows in parts.items():
        masks[part] = np.isin(rows, np.concatenate([*earlier, rows[:0]]))
        earlier.append(rows)
    return masks


def shared(parts: Mapping[str, np.ndarray]) -> list[tuple[str, str, int]]:
    """(part, earlier part, how many of its rows the earlier one has too) for all pairs that share any.

    >>> shared({"clients": np.array([1, 2]), "test": np.array([2, 2, 3])})
    [('test', 'clients', 2)]
    """
    names = list(parts)
    counts = [(later, earlier, int(np.isin(parts[later], parts[earlier]).sum())) for i, later in enumerate(names) for earlier in names[:i]]
    return [pair for pair in counts if pair[2]]


def check_disjoint(where: str, parts: Mapping[str, np.ndarray], hint: str = "") -> None:
    """DataError if two parts share a row.

    >>> check_disjoint("some.npz", {"clients": np.array([1, 2]), "test": np.array([2, 3])})
    Traceback (most recent call last):
    fedcodist.errors.DataError: some.npz: got 1 rows of test that are also in clients; allowed none
    """
    names = list(parts)
    found = sorted(shared(parts), key=lambda pair: names.index(pair[1]))  # what is shared with the clients comes first
    if found:
        raise data_error(
            where, ", ".join(f"{count} rows of {later} that are also in {earlier}" for later, earlier, count in found), "none", hint
        )


def drop_shared(where: str, parts: Mapping[str, np.ndarray], overlap: str) -> tuple[dict[str, np.ndarray], list[str]]:
    """A mask for each part of the rows that stay in it, and notes for the user. `overlap` is error, drop or allow.

    >>> parts = {"clients": np.array([1, 2]), "test": np.array([2, 3, 4])}
    >>> kept, notes = drop_shared("some.npz", parts, "drop")
    >>> kept["test"].tolist(), notes
    ([False, True, True], ['1 rows of test are also in clients: dropped'])
    """
    kept, notes = {part: np.ones(len(rows), bool) for part, rows in parts.items()}, []
    if overlap == "error":
        check_disjoint(where, parts, HINT)
        return kept, notes
    names = list(parts)
    for i, part in enumerate(names):
        new = np.ones(len(parts[part]), bool)  # not yet found in an earlier part, so that each row is counted once
        for earlier in names[:i]:
            again = np.isin(parts[part], parts[earlier]) & new
            if again.any():
                notes.append(f"{int(again.sum())} rows of {part} are also in {earlier}: {'dropped' if overlap == 'drop' else 'kept'}")
                new &= ~again
        if overlap == "drop":
            kept[part] = new
    return kept, notes
