"""Runs as they were recorded, finished or not: reading them back, and finding them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcodist.methods import METHODS
from fedcodist.runs.directory import CONFIG, ENVIRONMENT, JOURNAL, LOCK, RESULT, TIMING
from fedcodist.settings import read_kind
from fedcodist.storage import durable, sealed
from fedcodist.storage.durable import CheckpointError, Damaged, RunError, as_storage_error, printable
from fedcodist.storage.journal import decode_lines


class NotARun(RunError):
    """There is no run at this path."""

    code = 4


@dataclass(frozen=True)
class Recorded:
    """A run as it was recorded, finished or not."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    rounds: list[dict[str, Any]]
    timing: list[dict[str, Any]]
    result: dict[str, Any] | None
    notes: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()  # of the checkouts that computed it


def read(path: str | Path) -> Recorded:
    """What a run directory holds, without touching it: also of a run that goes on or crashed. What is damaged is left out and noted."""
    path = Path(path)
    with as_storage_error(path):
        known = _is_run(path)
    if not known:
        nearby = [printable(run) for run in _nearby(path)]
        raise NotARun(f"{printable(path)}: not a run; " + (f"nearby: {', '.join(nearby[:5])}" if nearby else "no runs nearby"))
    notes: list[str] = []

    def part(name: str, key: str, *later: str) -> list[Any]:
        """What a file has under a key, and under keys that older versions did not write."""
        if name == CONFIG or os.path.lexists(path / name):
            try:
                found = sealed.unseal(path / name)
                return [found[key], *map(found.get, later)]
            except (Damaged, CheckpointError, KeyError) as error:
                notes.append(f"left out: {error}")
        return [None] * (1 + len(later))

    def lines(name: str) -> list[dict[str, Any]]:
        if not os.path.lexists(path / name):
            return []
        try:
            rows, odd = decode_lines(durable.read_file(path / name), name)
        except Damaged as error:
            rows, odd = [], [f"left out: {error}"]
        notes.extend(odd)
        return rows

    (config,), (environment, commits) = part(CONFIG, "config"), part(ENVIRONMENT, "fingerprint", "commits")
    journal, timing, (result,) = lines(JOURNAL), lines(TIMING), part(RESULT, "result")
    notes.extend(f"warning: {warning}" for warning in _warnings(config))
    return Recorded(path, config or {}, environment or {}, journal, timing, result, tuple(notes), tuple(commits or ()))


def find(path: str | Path, depth: int = 6) -> list[Path]:
    """All run directories at or under a path, sorted; those of `reproduce` are five levels below `runs`. Links are not followed, and runs
    are not searched for runs."""
    return sorted(_find([Path(path)], depth))


def find_all(paths: Iterable[str | Path]) -> list[Path]:
    """All run directories at or under these paths, each once, in the order of the paths. A path that holds none is a failure that names
    runs nearby."""
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        for run in find(path) or [read(path).path]:
            found.setdefault(os.path.realpath(run), run)
    return list(found.values())


def _warnings(config: Any) -> list[str]:
    """What the method of a recorded config allows but is hardly meant."""
    try:
        method = read_kind(METHODS, config["method"], "method", problems := [])
        return [] if problems else method.warnings(list(config["pools"]), config["rounds"])
    except Exception:  # of a foreign run, or a method that is not installed: no matter of who reads
        return []


def _is_run(path: Path) -> bool:
    return (path / CONFIG).is_file() and any((path / name).is_file() for name in (LOCK, JOURNAL))


def _nearby(path: Path) -> list[Path]:
    """Runs at or under the path, else under its nearest parents that have any: a few levels, and not the whole disk."""
    path = Path(os.path.abspath(path))
    for place in [path, *path.parents][:4]:
        found = sorted(_find([place], 4, budget=2000))  # runs/name/arm/seed-0
        if found:
            return found
    return []


def _find(places: Iterable[Path], depth: int, budget: int = 10**9) -> Iterator[Path]:
    for _ in range(depth + 1):  # level by level, so that a budget cuts the far ones
        inner: list[Path] = []
        for place in places:
            budget -= 1
            if budget < 0:
                return
            try:
                if _is_run(place):
                    yield place
                    continue
                with os.scandir(place) as entries:
                    inner += [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")]
            except OSError:
                continue
        places = inner
