"""What an experiment will cost, in words: the numbers of runs/plan.py."""

from __future__ import annotations

from typing import Any

from fedcodist import native, settings
from fedcodist.config import Config
from fedcodist.reports import tables
from fedcodist.reports.units import between, size
from fedcodist.runs.plan import OFF


def words(config: Config, planned: dict[str, Any]) -> str:
    """A plan, as the screen shows it."""
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
        f"{total['flops'] / 1e9:,.0f} GFLOP in all: {between(total['seconds'], OFF)} a seed on this machine, and seconds to compile",
        f"native kernels for convolutions: {native.describe()}",
    ]
    return "\n".join(lines)
