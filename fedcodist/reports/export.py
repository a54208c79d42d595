"""Recorded runs as one tidy table, for pandas, R, DuckDB or a spreadsheet: a row for each experiment, method, seed, round, pool, split
and domain, and a column for each thing that was measured.

What the clients and the server saw in a round is split `train`, the models' metrics are split `held_out`, and the result of a finished run
is split `test` at its last round. The columns of KEYS and VALUES are always there, in that order; anything else that a method or a task
records follows by name. A value that was not measured, or is no finite number, is empty. Runs are read twice, one at a time: once for
the columns, once for the rows. Deliberately absent: means over seeds and comparisons (compare.py), and anything that changes a run.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from fedcodist import runs
from fedcodist.errors import ConfigError, data_error
from fedcodist.reports import compare
from fedcodist.reports.compare import dig, number
from fedcodist.reports.tables import render, safe_cell
from fedcodist.settings import show
from fedcodist.storage.durable import as_storage_error, printable

KEYS = ("experiment", "method", "seed", "round", "pool", "split", "domain")
COUNTS = ("clients", "examples", "dropped")
VALUES = (
    "seconds", "accuracy", "accuracy_clients", "loss", "calibration", "train_loss", "grad_norm", *COUNTS, "codistilled", "alpha",
    "dist_norm", "cosine", "distill_loss_before", "distill_loss_after", "agreement_before", "agreement_after",
)  # fmt: skip
TAKEN = (*KEYS, "seconds")  # not for what a method of your own records
WORDS = ("experiment", "method", "pool", "split", "domain")
BATCH_ROWS = 20_000  # of a Parquet row group, and all that is in memory
TOLD = 3  # damages of one run that are named


class Measured(NamedTuple):
    """What is known of one pool on one split and domain."""

    pool: str
    split: str
    domain: str
    values: dict[str, float | bool]


def measured(row: Mapping[str, Any]) -> Iterator[Measured]:
    """What a line of the journal, or a result, says: `pools` as split `train`, `held_out`, `test`.

    >>> [found] = measured({"round": 1, "pools": {"small": {"train_loss": 2.0, "agreement": {"large": [0.25, 0.5]}}}})
    >>> found.split, found.values
    ('train', {'train_loss': 2.0, 'agreement_before': 0.25, 'agreement_after': 0.5})
    """
    pools = _table(row.get("pools"))
    for pool, info in pools.items():
        if isinstance(info, dict):
            each = len(pools) > 2  # of two pools there is but one teacher
            yield Measured(pool, "train", "all", dict(pair for name, value in info.items() for pair in _flat(name, value, each)))
    for split in ("held_out", "test"):
        for pool, domains in _table(row.get(split)).items():
            for domain, metrics in _table(domains).items():
                yield Measured(pool, split, domain, dict(pair for name, value in _table(metrics).items() for pair in _flat(name, value)))


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The same as {"split/what/pool": value}, with /domain where that is not `all`: the names that trackers want.

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
    """{round: seconds of training up to its end}, as far as every round before it was timed. Of a round that was computed twice the last
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


class Found(NamedTuple):
    """A run as it was when it was looked at."""

    path: Path
    last: int  # round
    over: bool


class Table(NamedTuple):
    """Runs that were looked through, and not yet read again: the columns of their rows, and one line for each that is not whole."""

    found: tuple[Found, ...]
    columns: tuple[str, ...]
    notes: tuple[str, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows, each with all columns, one run in memory at a time. What a live run has added since it was looked at is not in."""
        for path, last, over in self.found:
            for row in rows_of(runs.read(path)):
                if row["round"] <= last and (over or row["split"] != "test"):
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
        over, done = compare.finished(run), compare.rounds_done(run)
        found[key] = Found(path, max(done, compare.rounds_planned(run) or 0) if over else done, over)
        for row in rows_of(run):
            others |= dict.fromkeys(row)
    return Table(tuple(found.values()), (*KEYS, *VALUES, *sorted(set(others) - {*KEYS, *VALUES})), tuple(notes))


def rows_of(run: Any) -> Iterator[dict[str, Any]]:
    """The rows of one run: the keys, and those values that there are."""
    rounds = {row["round"]: row for row in compare.rows_of(run)}
    clock = elapsed(run.timing or (), rounds)
    experiment, method, seed = _key(run)
    told = {t: list(measured(row)) for t, row in rounds.items()}
    if compare.finished(run):
        end = compare.rounds_planned(run) or compare.rounds_done(run)
        seen = {m.split for m in told.get(end, ())}
        final = [m for m in measured({split: run.result.get(split) for split in ("held_out", "test")}) if m.split not in seen]
        told[end] = [*told.get(end, ()), *final]  # held_out only where its line of the journal is lost
    for t in sorted(told):
        for pool, split, domain, values in told[t]:
            names = (experiment, method, seed, t, pool, split, domain)
            usual = {"codistilled": False, "dropped": 0} if split == "train" else {}  # recorded only where there is something to say
            safe = {f"metric_{name}" if name in TAKEN else name: value for name, value in values.items()}
            yield {**dict(zip(KEYS, names, strict=True)), "seconds": clock.get(t), **usual, **safe}


def lacks(run: Any) -> str:
    """What an export of this run does not hold, in one line; empty if it is whole."""
    planned, seen = compare.rounds_planned(run), sorted({row["round"] for row in compare.rows_of(run)})
    gaps, last = [], 0
    for t in [*seen, (planned or 0) + 1]:
        if t > last + 1:
            gaps.append(f"{last + 1}" if t == last + 2 else f"{last + 1} to {t - 1}")
        last = max(last, t)
    absent = [f"round{'s' if len(gaps) > 1 or ' ' in gaps[0] else ''} {', '.join(_few(gaps))}"] if gaps else []
    absent += [] if compare.finished(run) else ["the test result: the run is not finished"]
    said = [f"not exported: {', and '.join(absent)}"] if absent else []
    said += _few([str(note) for note in run.notes or ()])
    return f"{printable(run.path)}: {'; '.join(said)}" if said else ""


# Files


def write(data: Table, out: str | Path) -> int:
    """Write the table to a .csv, .parquet or .jsonl file, which is there whole or not at all; gives back the number of rows."""
    writer, place = _place(out)
    temporary = place.with_name(f".tmp-{place.name}-{os.getpid()}")
    try:
        with as_storage_error(Path(out)):
            count = writer(data, temporary)
            os.replace(temporary, place)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return count


def _place(out: str | Path) -> tuple[Callable[[Table, Path], int], Path]:
    """What writes this file, and where it is; refused before anything is read."""
    place = Path(os.path.abspath(out))
    if place.suffix.lower() not in WRITERS or place.is_dir():
        raise ConfigError(f"--out: got {show(str(out))}; allowed a file that ends with {', '.join(WRITERS)}")
    inside = next((parent for parent in place.parents if runs.find(parent, depth=0)), None)
    if inside is not None:  # rounds.jsonl is such a name
        raise ConfigError(f"--out: got a file in the run {printable(inside)}; allowed a place outside of runs")
    return WRITERS[place.suffix.lower()], place


def to_csv(data: Table, stream: TextIO) -> int:
    """The table as CSV, row by row. Floats come in full, and no cell starts a formula."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([safe_cell(name) for name in data.columns])
    count = 0
    for row in data.rows():
        writer.writerow([str(cell).lower() if isinstance(cell, bool) else safe_cell(cell) for cell in row.values()])
        count += 1
    return count


def _csv(data: Table, path: Path) -> int:
    with open(path, "x", encoding="utf-8", newline="") as stream:
        return to_csv(data, stream)


def _jsonl(data: Table, path: Path) -> int:
    count = 0
    with open(path, "x", encoding="utf-8") as stream:
        for row in data.rows():
            stream.write(json.dumps(row, allow_nan=False) + "\n")
            count += 1
    return count


def _parquet(data: Table, path: Path) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise data_error("--out", "a Parquet file", "a file that this installation can write", "pip install 'fedcodist[data]'") from error
    kinds = {"seed": pa.int64(), "round": pa.int64(), "codistilled": pa.bool_()} | dict.fromkeys(COUNTS, pa.int64())
    kinds |= dict.fromkeys(WORDS, pa.string())
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in data.columns])
    count, rows = 0, data.rows()
    with pq.ParquetWriter(str(path), schema) as writer:
        while batch := list(islice(rows, BATCH_ROWS)):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema))
            count += len(batch)
    return count


WRITERS: dict[str, Callable[[Table, Path], int]] = {".csv": _csv, ".parquet": _parquet, ".jsonl": _jsonl}


# The verb


def add(parser: Any, once: Any) -> None:
    """The arguments of `fedcodist export`."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories, or directories that hold some")
    parser.add_argument("--out", action=once, metavar="FILE", help="a .csv, .parquet or .jsonl file (default: print the table)")
    parser.add_argument("--to", action=once, choices=("tensorboard",), help="write event files into each run directory instead")


def run(args: argparse.Namespace) -> int:
    """`fedcodist export`."""
    if args.to and args.out is not None:
        raise ConfigError("--out: got a file with --to tensorboard; allowed one of the two: event files go into each run directory")
    if args.to:
        return _to_tensorboard(args)
    if args.out is not None:
        _place(args.out)
    data = table(args.runs)
    if args.out is not None:
        count = write(data, args.out)
        found = {"file": args.out, "runs": len(data.found), "rows": count}
        print(render([found], args.format) if args.format != "table" else f"{args.out}: {count:,} rows of {_runs(len(data.found))}")
    elif args.format == "csv":
        to_csv(data, sys.stdout)
    else:
        rows = list(data.rows())
        if args.format == "table":  # for eyes: without the columns that nothing is in
            full = [name for name in data.columns if any(row[name] is not None for row in rows)]
            rows = [{name: row[name] for name in full} for row in rows]
        print(render(rows, args.format))
    _tell(data.notes, args.quiet)
    return 0


def _to_tensorboard(args: argparse.Namespace) -> int:
    from fedcodist.reports import tensorboard

    tensorboard.check()
    rows, notes = [], []
    for path in runs.find_all(args.runs):
        recorded = runs.read(path)
        notes.append(lacks(recorded))
        rows.append({"run": str(path), "rounds": compare.rounds_done(recorded), "events": str(tensorboard.write(path).parent)})
    print(render(rows, args.format))
    _tell(filter(None, notes), args.quiet)
    return 0


def _tell(notes: Iterable[str], quiet: bool) -> None:
    for note in () if quiet else notes:
        print(f"note: {note}", file=sys.stderr)


def _key(run: Any) -> tuple[str, str, int | None]:
    """Experiment, method and seed; where the files do not say, the directories do."""
    seed = compare.seed_of(run)
    parts = Path(os.path.abspath(run.path)).parts
    experiment = str(dig(run.config, "name") or (parts[-3] if len(parts) > 3 else "run"))
    return experiment, compare.kind_of(run), seed if isinstance(seed, int) and abs(seed) < 2**63 else None


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _flat(name: str, value: Any, each: bool = False) -> Iterator[tuple[str, float | bool]]:
    """One recorded thing as numbers with names: a pair is before and after, a table by teacher is its mean, and `each` of them."""
    if isinstance(value, dict):
        by_teacher = {teacher: dict(_flat(name, inner)) for teacher, inner in value.items()}
        for part in dict.fromkeys(part for numbers in by_teacher.values() for part in numbers):
            mean = compare.mean(float(numbers[part]) for numbers in by_teacher.values() if part in numbers)
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
    return items if len(items) <= TOLD + 1 else [*items[:TOLD], f"and {len(items) - TOLD} more"]


def _runs(n: int) -> str:
    return f"{n} run{'' if n == 1 else 's'}"
