"""Values read from recorded runs, and runs grouped into arms: all runs of one method in one experiment.

A run is any object with `path`, `config`, `rounds`, `timing`, `result` and `notes`. Values that are missing (because a run crashed, or a
file is not ours) are missing in the answer too, and never an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedcodist.methods import BASELINE, METHODS

TWIN = BASELINE.kind
MOST = 1e30  # of a number that a run may hold: no accuracy, loss, time or count is larger, and sums of larger ones overflow
SPLITS, PERSONAL = ("held_out", "test"), ("personal_held_out", "personal_test")  # global ones, and each client's own
COSTS = ("client_bytes", "client_flops", "server_flops", "server_steps")


@dataclass(frozen=True)
class Arm:
    """All runs of one method in one experiment, by seed."""

    name: str
    kind: str
    label: str  # the method's name; with the experiment's in front where there is more than one
    runs: tuple[Any, ...]

    @property
    def finished(self) -> tuple[Any, ...]:
        """The runs that are finished."""
        return tuple(run for run in self.runs if is_finished(run))

    @property
    def counted(self) -> tuple[Any, ...]:
        """The runs over which means are taken: the finished ones, or all runs if none is finished."""
        return self.finished or self.runs

    @property
    def short(self) -> str:
        """The label without the suffix "Codist", for plots, where space is narrow."""
        return self.label.removesuffix("Codist") or self.label


def group(runs: Iterable[Any]) -> list[Arm]:
    """The runs as arms: the twin first, then the methods of this package, then others. Of several runs with the same seed the last one
    counts."""
    groups: dict[tuple[str, str], dict[Any, Any]] = {}
    for run in runs:
        groups.setdefault((name_of(run), kind_of(run)), {})[seed_of(run)] = run
    known, several = list(METHODS), len({name for name, _ in groups}) > 1

    def place(key: tuple[str, str]) -> tuple[str, int, str]:
        name, kind = key
        return name, known.index(kind) if kind in known else len(known), kind

    found = []
    for name, kind in sorted(groups, key=place):
        seeds = groups[name, kind]
        ordered = tuple(seeds[seed] for seed in sorted(seeds, key=lambda s: (isinstance(s, str), s)))
        found.append(Arm(name, kind, f"{name}: {label(kind)}" if several else label(kind), ordered))
    return found


def twin_of(arm: Arm, among: Iterable[Arm]) -> Arm | None:
    """The FedAvg arm of the same experiment."""
    return next((other for other in among if other.name == arm.name and other.kind == TWIN and arm.kind != TWIN), None)


def label(kind: str) -> str:
    """The name of a method as papers write it, or its kind if the method is not installed."""
    try:
        return METHODS[kind].label
    except (KeyError, ImportError):  # a plugin that is not installed here
        return kind


def dig(table: Any, *keys: Any) -> Any:
    """The value under nested keys, or None where there is none.

    >>> dig({"a": {"b": 1}}, "a", "b"), dig({"a": 3}, "a", "b")
    (1, None)
    """
    for key in keys:
        if not isinstance(table, dict):
            return None
        table = table.get(key)
    return table


def number(value: Any) -> float | None:
    """A finite number that is not absurd, or None."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST
    return float(value) if sound else None


def is_finished(run: Any) -> bool:
    """Whether the run is finished."""
    return isinstance(run.result, dict)


def name_of(run: Any) -> str:
    """The name of the run's experiment."""
    return str(dig(run.config, "name") or "run")


def kind_of(run: Any) -> str:
    """The kind of the run's method."""
    return str(dig(run.config, "method", "kind") or dig(run.result, "method") or run.path.parent.name or "unknown")


def seed_of(run: Any) -> int | str:
    """The seed from the result or the directory's name; that name itself if neither contains a seed."""
    recorded = dig(run.result, "seed")
    if isinstance(recorded, int):
        return recorded
    match = re.fullmatch(r"seed-(\d{1,19})", run.path.name)
    return int(match[1]) if match else run.path.name


def by_seed(runs: Iterable[Any]) -> dict[Any, Any]:
    """{seed: run} of the runs that finished."""
    return {seed_of(run): run for run in runs if is_finished(run)}


def rows_of(run: Any) -> list[dict[str, Any]]:
    """The valid recorded rounds, in order."""
    rows = (row for row in run.rounds or () if isinstance(row, dict) and isinstance(row.get("round"), int))
    return sorted(rows, key=lambda row: row["round"])


def rounds_done(run: Any) -> int:
    """The last recorded round."""
    return max((row["round"] for row in rows_of(run)), default=0)


def rounds_planned(run: Any) -> int | None:
    """How many rounds the run was to have, if that is known."""
    planned = dig(run.config, "rounds")
    return planned if isinstance(planned, int) else dig(run.result, "rounds")


def parameters_of(runs: Iterable[Any]) -> dict[str, int]:
    """{pool: number of its model's parameters}, where the results have it."""
    return {p: n for run in runs for p, n in (dig(run.result, "parameters") or {}).items() if number(n) is not None}


def pools_of(runs: Iterable[Any]) -> list[str]:
    """The pools of these runs, ordered by the size of their models, then as declared."""
    runs = list(runs)
    declared: dict[str, None] = {}
    for run in runs:
        whole = (dig(run.config, "pools"), dig(run.result, "parameters"), dig(run.result, "test"))
        for table in (*whole, *(table for row in rows_of(run) for table in (row.get("pools"), row.get("held_out")))):
            declared |= dict.fromkeys(table if isinstance(table, dict) else ())
    sizes = parameters_of(runs)
    return sorted(declared, key=lambda pool: sizes.get(pool, math.inf))


def metric_of(split: str) -> str:
    """What a table of this split shows: the accuracy, which on the clients' own splits has another name."""
    return "personal_accuracy" if split in PERSONAL else "accuracy"


def domains_of(runs: Iterable[Any]) -> list[str]:
    """The domains that these runs were measured on, `all` first."""
    seen: dict[str, None] = {}
    for run in runs:
        tables = [dig(run.result, split) for split in ("test", "held_out", *PERSONAL)] + [row.get("held_out") for row in rows_of(run)]
        for table in tables:
            for of_pool in table.values() if isinstance(table, dict) else ():
                seen |= dict.fromkeys(of_pool if isinstance(of_pool, dict) else ())
    return sorted(seen, key=lambda domain: domain != "all")


def headline(runs: Iterable[Any]) -> str | None:
    """The domain that a verdict is about: all of them together, where that was measured."""
    return next(iter(domains_of(runs)), None)


def cost_of(run: Any, what: str) -> float | None:
    """One of the COSTS of a run, summed over its pools."""
    value = dig(run.result, "cost", what)
    if isinstance(value, dict):
        known = [number(v) for v in value.values()]
        return sum(v for v in known if v is not None) if known else None
    return number(value)
