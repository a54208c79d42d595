"""A store: a dataset prepared once, as columns on disk that are memory-mapped and never loaded whole.

A store is a directory with a .npy file for each column of numbers, a .txt file for each column of names, and `store.json`, which has their
sizes and SHA-256, where the data came from, and the settings of the preparation. It is written to `<name>.partial` and renamed when it is
complete, so that an incomplete one is never read. A `Writer` saves its progress, from which an interrupted preparation continues.
Deliberately absent: what the columns mean, which datasets and tasks know.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedcodist.errors import DataError, data_error
from fedcodist.readers import files
from fedcodist.settings import nearest
from fedcodist.storage import durable, lock, sealed
from fedcodist.storage.durable import NAME, CheckpointError, Damaged, StorageError, as_storage_error, printable
from fedcodist.storage.sealed import canonical, seal, unseal

META, PROGRESS, LOCK, SCRATCH = "store.json", "progress.json", "prepare.lock", "scratch"
# What `fedcodist data prepare` calls a store if no other name is given: a dataset's own name. A test keeps this equal to `datasets`.
USUAL_NAMES = ("c4", "cifar10", "cifar100", "own", "stackoverflow", "text")
LONGEST_TEXT = 2**31  # bytes of a text column


def home() -> Path:
    """Where stores are kept: FEDCODIST_DATA, or the user's data directory."""
    place = os.environ.get("FEDCODIST_DATA")
    if not place:
        data = os.environ.get("XDG_DATA_HOME") or (os.environ.get("HOME") and os.path.join(os.environ["HOME"], ".local", "share"))
        if not data:
            raise data_error("FEDCODIST_DATA", "nothing, and no HOME", "a directory for prepared data")
        place = os.path.join(data, "fedcodist")
    return Path(place)


def locate(name: str | Path) -> Path:
    """The path of the store of this name, whether it exists or not; a path is returned as it is."""
    return Path(name) if os.sep in str(name) or not re.fullmatch(NAME, str(name)) else home() / str(name)


@dataclass(frozen=True, eq=False)
class Store:
    """Columns by name, memory-mapped read-only."""

    path: Path
    facts: Mapping[str, Any]  # recorded by the preparation: kind, options, sources, notes
    columns: Mapping[str, Mapping[str, Any]]
    digest: str  # of the content of the columns and the options: equal digests mean equal data

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> np.ndarray:
        """A column of numbers."""
        found, place = self.columns[name], self.path / f"{name}.npy"
        rows, *shape = found["shape"]
        header = _header(found["dtype"], shape, rows)
        with files.open_file(place) as file:
            if file.read(len(header)) != header:  # exactly as it was written, so that no other header is ever parsed
                hint = f"fedcodist data verify {self.path.name}"
                raise data_error(str(place), "another header", f"{found['dtype']} {found['shape']}, as in {META}", hint)
            if 0 in found["shape"]:
                return np.empty(found["shape"], found["dtype"])
            try:
                return np.memmap(file, found["dtype"], "r", len(header), tuple(found["shape"]))
            except (OSError, ValueError) as error:
                raise data_error(str(place), f"{error}", "a whole column") from error

    def text(self, name: str) -> list[str]:
        """A column of names."""
        place = self.path / f"{name}.txt"
        with files.open_file(place) as file:
            try:
                return file.read(LONGEST_TEXT).decode("utf-8").split("\n")[:-1]
            except UnicodeDecodeError as error:
                raise data_error(
                    str(place), f"bytes that are no UTF-8 at {error.start}", "a column of names", "prepare it again"
                ) from error

    @cached_property
    def options(self) -> dict[str, Any]:
        """The settings that it was prepared with."""
        return dict(self.facts.get("options", {}))


def open_store(name: str | Path, kind: str | None = None) -> Store:
    """A prepared store by name or path, of this kind if one is given. Only the sizes of files are checked; `verify` reads everything."""
    path = locate(name)
    if not (path / META).is_file():
        there = stores()
        what = "no store" if path.is_dir() else files.kind(path)
        if path.with_name(f"{path.name}.partial").is_dir():
            what = "a preparation that is not finished"
        how = f"fedcodist data prepare {name}" if name in USUAL_NAMES else "fedcodist data prepare; a config's header says how"
        raise data_error(
            f"data {printable(name)}", what, f"a prepared store: {', '.join(there) or 'none yet'}", nearest(name, there) or how
        )
    try:
        meta = unseal(path / META)
        facts, columns = dict(meta["facts"]), dict(meta["columns"])
        for column, found in columns.items():
            file = path / f"{column}.{'txt' if found['dtype'] == 'text' else 'npy'}"
            size = file.stat().st_size if file.is_file() else None
            if size != found["bytes"]:
                raise Damaged(f"{file.name}: {'missing' if size is None else f'{size} bytes'}, not {found['bytes']} bytes")
    except (Damaged, CheckpointError, KeyError, TypeError) as error:
        raise data_error(str(path), f"{error}", "a whole store of this version", "prepare it again") from error
    store = Store(path, facts, columns, meta["content"])
    if kind is not None and facts.get("kind") != kind:
        raise data_error(f"data {printable(name)}", f"a store of {facts.get('kind')}", f"one of {kind}")
    return store


def stores() -> dict[str, Path]:
    """The prepared stores by name."""
    try:
        place = home()
        found = {path.name: path for path in place.iterdir() if re.fullmatch(NAME, path.name)} if place.is_dir() else {}
        return {name: path for name, path in sorted(found.items()) if (path / META).is_file()}
    except (DataError, OSError):
        return {}


def verify(store: Store) -> list[str]:
    """A line for each column that differs from the digest in `store.json`; empty if there is none."""
    wrong = []
    for name, found in store.columns.items():
        file = store.path / f"{name}.{'txt' if found['dtype'] == 'text' else 'npy'}"
        with files.open_file(file) as stream:
            if files.sha256(stream) != found["sha256"]:
                wrong.append(f"{file}: SHA-256 differs from {META}")
    if content(store.columns, store.options) != store.digest:
        wrong.append(f"{store.path / META}: the digest of the whole differs")
    return wrong


def content(columns: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """The digest of a store: of the content of its columns, and of its options."""
    return sealed.digest([{name: found["sha256"] for name, found in columns.items()}, options])


class Writer:
    """A store in preparation. `plan` is everything that its content depends on: with another plan an unfinished store begins anew.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "mine"
    >>> with Writer(place, {"seed": 0}) as writer:
    ...     writer.append("x", np.arange(6).reshape(3, 2))
    ...     store = writer.finish(kind="example")
    >>> store["x"].tolist(), store.facts["kind"]
    ([[0, 1], [2, 3], [4, 5]], 'example')
    """

    def __init__(self, path: Path, plan: Mapping[str, Any]):
        self.path, self.partial = path, path.with_name(f"{path.name}.partial")
        self.state: dict[str, Any] = {}  # saved by the last mark
        self._plan = sealed.digest(plan)
        self._shapes: dict[str, tuple[str, list[int]]] = {}
        self._files: dict[str, IO[bytes]] = {}
        with as_storage_error(self.partial):
            self.partial.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock, _ = lock.take(self.partial / LOCK, "store")
        try:
            old = path.with_name(f"{path.name}.old")
            if old.is_dir() and not path.exists():  # killed between the two renames of `finish`
                with as_storage_error(path):
                    old.rename(path)
            self._resume()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and release the lock; what was marked stays for the next time."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()
        self._files.clear()
        if self._lock >= 0:
            lock.release(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """Remove the unfinished store, if the preparation failed before anything was worth keeping."""
        self.close()
        shutil.rmtree(self.partial, ignore_errors=True)

    def append(self, name: str, rows: np.ndarray) -> None:
        """Append rows to a column of numbers; the first rows decide its type and shape."""
        shape = (rows.dtype.str, list(rows.shape[1:]))
        with as_storage_error(self.partial / f"{name}.npy"):
            if name not in self._shapes:
                self._shapes[name] = shape
                self._open(name).write(_header(*shape, rows=0))
            if self._shapes[name] != shape:
                raise ValueError(f"{name}: rows of {shape} after rows of {self._shapes[name]}")
            self._open(name).write(np.ascontiguousarray(rows).data)

    def write_text(self, name: str, lines: Iterable[str]) -> None:
        """Append lines to a column of names."""
        self._shapes.setdefault(name, ("text", []))
        with as_storage_error(self.partial / f"{name}.txt"):
            self._open(name).write("".join(f"{line}\n" for line in lines).encode("utf-8"))

    def rows(self, name: str) -> np.ndarray:
        """The rows of a column so far, memory-mapped."""
        dtype, shape = self._shapes[name]
        file = self._open(name)
        with as_storage_error(self.partial / f"{name}.npy"):
            file.flush()
        offset = len(_header(dtype, shape, rows=0))
        count = self._count(name)
        return np.memmap(self.partial / f"{name}.npy", dtype, "r", offset, (count, *shape)) if count else np.empty((0, *shape), dtype)

    def read_text(self, name: str) -> list[str]:
        """The lines of a column of names so far."""
        if name not in self._shapes:
            return []
        with as_storage_error(self.partial / f"{name}.txt"):
            self._open(name).flush()
            return (self.partial / f"{name}.txt").read_text("utf-8").split("\n")[:-1]

    def scratch(self) -> Path:
        """A directory for temporary files, removed when the store is finished."""
        place = self.partial / SCRATCH
        with as_storage_error(place):
            place.mkdir(exist_ok=True, mode=0o700)
        return place

    def drop(self, name: str) -> None:
        """Remove a temporary column."""
        file = self._files.pop(name, None)
        if file is not None:
            file.close()
        dtype, _ = self._shapes.pop(name, ("", []))
        with as_storage_error(self.partial / name):
            (self.partial / f"{name}.{'txt' if dtype == 'text' else 'npy'}").unlink(missing_ok=True)

    def mark(self, **state: Any) -> None:
        """Sync what is written so far, and save `state`, from which an interrupted preparation continues."""
        sizes = {}
        for name, (dtype, shape) in self._shapes.items():
            file = self._open(name)
            with as_storage_error(self.partial / name):
                file.flush()
                os.fsync(file.fileno())
            sizes[name] = {"dtype": dtype, "shape": shape, "bytes": file.tell()}
        self.state = json.loads(canonical(state))
        durable.replace_file(self.partial / PROGRESS, seal({"plan": self._plan, "columns": sizes, "state": self.state}))

    def finish(self, **facts: Any) -> Store:
        """Complete the store and move it to its place; only then is an earlier store at that place removed."""
        columns = {}
        for name, (dtype, shape) in list(self._shapes.items()):
            count = self._count(name) if dtype != "text" else len(self.read_text(name))
            file = self._files.pop(name, None) or self._open(name)
            self._files.pop(name, None)
            place = Path(file.name)
            with as_storage_error(place):
                file.close()
                if dtype != "text":
                    with open(place, "r+b") as patched:
                        patched.write(_header(dtype, shape, count))
                with open(place, "rb") as stream:
                    os.fsync(stream.fileno())
                    digest = files.sha256(stream)
                size = place.stat().st_size
            columns[name] = {"dtype": dtype, "shape": [count, *shape], "bytes": size, "sha256": digest}
        meta = {"facts": facts, "columns": columns, "content": content(columns, facts.get("options", {}))}
        durable.replace_file(self.partial / META, seal(meta))
        with as_storage_error(self.partial):
            (self.partial / PROGRESS).unlink(missing_ok=True)
        with as_storage_error(self.path):
            shutil.rmtree(self.partial / SCRATCH, ignore_errors=True)
            old = self.path.with_name(f"{self.path.name}.old")
            if self.path.exists():
                shutil.rmtree(old, ignore_errors=True)
                self.path.rename(old)
            self.partial.rename(self.path)
            (self.path / LOCK).unlink(missing_ok=True)  # held until now, or another writer could clear what is being renamed
            self.close()
            durable.sync_directory(self.path.parent)
            shutil.rmtree(old, ignore_errors=True)
        return open_store(self.path)

    def _resume(self) -> None:
        """Return to the last mark of the same plan, or begin with nothing."""
        kept: set[str] = {LOCK}
        try:
            progress = unseal(self.partial / PROGRESS)
            if progress["plan"] == self._plan:
                kept |= {PROGRESS, SCRATCH}
                self.state = progress["state"]
                for name, found in progress["columns"].items():
                    file = self.partial / f"{name}.{'txt' if found['dtype'] == 'text' else 'npy'}"
                    if file.stat().st_size < found["bytes"]:
                        raise Damaged(f"{file.name}: shorter than it was")
                    os.truncate(file, found["bytes"])
                    self._shapes[name] = (found["dtype"], found["shape"])
                    kept.add(file.name)
        except (Damaged, CheckpointError, OSError, KeyError):
            self.state, self._shapes, kept = {}, {}, {LOCK}
        for path in self.partial.iterdir():
            if path.name not in kept:
                with as_storage_error(path):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        if PROGRESS not in kept:
            self.mark()  # so that what the scratch directory will hold belongs to this plan

    def _open(self, name: str) -> IO[bytes]:
        if name not in self._files:
            suffix = "txt" if self._shapes[name][0] == "text" else "npy"
            self._files[name] = open(self.partial / f"{name}.{suffix}", "ab")  # noqa: SIM115
        return self._files[name]

    def _count(self, name: str) -> int:
        dtype, shape = self._shapes[name]
        row = math.prod(shape) * np.dtype(dtype).itemsize
        return (self._open(name).tell() - len(_header(dtype, shape, rows=0))) // row


def tidy(path: Path) -> None:
    """Remove what is left by a process that was killed right after its store was renamed."""
    with as_storage_error(path):
        (path / LOCK).unlink(missing_ok=True)
    shutil.rmtree(path.with_name(f"{path.name}.old"), ignore_errors=True)


def check_room(path: Path, needed: int) -> None:
    """StorageError if the disk has no room for `needed` bytes."""
    free, place = durable.free_space(path)
    if free < needed:
        raise StorageError(f"{printable(place)}: {free / 2**20:.0f} MiB free; this needs about {needed / 2**20:.0f} MiB")


def file_facts(path: Path) -> dict[str, Any]:
    """{name, bytes, sha256} of a file, for the record of where data came from."""
    with files.open_file(path) as stream:
        return {"name": path.name, "bytes": path.stat().st_size, "sha256": files.sha256(stream)}


def _header(dtype: str, shape: list[int], rows: int) -> bytes:
    """A .npy header whose length does not depend on the number of rows, so that it can be overwritten at the end."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': ({rows}, {''.join(f'{n}, ' for n in shape)}), }}"
    room = 64 * math.ceil((10 + len(text) + 25) / 64) if rows == 0 else len(_header(dtype, shape, 0))
    return b"\x93NUMPY\x01\x00" + (room - 10).to_bytes(2, "little") + text.ljust(room - 11).encode() + b"\n"
