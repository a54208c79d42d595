"""Where the time of a round goes, for `run --profile`. Nothing is measured, and nothing waits, unless somebody watches.

`spent("clients")` around a piece of work adds its wall time under that name; the names of the thread that runs the rounds do not overlap,
so that they and what is left add up to the round. Work of other threads goes under names that end with "threads": they run beside each
other, and their sum may be more than the round. JAX gives results before they are computed, so a span that ends with one waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

THREADS = " (threads)"


class Clock:
    """Seconds by name since the last look."""

    def __init__(self) -> None:
        self._lock, self._seconds, self._thread = Lock(), dict[str, float](), get_ident()

    def add(self, name: str, seconds: float) -> None:
        """More of it; from any thread."""
        name = name if get_ident() == self._thread else name + THREADS
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """What came together, and begin again."""
        with self._lock:
            taken, self._seconds = self._seconds, {}
        return {name: round(seconds, 5) for name, seconds in taken.items()}


_watching: list[Clock] = []


@contextmanager
def watch() -> Iterator[Clock]:
    """Measure in the body.

    >>> with watch() as clock:
    ...     with spent("sleep"):
    ...         time.sleep(0.01)
    >>> clock.take()["sleep"] >= 0.01
    True
    """
    clock = Clock()
    _watching.append(clock)
    try:
        yield clock
    finally:
        _watching.remove(clock)


@contextmanager
def spent(name: str) -> Iterator[None]:
    """The time of the body, if anybody watches."""
    if not _watching:
        yield
        return
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        for clock in _watching:
            clock.add(name, seconds)


def ready(value: Any) -> Any:
    """The value; computed, if anybody watches."""
    if not _watching:
        return value
    import jax

    return jax.block_until_ready(value)
