"""Numbers that change with the round: learning rates and alpha, as functions of t = 1..R.

They live outside optimizer state: when PeriodicCodist restarts the server momentum, the learning rate goes on (A29). Round 1 has the
first value; a decay "to zero over R rounds" takes its last step at 1/R, so that no round is wasted (DEVIATION D1).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

from fedcodist.settings import checked, setting
from fedcodist.types import Schedule


@dataclass(frozen=True)
@checked
class Constant:
    """The same value in every round.

    >>> Constant(0.5)(7)
    0.5
    """

    kind: ClassVar[str] = "constant"
    value: float = setting(ge=0, le=1e3)

    def __call__(self, t: int) -> float:
        return self.value


@dataclass(frozen=True)
@checked
class Linear:
    """From `start` in round 1 in equal steps towards `end`, which round `over` + 1 would reach (over = 0: all rounds of the run).

    >>> [Linear(1.0, 0.0, over=4)(t) for t in (1, 2, 3, 4)]
    [1.0, 0.75, 0.5, 0.25]
    """

    kind: ClassVar[str] = "linear"
    start: float = setting(ge=0, le=1e3)
    end: float = setting(ge=0, le=1e3)
    over: int = setting(0, ge=0)

    def __call__(self, t: int) -> float:
        return self.start + (self.end - self.start) * _progress(t, self.over)


@dataclass(frozen=True)
@checked
class Cosine:
    """From `start` to `end` along half a cosine (over = 0: all rounds of the run).

    >>> [round(Cosine(1.0, 0.0, over=4)(t), 3) for t in (1, 3, 5)]
    [1.0, 0.5, 0.0]
    """

    kind: ClassVar[str] = "cosine"
    start: float = setting(ge=0, le=1e3)
    end: float = setting(ge=0, le=1e3)
    over: int = setting(0, ge=0)

    def __call__(self, t: int) -> float:
        return self.end + (self.start - self.end) * 0.5 * (1 + math.cos(math.pi * _progress(t, self.over)))


@dataclass(frozen=True)
@checked
class Every:
    """`value` in every k-th round, `otherwise` in the rest. As alpha: MergedCodist in every k-th round, plain FedAvg between.

    >>> [Every(3, 0.5)(t) for t in (1, 2, 3, 4, 5, 6)]
    [1.0, 1.0, 0.5, 1.0, 1.0, 0.5]
    """

    kind: ClassVar[str] = "every"
    k: int = setting(ge=1)
    value: float = setting(ge=0, le=1e3)
    otherwise: float = setting(1.0, ge=0, le=1e3)

    def __call__(self, t: int) -> float:
        return self.value if t % self.k == 0 else self.otherwise


@dataclass(frozen=True)
@checked
class After:
    """`otherwise` in the first k rounds, `value` from then on. As alpha: FedAvg while the teachers are still weak.

    >>> [After(2, 0.5)(t) for t in (1, 2, 3, 4)]
    [1.0, 1.0, 0.5, 0.5]
    """

    kind: ClassVar[str] = "after"
    k: int = setting(ge=0)
    value: float = setting(ge=0, le=1e3)
    otherwise: float = setting(1.0, ge=0, le=1e3)

    def __call__(self, t: int) -> float:
        return self.value if t > self.k else self.otherwise


SCHEDULES = {cls.kind: cls for cls in (Constant, Linear, Cosine, Every, After)}


def over_rounds(schedule: Schedule, rounds: int) -> Schedule:
    """The schedule with its length filled in, where it was left to be that of the run."""
    if getattr(schedule, "over", None) == 0:
        return dataclasses.replace(schedule, over=rounds)  # type: ignore[type-var]
    return schedule


def _progress(t: int, over: int) -> float:
    if over < 1:
        raise ValueError("over: got 0; allowed the number of rounds that the schedule spans")
    return min((t - 1) / over, 1.0)
