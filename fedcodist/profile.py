"""Where the time of a round goes, for `run --profile`. Nothing is measured, and nothing waits, unless `watch` is active.

`timed("clients")` around a piece of work adds its wall time under that name; of spans within each other the outermost counts, so that those
of the thread that runs the rounds, and what is left, add up to the round. Work of other threads goes under names that end with "threads":
they run in parallel, and a thread that waits for its core is still counted, so their sum may exceed the cores' time. JAX returns
results before they are computed, so a span that ends with one waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import Lock, get_ident, local
from typing import Any

THREADS = " (threads)"


class Clock:
    """Seconds by name since the last `take`."""

    def __init__(self) -> None:
        self._lock, self._seconds, self.thread = Lock(), dict[str, float](), get_ident()

    def add(self, name: str, seconds: float) -> None:
        """Add seconds under a name; thread-safe."""
        name = name if get_ident() == self.thread else name + THREADS
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """The seconds so far; begin again at zero."""
        with self._lock:
            taken, self._seconds = self._seconds, {}
        return {name: round(seconds, 5) for name, seconds in taken.items()}


_watching: list[Clock] = []
_open = local()  # whether this thread is in a span already


@contextmanager
def watch() -> Iterator[Clock]:
    """Measure inside the body.

    >>> with watch() as clock:
    ...     with timed("sleep"):
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
def timed(name: str, waiting: bool = False) -> Iterator[None]:
    """Add the time of the body, if `watch` is active."""
    watching = [clock for clock in _watching if not waiting or clock.thread == get_ident()]
    if not watching or getattr(_open, "span", False):
        yield
        return
    start, _open.span = time.perf_counter(), True
    try:
        yield
    finally:
        seconds, _open.span = time.perf_counter() - start, False
        for clock in watching:
            clock.add(name, seconds)


def timed_wait(name: str) -> AbstractContextManager[None]:
    """The time of a body that waits for other threads: it counts in the thread that runs the rounds, and is no work elsewhere."""
    return timed(name, waiting=True)


def whole(spans: Mapping[str, float], seconds: float) -> dict[str, float]:
    """The spans of a round of so many seconds, with what has no name as `rest`: without other threads' they add up to the round.

    >>> whole({"gather": 1.0, "clients": 5.0, "clients (threads)": 11.0}, 9.0)["rest"]
    3.0
    """
    named = sum(spent for name, spent in spans.items() if not name.endswith(THREADS))
    return {**spans, "rest": round(max(0.0, seconds - named), 5)}


def ready(value: Any) -> Any:
    """The value; computed, if `watch` is active."""
    if not _watching:
        return value
    import jax

    return jax.block_until_ready(value)
