"""What a line of the journal, or a result, measured: numbers by pool, split and domain, with the names that tables and trackers use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fedcodist.reports import statistics
from fedcodist.reports.arms import PERSONAL, SPLITS, number


class Measured(NamedTuple):
    """The values of one pool on one split and domain."""

    pool: str
    split: str
    domain: str
    values: dict[str, float | bool]


def measured(row: Mapping[str, Any]) -> Iterator[Measured]:
    """What a line of the journal, or a result, holds. What is under `pools` is split `train`; `held_out` and `test` are splits themselves.

    >>> [found] = measured({"round": 1, "pools": {"small": {"train_loss": 2.0, "agreement": {"large": [0.25, 0.5]}}}})
    >>> found.split, found.values
    ('train', {'train_loss': 2.0, 'agreement_before': 0.25, 'agreement_after': 0.5})
    """
    pools = _table(row.get("pools"))
    for pool, info in pools.items():
        if isinstance(info, dict):
            each = len(pools) > 2  # of two pools there is but one teacher
            yield Measured(pool, "train", "all", dict(pair for name, value in info.items() for pair in _flat(name, value, each)))
    for split in (*SPLITS, *PERSONAL):
        for pool, domains in _table(row.get(split)).items():
            for domain, metrics in _table(domains).items():
                yield Measured(pool, split, domain, dict(pair for name, value in _table(metrics).items() for pair in _flat(name, value)))


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """What was measured as {"split/what/pool": value}, with /domain where that is not `all`: the names that trackers want.

    >>> scalars({"held_out": {"small": {"all": {"accuracy": 0.5}, "outdoors": {"accuracy": 0.25}}}})
    {'held_out/accuracy/small': 0.5, 'held_out/accuracy/small/outdoors': 0.25}
    """
    found = {}
    for pool, split, domain, values in measured(row):
        for name, value in values.items():
            if not isinstance(value, bool):
                found[f"{split}/{name}/{pool}" + ("" if domain == "all" else f"/{domain}")] = float(value)
    return found


def elapsed(timing: Iterable[Any], rounds: Iterable[int]) -> dict[int, float]:
    """{round: seconds of training up to its end}, as far as every round before it was timed. Where a round was computed twice, the last
    time counts.

    >>> elapsed([{"round": 1, "seconds": 2.0}, {"round": 2, "seconds": 9.0}, {"round": 2, "seconds": 1.0}], [1, 2, 3])
    {1: 2.0, 2: 3.0}
    """
    took = {row.get("round"): seconds for row in timing if isinstance(row, dict) and (seconds := number(row.get("seconds"))) is not None}
    clock, found = 0.0, {}
    for at, t in enumerate(sorted(rounds), 1):
        if t != at or t not in took:
            break
        clock += took[t]
        found[t] = round(clock, 4)
    return found


def _flat(name: str, value: Any, each: bool = False) -> Iterator[tuple[str, float | bool]]:
    """One recorded value as named numbers: a pair is before and after; a table of reasons has each under its name; one of pairs by teacher
    is the mean over teachers, and with `each` also every teacher's own; a table of numbers is all of them."""
    if name == "reasons" and isinstance(value, dict):
        yield from ((f"lost_{'_'.join(str(why).split())}", known) for why, n in value.items() if (known := number(n)) is not None)
    elif isinstance(value, dict) and value and all(number(inner) is not None for inner in value.values()):
        yield from ((f"{name}_{key}", float(inner)) for key, inner in value.items())
    elif isinstance(value, dict):
        by_teacher = {teacher: dict(_flat(name, inner)) for teacher, inner in value.items()}
        for part in dict.fromkeys(part for numbers in by_teacher.values() for part in numbers):
            mean = statistics.mean(float(numbers[part]) for numbers in by_teacher.values() if part in numbers)
            if mean is not None:
                yield part, mean
        if each:
            yield from ((f"{part}_{teacher}", v) for teacher, numbers in by_teacher.items() for part, v in numbers.items())
    elif isinstance(value, list | tuple) and len(value) == 2:
        for part, inner in zip(("before", "after"), value, strict=True):
            if (known := number(inner)) is not None:
                yield f"{name}_{part}", known
    elif isinstance(value, bool):
        yield name, value
    elif (known := number(value)) is not None:
        yield name, known


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
