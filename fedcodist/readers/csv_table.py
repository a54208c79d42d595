"""A CSV or TSV file with a header as named columns: numbers, or text where a value is none.

The whole file is read. A missing value, or a row that is longer or shorter than the header, is an error that names its row; values are
never guessed. What the columns mean is not known here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection

import numpy as np

from fedcodist.errors import data_error
from fedcodist.readers.files import unpacked
from fedcodist.settings import show

ENDS = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
MOST_COLUMNS = 100_000


def is_table(path: str) -> bool:
    """Whether a path is named like such a file.

    >>> is_table("a.csv"), is_table("a.npz")
    (True, False)
    """
    return path.lower().endswith(ENDS)


def read(path: str, names: Collection[str], features: str) -> tuple[dict[str, np.ndarray], list[str]]:
    """The named columns, and the names of all others. Where no column is called `features`, it is made of all other columns of numbers, in
    their order."""
    header, rows = _rows(path)
    columns = {name: _column(f"{path}: {name}", [row[i] for row in rows]) for i, name in enumerate(header)}
    found = {name: column for name, column in columns.items() if name in names}
    others = [name for name in header if name not in names]
    if features in names and features not in found:
        numbers = [name for name in others if columns[name].dtype.kind == "f"]
        if numbers:
            found[features] = np.stack([columns[name] for name in numbers], 1).astype(np.float32)
            others = [name for name in others if name not in numbers]
    elif features in found:
        found[features] = found[features][:, None]
    return {name: _whole(column) if name != features else column for name, column in found.items()}, others


def _rows(path: str) -> tuple[list[str], list[list[str]]]:
    try:
        with unpacked(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            first = text.readline()
            tab = max("\t;,", key=first.count)  # the sign that the header has most often
            lines = list(csv.reader(text, delimiter=tab, strict=True))
            header = next(csv.reader([first], delimiter=tab, strict=True), [])
    except UnicodeDecodeError as error:
        raise data_error(path, f"a byte that is not UTF-8 at offset {error.start}", "UTF-8 text") from error
    except csv.Error as error:
        raise data_error(path, f"no CSV ({error})", "a header and rows of values") from error
    header = [name.strip() for name in header]
    if not header or len(header) > MOST_COLUMNS or len(set(header)) < len(header) or not all(header):
        raise data_error(path, f"the header {show(first.strip())}", "a header that names each column once")
    rows = [row for row in lines if row]
    wrong = next((i for i, row in enumerate(rows) if len(row) != len(header)), None)
    if wrong is not None:
        raise data_error(path, f"{len(rows[wrong])} values in row {wrong}", f"{len(header)}, as in the header")
    if not rows:
        raise data_error(path, "a header alone", "at least one row")
    return header, rows


def _column(where: str, values: list[str]) -> np.ndarray:
    values = [value.strip() for value in values]
    if "" in values:
        raise data_error(where, f"no value in row {values.index('')}", "a value in every row")
    try:
        return np.array(values, np.float64)
    except ValueError:
        return np.array(values, str)


def _whole(column: np.ndarray) -> np.ndarray:
    """Whole numbers as such: names of clients may be numbers."""
    if column.dtype.kind == "f" and np.all(np.abs(column) < 2**31) and np.array_equal(column, np.floor(column)):
        return column.astype(np.int64)
    return column
