"""What an experiment will cost, in words: the numbers of runs/plan.py, and the times of runs/clock.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedcodist import native, runs, settings
from fedcodist.config import Config
from fedcodist.engines.threads import cores
from fedcodist.reports import tables
from fedcodist.reports.arms import is_finished, rounds_done
from fedcodist.reports.units import duration, percent, plural, size
from fedcodist.runs import clock
from fedcodist.runs.clock import Times


def words(config: Config, planned: dict[str, Any], times: Times | None, why: str = "") -> str:
    """A plan, as the screen shows it; `why` says what keeps its time unknown."""
    total = planned["total"]
    rows = [{**row, "bytes_per_client_and_round": size(row["bytes_per_client_and_round"])} for row in planned["pools"]]
    lines = [
        f"{config.name}: {settings.plain(config.method)['kind']} on {settings.plain(config.task)['kind']}, {config.rounds} rounds",
        *(f"data: {note}" for note in planned["notes"]),
        f"public {total['public_examples']:,} examples, held out {total['held_out_examples']:,}, test {total['test_examples']:,}",
        "",
        tables.render(rows),
        "",
        f"over the run: {size(total['client_bytes'])} to and from clients, {total['server_steps']:,} distillation steps on the server,",
        f"{total['flops'] / 1e9:,.0f} GFLOP in all: {takes(config, times) or f'how long is not known{why}'}",
        f"native kernels for convolutions: {native.describe()}",
    ]
    return "\n".join(lines)


def takes(config: Config, times: Times | None) -> str:
    """How long a seed takes on this machine, and how that is known; empty where it is not."""
    total = times.total(clock.parts(config)) if times else None
    if times is None or total is None:
        return ""
    wall, cpu = total
    said = f"about {duration(wall)} a seed on this machine (measured from {plural(times.rounds, 'round')})"
    if times.busy <= clock.BUSY:
        return said
    return f"{said}, of which others took {percent(times.busy)} meanwhile; alone it may be as short as {duration(cpu / cores())}"


def ahead(arms: Sequence[Config], seeds: Sequence[int], root: Path) -> str:
    """How long these runs will take from where they stand, in a line; empty if the time of one of them is not known, or if all are
    finished."""
    seconds, many = 0.0, 0
    for config in arms:
        for seed in seeds:
            try:
                recorded = runs.read(runs.run_path(root, config.name, config.method.kind, seed))
                after, over = rounds_done(recorded), is_finished(recorded)
            except runs.NotARun:
                after, over = 0, False
            if over:
                continue
            one = clock.left(config, after)
            if one is None:
                return ""
            seconds, many = seconds + one, many + 1
    return f"{plural(many, 'run')}: about {duration(seconds)} on this machine, by earlier times of these programs" if many else ""
