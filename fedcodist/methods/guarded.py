"""A guard for every codistilling method: a student that its lesson has made measurably worse on held-out data keeps its own model instead.

An idea of this package, and not of the paper. Each student is compared with the model that it started from, on the same held-out rows. If
it is worse by more than chance explains, the lesson is refused for its pool: under PeriodicCodist the model stays, under MergedCodist the
round has alpha = 1. With several `shares`, models on the way from the old one to the student are tried as well, and the best is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcodist import keys, tree
from fedcodist.evaluate import measure
from fedcodist.federation import Federation
from fedcodist.settings import check, setting
from fedcodist.types import Info, Key, Params, Split, Voice

GROUPS = 50  # of rows, whose accuracies are compared in pairs


@dataclass(frozen=True)
class Guard:
    """When a lesson is refused. It consumes the labels of the held-out data."""

    rows: int = setting(2_000, ge=2 * GROUPS, le=10**7)  # held-out rows that are looked at, or as many as there are
    doubt: float = setting(1.645, ge=0, le=100)  # standard errors by which a student must be worse to be refused
    shares: tuple[float, ...] = setting((1.0,), gt=0, le=1)  # of the way from the old model to the student that are tried

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, eq=False)
class Guarded(Federation):
    """A federation whose lessons are judged before a method has them."""

    guard: Guard = Guard()

    def codistill(self, how: Any, theta: Mapping[str, Params], t: int, key: Key, *args: Any, **more: Any) -> tuple[dict[str, Params], Info]:
        """The students that were not refused, and the info of all."""
        student, info = super().codistill(how, theta, t, key, *args, **more)
        data = self._rows(key)
        for i in list(student):
            before = self._accuracies(i, theta[i], data)
            found = {share: between(theta[i], student[i], share) for share in self.guard.shares}
            after = {share: self._accuracies(i, params, data) for share, params in found.items()}
            best = max(after, key=lambda share: (after[share].mean(), share))
            worse = is_worse(after[best], before, self.guard.doubt)
            info[i]["guard"] = {"before": float(before.mean()), "after": float(after[best].mean()), "share": 0.0 if worse else best}
            if worse:
                del student[i]
            else:
                student[i] = found[best]
        return student, info

    def judged(self) -> int:
        """How many rows go through a model when a student is judged."""
        return min(self.guard.rows, len(self.task.held_out.x)) * (1 + len(self.guard.shares))

    def _rows(self, key: Key) -> Split:
        held_out = self.task.held_out
        chosen = np.sort(keys.permutation(keys.derive(key, "guard"), len(held_out.x))[: self.guard.rows])
        return Split(held_out.x[chosen], held_out.y[chosen])

    def _accuracies(self, pool: str, params: Params, data: Split) -> np.ndarray:
        """Of each group of rows."""
        sums = measure(self, [Voice(self.pools[pool].model, params)], data)
        groups = np.array_split(np.arange(len(data.x)), min(GROUPS, len(data.x)))
        return np.array([self.task.objective.summarise({k: v[g].sum(0) for k, v in sums.items()})["accuracy"] for g in groups])


def between(start: Params, end: Params, share: float) -> Params:
    """The model that is this share of the way from one to another; at 1 it is the other to the bit."""
    return end if share == 1 else tree.add(start, tree.scale(tree.sub(end, start), share))


def is_worse(after: np.ndarray, before: np.ndarray, doubt: float) -> bool:
    """Whether the mean of paired differences is below zero by more than so many standard errors.

    >>> import numpy as np
    >>> is_worse(np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.3, 0.41]), 1.645), is_worse(np.array([0.1, 0.6]), np.array([0.3, 0.5]), 1.645)
    (True, False)
    """
    change = after - before
    return bool(change.mean() < 0 and change.mean() < -doubt * change.std(ddof=1) / len(change) ** 0.5)
