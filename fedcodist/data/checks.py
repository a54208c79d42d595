"""Checks of a user's own columns as features, labels, names, splits or domains: each returns the column ready for use, or raises DataError.

A column is an array with one value per row, and `where` is its name in messages. Where a column came from is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedcodist.errors import data_error
from fedcodist.settings import show

SPLITS = ("train", "public", "held_out", "test")
LONGEST = 200  # characters of a client's or a domain's name
MOST_CLASSES = 1_000_000
BLOCK_BYTES = 16 * 2**20  # checked at once, to bound memory


def same_rows(where: str, column: np.ndarray, rows: int) -> None:
    """DataError unless there is one value for each row."""
    if column.shape != (rows,):
        raise data_error(where, f"shape {list(column.shape)}", f"[{rows}], a value for each row of x")


def features(where: str, x: np.ndarray) -> np.ndarray:
    """x, if it holds finite numbers, at least one in each row."""
    if x.dtype.kind not in "biuf":
        raise data_error(where, f"dtype {x.dtype}", "numbers")
    if x.ndim < 2:
        raise data_error(where, f"shape {list(x.shape)}", "[rows, ...], at least one number in each row")
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8 and not -(2**31) <= x.min() <= x.max() < 2**31:  # they would overflow in a model
        raise data_error(where, f"{x.min()} to {x.max()}", "whole numbers of 32 bits", "save x as float32")
    if x.dtype.kind == "f":
        step = max(1, BLOCK_BYTES // x[0].nbytes)
        wrong: list[np.ndarray] = []
        for start in range(0, len(x), step):
            with np.errstate(over="ignore"):
                finite = np.isfinite(x[start : start + step].astype(np.float32))  # as a model will see them
            wrong.append(start + np.flatnonzero(~finite.reshape(len(finite), -1).all(1)))
        rows = np.concatenate(wrong)
        if len(rows):
            raise data_error(where, f"NaN or infinity in row {rows[0]}", "finite 32-bit numbers", f"{len(rows)} such rows")
    return x


def public_like(where: str, public: np.ndarray, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The separate public data, if its rows look like the clients' rows and no row of `split` is public as well."""
    if len(rows):
        raise data_error(where, f"public data, and {len(rows)} rows of split that are public too", "one of the two")
    public = features(where, public)
    if public.shape[1:] != x.shape[1:] or public.dtype != x.dtype:
        raise data_error(where, f"rows of {describe(public)}", f"{describe(x)}, as in x")
    return public


def labels(where: str, y: np.ndarray, classes: int | None) -> np.ndarray:
    """y as int32, if every label is a whole number below the number of classes."""
    top = classes or MOST_CLASSES
    if y.dtype.kind not in "biuf":
        raise data_error(where, f"dtype {y.dtype}", f"whole numbers from 0 to {top - 1}")
    good = (y >= 0) & (y < top) & (y == np.floor(y) if y.dtype.kind == "f" else True)
    wrong = np.flatnonzero(~good)
    if len(wrong):
        raise data_error(where, f"{y[wrong[0]]} in row {wrong[0]}", f"whole numbers from 0 to {top - 1}", f"{len(wrong)} such rows")
    if classes is None and not y.any():
        raise data_error(where, "0 in every row", "at least two different labels", "or set classes")
    return y.astype(np.int32)


def classes_of(where: str, y: np.ndarray, classes: int | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """y as int32, and the names of the classes where labels are text: in the order of the alphabet.

    >>> classes_of("y", np.array(["dog", "cat", "dog"]), None)[0].tolist()
    [1, 0, 1]
    """
    if y.dtype.kind not in "SU":
        return labels(where, y, classes), ()
    values = strings(where, y)
    found, codes = np.unique(values, return_inverse=True)
    wrong = [name for name in found.tolist() if not name or len(name) > LONGEST or not name.isprintable()]
    if wrong:
        row = int(np.flatnonzero(values == wrong[0])[0])
        raise data_error(where, f"{show(wrong[0])} in row {row}", f"1 to {LONGEST} printable characters")
    if not 2 <= len(found) <= (classes or MOST_CLASSES):
        raise data_error(where, f"{len(found)} different labels", f"2 to {classes or MOST_CLASSES}")
    return codes.astype(np.int32), tuple(found.tolist())


def strings(where: str, column: np.ndarray) -> np.ndarray:
    """A column of strings, of UTF-8 bytes or of whole numbers as strings."""
    if column.dtype.kind == "S":
        try:
            return np.char.decode(column, "utf-8")
        except UnicodeDecodeError as error:
            raise data_error(where, f"the bytes {show(error.object)}", "UTF-8") from error
    if column.dtype.kind not in "iuU":
        raise data_error(where, f"dtype {column.dtype}", "strings or whole numbers")
    return np.asarray(column).astype(str)


def names(where: str, column: np.ndarray) -> np.ndarray:
    """A column of names that are safe in a file, a path and a message."""
    values = strings(where, column)
    for name in np.unique(values).tolist():
        if not name or len(name) > LONGEST or not name.isprintable() or "/" in name or name in (".", ".."):
            row = int(np.flatnonzero(values == name)[0])
            raise data_error(where, f"{show(name)} in row {row}", f"1 to {LONGEST} printable characters without /")
    return values


def splits(where: str, column: np.ndarray) -> dict[str, np.ndarray]:
    """{part: rows}, by a column of the names of parts; at least one row is for training."""
    values = strings(where, column)
    wrong = np.flatnonzero(~np.isin(values, SPLITS))
    if len(wrong):
        raise data_error(where, f"{show(str(values[wrong[0]]))} in row {wrong[0]}", ", ".join(SPLITS), f"{len(wrong)} such rows")
    rows = {part: np.flatnonzero(values == part) for part in SPLITS}
    if not len(rows["train"]):
        raise data_error(where, "no row that is train", "at least one")
    return rows


def domains(where: str, column: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the domains, sorted, and each row's index among them.

    >>> domains("domain", np.array(["b", "a", "b"]))[1].tolist()
    [1, 0, 1]
    """
    found, codes = np.unique(names(where, column), return_inverse=True)
    if "all" in found[: len(found) if len(found) > 1 else 0]:
        raise data_error(where, "'all'", "any other name", "metrics of all rows have it")
    return tuple(found.tolist()), codes


def constant(where: str, column: np.ndarray, of_client: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """{client: value} of a column that has the same value in all rows of a client."""
    if column.dtype.kind in "SU":
        column = names(where, column)
    elif column.ndim != 1 or column.dtype.kind not in "biuf":
        raise data_error(where, f"{column.dtype} of shape {list(column.shape)}", "a number or a name for each row")
    for name, rows in of_client.items():
        other = rows[column[rows] != column[rows[0]]]
        if len(other):
            both = f"{show(column[rows[0]].item())} and {show(column[other[0]].item())} (row {other[0]})"
            raise data_error(where, f"{both} for client {show(name)}", "one value for each client")
    return {name: column[rows[0]].item() for name, rows in of_client.items()}


def describe(x: np.ndarray) -> str:
    """The shape and the type of one row.

    >>> describe(np.zeros((9, 2, 3)))
    '[2, 3] float64'
    """
    return f"{list(x.shape[1:])} {x.dtype}"
