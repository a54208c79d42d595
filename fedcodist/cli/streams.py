"""Standard streams that may be closed, or be closed at any time: progress that nobody reads must not end hours of training."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any


class Forgiving:
    """A text stream on which writing never fails."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # a pipe without a reader, a terminal that is gone, a closed file
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        """False where it cannot be known."""
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def steady() -> Iterator[None]:
    """Inside, stderr never fails, and a stream that was closed from the start is one that nobody reads. Its number is taken as well: the
    next file that is opened would get it, and whatever some library prints would go into that file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    with open(os.devnull, "w") as nobody, redirect_stdout(sys.stdout or nobody), redirect_stderr(Forgiving(sys.stderr or nobody)):  # pyright: ignore[reportArgumentType]
        yield
