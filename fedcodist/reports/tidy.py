"""Recorded runs as one tidy table: a row for each experiment, method, seed, round, pool, split and domain, and a column for each thing
that was measured.

What the clients and the server saw in a round is split `train`, the models' metrics are split `held_out`, and the result of a finished run
is split `test` at its last round. The columns of KEYS and VALUES are always there, in that order; anything else that a method or a task
records follows by name. A value that was not measured, or is not a finite number, is empty. Runs are read twice, one at a time: once for
the columns, once for the rows. Deliberately absent: means over seeds and comparisons (compare.py), and anything that changes a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedcodist import runs
from fedcodist.reports.arms import PERSONAL, SPLITS, dig, is_finished, kind_of, rounds_done, rounds_planned, rows_of, seed_of
from fedcodist.reports.scalars import elapsed, measured
from fedcodist.storage.durable import printable

KEYS = ("experiment", "method", "seed", "round", "pool", "split", "domain")
COUNTS = ("clients", "examples", "dropped")
VALUES = (
    "seconds", "accuracy", "accuracy_clients", "loss", "calibration", "train_loss", "grad_norm", *COUNTS, "codistilled", "alpha",
    "dist_norm", "cosine", "distill_loss_before", "distill_loss_after", "agreement_before", "agreement_after",
)  # fmt: skip
TAKEN = (*KEYS, "seconds")  # names that a metric of your own does not get
WORDS = ("experiment", "method", "pool", "split", "domain")
MOST_NAMED = 3  # damages of one run that are named


class Found(NamedTuple):
    """A run as it was when it was found."""

    path: Path
    last: int  # round
    over: bool


class Table(NamedTuple):
    """Runs that were read once for their columns: these columns, and a note on each run that is not whole."""

    found: tuple[Found, ...]
    columns: tuple[str, ...]
    notes: tuple[str, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows, each with all columns, one run in memory at a time. What a live run has added since it was found is
        left out."""
        for path, last, over in self.found:
            for row in _rows(runs.read(path)):
                if row["round"] <= last and (over or row["split"] not in ("test", "personal_test")):
                    yield {name: _cast(name, row.get(name)) for name in self.columns}


def table(paths: Iterable[str | Path]) -> Table:
    """The table of all runs at or under these paths. A path that holds none is a failure that names those nearby."""
    found: dict[tuple[Any, ...], Found] = {}
    others: dict[str, None] = {}
    notes = []
    for path in runs.find_all(paths):
        run = runs.read(path)
        if note := lacks(run):
            notes.append(note)
        key = _key(run)
        if key in found:  # as in a comparison: of two runs with one seed the last counts
            notes.append(f"{printable(found.pop(key).path)}: not exported: {printable(path)} is of the same experiment, method and seed")
        over, done = is_finished(run), rounds_done(run)
        found[key] = Found(path, max(done, rounds_planned(run) or 0) if over else done, over)
        for row in _rows(run):
            others |= dict.fromkeys(row)
    return Table(tuple(found.values()), (*KEYS, *VALUES, *sorted(set(others) - {*KEYS, *VALUES})), tuple(notes))


def _rows(run: Any) -> Iterator[dict[str, Any]]:
    """The rows of one run: the keys, and those values that were measured."""
    rounds = {row["round"]: row for row in rows_of(run)}
    clock = elapsed(run.timing or (), rounds)
    experiment, method, seed = _key(run)
    by_round = {t: list(measured(row)) for t, row in rounds.items()}
    if is_finished(run):
        end = rounds_planned(run) or rounds_done(run)
        seen = {m.split for m in by_round.get(end, ())}
        final = [m for m in measured({split: run.result.get(split) for split in (*SPLITS, *PERSONAL)}) if m.split not in seen]
        by_round[end] = [*by_round.get(end, ()), *final]  # held_out only where its line of the journal is lost
    for t in sorted(by_round):
        for pool, split, domain, values in by_round[t]:
            names = (experiment, method, seed, t, pool, split, domain)
            usual = {"codistilled": False, "dropped": 0} if split == "train" else {}  # the journal leaves these out
            safe = {f"metric_{name}" if name in TAKEN else name: value for name, value in values.items()}
            yield {**dict(zip(KEYS, names, strict=True)), "seconds": clock.get(t), **usual, **safe}


def lacks(run: Any) -> str:
    """What an export of this run does not hold, in one line; empty if it is whole."""
    planned, seen = rounds_planned(run), sorted({row["round"] for row in rows_of(run)})
    gaps, last = [], 0
    for t in [*seen, (planned or 0) + 1]:
        if t > last + 1:
            gaps.append(f"{last + 1}" if t == last + 2 else f"{last + 1} to {t - 1}")
        last = max(last, t)
    absent = [f"round{'s' if len(gaps) > 1 or ' ' in gaps[0] else ''} {', '.join(_few(gaps))}"] if gaps else []
    absent += [] if is_finished(run) else ["the test result: the run is not finished"]
    parts = [f"not exported: {', and '.join(absent)}"] if absent else []
    parts += _few([str(note) for note in run.notes or ()])
    return f"{printable(run.path)}: {'; '.join(parts)}" if parts else ""


def _key(run: Any) -> tuple[str, str, int | None]:
    """Experiment, method and seed; where the files do not say, the directories do."""
    seed = seed_of(run)
    parts = Path(os.path.abspath(run.path)).parts
    experiment = str(dig(run.config, "name") or (parts[-3] if len(parts) > 3 else "run"))
    return experiment, kind_of(run), seed if isinstance(seed, int) and abs(seed) < 2**63 else None


def _cast(name: str, value: Any) -> Any:
    """A value as the type of its column, which is the same in every file."""
    if value is None:
        return None
    if name in WORDS:
        return str(value).encode("utf-8", "replace").decode()  # JSON can hold half a surrogate, which no other format can
    if name == "codistilled":
        return bool(value)
    if name in ("seed", "round", *COUNTS):
        return int(value) if abs(value) < 2**63 else None
    return float(value)


def _few(items: list[str]) -> list[str]:
    return items if len(items) <= MOST_NAMED + 1 else [*items[:MOST_NAMED], f"and {len(items) - MOST_NAMED} more"]
