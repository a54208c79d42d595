"""Rows of data as short vectors: what repeats, exactly or nearly, and how well one set of rows can be told from another.

A picture becomes its mean colours on a grid of eight by eight, a text the counts of its words and pairs of words in hashed buckets, and
numbers are themselves. Nothing is learned but the linear classifier between two sets, so that the answer is cheap.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from fedcodist import keys
from fedcodist.types import Array, Key

GRID, BUCKETS, MOST_NUMBERS = 8, 512, 512
ALIKE = 0.995  # cosine of two rows, after the mean of all is taken off, from which they are near duplicates
CHUNK = 2_000  # rows compared at once
RIDGE = 1e-2  # penalty of the classifier's squared weights


class Share(NamedTuple):
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float


def vectors(x: Array) -> np.ndarray:
    """[rows, numbers]: a short vector for each row.

    >>> vectors(np.arange(2 * 16 * 16 * 3).reshape(2, 16, 16, 3)).shape, vectors(np.zeros((5, 4))).shape
    ((2, 192), (5, 4))
    """
    x = np.asarray(x)
    if x.dtype.kind in "iu" and x.ndim == 2:
        return _words(x)
    if x.ndim >= 3:
        return _grid(x.astype(np.float32))
    return x.reshape(len(x), -1)[:, :MOST_NUMBERS].astype(np.float32)


def _grid(x: np.ndarray) -> np.ndarray:
    high, wide = (min(GRID, n) for n in x.shape[1:3])
    rows, columns = (np.linspace(0, n, parts + 1).astype(int)[:-1] for n, parts in zip(x.shape[1:3], (high, wide), strict=True))
    sums = np.add.reduceat(np.add.reduceat(x, rows, 1), columns, 2)
    counts = np.diff([*rows, x.shape[1]])[:, None] * np.diff([*columns, x.shape[2]])[None]
    return (sums / counts.reshape(1, high, wide, *(1,) * (x.ndim - 3))).reshape(len(x), -1)


def _words(x: np.ndarray) -> np.ndarray:
    """Counts of words and of pairs of words; zeros are padding."""
    found = np.zeros((len(x), BUCKETS), np.float32)
    pairs = x[:, :-1].astype(np.int64) * 1_000_003 + x[:, 1:]
    for tokens, real in ((x.astype(np.int64), x > 0), (pairs, (x[:, :-1] > 0) & (x[:, 1:] > 0))):
        row, place = np.nonzero(real)
        bucket = (tokens[row, place].astype(np.uint64) * np.uint64(11400714819323198485) >> np.uint64(55)).astype(
            np.int64
        )  # the top 9 bits
        np.add.at(found, (row, bucket), 1.0)
    return found / np.maximum(found.sum(1, keepdims=True), 1)


def near(some: np.ndarray, others: np.ndarray, alike: float = ALIKE) -> np.ndarray:
    """For each of some rows' vectors, the place of the nearest of the others' if it is a near duplicate, and else -1.

    >>> a = np.array([[1.0, 0, 0], [0, 1, 0]]); b = np.array([[0, 1.001, 0], [5, 5, 9.0]])
    >>> near(a, b).tolist()
    [-1, 0]
    """
    if not len(some) or not len(others):
        return np.full(len(some), -1)
    middle = np.concatenate([some, others]).mean(0)
    a, b = _unit(some - middle), _unit(others - middle)
    found = np.full(len(a), -1)
    for start in range(0, len(a), CHUNK):
        best, place = np.full(len(a[start : start + CHUNK]), -1.0), np.zeros(len(a[start : start + CHUNK]), int)
        for other in range(0, len(b), CHUNK):
            cosines = a[start : start + CHUNK] @ b[other : other + CHUNK].T
            here = cosines.argmax(1)
            value = cosines[np.arange(len(here)), here]
            place, best = np.where(value > best, other + here, place), np.maximum(best, value)
        found[start : start + CHUNK] = np.where(best >= alike, place, -1)
    return found


def told_apart(some: np.ndarray, others: np.ndarray, key: Key) -> Share:
    """How often a linear classifier says rightly from which of two sets a row is: 0.5 is chance. It is trained on half of as many rows of
    each, and judged on the other half."""
    n = min(len(some), len(others)) // 2
    if n < 10:
        return Share(0.5, 0.0, 1.0)
    picked = [rows[keys.permutation(keys.derive(key, "apart", i), len(rows))[: 2 * n]] for i, rows in enumerate((some, others))]
    x = np.concatenate([rows[half * n : (half + 1) * n] for half in (0, 1) for rows in picked]).astype(np.float64)
    sign = np.tile(np.repeat([1.0, -1.0], n), 2)
    x = (x - x[: 2 * n].mean(0)) / (x[: 2 * n].std(0) + 1e-6)
    x = np.concatenate([x, np.ones((len(x), 1))], 1)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = sign[: 2 * n] * (x[: 2 * n] @ w)
        pull = -sign[: 2 * n] / (1 + np.exp(np.clip(margin, -50, 50)))
        return np.logaddexp(0, -margin).mean() + RIDGE * (w @ w) / 2, x[: 2 * n].T @ pull / (2 * n) + RIDGE * w

    found: Any = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    right = int(np.sum(sign[2 * n :] * (x[2 * n :] @ found.x) > 0))
    return wilson(right, 2 * n)


def wilson(right: int, n: int) -> Share:
    """A share and its 95 % interval by Wilson.

    >>> [round(v, 3) for v in wilson(5, 10)]
    [0.5, 0.237, 0.763]
    """
    z, p = 1.959964, right / n
    middle, half = (p + z * z / (2 * n)) / (1 + z * z / n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Share(p, middle - half, middle + half)


def _unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)).astype(np.float32)
