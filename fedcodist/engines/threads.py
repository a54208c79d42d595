"""Threads that take the most urgent task first, and of equally urgent ones the oldest.

A round of MergedCodist has two independent kinds of work, and needs the end of both: many short blocks of clients, and the long chain of
teachers and students. A free thread goes on with the chain first, and the blocks fill the cores that are left.
"""

from __future__ import annotations

import atexit
import heapq
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import lru_cache
from itertools import count
from threading import Condition, Thread, current_thread, main_thread
from typing import Any, NamedTuple

SERVER, CLIENTS = 0, 1  # priorities: the server's work is a chain of dependent steps, the clients' is a set of independent blocks


class _Task(NamedTuple):
    urgency: int  # smaller numbers are more urgent
    number: int
    future: Future
    function: Callable[..., Any]
    args: tuple[Any, ...]


class PriorityThreads:
    """A fixed number of threads that live as long as the process.

    >>> list(PriorityThreads(2).map(abs, [-1, -2, -3]))
    [1, 2, 3]
    """

    def __init__(self, workers: int) -> None:
        self._tasks: list[_Task] = []
        self._changed, self._numbers, self._closed = Condition(), count(), False
        self._threads = [Thread(target=self._work, name=f"fedcodist-{n}", daemon=True) for n in range(workers)]
        self._conductors: dict[Thread, Future] = {}
        for thread in self._threads:
            thread.start()
        atexit.register(self._close)  # a thread that computes while the interpreter exits would crash it

    def submit(self, urgency: int, function: Callable[..., Any], *args: Any) -> Future:
        """Run function(*args) on one of the threads."""
        future: Future = Future()
        with self._changed:
            if self._given_up():
                future.cancel()
                return future
            heapq.heappush(self._tasks, _Task(urgency, next(self._numbers), future, function, args))
            self._changed.notify()
        return future

    def map(self, function: Callable[[Any], Any], items: Iterable[Any], urgency: int = 0) -> Iterator[Any]:
        """function(item) for each item, in the order of the items. The first failure is raised, and what has not begun is given up."""
        return _results([self.submit(urgency, function, item) for item in items])

    def start(self, function: Callable[[], Any]) -> Future:
        """Have function() done by a thread of its own, a conductor, which may wait for the others: a member that did could be the last
        one. After `cancel` nobody works for it any more, so that it ends with what it is doing itself."""
        future: Future = Future()

        def conduct() -> None:
            try:
                found = function()
                with suppress(InvalidStateError):  # it was cancelled: nobody waits for it any more
                    future.set_result(found)
            except BaseException as error:  # the waiting thread gets the exception
                with suppress(InvalidStateError):
                    future.set_exception(error)
            finally:
                with self._changed:
                    del self._conductors[thread]

        thread = Thread(target=conduct, name="fedcodist-start", daemon=True)
        with self._changed:
            if self._given_up():
                future.cancel()
                return future
            self._conductors[thread] = future
            thread.start()
        return future

    def give_up(self) -> None:
        """Cancel everything that was started with `start`."""
        with self._changed:
            for future in self._conductors.values():
                future.cancel()

    def _given_up(self) -> bool:
        """Whether the calling thread was cancelled."""
        mine = self._conductors.get(current_thread())
        return self._closed or (mine is not None and mine.cancelled())

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._tasks or self._closed)
                if self._closed:
                    return
                _, _, future, function, args = heapq.heappop(self._tasks)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*args))
            except BaseException as error:  # the waiting thread gets the exception
                future.set_exception(error)
            del future, function, args  # otherwise the result of the last task would live until the next one arrives

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            for task in self._tasks:
                task.future.cancel()  # otherwise a conductor would wait for it for ever
            self._changed.notify_all()
            left = [*self._threads, *self._conductors]  # no more tasks will come
        if current_thread() is main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # an exception while waiting must end the process, not only the wait
        for thread in left:
            thread.join()


def _results(futures: list[Future]) -> Iterator[Any]:
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def cores() -> int:
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@lru_cache
def shared(workers: int) -> PriorityThreads:
    """The threads of this process, once for each number of them."""
    return PriorityThreads(workers)
