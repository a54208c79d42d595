"""Statistics of a task's data: clients, examples, labels, lengths of sentences, and rows that are in more than one part.

Everything is counted from the rows themselves, as an experiment will see them. A row of the public, held-out or test data that a client has
as well weakens every result, so overlaps are a finding and not a footnote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedcodist.clients import sizes
from fedcodist.data.overlap import digests, repeated, shared
from fedcodist.data.store import Store
from fedcodist.objectives.next_token import EOS, PAD, NextToken
from fedcodist.task import Task
from fedcodist.types import Array, Examples

BAR, BINS = 40, 12  # characters of the longest bar; bins of a histogram
BLOCK = 10_000  # rows in memory at once
MOST_LABELS = 20  # shown one by one


class Survey(NamedTuple):
    """The counts, for a table, text and a figure."""

    task: str
    rows: list[dict[str, Any]]  # one for each part
    skew: dict[str, float]  # means over the clients
    histograms: dict[str, list[tuple[str, int]]]  # {title: [(bin, count)]}
    overlaps: list[tuple[str, str, int]]  # (later part, earlier part, rows)
    notes: tuple[str, ...]


Parts = Mapping[str, Callable[[], Iterator[Examples]]]  # {part: a function that iterates over its blocks}


def survey(task: Task) -> Survey:
    """The survey of a task; only one block of rows is in memory at a time."""
    text = isinstance(task.objective, NextToken)
    clients = sizes(task.clients)
    parts: Parts = {
        "clients": lambda: _clients(task),
        "public": lambda: _blocks(task.public.x, task.public.y),
        "held_out": lambda: _blocks(task.held_out.x, task.held_out.y),
        "test": lambda: _blocks(task.test.x, task.test.y),
    }
    owners = {"clients": len(clients), "held_out": _count(task.held_out.client), "test": _count(task.test.client)}
    rows, histograms, known = _look(parts, owners, None if text else task.classes)
    skew = {"examples": float(np.mean(list(clients.values())))}
    if not text:
        skew["labels"] = float(np.mean([len(np.unique(np.asarray(task.clients[client].y))) for client in task.clients]))
    histograms = {"examples of a client": _bins(np.array(list(clients.values()))), **histograms}
    return Survey(task.name, rows, skew, histograms, shared(known), task.notes)


def survey_public(store: Store) -> Survey:
    """The survey of a store that is no task by itself: public images or public text."""
    parts: Parts
    if store.facts["kind"] == "text":
        line, classes = store["public_line"], None
        parts = {"public": lambda: _blocks(line[:, :-1], line[:, 1:])}
    else:
        classes = store.facts["classes"]
        parts = {split: partial(_blocks, store[f"{split}_x"], store[f"{split}_fine"]) for split in ("train", "test")}
    rows, histograms, known = _look(parts, {}, classes)
    return Survey(store.path.name, rows, {}, histograms, shared(known), tuple(store.facts.get("notes", ())))


def _look(
    parts: Parts, owners: Mapping[str, Any], classes: int | None
) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, np.ndarray]]:
    """A row of counts for each part, the histograms, and the digests of rows; `classes` is None for text."""
    rows, known, histograms = [], {}, {}
    for name, blocks in parts.items():
        hashes, lengths, labels = [], [], []
        for block in blocks():
            hashes.append(digests(block.x))
            if classes is None:
                tokens = np.asarray(block.x)[:, 1:] if block.y is None else np.asarray(block.y)  # without BOS
                lengths.append(((tokens != PAD) & (tokens != EOS)).sum(1))
            elif block.y is not None:
                labels.append(np.asarray(block.y))
        known[name] = np.concatenate([*hashes, np.zeros(0, np.uint64)])
        y = np.concatenate([*labels, np.zeros(0, np.int32)])
        counts = {"part": name, "clients": owners.get(name, "-"), "examples": len(known[name]), "labels": len(np.unique(y)) or "-"}
        rows.append(counts)
        if classes is None:
            histograms[f"words of a sentence, as far as a model reads, {name}"] = _bins(np.concatenate([*lengths, np.zeros(0, int)]))
        elif len(y):
            histograms[f"labels, {name}"] = _labels(y, classes)
    again = repeated(known)
    rows = [row | {"also in an earlier part": int(again[row["part"]].sum())} for row in rows]
    return rows, histograms, known


def as_text(found: Survey) -> str:
    """The means, histograms, overlaps and notes as text; the counts of the parts are a table of their own."""
    lines = [", ".join(f"{value:.1f} {name}" for name, value in found.skew.items()) + " of a client, on average"] if found.skew else []
    for title, bins in found.histograms.items():
        most = max((count for _, count in bins), default=0)
        lines += ["", title]
        width = max((len(name) for name, _ in bins), default=0)
        lines += [f"  {name:>{width}} {'#' * round(BAR * count / max(most, 1)):<{BAR}} {count:,}" for name, count in bins]
    lines.append("")
    lines += [f"overlap: {count:,} rows of {later} are also in {earlier}" for later, earlier, count in found.overlaps] or ["overlap: none"]
    lines += [f"note: {note}" for note in found.notes if not note.endswith(": kept")]  # these are the overlaps above
    return "\n".join(lines).lstrip("\n")


def _clients(task: Task) -> Iterator[Examples]:
    for client in task.clients:
        yield task.clients[client]


def _blocks(x: Array, y: Array | None) -> Iterator[Examples]:
    for start in range(0, len(x), BLOCK):
        yield Examples(x[start : start + BLOCK], None if y is None else y[start : start + BLOCK])


def _count(codes: Any) -> Any:
    return "-" if codes is None else len(np.unique(codes))


def _bins(values: np.ndarray) -> list[tuple[str, int]]:
    """Whole numbers in at most BINS bins of equal width.

    >>> _bins(np.array([1, 1, 2, 4]))
    [('1', 2), ('2', 1), ('3', 0), ('4', 1)]
    """
    if not len(values):
        return []
    low, high = int(values.min()), int(values.max())
    width = -(-(high - low + 1) // BINS)
    counts = np.bincount((values - low) // width)
    starts = [low + k * width for k in range(len(counts))]
    ends = [min(start + width - 1, high) for start in starts]
    return [(str(a) if a == b else f"{a}-{b}", int(n)) for a, b, n in zip(starts, ends, counts, strict=True)]


def _labels(y: np.ndarray, classes: int) -> list[tuple[str, int]]:
    """The count of each label; for many labels a histogram of these counts."""
    counts = np.bincount(y, minlength=classes)
    if classes <= MOST_LABELS:
        return [(str(label), int(n)) for label, n in enumerate(counts)]
    return [(f"{name} examples", count) for name, count in _bins(counts)]
