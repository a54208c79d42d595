"""FedJAX's SQLite files: one row per client, with all its examples as arrays in msgpack, compressed by zlib.

The table is `federated_data` with client_id, data and num_examples; each split is a file of its own. Arrays are msgpack's extension 1,
[shape, name of the dtype, bytes], and arrays of strings its extension 4, [shape, strings]; nothing else is read, and every shape is checked
against the bytes. In each row the number of examples comes after the data, so listing the clients of a large file scans it once.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedcodist.errors import data_error
from fedcodist.readers.files import RATIO, SMALL_BYTES, kind
from fedcodist.readers.libraries import library
from fedcodist.readers.sqlite import Database, client_name, count
from fedcodist.readers.tff import Column, Source, by_split, split_of
from fedcodist.settings import show

TABLE = {"federated_data": ("client_id", "data", "num_examples")}
MOST_CLIENT, MOST_FEATURES, MOST_AXES = 2**30, 1_000, 16
ARRAY, STRINGS = 1, 4  # codes of msgpack extensions
DTYPES = {
    name.encode(): np.dtype(name).newbyteorder("<")
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
}


def open_fedjax(path: str | Path, quick_check: bool = False) -> dict[str, Source]:
    """{split: source} of a file named after its split, such as federated_cifar100_train.sqlite, or of a directory of them."""
    if kind(path) == "a directory":
        files = by_split(path, (".sqlite",))
        if not files:
            raise data_error(str(path), "no .sqlite file named after its split", "files such as federated_cifar100_train.sqlite")
    else:
        files = {split_of(path) or "": Path(path)}
    found: dict[str, Source] = {}
    try:
        for split, file in files.items():
            found[split] = _Packed(file, quick_check)
        if "" in found:
            raise data_error(str(path), "a name without a split", "a name such as federated_cifar100_train.sqlite")
    except BaseException:
        for source in found.values():
            source.close()
        raise
    return found


class _Packed:
    """One file, which is one split."""

    def __init__(self, path: Path, quick_check: bool):
        self.database = Database(path, TABLE, quick_check)
        self._clients: dict[str, tuple[int, int]] | None = None  # {client: (rowid, number of examples)}

    def __enter__(self) -> _Packed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    def clients(self) -> dict[str, int]:
        return {client: examples for client, (_, examples) in self._listed().items()}

    def read(self, client: str) -> dict[str, Column]:
        where = f"{self.database.path}: client {client}"
        if client not in self._listed():
            raise data_error(where, "nothing", "a client of this file")
        row, examples = self._listed()[client]
        for (data,) in self.database.rows("SELECT data FROM federated_data WHERE rowid = ?", [row]):
            return unpack(where, data, examples)
        raise data_error(where, "nothing", "its row of the file", "damaged?")

    def _listed(self) -> dict[str, tuple[int, int]]:
        if self._clients is None:
            found: dict[str, tuple[int, int]] = {}
            path = self.database.path
            for row, raw, examples in self.database.rows("SELECT rowid, client_id, num_examples FROM federated_data"):
                client = client_name(path, raw)
                if client in found:
                    raise data_error(path, f"client {show(client)} twice", "each once")
                found[client] = (row, count(path, client, examples))
            self._clients = dict(sorted(found.items()))
        return self._clients


def unpack(where: str, data: Any, examples: int) -> dict[str, Column]:
    """The columns of one client's data; DataError unless each has one row per example."""
    if not isinstance(data, bytes):
        raise data_error(where, f"a value of type {type(data).__name__}", "packed bytes")
    most = min(MOST_CLIENT, max(SMALL_BYTES, RATIO * len(data)))
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(data, most)
    except (zlib.error, MemoryError) as error:
        raise data_error(where, f"{len(data)} bytes that zlib cannot unpack ({error})", "whole packed examples") from error
    if not stream.eof or stream.unused_data:
        got = "more or fewer bytes than were packed" if len(raw) < most else f"more than {most} bytes packed into {len(data)}"
        raise data_error(where, got, "whole packed examples")
    table = _message(where, raw, max_map_len=MOST_FEATURES, max_array_len=0)
    if not isinstance(table, dict):
        raise data_error(where, f"a value of type {type(table).__name__}", "a table of arrays")
    columns: dict[str, Column] = {}
    for name, value in table.items():
        place = f"{where}: {show(name)}"
        columns[str(name)] = found = _array(place, value)
        if len(found) != examples:
            raise data_error(place, f"{len(found)} rows", f"{examples}, as num_examples says")
    return columns


def _message(where: str, packed: bytes, **limits: Any) -> Any:
    msgpack = library("msgpack", where, "msgpack", "data that this installation can read")
    try:
        return msgpack.unpackb(packed, strict_map_key=True, **limits)
    except (ValueError, TypeError, OverflowError, MemoryError, RecursionError, msgpack.UnpackException) as error:
        raise data_error(where, f"{len(packed)} bytes that are no message ({type(error).__name__})", "arrays as msgpack") from error


def _array(where: str, value: Any) -> Column:
    code, raw = getattr(value, "code", None), getattr(value, "data", None)
    if code not in (ARRAY, STRINGS) or not isinstance(raw, bytes):
        raise data_error(where, f"extension {code}" if code is not None else f"a value of type {type(value).__name__}", "an array")
    match _message(where, raw, raw=True, max_map_len=0, max_array_len=max(MOST_AXES, len(raw)) if code == STRINGS else MOST_AXES):
        case [list() as shape, bytes() as name, bytes() as buffer] if code == ARRAY:
            size = _size(where, shape)
            if name not in DTYPES:
                raise data_error(where, f"dtype {show(name)}", "numbers of at most 64 bits")
            if size * DTYPES[name].itemsize != len(buffer):
                raise data_error(where, f"{len(buffer)} bytes", f"{DTYPES[name].itemsize} * {show(shape)} bytes")
            if DTYPES[name].kind == "b" and buffer.strip(b"\0\1"):
                raise data_error(where, "truth values that are neither 0 nor 1", "0 or 1")
            return np.frombuffer(buffer, DTYPES[name]).reshape(shape).astype(DTYPES[name].newbyteorder("="), copy=False)
        case [list() as shape, list() as strings] if code == STRINGS:
            if _size(where, shape) != len(strings) or len(shape) != 1 or not all(isinstance(text, bytes) for text in strings):
                raise data_error(where, f"{len(strings)} values for {show(shape)}", "one string for each example")
            return strings
    raise data_error(where, "another message", "[shape, dtype, bytes] or [shape, strings]")


def _size(where: str, shape: list[Any]) -> int:
    if not shape or len(shape) > MOST_AXES or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise data_error(where, f"shape {show(shape)}", "at least one axis, and whole numbers")
    return math.prod(shape)
