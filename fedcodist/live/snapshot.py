"""What the live page shows, as plain JSON: read from run directories as they stand, without touching them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from fedcodist import runs
from fedcodist.reports.arms import (
    dig,
    is_finished,
    kind_of,
    label,
    name_of,
    number,
    pools_of,
    rounds_done,
    rounds_planned,
    rows_of,
    seed_of,
)
from fedcodist.runs.directory import CONFIG, JOURNAL, LOCK, RESULT
from fedcodist.runs.recorded import Recorded
from fedcodist.storage import lock

RECENT = 20  # rounds whose times tell how long the others take
MOST_POINTS = 400  # of a curve


def signature(paths: Iterable[Path]) -> tuple:
    """What changes when a run goes on: the sizes and times of its files, and whether somebody writes."""
    return tuple((str(path), lock.is_held(path / LOCK), *(_stamp(path / name) for name in (CONFIG, JOURNAL, RESULT))) for path in paths)


def _stamp(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return (0, 0)
    return found.st_size, found.st_mtime_ns


def snapshot(paths: Iterable[Path]) -> dict[str, Any]:
    """{runs: one entry for each run that can be read, in the order of the paths}."""
    return {"runs": [*_readable(paths)]}


def _readable(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            yield of_run(runs.read(path), lock.is_held(path / LOCK))
        except runs.NotARun:
            continue  # it was removed meanwhile


def of_run(run: Recorded, written: bool) -> dict[str, Any]:
    """One run: how far it is, and for each pool its curve, its lessons, its last cohort and what it heard."""
    done, planned = rounds_done(run), rounds_planned(run)
    state = "finished" if is_finished(run) else "training" if written else "stopped"
    return {
        "id": str(run.path),
        "name": name_of(run),
        "method": label(kind_of(run)),
        "kind": kind_of(run),
        "seed": seed_of(run),
        "state": state,
        "round": done,
        "rounds": planned,
        "left_seconds": _left(run, done, planned) if state == "training" else None,
        "pools": [_pool(run, pool) for pool in pools_of([run])],
        "notes": list(run.notes),
    }


def _left(run: Recorded, done: int, planned: int | None) -> float | None:
    """Seconds that are left by the median of the last rounds and their evaluations; none before there are two."""
    rows = [row for row in run.timing[1:] if isinstance(row, dict)][-RECENT:]
    each = [sum(number(row.get(part)) or 0.0 for part in ("seconds", "evaluate_seconds", "checkpoint_seconds")) for row in rows]
    return None if planned is None or not each else max(0, planned - done) * median(each)


def _pool(run: Recorded, pool: str) -> dict[str, Any]:
    rows = [(row["round"], info) for row in rows_of(run) if isinstance(info := dig(row, "pools", pool), dict)]
    curve = [
        (row["round"], 100 * value) for row in rows_of(run) if (value := number(dig(row, "held_out", pool, "all", "accuracy"))) is not None
    ]
    lessons = [t for t, info in rows if info.get("codistilled")]
    last = rows[-1][1] if rows else {}
    taught = next((info for _, info in reversed(rows) if isinstance(info.get("agreement"), dict) and info.get("codistilled")), {})
    heard = {name: pair for name, pair in (taught.get("agreement") or {}).items() if isinstance(pair, list) and len(pair) == 2}
    return {
        "pool": pool,
        "curve": curve[:: -(-len(curve) // MOST_POINTS) or 1] + (curve[-1:] if len(curve) > MOST_POINTS else []),
        "lessons": lessons if len(lessons) <= len(rows) / 2 else [],
        "every_round": len(lessons) > len(rows) / 2,
        "teachers": [{"teacher": name, "before": number(pair[0]), "after": number(pair[1])} for name, pair in heard.items()],
        "clients": number(last.get("clients")),
        "examples": number(last.get("examples")),
        "train_loss": number(last.get("train_loss")),
        "dropped": sum(int(number(info.get("dropped")) or 0) for _, info in rows),
        "reasons": _reasons(info for _, info in rows),
        "skipped": sum("skipped" in info for _, info in rows),
        "refused": sum("guard" in info and not info.get("codistilled") for _, info in rows),
    }


def _reasons(infos: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Why replies were dropped, over all rounds."""
    found: dict[str, int] = {}
    for info in infos:
        for why, many in (info.get("reasons") or {}).items() if isinstance(info.get("reasons"), dict) else ():
            found[str(why)] = found.get(str(why), 0) + int(number(many) or 0)
    return found
