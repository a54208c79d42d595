"""Blocks of the documentation on what was measured of real devices, of a Ray cluster, and computed of privacy."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from fedcodist.reports import tables

WIDTH = 140
SAID = {"poisson": "drawn singly, in secret", "without_replacement": "cohorts of 20, in secret", "none": "cohorts are public"}


def privacy(file: Path) -> str:
    """Epsilon by noise and assumption."""
    found = json.loads(file.read_text("utf-8"))
    said = (
        f"{found['rounds']:,} rounds, delta {found['delta']:g}, cohorts of {found['cohort']}, {found['clients']['small']} clients in the "
        f"small pool and {found['clients']['large']} of them in the large one too ({found['accountant']}):"
    )
    rows = [
        {
            "assumed": SAID[row["sampling"]],
            "noise": f"{row['noise']:g}",
            "epsilon, only in the small pool": f"{row['small']:,.1f}",
            "only in the large pool": f"{row['large']:,.1f}",
            "in both": f"{row['both']:,.1f}",
        }
        for row in found["rows"]
    ]
    first = {row["sampling"]: row["small"] for row in reversed(found["rows"])}
    end = f"So at noise {found['rows'][0]['noise']:g} one run may be called {_listed([f'{e:,.0f}' for e in sorted(first.values())])}."
    return "\n".join([textwrap.fill(said, WIDTH), "", tables.render(rows, "md"), "", end])


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
