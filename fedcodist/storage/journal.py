"""A journal: JSON lines that end in their checksum, appended and synced. The remains of a failed write are cut off (R5)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcodist.storage.durable import StorageError, as_storage_error, printable, write_all
from fedcodist.storage.sealed import canonical


class Lines:
    """A file of JSON lines, each ending in its checksum. It knows its proper length and cuts off the remains of a failed write."""

    def __init__(self, path: Path):
        self.path = path
        self.lost = False
        with as_storage_error(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"{printable(path)}: not a regular file")
        self.size = status.st_size
        self._sha = self._hash(self.size)

    def append(self, row: Mapping[str, Any]) -> None:
        line = encode_line(row)
        with as_storage_error(self.path):
            self._heal()
            write_all(self._file, line)
        self.size += len(line)
        self._sha.update(line)

    def sync(self) -> None:
        """All lines are on disk, or StorageError, now and ever after: a second fsync may succeed without having saved anything."""
        if self.lost:
            raise StorageError(f"{printable(self.path)}: an earlier sync failed; open the run again")
        with as_storage_error(self.path):
            self._heal()
            try:
                os.fsync(self._file)
            except OSError:
                self.lost = True
                raise

    def cut(self, size: int) -> None:
        with as_storage_error(self.path):
            if size != self.size:
                os.ftruncate(self._file, size)
        self.size, self._sha = size, self._hash(size)

    def sha256(self, size: int | None = None) -> str:
        return (self._sha if size is None else self._hash(size)).hexdigest()

    def whole_bytes(self) -> int:
        """Where the last whole line ends."""
        with as_storage_error(self.path):
            return os.pread(self._file, self.size, 0).rfind(b"\n") + 1

    def close(self) -> None:
        os.close(self._file)

    def _heal(self) -> None:
        if os.fstat(self._file).st_size != self.size:
            os.ftruncate(self._file, self.size)

    def _hash(self, size: int) -> Any:
        sha, at = hashlib.sha256(), 0
        with as_storage_error(self.path):
            while at < size and (data := os.pread(self._file, min(size - at, 2**20), at)):
                sha.update(data)
                at += len(data)
        return sha


def encode_line(row: Mapping[str, Any]) -> bytes:
    """A row as a line; NaN and infinities are written as Python's json does, and come back as they were.

    >>> encode_line({"round": 1, "loss": 0.1})
    b'{"loss":0.1,"round":1,"crc32":"1daed988"}\\n'
    """
    if "crc32" in row:
        raise ValueError("crc32 is the journal's own key")
    text = canonical(dict(row))
    comma = "," if row else ""
    return f'{text[:-1]}{comma}"crc32":"{zlib.crc32(text.encode()):08x}"}}\n'.encode()


def decode_lines(data: bytes, name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The valid rows, and a note for each invalid line. An incomplete last line is what a crash leaves, and gets no note."""
    rows, notes = [], []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        match = re.fullmatch(rb'(\{.*?),?"crc32":"([0-9a-f]{8})"\}', line)
        text = match[1] + b"}" if match else b""
        if not match or f"{zlib.crc32(text):08x}".encode() != match[2]:
            notes.append(f"{name} line {number}: bad checksum, left out")
            continue
        try:
            rows.append(json.loads(text))
        except (ValueError, RecursionError):
            notes.append(f"{name} line {number}: not JSON, left out")
    return rows, notes
