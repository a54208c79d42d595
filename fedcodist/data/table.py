"""A table of somebody's own columns, from a path or from a Python function: `x`, `y` and whatever else was asked for, as arrays.

The path is read by the reader for its format: a .csv or .tsv file, a .npz file, a directory of .npy files, a Parquet file or a directory of
its parts, a data set saved by Hugging Face `datasets`, or a folder of images for each client. What the columns must be is not known here
(see `checks`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedcodist.errors import DataError, data_error
from fedcodist.imports import function as import_function
from fedcodist.readers import arrays, columns, csv_table, files, folders
from fedcodist.settings import show

ALLOWED = "a .csv, .npz or Parquet file, a directory of .npy or .parquet files, a saved data set, or a folder of images"


class Table(NamedTuple):
    """Columns by name, as they were found."""

    where: str  # the path or the function, for messages
    columns: Mapping[str, np.ndarray]
    others: list[str]  # the names of the columns that were not asked for
    notes: list[str]  # for the user
    labels: tuple[str, ...] = ()  # the names of the classes, where `y` numbers them already


def read_table(path: str, wanted: set[str], split: str, features: str = "x") -> Table:
    """The wanted columns at a path; if the files are named after splits, the column `split` is made from the names. In a CSV file without
    the column `features` all other numbers are that."""
    there = files.kind(path)
    if there == "a directory":
        try:
            names = os.listdir(path)
        except OSError as error:
            raise data_error(path, f"{error.strerror}", "a directory that can be read") from error
        if columns.is_saved(path) or any(name.endswith(".parquet") for name in names):
            return Table(path, *columns.read(path, wanted, split), [])
        plain = any(name.endswith(".npy") for name in names) or path.endswith((".npz", ".npy"))
        if names and not plain:
            folder = folders.read(path)
            notes = [f"{folder.empty} clients have no image and are left out"] if folder.empty else []
            if folder.labels:
                notes.append(f"labels from 0: {show(', '.join(folder.labels))[1:-1]}")
            return Table(path, folder.columns, [], notes, tuple(folder.labels))
    elif there == "a file" and csv_table.is_table(path):
        return Table(path, *csv_table.read(path, wanted, features), [])
    elif there == "a file":
        with files.open_file(path) as file:
            start = file.read(16)
        if start.startswith(files.PARQUET):
            return Table(path, *columns.read(path, wanted, split), [])
        if not start.startswith((files.ZIP, files.ZIP_EMPTY)):
            raise data_error(path, files.sniff(start), ALLOWED)
    else:
        raise data_error(path, there, ALLOWED)
    return Table(path, *arrays.read(path, wanted), [])


def call_for_table(function: str, wanted: set[str]) -> Table:
    """The wanted columns of the mapping that a user's "module:function" returns; whatever it raises becomes one DataError."""
    try:
        call = import_function(function)
    except ValueError as error:
        raise data_error("function", f"{function!r}, {error}", "module:function that can be imported") from error
    except Exception as error:  # of the user's module, while it was imported
        raise data_error("function", f"{show(function)}, which raised {_error(error)}", "a module that can be imported") from error
    try:
        given = call()
    except DataError:
        raise
    except Exception as error:
        raise data_error("function", f"{show(function)}, which raised {_error(error)}", "a function that gives columns") from error
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise data_error(function, f"{show(type(given).__name__)}", "a mapping from the names of columns to arrays")
    found = {}
    for name in (name for name in given if name in wanted):
        where = f"{function}: {name}"
        try:
            found[name] = np.asarray(given[name])
        except Exception as error:
            raise data_error(where, f"no array ({_error(error)})", "an array") from error
        arrays.check_dtype(where, found[name].dtype)
        arrays.check_shape(where, found[name].shape)
    return Table(function, found, [name for name in given if name not in wanted], [])


def _error(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"
