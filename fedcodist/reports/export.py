"""The tidy table of runs as a file, for pandas, R, DuckDB or a spreadsheet: CSV, Parquet or JSON lines."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from fedcodist import runs
from fedcodist.errors import ConfigError, data_error
from fedcodist.reports import tidy
from fedcodist.reports.tables import safe_cell
from fedcodist.reports.tidy import COUNTS, WORDS, Table
from fedcodist.settings import show
from fedcodist.storage.durable import as_storage_error, printable

BATCH_ROWS = 20_000  # of a Parquet row group, and all that is in memory


def export(paths: Iterable[str | Path], out: str | Path) -> tuple[Table, int]:
    """Write the table of all runs at or under these paths; returns it and the number of its rows. A bad `out` is refused before any run is
    read."""
    _place(out)
    table = tidy.table(paths)
    return table, write(table, out)


def display(table: Table) -> list[dict[str, Any]]:
    """All rows, without the columns that are empty in all of them."""
    rows = list(table.rows())
    full = [name for name in table.columns if any(row[name] is not None for row in rows)]
    return [{name: row[name] for name in full} for row in rows]


def write(table: Table, out: str | Path) -> int:
    """Write the table to a .csv, .parquet or .jsonl file, whole or not at all; returns the number of rows."""
    writer, place = _place(out)
    temporary = place.with_name(f".tmp-{place.name}-{os.getpid()}")
    try:
        with as_storage_error(Path(out)):
            count = writer(table, temporary)
            os.replace(temporary, place)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return count


def _place(out: str | Path) -> tuple[Callable[[Table, Path], int], Path]:
    """The writer of this file, and its absolute path."""
    place = Path(os.path.abspath(out))
    if place.suffix.lower() not in WRITERS or place.is_dir():
        raise ConfigError(f"--out: got {show(str(out))}; allowed a file that ends with {', '.join(WRITERS)}")
    inside = next((parent for parent in place.parents if runs.find(parent, depth=0)), None)
    if inside is not None:  # rounds.jsonl is such a name
        raise ConfigError(f"--out: got a file in the run {printable(inside)}; allowed a place outside of runs")
    return WRITERS[place.suffix.lower()], place


def to_csv(table: Table, stream: TextIO) -> int:
    """The table as CSV, row by row. Floats come in full, and no cell starts a formula."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([safe_cell(name) for name in table.columns])
    count = 0
    for row in table.rows():
        writer.writerow([str(cell).lower() if isinstance(cell, bool) else safe_cell(cell) for cell in row.values()])
        count += 1
    return count


def _csv(table: Table, path: Path) -> int:
    with open(path, "x", encoding="utf-8", newline="") as stream:
        return to_csv(table, stream)


def _jsonl(table: Table, path: Path) -> int:
    count = 0
    with open(path, "x", encoding="utf-8") as stream:
        for row in table.rows():
            stream.write(json.dumps(row, allow_nan=False) + "\n")
            count += 1
    return count


def _parquet(table: Table, path: Path) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise data_error("--out", "a Parquet file", "a file that this installation can write", "pip install 'fedcodist[data]'") from error
    kinds = {"seed": pa.int64(), "round": pa.int64(), "codistilled": pa.bool_()} | dict.fromkeys(COUNTS, pa.int64())
    kinds |= dict.fromkeys(WORDS, pa.string())
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in table.columns])
    count, rows = 0, table.rows()
    with pq.ParquetWriter(str(path), schema) as writer:
        while batch := list(islice(rows, BATCH_ROWS)):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema))
            count += len(batch)
    return count


WRITERS: dict[str, Callable[[Table, Path], int]] = {".csv": _csv, ".parquet": _parquet, ".jsonl": _jsonl}
