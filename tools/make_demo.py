"""Run the demo in a directory of its own and write docs/measured/demo.json: what it found on test and held-out images, how long it took,
and on what. `make docs` then makes the account in docs/first-run.md from that file alone.

The file keeps rows and verdicts, not the text; it is only written if they give exactly what the demo printed. The compilation cache is a
fresh one, so the time is that of somebody's first demo. Deliberately absent: reading runs that are already there, whose time is unknown.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import make_docs

import fedcodist
from fedcodist import runs
from fedcodist.reports import arms, compare, verdicts
from fedcodist.reproduce.results import ENVIRONMENT, dump

FILE = make_docs.DOCS / "measured/demo.json"
REPORT = "runs/demo/report.html"
DIGITS = 6


def collect(recorded: Sequence[Any], seconds: float) -> dict[str, Any]:
    """All that the documentation needs of the runs of a demo."""
    twin, *others = arms.group(recorded)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": round(seconds),
        "on": {key: recorded[0].environment[key] for key in ENVIRONMENT} | {"fedcodist": fedcodist.__version__},
        "test": _rows(recorded, "test"),
        "held_out": _rows(recorded, "held_out"),
        "verdicts": {arm.kind: verdicts.verdict(twin.runs, arm.runs) for arm in others},
        "report": REPORT,
    }


def _rows(recorded: Sequence[Any], split: str) -> list[dict[str, Any]]:
    rows = compare.results(recorded, split)
    return [{key: round(value, DIGITS) if isinstance(value, float) else value for key, value in row.items()} for row in rows]


def main() -> int:
    """Run, compare with what was printed, write."""
    with tempfile.TemporaryDirectory() as place:
        env = os.environ | {"PYTHONPATH": str(make_docs.DOCS.parent), "FEDCODIST_CACHE": str(Path(place, "cache"))}
        began = time.monotonic()
        demo = subprocess.run([sys.executable, "-m", "fedcodist.cli.main", "demo"], cwd=place, env=env, stdout=subprocess.PIPE, text=True)
        seconds = time.monotonic() - began
        if demo.returncode:
            return demo.returncode
        found = collect([runs.read(path) for path in runs.find(Path(place, "runs"))], seconds)
    if make_docs.printed(found) != demo.stdout.rstrip("\n"):
        print(f"not written: the demo printed\n\n{demo.stdout}\nand its runs give\n\n{make_docs.printed(found)}", file=sys.stderr)
        return 1
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(dump(found) + "\n", "utf-8")
    print(f"{FILE.relative_to(make_docs.DOCS.parent)}: now run make docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
