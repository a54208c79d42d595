"""How long the runs of a table took, beside what was predicted before each began: from their own lines of timing.

A run that was interrupted, or begun where such programs had never been timed, has no prediction of the whole and is left out. A run of a
few seconds, in which there is nothing to plan, is left out as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedcodist.reports import tables
from fedcodist.reports.arms import number, seed_of
from fedcodist.reproduce.running import TIMED

LEAST = 10.0  # seconds of a run that is shown


def taken(runs: Iterable[Any]) -> dict[str, list[int]]:
    """{seed: predicted and real seconds}."""
    found = {}
    for run in runs:
        rows = run.timing or []
        predicted = [number(row.get("expected_seconds")) for row in rows if "expected_seconds" in row]
        whole = rows and rows[0].get("round") == 1 and len(predicted) == 1 and "expected_seconds" in rows[0]
        if whole and predicted[0] is not None and predicted[0] >= LEAST:
            found[str(seed_of(run))] = [round(predicted[0]), round(sum(number(row.get(part)) or 0.0 for row in rows for part in TIMED))]
    return found


def table(cells: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """A row for each cell, under its name: seconds of its runs, and the smallest and the largest ratio.

    >>> print(table([("FedAvg", {"clock": {"0": [200, 210], "1": [200, 190]}}), ("other", {})]))
    | runs of | seeds | predicted, s | real, s | real / predicted |
    |---|---|---|---|---|
    | FedAvg | 0, 1 | 200 to 200 | 190 to 210 | 0.95 to 1.05 |
    <BLANKLINE>
    """
    rows = []
    for name, cell in cells:
        if both := cell.get("clock"):
            predicted, real = zip(*both.values(), strict=True)
            ratios = [took / expected for expected, took in both.values()]
            row = {"runs of": name, "seeds": ", ".join(both), "predicted, s": f"{min(predicted):,} to {max(predicted):,}"}
            row["real, s"] = f"{min(real):,} to {max(real):,}"
            rows.append(row | {"real / predicted": f"{min(ratios):.2f} to {max(ratios):.2f}"})
    return f"{tables.render(rows, 'md')}\n" if rows else ""
