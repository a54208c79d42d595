"""How differently labels are distributed over the clients of a pool: counts of some clients, and one number for all of them.

The number is the mean over clients of the total variation distance between a client's distribution of labels and the pool's: 0 where all
clients have the same distribution, near 1 where each client has labels that hardly anybody else has. Of a large pool a fixed sample of
clients is read, evenly spaced in the order of their names, so that this costs little. Names of clients are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedcodist.clients import grows
from fedcodist.types import Examples

READ, SHOWN = 200, 40  # clients at most: for the number, and one by one


def label_skew(clients: Mapping[str, Examples], classes: int) -> dict[str, Any] | None:
    """The counts of labels of a pool's clients, as a plain table for the result of a run; None where a row has no single label,
    or where the data is elsewhere.

    >>> rows = np.zeros((4, 1))
    >>> found = label_skew({"a": Examples(rows, np.array([0, 0, 0, 0])), "b": Examples(rows, np.array([0, 0, 1, 1]))}, 2)
    >>> found["skew"], found["distinct"], found["counts"]
    (0.25, 1.5, [{'0': 4}, {'0': 2, '1': 2}])
    """
    if grows(clients):  # their data is on devices, and not here
        return None
    names = sorted(clients)
    labels = [np.asarray(clients[name].y) for name in _spaced(names, READ)]
    if not labels or any(y.ndim != 1 or y.dtype.kind not in "iu" for y in labels):
        return None
    counts = np.array([np.bincount(y, minlength=classes) for y in labels if len(y)])
    if not len(counts):
        return None
    shares = counts / counts.sum(1, keepdims=True)
    distance = 0.5 * np.abs(shares - counts.sum(0) / counts.sum()).sum(1)
    return {
        "classes": classes,
        "clients": len(names),
        "read": len(counts),
        "skew": round(float(distance.mean()), 6),
        "distinct": float(np.mean((counts > 0).sum(1))),
        "counts": [{str(label): int(row[label]) for label in np.flatnonzero(row)} for row in _spaced(counts, SHOWN)],
    }


def _spaced(items: Sequence[Any] | np.ndarray, most: int) -> list[Any]:
    """At most so many of the items, evenly spaced."""
    return [items[i] for i in sorted({round(at) for at in np.linspace(0, len(items) - 1, min(most, len(items)))})]
