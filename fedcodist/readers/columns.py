"""Tables of columns: Parquet (a file, or a directory of parts) and a data set that Hugging Face `datasets` saved on disk, as arrays.

pyarrow does the reading; `datasets` itself is never imported, so no code that comes with a data set is run. Lists of equal lengths become
axes, images are decoded, text stays text. A path inside a file is never followed, a missing value is an error that names its row, and no
more memory is taken than the size of the file can account for. What the columns mean is not known here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedcodist.errors import DataError, data_error
from fedcodist.readers.arrays import COLUMNS
from fedcodist.readers.files import PARQUET, RATIO, SMALL_BYTES, check_magic, kind, open_file
from fedcodist.readers.folders import image, room
from fedcodist.readers.libraries import library
from fedcodist.settings import show

SPLITS = {"train": "train", "public": "public", "held_out": "held_out", "validation": "held_out", "test": "test"}
PART = re.compile(rf"({'|'.join(SPLITS)})-\d+-of-\d+\.parquet")  # as the parts of a split are named on the Hugging Face hub
INFO, STATE, DICT = "dataset_info.json", "state.json", "dataset_dict.json"
MOST_JSON = 64 * 2**20
BATCH_ROWS, BATCH_BYTES = 1_024, 16 * 2**20
LONGEST = 256  # characters of a text: in an array every row takes the room of the longest text
NUMBERS = "numbers, lists of numbers of equal lengths, images or text"


class Part(NamedTuple):
    """One file: its rows in batches, and the split that it is named after."""

    path: str
    rows: int
    size: int
    names: list[str]
    batches: Iterator[Any]
    split: str | None


def is_saved(path: str | Path) -> bool:
    """Whether a directory was written by `save_to_disk`."""
    return any((Path(path) / name).exists() for name in (STATE, DICT))


def read(path: str, names: Collection[str] = COLUMNS, split: str = "split") -> tuple[dict[str, np.ndarray], list[str]]:
    """The named columns, as far as they exist, and the names of all other columns.

    Where each file is one split (of a DatasetDict, or of Parquet parts named as on the hub) and there is no column `split`, that column is
    made from the names; validation becomes held_out.
    """
    with contextlib.ExitStack() as stack:
        found = parts(path, names, stack)
        there = found[0].names
        for part in found[1:]:
            if sorted(part.names) != sorted(there):
                raise data_error(part.path, f"columns {show(part.names)}", f"{show(there)}, as in {show(found[0].path)}")
        if len(set(there)) < len(there):
            raise data_error(found[0].path, "two columns of the same name", "each column once")
        wanted = [name for name in there if name in names]
        columns = _gather(path, found, wanted)
    if split in names and split not in columns and all(part.split for part in found):
        columns[split] = np.repeat(np.array([part.split for part in found], str), [part.rows for part in found])
    return columns, [name for name in there if name not in names]


def parts(path: str, names: Collection[str], stack: contextlib.ExitStack) -> list[Part]:
    """The files at a path, open until the stack is closed; only the named columns are read."""
    found = kind(path)
    if found == "a file":
        return [_parquet(path, names, stack)]
    if found != "a directory":
        raise data_error(path, found, "a Parquet file, a directory of them, or a saved data set")
    if (Path(path) / DICT).exists():
        opened = []
        for name in _json(Path(path) / DICT, "splits"):
            if not isinstance(name, str) or name not in SPLITS:
                raise data_error(f"{path}: {DICT}", f"a split {show(name)}", ", ".join(SPLITS), "or name the directory of one split")
            opened += _saved(str(Path(path) / name), names, stack, SPLITS[name])
    elif (Path(path) / STATE).exists():
        opened = _saved(path, names, stack, None)
    else:
        try:
            files = sorted(name for name in os.listdir(path) if name.endswith(".parquet"))
        except OSError as error:
            raise data_error(path, f"{error.strerror}", "a directory that can be read") from error
        said = [PART.fullmatch(name) for name in files]
        opened = [
            _parquet(str(Path(path) / name), names, stack, SPLITS[match[1]] if match else None)
            for name, match in zip(files, said, strict=True)
        ]
    if not opened:
        raise data_error(path, "no part", "at least one file of rows")
    return opened


def _parquet(path: str, names: Collection[str], stack: contextlib.ExitStack, split: str | None = None) -> Part:
    parquet: Any = _arrow(path, "parquet")
    file = stack.enter_context(open_file(path, "a Parquet file"))
    check_magic(path, file, (PARQUET,), "a Parquet file")
    size = os.fstat(file.fileno()).st_size
    with _damage(path, "Parquet file"):
        opened = parquet.ParquetFile(file)
        there, rows = list(opened.schema_arrow.names), int(opened.metadata.num_rows)
        # Not column by column: a footer that is wrong about a column would end the process inside the library.
        held = sum(max(0, opened.metadata.row_group(i).total_byte_size) for i in range(opened.metadata.num_row_groups))
    if not 0 <= rows <= RATIO * size or held > max(SMALL_BYTES, RATIO * size):
        raise data_error(path, f"{rows} rows in {size} bytes, more than its size can hold", f"at most {RATIO} times the packed size")
    wanted = [name for name in there if name in names]
    batches = _batches(path, opened, wanted, max(SMALL_BYTES, RATIO * size), rows) if wanted and rows else iter(())
    return Part(path, rows, size, there, batches, split)


def _batches(path: str, opened: Any, names: list[str], most: int, rows: int) -> Iterator[Any]:
    """The rows of a Parquet file in batches of bounded size, estimated from the first row: a small file may hold large rows."""
    for first in opened.iter_batches(1, columns=names, use_threads=False):
        if first.nbytes * rows > most:
            raise data_error(
                path, f"{rows} rows of {first.nbytes} bytes, more than its size can hold", f"at most {RATIO} times the packed size"
            )
        size = min(BATCH_ROWS, max(1, BATCH_BYTES // max(1, first.nbytes)))
        yield from opened.iter_batches(size, columns=names, use_threads=False)
        return


def _saved(path: str, names: Collection[str], stack: contextlib.ExitStack, split: str | None) -> list[Part]:
    """The Arrow streams of one saved data set, memory-mapped."""
    arrow: Any = _arrow(path)
    files = _json(Path(path) / STATE, "_data_files")
    parts = []
    for entry in files:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
            raise data_error(f"{path}: {STATE}", f"the file {show(name)}", "names of files beside it")
        place = str(Path(path) / name)
        with open_file(place, "an Arrow stream") as file:
            size = os.fstat(file.fileno()).st_size
        if not size:
            raise data_error(place, "an empty file", "an Arrow stream")
        with _damage(place, "Arrow stream"):
            reader = arrow.ipc.open_stream(stack.enter_context(arrow.memory_map(place)))
            there = list(reader.schema.names)
            batches = []
            for batch in reader:
                if len(set(there)) == len(there):
                    batch = batch.select([name for name in there if name in names])
                batch.validate(full=True)  # otherwise offsets that point out of the file would be followed
                batches.append(batch)
        parts.append(Part(place, sum(batch.num_rows for batch in batches), size, there, iter(batches), split))
    return parts


def _json(path: Path, name: str) -> list[Any]:
    """The list of this name in a small JSON file."""
    with open_file(path, "a file of a saved data set") as file:
        raw = file.read(MOST_JSON + 1)
    try:
        table = json.loads(raw) if len(raw) <= MOST_JSON else None
    except (ValueError, RecursionError) as error:
        raise data_error(str(path), f"text that is no JSON ({str(error)[:80]})", "a file as save_to_disk writes it") from error
    found = table.get(name) if isinstance(table, dict) else None
    if not isinstance(found, list) or not all(isinstance(one, str | dict) for one in found):
        raise data_error(str(path), f"{name} = {show(found)}", "a list, as save_to_disk writes it")
    if table.get("_indices_data_files"):  # type: ignore[union-attr]  # a dict, since it has the list
        raise data_error(str(path), "rows chosen by an index", "plain rows", "call flatten_indices() before save_to_disk")
    return found


def _gather(path: str, parts: list[Part], names: list[str]) -> dict[str, np.ndarray]:
    """The named columns, each joined over all parts into one array."""
    rows, size = sum(part.rows for part in parts), sum(part.size for part in parts)
    if not rows:
        raise data_error(path, "no row", "at least one row")
    most = max(SMALL_BYTES, RATIO * size)
    columns: dict[str, np.ndarray] = {}
    done = 0
    for part in parts:
        first = done
        with _damage(part.path, "file"):
            for batch in part.batches:
                if not batch.num_rows:
                    continue
                if batch.nbytes > most or done + batch.num_rows > first + part.rows:
                    raise data_error(part.path, "more than its size can hold", f"at most {RATIO} times the packed size")
                for name in names:
                    where = f"{part.path}: {name}"
                    values, is_image = _values(where, batch.column(name), done - first)
                    if name not in columns:
                        columns[name] = _room(where, rows, values, most, is_image)
                    columns[name] = _fit(where, columns[name], values, done - first)
                    columns[name][done : done + len(values)] = values
                done += batch.num_rows
        if names and done != first + part.rows:
            raise data_error(part.path, f"{done - first} rows", f"{part.rows} rows, as it says", "truncated?")
    return columns


def _room(where: str, rows: int, values: np.ndarray, most: int, is_image: bool) -> np.ndarray:
    if is_image:  # which may be compressed more than numbers can be
        return room(where, rows, values[0])
    if values.dtype.kind != "U" and rows * values[0].nbytes > most:
        raise data_error(where, f"{rows} rows of {values[0].nbytes} bytes", f"at most {RATIO} times the packed size")
    return np.empty((rows, *values.shape[1:]), values.dtype)


def _fit(where: str, column: np.ndarray, values: np.ndarray, row: int) -> np.ndarray:
    """The column, widened for these values where needed; DataError if they have another shape or kind."""
    if values.shape[1:] != column.shape[1:]:
        raise data_error(where, f"shape {list(values.shape[1:])} in row {row}", f"{list(column.shape[1:])}, as in the rows before")
    if values.dtype.kind == column.dtype.kind == "U":
        return column if values.dtype <= column.dtype else column.astype(values.dtype)
    if values.dtype != column.dtype:
        raise data_error(where, f"{values.dtype} in row {row}", f"{column.dtype}, as in the rows before")
    return column


def _values(where: str, array: Any, row: int) -> tuple[np.ndarray, bool]:
    """A batch of one column as an array, and whether its rows were images."""
    arrow: Any = _arrow(where)
    types = arrow.types
    if isinstance(array, arrow.ExtensionArray) and not hasattr(array, "to_numpy_ndarray"):
        array = array.storage
    if types.is_dictionary(array.type):
        return _decoded(where, array, row), False
    if types.is_struct(array.type) and {"bytes", "path"} <= {array.type.field(i).name for i in range(array.type.num_fields)}:
        if array.null_count:
            _no_nulls(where, array, row, 1)
        array = array.flatten()[array.type.get_field_index("bytes")]
        if array.null_count:
            at = row + _first_null(array)
            raise data_error(where, f"an image without its bytes in row {at}", "images with bytes", "a path inside a file is not followed")
    if _any_of(types, array.type, "is_binary", "is_large_binary", "is_binary_view"):
        _no_nulls(where, array, row, 1)
        return _images(where, array, row), True
    if _any_of(types, array.type, "is_string", "is_large_string", "is_string_view"):
        _no_nulls(where, array, row, 1)
        return _text(where, array, row), False
    return _nested(where, array, row, 1), False


def _nested(where: str, array: Any, row: int, each: int) -> np.ndarray:
    """Numbers, or lists of numbers of equal lengths; one row has `each` values."""
    arrow: Any = _arrow(where)
    types = arrow.types
    _no_nulls(where, array, row, each)
    if hasattr(array, "to_numpy_ndarray"):  # tensors of one shape, whose lists are flat
        return array.to_numpy_ndarray()
    if isinstance(array, arrow.ExtensionArray):
        array = array.storage
    if _any_of(types, array.type, "is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view"):
        lengths = _arrow(where, "compute").list_value_length(array).to_numpy(zero_copy_only=False)
        length = int(lengths[0]) if len(lengths) else 0
        other = np.flatnonzero(lengths != length)
        if len(other):
            raise data_error(
                where, f"a list of {lengths[other[0]]} in row {row + other[0] // each}", f"lists of {length}, as in the row before it"
            )
        if not length:
            raise data_error(where, f"an empty list in row {row}", NUMBERS)
        inner = _nested(where, array.flatten(), row, each * length)
        return inner.reshape(len(array), length, *inner.shape[1:])
    if not _any_of(types, array.type, "is_integer", "is_floating", "is_boolean"):
        raise data_error(where, f"values of type {show(str(array.type))}", NUMBERS)
    return array.to_numpy(zero_copy_only=False)


def _images(where: str, array: Any, row: int) -> np.ndarray:
    x = np.empty(0)
    for i, value in enumerate(array):
        one = image(f"{where}: row {row + i}", value.as_py())
        if not i:
            x = room(where, len(array), one)
        elif one.shape != x.shape[1:]:
            raise data_error(f"{where}: row {row + i}", f"an image of {list(one.shape)}", f"{list(x.shape[1:])}, as in the rows before")
        x[i] = one
    return x


def _text(where: str, array: Any, row: int) -> np.ndarray:
    return _decoded(where, array.dictionary_encode(), row)


def _decoded(where: str, array: Any, row: int) -> np.ndarray:
    """A dictionary-encoded column as its values; each distinct value is converted once."""
    arrow: Any = _arrow(where)
    _no_nulls(where, array, row, 1)
    codes = array.indices.to_numpy(zero_copy_only=False)
    if not _any_of(arrow.types, array.dictionary.type, "is_string", "is_large_string", "is_string_view"):
        return _nested(where, array.dictionary, 0, 1)[codes]
    _no_nulls(where, array.dictionary, 0, 1)
    known = array.dictionary.to_pylist()
    for i, text in enumerate(known):
        if len(text) > LONGEST or "\0" in text:
            at = row + int(np.argmax(codes == i))
            raise data_error(where, f"{show(text)} in row {at}", f"at most {LONGEST} characters, none of them NUL")
    return np.array(known, str)[codes]


def _no_nulls(where: str, array: Any, row: int, each: int) -> None:
    if array.null_count:
        at = row + _first_null(array) // each
        raise data_error(where, f"a missing value in row {at}", "a value in every row", f"{array.null_count} such values")


def _first_null(array: Any) -> int:
    return int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))


def _any_of(types: Any, found: Any, *questions: str) -> bool:
    return any(getattr(types, question)(found) for question in questions)


@contextlib.contextmanager
def _damage(path: str, what: str) -> Iterator[None]:
    """Whatever the library raises about the content of a file becomes a DataError about the file."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        said = " ".join((str(error) or type(error).__name__).split())[:80]
        raise data_error(path, f"a file that is truncated or damaged ({said})", f"a whole {what}") from error


def _arrow(where: str, module: str = "") -> Any:
    """pyarrow, or a module of it."""
    return library(f"pyarrow.{module}" if module else "pyarrow", where, "a table")
