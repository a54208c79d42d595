"""HDF5 files with a group for each client, `examples/<client>/<feature>`: the clients, and the columns of one client.

An HDF5 file may refer to other files and to code that decompresses its chunks, and may claim any shape; so links, external and virtual
datasets, unknown filters and shapes that the size of the file cannot explain are refused before anything is read. A damaged file may still
crash the library, so all this runs in a process of its own (see `hdf5_process`); `serve` is its main loop.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedcodist.errors import DataError, data_error
from fedcodist.readers.files import HDF5, RATIO, SMALL_BYTES, check_magic, open_file
from fedcodist.readers.libraries import library
from fedcodist.readers.sqlite import client_name
from fedcodist.settings import show

FILTERS = {1: "gzip", 2: "shuffle", 3: "checksum", 32000: "lzf"}
MOST_CLIENT, MOST_FEATURES = 2**30, 1_000
SECONDS, BYTES_A_SECOND, MEMORY = 3, 10**6, 3 * 2**30  # processor time for one question, and bytes of address space
BLOCK = 64  # strings read at once: each may claim to be as long as the file
# What the library raises when a file is damaged.
BROKEN = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, OverflowError, MemoryError, UnicodeError)


class Groups:
    """One file, for one thread; a context manager."""

    def __init__(self, path: str | Path):
        h5py = library("h5py", str(path), "an HDF5 file")
        self.h5py, self.path = h5py, str(path)
        with open_file(path, "an HDF5 file") as file:
            check_magic(path, file, (HDF5,), "an HDF5 file")
            self.size = os.fstat(file.fileno()).st_size
        self.most = min(MOST_CLIENT, max(SMALL_BYTES, RATIO * self.size))
        self._clients: dict[str, int] | None = None
        try:
            self.file = h5py.File(self.path, "r")
        except BROKEN as error:
            raise self._broken(error) from error
        try:
            self.examples = self._inside(self.file.id, b"examples", h5py.h5g.GroupID, "")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self.examples: Any = None  # a reference would keep the file open
        self.file.close()

    def clients(self) -> dict[str, int]:
        """{client: number of examples}, sorted; for each client only the shape of one feature is read."""
        if self._clients is None:
            found: dict[str, int] = {}
            first: bytes | None = None
            for raw in self._names(self.examples):
                client = client_name(self.path, raw)
                group = self._inside(self.examples, raw, self.h5py.h5g.GroupID, client)
                if first is None or not group.links.exists(first):
                    first = next(iter(self._names(group, 1)), None)  # usually the same in all groups, and slow to look up
                found[client] = 0 if first is None else self._rows(self._inside(group, first, self.h5py.h5d.DatasetID, client), client)
            self._clients = dict(sorted(found.items()))
        return dict(self._clients)

    def read(self, client: str) -> dict[str, np.ndarray | list[bytes]]:
        """The columns of one client, all with the same number of rows."""
        where = f"{self.path}: client {client}"
        group = self._inside(self.examples, client_name(self.path, client).encode("utf-8", "replace"), self.h5py.h5g.GroupID, client)
        columns: dict[str, np.ndarray | list[bytes]] = {}
        left = self.most
        for feature in sorted(self._names(group)):
            name = feature.decode("utf-8", "replace")
            if len(columns) >= MOST_FEATURES:
                raise data_error(where, "more features", f"at most {MOST_FEATURES}")
            columns[name], used = self._column(
                f"{where}: {show(name)}", self._inside(group, feature, self.h5py.h5d.DatasetID, client), left
            )
            left -= used
        rows = {name: len(values) for name, values in columns.items()}
        if len(set(rows.values())) > 1:
            raise data_error(where, f"features of {show(rows)} rows", "as many of each")
        return columns

    def _names(self, group: Any, most: int | None = None) -> list[bytes]:
        try:
            names = []
            for name in group:
                names.append(name)
                if most is not None and len(names) >= most:
                    break
            return names
        except BROKEN as error:
            raise self._broken(error) from error

    def _inside(self, group: Any, name: bytes, kind: type, client: str) -> Any:
        """The member of a group with this name; DataError unless it lies in this file and is of this kind."""
        where = f"{self.path}: client {client}" if client else self.path
        try:
            if not group.links.exists(name):  # unlike `in`, this does not follow links
                raise data_error(where, f"no group {show(name.decode('utf-8', 'replace'))}", "examples/<client>/<feature>")
            if group.links.get_info(name).type != self.h5py.h5l.TYPE_HARD:
                raise data_error(where, f"a link {show(name)}", "data in this file")
            found = self.h5py.h5o.open(group, name)
        except DataError:
            raise
        except BROKEN as error:
            raise self._broken(error) from error
        if not isinstance(found, kind):
            raise data_error(
                where, f"{show(name)} that is a {type(found).__name__.removesuffix('ID').lower()}", "examples/<client>/<feature>"
            )
        return found

    def _rows(self, dataset: Any, client: str) -> int:
        try:
            shape = dataset.shape
        except BROKEN as error:
            raise self._broken(error) from error
        if not shape:
            raise data_error(f"{self.path}: client {client}", "a feature that is one value", "a value for each example")
        return shape[0]

    def _column(self, where: str, found: Any, most: int) -> tuple[np.ndarray | list[bytes], int]:
        """The values of a dataset, and their size in bytes, which is at most `most`."""
        h5py = self.h5py
        try:
            dataset = h5py.Dataset(found)
            dtype, shape, layout = dataset.dtype, dataset.shape, found.get_create_plist()
            filters = [layout.get_filter(i)[0] for i in range(layout.get_nfilters())]
            texts = h5py.check_string_dtype(dtype) is not None
            if dataset.is_virtual or layout.get_external_count():
                raise data_error(where, "data in another file", "data in this file")
            if not set(filters) <= set(FILTERS):
                raise data_error(where, f"filter {max(filters)}", f"{', '.join(FILTERS.values())}", "others would load code")
            if not shape or not (texts or (dtype.kind in "biuf" and dtype.itemsize <= 8)) or (texts and len(shape) > 1):
                raise data_error(where, f"{dtype} {show(shape)}", "numbers [n, ...] or strings [n]")
            size = math.prod(shape) * dtype.itemsize
            chunk = math.prod(dataset.chunks or (1,)) * dtype.itemsize
            # A chunk may be larger than the data, within bounds. Without stored bytes the library would make up the data from a fill value.
            if size > most or chunk > self.most or (size and not found.get_storage_size()):
                raise data_error(where, f"{show(shape)} of {dtype} in {found.get_storage_size()} bytes", f"what {self.size} bytes can hold")
            if not texts:
                values = np.asarray(dataset[()])
                return values.astype(dtype.newbyteorder("="), copy=False), values.nbytes
            strings: list[bytes] = []
            used = 0
            for start in range(0, shape[0], BLOCK):
                block = [bytes(value) for value in dataset[start : start + BLOCK].tolist()]
                strings += block
                used += sum(map(len, block))
                if used > most:
                    raise data_error(where, f"more than {most} bytes of text", f"what {self.size} bytes can hold")
            return strings, used
        except DataError:
            raise
        except BROKEN as error:
            raise self._broken(error) from error

    def _broken(self, error: BaseException) -> DataError:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:80]
        return data_error(self.path, f"a file that HDF5 cannot read ({reason})", "a whole HDF5 file")


def serve(path: str) -> None:
    """Answer questions about a file, one line of JSON each, until the input ends."""
    import resource

    said, groups = sys.stdout.buffer, None
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    size = os.path.getsize(path)
    memory = MEMORY + 4 * min(MOST_CLIENT, RATIO * size)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for line in sys.stdin.buffer:
        question, *arguments = json.loads(line)
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used + SECONDS + size / BYTES_A_SECOND), resource.RLIM_INFINITY))
        columns: dict[str, np.ndarray | list[bytes]] = {}
        try:
            groups = groups or Groups(path)
            if question == "read":
                columns = groups.read(arguments[0])
                answer: Any = {"said": [_description(name, values) for name, values in columns.items()]}
            else:
                answer = {"said": groups.clients() if question == "clients" else None}
        except DataError as error:
            answer = {"error": str(error)}
        said.write(json.dumps(answer).encode() + b"\n")
        for values in columns.values():
            said.write(b"".join(values) if isinstance(values, list) else np.ascontiguousarray(values).data)
        said.flush()


def _description(name: str, values: np.ndarray | list[bytes]) -> list[Any]:
    return [name, None, [len(value) for value in values]] if isinstance(values, list) else [name, values.dtype.str, list(values.shape)]
