"""HDF5 in a process of its own, with limits of time and memory that the kernel enforces.

A damaged file may crash the HDF5 library, or keep it busy for ever. So a child process opens the file (see `hdf5`) and answers with one
line of JSON and raw bytes, which are checked like those of any other file; if it dies, that is a DataError about the file. The limit is on
processor time and not on the clock, so that a busy machine does not change what is read.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedcodist.errors import DataError, data_error
from fedcodist.readers.files import HDF5, check_magic, open_file

# Without the package's own __init__, which imports JAX: that takes longer than the reading.
START = """
import sys, types
package = types.ModuleType("fedcodist")
package.__path__ = [sys.argv[1]]
sys.modules["fedcodist"] = package
from fedcodist.readers import hdf5
hdf5.serve(sys.argv[2])
"""
MOST_LINE = 2**28


class Hdf5Process:
    """One HDF5 file, read by a child process; for one thread; a context manager."""

    def __init__(self, path: str | Path):
        self.path = str(path)
        with open_file(path, "an HDF5 file") as file:
            check_magic(path, file, (HDF5,), "an HDF5 file")
        command = [sys.executable, "-P", "-c", START, str(Path(__file__).parents[1]), self.path]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._clients: dict[str, int] | None = None
        try:
            self._ask("open")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Hdf5Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child; a second call does nothing."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:  # an unsent question that nobody waits for
                    continue

    def clients(self) -> dict[str, int]:
        """{client: number of examples}, sorted."""
        if self._clients is None:
            self._clients = {str(client): int(examples) for client, examples in self._ask("clients").items()}
        return dict(self._clients)

    def read(self, client: str) -> dict[str, np.ndarray | list[bytes]]:
        """The columns of one client, all with the same number of rows."""
        columns: dict[str, np.ndarray | list[bytes]] = {}
        for name, dtype, shape in self._ask("read", client):
            if dtype is None:
                raw = self._take(sum(shape))
                ends = np.cumsum(shape, dtype=np.int64).tolist()
                columns[name] = [raw[end - size : end] for end, size in zip(ends, shape, strict=True)]
            else:
                raw = self._take(math.prod(shape) * np.dtype(dtype).itemsize)
                columns[name] = np.frombuffer(raw, dtype).reshape(shape)
        return columns

    def _ask(self, *question: str) -> Any:
        assert self.child.stdin is not None and self.child.stdout is not None
        if self.child.stdin.closed:
            raise data_error(self.path, "a file that was closed", "an open one")
        try:
            self.child.stdin.write(json.dumps(question).encode() + b"\n")
            self.child.stdin.flush()
            answer = json.loads(self.child.stdout.readline(MOST_LINE))
        except (OSError, ValueError) as error:
            raise self._died() from error
        if "error" in answer:
            raise DataError(answer["error"])
        return answer["said"]

    def _take(self, size: int) -> bytes:
        assert self.child.stdout is not None
        raw = self.child.stdout.read(size)
        if len(raw) != size:
            raise self._died()
        return raw

    def _died(self) -> DataError:
        self.close()
        return data_error(self.path, "a file that HDF5 cannot read (it crashed, or found no end)", "a whole HDF5 file")
