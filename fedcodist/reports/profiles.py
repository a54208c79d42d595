"""Where the time of profiled runs went, for the report."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from fedcodist.profile import THREADS
from fedcodist.reports.arms import Arm, dig, number


def profile(arms: Sequence[Arm], colours: dict[str, str]) -> list[dict[str, Any]]:
    """Where the time of a round went, for runs that were profiled: medians over all rounds but each run's first, which compiles."""
    found = []
    for arm in arms:
        rounds = [spans for run in arm.runs for row in (run.timing or ())[1:] if isinstance(spans := dig(row, "spent"), dict)]
        names = dict.fromkeys(name for spans in rounds for name in spans)
        rows = []
        for name in names:
            seconds = [s for spans in rounds if (s := number(spans.get(name))) is not None]
            if seconds:
                often = "" if len(seconds) > 0.9 * len(rounds) else f"in {len(seconds)} of {len(rounds)} rounds"
                rows.append({"name": str(name), "ms": 1000 * median(seconds), "mean": sum(seconds) / len(rounds), "often": often})
        whole = sum(row["mean"] for row in rows if not row["name"].endswith(THREADS))
        for row in rows:
            row["share"] = None if row["name"].endswith(THREADS) else row["mean"] / whole if whole else None
        rows.sort(key=lambda row: -row["mean"])
        if rows:
            found.append({"label": arm.label, "colour": colours[arm.label], "rounds": len(rounds), "rows": rows})
    return found
