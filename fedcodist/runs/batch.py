"""Several runs: the arms of an experiment, each with every seed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

from fedcodist.config import Config, assemble
from fedcodist.runs import session
from fedcodist.runs.session import Event
from fedcodist.task import Task

Events = Generator[Event, None, None]


def choose_seeds(config: Config, root: Path) -> tuple[list[int], str]:
    """The seeds of the config; or those that are in its run directory; or one drawn now. Returns them, and a note if one was drawn."""
    if config.seeds:
        return list(config.seeds), ""
    there = sorted((root / config.name / config.method.kind).glob("seed-*"))
    known = [int(path.name[5:]) for path in there if path.name[5:].isdigit()]
    if known:
        return known, ""
    drawn = secrets.randbelow(2**31)
    return [drawn], f"no seed given: drew {drawn}, kept in the run directory"


def perform(
    arms: Sequence[Config],
    task: Task,
    seeds: Sequence[int],
    root: Path,
    *,
    clamp: bool = False,
    strict: bool = False,
    restart: bool = False,
    profile: bool = False,
    wrap: Callable[[Events], Events] = lambda events: events,
) -> Events:
    """The events of all runs, seed by seed, each run's passed through `wrap`. Every arm is assembled now, once for all seeds: the last one
    could be refused, and must not be after the first one is trained."""
    experiments = [assemble(arm, task, seeds[0], clamp) for arm in arms]

    def events() -> Events:
        for seed in seeds:
            for one in experiments:
                yield from wrap(session.perform(replace(one, seed=seed), root, strict=strict, restart=restart, profile=profile))

    return events()
