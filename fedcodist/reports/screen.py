"""What training shows while it works. On a terminal: the run that is being trained and one bar for all runs, in lines that fit the window,
so that none is broken inside a number. Elsewhere: a line for each run that is finished."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from fedcodist.config import Config
from fedcodist.reports.progress import TimeLeft
from fedcodist.reports.units import percent
from fedcodist.runs import clock
from fedcodist.runs.session import Event

MARKS = 24  # width of the strip of codistillation marks
BAR = 20
NARROW = 60  # columns, below which bars and explanations are left out
TOGETHER = re.compile(r"\[[^\]]*\]|[+-]?\d[\d,.]* (?:\+- [\d.]+|%|points?\b|s\b|min\b|h\b|[kMGT]?B\b)|[a-z]+ (?=[+-]\d)")


class Screen:
    """Draws the events of runs."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet, self.live = quiet, sys.stderr.isatty() and not quiet
        self._drawn: Any = None
        self._now: Event | None = None
        self._accuracy, self._marks = "", [False] * MARKS
        self._left: TimeLeft | None = None
        self._runs, self._over, self._later = 1, 0, []
        self._began = self._since = time.monotonic()
        self._trained = 0  # rounds of this command

    def __enter__(self) -> Self:
        if self.live:
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            console = Console(stderr=True)

            def draw() -> Text:
                return Text("\n".join(self.lines(console.width)), no_wrap=True, overflow="crop")

            self._drawn = Live(console=console, get_renderable=draw, refresh_per_second=5, transient=True)
            self._drawn.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._drawn is not None:
            self._drawn.stop()

    def say(self, text: str) -> None:
        """Print lines above the progress; also without a terminal, unless quiet."""
        if self._drawn is not None:
            self._drawn.console.print(wrapped(text, self._drawn.console.width), markup=False, highlight=False)
        elif not self.quiet:
            print(text, file=sys.stderr)

    def follow(self, events: Generator[Event, None, None], configs: Sequence[Config] = ()) -> list[Path]:
        """Draw all events of runs of these configs, in order; returns where those are that are finished."""
        self._runs, self._later, finished = max(1, len(configs)), list(configs[1:]), []
        with closing(events):  # an interrupted run saves its last round before anything else happens
            for event in events:
                self.show(event)
                if event.kind in ("finished", "skipped"):
                    finished.append(event.path)
        return finished

    def show(self, event: Event) -> None:
        """Draw one event."""
        for note in event.notes:
            self.say(f"note: {note}")
        before, self._now = self._now, event
        if before is None or before.path != event.path:
            self._accuracy, self._marks, self._since = "", [False] * MARKS, time.monotonic()
            self._left = TimeLeft(event.config, event.t) if event.kind != "skipped" else None
        if event.held_out:
            self._accuracy = ", ".join(f"{pool} {percent(domains['all']['accuracy'])}" for pool, domains in event.held_out.items())
        if event.kind == "round":
            self._trained += 1
        if event.codistilled:
            self._marks[min(MARKS - 1, (event.t - 1) * MARKS // event.config.rounds)] = True
        if event.kind == "skipped":
            self.say(f"already finished: {event.path}")
        if event.kind == "finished" and (self.live or self._runs > 1):
            reached = f": held-out accuracy {self._accuracy}" if self._accuracy else ""
            many = f" run {self._over + 1} of {self._runs}" if self._runs > 1 else ""
            self.say(f"finished{many}: {_title(event)}{reached}")
        if event.kind in ("finished", "skipped"):
            self._over += 1
            self._later = self._later[1:]

    def lines(self, width: int) -> list[str]:
        """What is on the screen now, in lines of at most `width` columns."""
        if self._now is None:
            return ["starting: reading data, compiling (once)"[:width]]
        event, wide = self._now, width >= NARROW
        left = self._left.after(event.t) if self._left is not None and event.kind in ("started", "round") else None
        if event.kind == "started":
            what = "starting" if left is not None else "compiling (once: programs are kept)"
            lines = [f"{_title(event)}  {what if wide else what.partition(':')[0]}  {_clock(time.monotonic() - self._since)}"]
        else:
            bar = f"{_bar(event.t / event.config.rounds)}  " if wide else ""
            lines = [f"{_title(event)}  {bar}round {event.t} of {event.config.rounds}" + (f"  {_clock(left)} left" if left else "")]
        if self._accuracy:
            lines.append(_fitted("  held-out accuracy: ", self._accuracy.split(", "), width))
        if any(self._marks) and wide:
            lines.append(f"  lessons: {''.join('*' if mark else '.' for mark in self._marks)}  (*: the models taught each other)")
        if self._runs > 1:
            share = (self._over + (event.t / event.config.rounds if event.kind == "round" else 0.0)) / self._runs
            wait = self._wait(left, share)
            bar = f"{_bar(share)}  " if wide else ""
            many = f"{bar}run {min(self._over + 1, self._runs)} of {self._runs}"
            lines.append(many + (f"  {_clock(wait)} left in all" if wait is not None else ""))
        return [line[:width] for line in lines]

    def _wait(self, left: float | None, share: float) -> float | None:
        """Seconds until all runs are finished: by this machine's times of their programs, else by the pace of this command so far."""
        ahead = [clock.left(config) for config in self._later[: self._runs - self._over - 1]]
        if left is not None and None not in ahead:
            return left + sum(filter(None, ahead))
        done = share - self._over / self._runs if not self._trained else share
        return (time.monotonic() - self._began) / done * (1 - share) if self._over and 0 < share < 1 else None


def wrapped(text: str, width: int | None = None) -> str:
    """Text in lines of at most `width` columns (by default those of the terminal that stdout is; anywhere else nothing is wrapped), none
    broken inside a number with its sign, unit or interval.

    >>> print(wrapped("small +0.9 points [-3.4, 5.3], large +12.7 [11.5, 13.8].", 40))
    small +0.9 points [-3.4, 5.3],
    large +12.7 [11.5, 13.8].
    """
    if width is None:
        if not sys.stdout.isatty():
            return text
        width = shutil.get_terminal_size().columns
    kept = TOGETHER.sub(lambda match: match[0].replace(" ", "\0"), text)
    kept = TOGETHER.sub(lambda match: match[0].replace(" ", "\0"), kept)  # what stands before a match of the first time
    lines = (textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""] for line in kept.split("\n"))
    return "\n".join(line for some in lines for line in some).replace("\0", " ")


def _title(event: Event) -> str:
    return f"{event.config.method.label} seed {event.seed}"


def _bar(share: float) -> str:
    full = round(BAR * share)
    return f"[{'=' * full}{' ' * (BAR - full)}]"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))


def _fitted(head: str, parts: Sequence[str], width: int) -> str:
    """As many parts as fit in the width."""
    for many in range(len(parts), 0, -1):
        line = head + ", ".join(parts[:many]) + (" ..." if many < len(parts) else "")
        if len(line) <= width:
            return line
    return head.rstrip()
