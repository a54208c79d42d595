"""What a command shows while it works: live lines on stderr if it is a terminal; elsewhere a line now and then, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, Self, TypeVar, cast

from fedcodist.config import Config
from fedcodist.reports.units import percent, remaining
from fedcodist.runs import clock

EVERY_SECONDS = 10  # between two lines of `counting` when stderr is no terminal
SEEN = 0.05  # of a run must be over before its own pace counts
T = TypeVar("T")


class Live:
    """Progress lines on stderr, if it is a terminal: a bar, how many of how many, the time left, and a column for each of `fields`."""

    def __init__(self, quiet: bool, fields: Sequence[str], done: str = "", seconds: float = 30.0):
        self.live = sys.stderr.isatty() and not quiet
        self.quiet, self.progress = quiet, cast("Any", None)
        # `done`: what stands before "/total" where that is not the bar's length; `seconds` of the past that the time left is guessed from
        self._fields, self._done, self._seconds = fields, done, seconds

    def __enter__(self) -> Self:
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.text import Text

            class Left(TimeRemainingColumn):
                """The time left that a task is told, if it is."""

                def render(self, task: Any) -> Text:
                    told = task.fields.get("left")
                    if told is None or task.finished:
                        return super().render(task)
                    return Text(str(timedelta(seconds=int(told))), style="progress.remaining")

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=16),
                TextColumn(self._done + "/{task.total:.0f}") if self._done else MofNCompleteColumn(),
                Left(elapsed_when_finished=True),
                *(TextColumn(f"{{task.fields[{name}]}}") for name in self._fields),
            )
            self.progress = Progress(*columns, console=Console(stderr=True), refresh_per_second=5, speed_estimate_period=self._seconds)
            self.progress.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self.progress is not None:
            self.progress.stop()

    def say(self, text: str) -> None:
        """Print a line above the progress; also without a terminal, unless quiet."""
        if self.progress is not None:
            self.progress.console.print(text, markup=False, highlight=False)
        elif not self.quiet:
            print(text, file=sys.stderr)


class TimeLeft:
    """The seconds that a run has left: what this machine's times of its programs say of its rounds, times how much longer than that the
    rounds have taken so far."""

    def __init__(self, config: Config, t: int) -> None:
        self._left, self._from = clock.countdown(config, t), t
        self._first, self._began = t, time.monotonic()

    def after(self, t: int) -> float | None:
        """After round t; None where such programs were never timed."""
        if self._left is None or not 0 <= t - self._from < len(self._left):
            return None
        if self._first == self._from < t:
            self._first, self._began = t, time.monotonic()  # the first round may compile, which is no pace
        first, left, took = self._left[self._first - self._from], self._left[t - self._from], time.monotonic() - self._began
        return left * (took / (first - left) if first > left and took > SEEN * first else 1.0)


class StudyScreen(Live):
    """Draws the events of tuning (tuning.tune.Event): a line a study with trials, time left, the best so far and the rounds of those that
    run; without a terminal a line a trial."""

    def __init__(self, quiet: bool = False):
        super().__init__(quiet, ("best", "running"), done="{task.fields[done]}", seconds=600.0)

    def follow(self, events: Generator[Any, None, T]) -> T:
        """Draw all events; returns what the generator does."""
        bar: Any = None
        begun, before = 0.0, 0
        running: dict[str, tuple[int, int]] = {}
        with closing(events):  # an interrupted study ends its workers before anything else happens
            while True:
                try:
                    event = next(events)
                except StopIteration as end:
                    return end.value
                for note in event.notes:
                    self.say(note if event.kind == "message" else f"note: {note}")
                if event.kind == "message":
                    continue
                if event.kind == "opened":
                    begun, before = time.monotonic(), event.done
                    running.clear()
                    if self.progress is not None:
                        bar = self.progress.add_task(
                            f"{event.title:14}", total=event.of, completed=event.done, done=event.done, best="", running=""
                        )
                if event.kind == "round":
                    running[event.name] = event.t, event.job.config.rounds
                if event.kind == "over":
                    running.pop(event.name, None)
                    left = (time.monotonic() - begun) / (event.done - before) * (event.of - event.done)
                    if self.progress is None or event.outcome.failed:
                        self.say(_line(event, left))
                if self.progress is not None:
                    part = sum(t / rounds for t, rounds in running.values())
                    rounds_of = "  ".join(f"{name}: round {t}/{rounds}" for name, (t, rounds) in running.items())
                    self.progress.update(bar, completed=event.done + part, done=event.done, best=_best(event), running=rounds_of)


def _line(event: Any, left: float) -> str:
    """One training that is over."""
    outcome = event.outcome
    if outcome.diverged:
        how = f"diverged: {outcome.diverged}"
    elif outcome.refused:
        how = f"refused: {outcome.refused}"
    elif outcome.pruned:
        how = f"{percent(outcome.value)}, stopped in round {outcome.rounds} of {event.job.config.rounds}"
    else:
        how = percent(outcome.value)
    best = f"; {_best(event)}" if event.best else ""
    wait = f"; {remaining(left)} left" if event.done < event.of else ""
    return f"{event.title}: {event.done} of {event.of}: {event.name}: {how}{best}{wait}"


def _best(event: Any) -> str:
    return f"best {percent(event.best[0])} (trial {event.best[1]})" if event.best else ""


@contextmanager
def counting(quiet: bool) -> Iterator[Callable[[int, int | None, str], None]]:
    """A function that shows how much is done, of how much if that is known, and of what; on a terminal a live line, elsewhere a line every
    EVERY_SECONDS."""
    if quiet:
        yield lambda done, total, what: None
        return
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn(), console=Console(stderr=True), transient=True
        ) as live:
            bar = live.add_task("reading")
            yield lambda done, total, what: live.update(bar, completed=done, total=total, description=_counted(done, total, what))
        return
    last = time.monotonic()

    def line(done: int, total: int | None, what: str) -> None:
        nonlocal last
        if (not done and total is None) or time.monotonic() - last >= EVERY_SECONDS:
            last = time.monotonic()
            print(_counted(done, total, what), file=sys.stderr)

    yield line


def _counted(done: int, total: int | None, what: str) -> str:
    if not done and total is None:
        return what
    return f"{done:,} of {total:,} {what}" if total else f"{done:,} {what}"
