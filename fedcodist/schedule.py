"""Numbers that change with the round: learning rates and alpha, as functions of t = 1..R.

They live outside optimizer state: when PeriodicCodist restarts the server momentum, the learning rate goes on (A29). Round 1 has the
first value; a decay "to zero over R rounds" takes its last step at 1/R, so that no round is wasted (DEVIATION D1).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedcodist.settings import Problem, SettingError, checked, join, nearest, number_hint, read_kind, setting, show
from fedcodist.types import Schedule


@dataclass(frozen=True)
@checked
class Constant:
    """The same value in every round.

    >>> Constant(0.5)(7)
    0.5
    """

    kind: ClassVar[str] = "constant"
    value: float = setting(ge=0, le=1e3)  # the value in all rounds

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
    start: float = setting(ge=0, le=1e3)  # the value in round 1
    end: float = setting(ge=0, le=1e3)  # the value that round `over` + 1 would have
    over: int = setting(0, ge=0)  # rounds from start to end; 0: all rounds of the run

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
    start: float = setting(ge=0, le=1e3)  # the value in round 1
    end: float = setting(ge=0, le=1e3)  # the value that round `over` + 1 would have
    over: int = setting(0, ge=0)  # rounds from start to end; 0: all rounds of the run

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
    k: int = setting(ge=1)  # how many rounds apart
    value: float = setting(ge=0, le=1e3)  # the value in every k-th round
    otherwise: float = setting(1.0, ge=0, le=1e3)  # the value in all other rounds

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
    k: int = setting(ge=0)  # how many rounds come first
    value: float = setting(ge=0, le=1e3)  # the value after them
    otherwise: float = setting(1.0, ge=0, le=1e3)  # the value in the first k rounds

    def __call__(self, t: int) -> float:
        return self.value if t > self.k else self.otherwise


SCHEDULES = {cls.kind: cls for cls in (Constant, Linear, Cosine, Every, After)}


def as_schedule(value: Any, path: str, most: float = 1e3) -> Any:
    """A schedule, or one for each pool, of what may be numbers up to `most`. Raises SettingError for anything else.

    >>> as_schedule(0.5, "alpha"), as_schedule({"small": 1}, "alpha")
    (Constant(value=0.5), {'small': Constant(value=1)})
    """
    if isinstance(value, Mapping):
        return {name: as_schedule(inner, f"{path}.{name}", most) for name, inner in value.items()}
    if callable(value):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        allowed = f"a number >= 0 and <= {most:g}, or a schedule such as Constant(0.5)"
        raise SettingError([Problem(path, show(value), allowed, number_hint(value))])
    return Constant(value)


def over_rounds(schedule: Any, rounds: int) -> Any:
    """The schedule, or each one of a table by pool, with its length filled in where it was left to be that of the run."""
    if isinstance(schedule, Mapping):
        return {name: over_rounds(inner, rounds) for name, inner in schedule.items()}
    if getattr(schedule, "over", None) == 0:
        return dataclasses.replace(schedule, over=rounds)
    return schedule


def by_pool(schedules: Any, pool: str, otherwise: Schedule) -> Schedule:
    """This pool's schedule: the one for all pools, or its own in a table; `otherwise` for a pool that the table does not name."""
    return schedules.get(pool, otherwise) if isinstance(schedules, Mapping) else schedules


def read_shares(value: Any, path: str, problems: list[Problem]) -> Any:
    """Shares between 0 and 1 in a config: a number, a schedule (a table with `kind`), or a table of these by pool."""
    if isinstance(value, dict) and "kind" not in value:
        return {pool: read_shares(v, f"{path}.{pool}", problems) for pool, v in value.items()}
    if isinstance(value, dict):
        schedule = read_kind(SCHEDULES, value, path, problems)
        for name in ("value", "start", "end", "otherwise"):
            _check_share(getattr(schedule, name, 0.0), f"{path}.{name}", problems)
        return schedule
    _check_share(value, path, problems)
    return Constant(float(value)) if isinstance(value, int | float) and 0 <= value <= 1 else None


def numbers(schedule: Any, path: str) -> list[str]:
    """The keys of a schedule's numbers: itself, or those of its kind, or each pool's. A 1, which switches something off, is left out.

    >>> numbers(Constant(0.5), "alpha"), numbers({"small": Linear(1.0, 0.6)}, "alpha")
    (['alpha'], ['alpha.small.end'])
    """
    if isinstance(schedule, Mapping):
        return [key for name, inner in schedule.items() for key in numbers(inner, f"{path}.{name}")]
    if isinstance(schedule, Constant):
        return [path]
    return [f"{path}.{name}" for name in ("value", "start", "end") if getattr(schedule, name, 1) != 1]


def unknown_pools(table: Mapping[str, Any], path: str, pools: Sequence[str]) -> list[Problem]:
    """What is wrong with a table of schedules by pool."""
    found = []
    for name, value in table.items():
        if name not in pools:
            found.append(Problem(join(path, name), "an unknown pool", " | ".join(pools), nearest(name, pools)))
        elif isinstance(value, Mapping):
            found.append(Problem(join(path, name), "a table without kind", "a number >= 0 and <= 1, or a schedule"))
    return found


def _check_share(value: Any, path: str, problems: list[Problem]) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        allowed = "a number >= 0 and <= 1, a schedule, or a table of these by pool"
        problems.append(Problem(path, show(value), allowed, number_hint(value)))


def _progress(t: int, over: int) -> float:
    if over < 1:
        raise ValueError("over: got 0; allowed the number of rounds that the schedule spans")
    return min((t - 1) / over, 1.0)
