"""What a run shows while it works: one live line a run on stderr, and nothing at all when stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self, cast

from fedcodist.runs.session import Event

MARKS = 24  # width of the strip of codistillation marks


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

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=16),
                TextColumn(self._done + "/{task.total:.0f}") if self._done else MofNCompleteColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                *(TextColumn(f"{{task.fields[{name}]}}") for name in self._fields),
            )
            self.progress = Progress(*columns, console=Console(stderr=True), refresh_per_second=5, speed_estimate_period=self._seconds)
            self.progress.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self.progress is not None:
            self.progress.stop()

    def say(self, text: str) -> None:
        """A line above the progress; also without a terminal, unless quiet."""
        if self.progress is not None:
            self.progress.console.print(text, markup=False, highlight=False)
        elif not self.quiet:
            print(text, file=sys.stderr)


class Screen(Live):
    """Draws the events of runs as progress lines: rounds, time left, each pool's held-out accuracy, codistillation marks."""

    def __init__(self, quiet: bool = False):
        super().__init__(quiet, ("accuracy", "marks"))
        self._bars: dict[Path, Any] = {}
        self._marks: dict[Path, list[bool]] = {}

    def show(self, event: Event) -> None:
        """Draw one event."""
        for note in event.notes:
            self.say(f"note: {note}")
        if event.kind == "skipped":
            self.say(f"already finished: {event.path}")
            return
        if self.progress is None:
            return
        if event.path not in self._bars:
            title = f"{event.config.method.kind} seed {event.seed}"
            self._bars[event.path] = self.progress.add_task(
                f"{title:18}", total=event.config.rounds, completed=event.t, accuracy="", marks=""
            )
            self._marks[event.path] = [False] * MARKS
        update: dict[str, Any] = {"completed": event.t}
        if event.held_out:
            update["accuracy"] = accuracies(event.held_out)
        if event.codistilled:
            place = min(MARKS - 1, (event.t - 1) * MARKS // event.config.rounds)
            self._marks[event.path][place] = True
            update["marks"] = "".join("*" if mark else "." for mark in self._marks[event.path])
        self.progress.update(self._bars[event.path], **update)


def accuracies(held_out: dict[str, Any]) -> str:
    """`small 71.2 % large 69.0 %`."""
    return "  ".join(f"{pool} {100 * domains['all']['accuracy']:.1f}%" for pool, domains in held_out.items())


def follow(events: Generator[Event, None, None], screen: Screen) -> Event:
    """Draw all events of a run; the last one holds its result."""
    last = None
    with closing(events):  # an interrupted run saves its last round before anything else happens
        for last in events:
            screen.show(last)
    assert last is not None
    return last
