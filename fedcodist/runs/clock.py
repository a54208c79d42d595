"""How long a run takes on this machine, from times of its own programs: a run is a count of parts, and each part has its seconds.

The parts are the start, the rounds (one kind for each set of pools that is taught), the evaluations, the checkpoints and the result.
`timing` times a few of each before a run, and a run all of its own. Either is kept in the user's cache under a digest of the machine and of
what a config's programs and their sizes depend on, so that seeds, rates and numbers of rounds share times. Deliberately absent: any guess
from operations.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any

from fedcodist.config import Config, essential, plain
from fedcodist.engines.threads import cores
from fedcodist.runs import evaluation
from fedcodist.runs.environment import fingerprint
from fedcodist.storage import cache, durable, sealed
from fedcodist.storage.durable import CheckpointError, Damaged, StorageError

FILE = "clock.json"
ENTRIES = 500  # that are kept, the newest
BUSY = 0.1  # the share of our cores that others may take in times that are believed
ENOUGH = 5  # rounds that a run must have timed before its times are kept
SLEPT = 3.0  # times the median: a machine that slept, or programs that were compiled anew
START, ROUND, EVALUATE, CHECKPOINT, RESULT = "start", "round", "evaluate", "checkpoint", "result"
Span = tuple[float, float]  # wall and CPU seconds


@dataclass(frozen=True)
class Times:
    """Seconds of each part of a run."""

    parts: Mapping[str, Span]
    rounds: int  # that were timed
    busy: float = 0.0  # the share of our cores that others took meanwhile

    @classmethod
    def read(cls, table: Any) -> Times | None:
        """From a cache file; None if it is not what `Times` wrote."""
        try:
            parts = {str(name): (float(wall), float(cpu)) for name, (wall, cpu) in table["parts"].items()}
            times = cls(parts, int(table["rounds"]), float(table["busy"]))
        except (TypeError, ValueError, KeyError, AttributeError):
            return None
        sound = all(math.isfinite(value) and value >= 0 for value in (times.busy, *(v for span in parts.values() for v in span)))
        return times if sound else None

    def total(self, counts: Mapping[str, int]) -> Span | None:
        """Wall and CPU seconds of so many of each part; None if a round among them was never timed.

        >>> Times({"round": (2.0, 3.0), "evaluate": (1.0, 1.0)}, 4).total({"round": 10, "evaluate": 2, "start": 1})
        (22.0, 32.0)
        """
        if any(name not in self.parts for name in counts if name.startswith(ROUND)):
            return None
        wall, cpu = (sum(many * self.parts.get(name, (0.0, 0.0))[i] for name, many in counts.items()) for i in (0, 1))
        return wall, cpu


def kind(students: Sequence[str]) -> str:
    """The part that a round is in which these pools are taught.

    >>> kind([]), kind(["small", "large"])
    ('round', 'round that teaches small, large')
    """
    return f"{ROUND} that teaches {', '.join(students)}" if students else ROUND


def parts(config: Config, after: int = 0) -> Counter[str]:
    """How many of each part a run of this config has from round `after` on."""
    found = Counter({START: 1, RESULT: 1})
    for those in _round_by_round(config, after):
        found.update(those)
    return found


def _round_by_round(config: Config, after: int) -> Iterator[list[str]]:
    names, method = list(config.pools), config.method.over(config.rounds)
    for t in range(after + 1, config.rounds + 1):
        students = method.students(names, t)
        found = [kind(students)]
        if evaluation.is_due(config, t) or (students and method.leaps):
            found.append(EVALUATE)
        if t % config.checkpoint_every == 0 or t == config.rounds:
            found.append(CHECKPOINT)
        yield found


def left(config: Config, after: int = 0) -> float | None:
    """Seconds that a run of this config has left after a round, as far as this machine's times say."""
    times = recall(config)
    total = times.total(parts(config, after)) if times else None
    return total[0] if total else None


def countdown(config: Config, after: int) -> list[float] | None:
    """The seconds that are left after round `after`, after the next one, and so on to the last; None where they are not known."""
    times = recall(config)
    each = [times.total(Counter(those)) for those in _round_by_round(config, after)] if times else [None]
    if times is None or None in each:
        return None
    walls = [span[0] for span in reversed(each) if span]
    return list(accumulate(walls, initial=times.parts.get(RESULT, (0.0, 0.0))[0]))[::-1]


class Watch:
    """Times parts as they come, and what others took of our cores since it was made."""

    def __init__(self) -> None:
        self._spans: dict[str, list[Span]] = {}
        self._began, self._others = now(), _cores_seconds()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the body, if it comes to its end."""
        began = now()
        yield
        self.add(name, since(began))

    def add(self, name: str, span: Span) -> None:
        """A part was done in these seconds."""
        self._spans.setdefault(name, []).append(span)

    def last(self, name: str) -> float:
        """Wall seconds of the last one of a part."""
        return round(self._spans[name][-1][0], 4)

    def spent(self, name: str) -> float:
        """Wall seconds of all of a part but the first."""
        return sum(wall for wall, _ in self._spans[name][1:])

    def times(self) -> Times:
        """Means without the first of each part, which may compile: what it took longer belongs to the start."""
        means, start = {}, self._spans.get(START, [(0.0, 0.0)])[0]
        for name, (first, *rest) in self._spans.items():
            if name == START:
                continue
            usual = median(wall for wall, _ in rest) if rest else 0.0
            kept = [span for span in rest if span[0] <= SLEPT * usual] or [first]
            means[name] = (fmean(wall for wall, _ in kept), fmean(cpu for _, cpu in kept))
            start = (start[0] + max(0.0, first[0] - means[name][0]), start[1] + max(0.0, first[1] - means[name][1]))
        rounds = sum(len(spans) - 1 for name, spans in self._spans.items() if name.startswith(ROUND))
        return Times({START: start, **means}, rounds, self._busy())

    def _busy(self) -> float:
        now, (wall, cpu) = _cores_seconds(), since(self._began)
        if self._others is None or now is None or wall <= 0:
            return 0.0
        return min(1.0, max(0.0, (now - self._others - cpu) / (wall * cores())))


def name_of(config: Config) -> str:
    """What times are kept under: the machine, and the config without its rounds and without numbers that are no sizes."""
    table = {key: value for key, value in essential(config).items() if key != "rounds"}
    return sealed.digest([fingerprint(), _sizes({**table, "engine": plain(config)["engine"]})])


def _sizes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _sizes(inner) for name, inner in value.items() if not isinstance(inner, float)}
    return [_sizes(inner) for inner in value if not isinstance(inner, float)] if isinstance(value, list | tuple) else value


def place() -> Path | None:
    """The file that times are kept in, if there is a place for it."""
    return directory / FILE if (directory := cache.writable()) is not None else None


def recall(config: Config) -> Times | None:
    """What is known of such a config on this machine."""
    return Times.read(_entries().get(name_of(config)))


def remember(config: Config, times: Times) -> None:
    """Keep times, unless others used the machine meanwhile and there are better ones; parts that they do not have stay as they were."""
    if (file := place()) is None:
        return
    entries, name = _entries(), name_of(config)
    known = Times.read(entries.pop(name, None))
    if known is not None:
        first, last = (times, known) if times.busy > BUSY >= known.busy else (known, times)
        start = min(span for each in (first, last) if (span := each.parts.get(START)))  # the longer one may have compiled
        times = Times({**first.parts, **last.parts, START: start}, last.rounds, last.busy)
    entries[name] = {"parts": dict(times.parts), "rounds": times.rounds, "busy": times.busy}
    body = {"times": [[name, entry] for name, entry in list(entries.items())[-ENTRIES:]]}
    try:
        durable.replace_file(file, sealed.seal(body))
    except StorageError:
        return  # a cache


def _entries() -> dict[str, Any]:
    """All that is kept, the oldest first; nothing if the file is damaged or is of somebody else."""
    try:
        return dict(sealed.unseal(file)["times"]) if (file := place()) is not None else {}
    except (Damaged, CheckpointError, StorageError, KeyError, TypeError, ValueError):
        return {}


def now() -> Span:
    """A moment, for `since`."""
    return time.monotonic(), time.process_time()


def since(began: Span) -> Span:
    """Wall and CPU seconds since then."""
    wall, cpu = now()
    return wall - began[0], cpu - began[1]


def _cores_seconds() -> float | None:
    """Seconds that our cores have worked since the machine was started, for whomever; None where the system does not say."""
    try:
        mine = {f"cpu{n}" for n in os.sched_getaffinity(0)}
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        ticks = os.sysconf("SC_CLK_TCK")
        # user nice system idle iowait irq softirq steal: all but the fourth and the fifth
        return sum(sum(map(int, row[1:4])) + sum(map(int, row[6:9])) for row in rows if row and row[0] in mine) / ticks
    except (OSError, ValueError, AttributeError):
        return None
