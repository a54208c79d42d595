"""What a comparison shows, in sentences: gain, loss or neither, how sure that is, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedcodist.reports.arms import TWIN, by_seed, dig, group, headline, kind_of, label, number, pools_of, twin_of
from fedcodist.reports.statistics import extra_cost, mean, paired
from fedcodist.reports.units import interval, points


def verdicts(runs: Iterable[Any]) -> list[str]:
    """A verdict on each arm against its twin."""
    arms = group(runs)
    twins = [(arm, twin_of(arm, arms)) for arm in arms if arm.kind != TWIN]
    return [verdict(twin.runs if twin else (), arm.runs) for arm, twin in twins]


def verdict(a_runs: Iterable[Any], b_runs: Iterable[Any], split: str = "test") -> str:
    """How b did against a, pool by pool, whether that is above zero, and what it cost."""
    a_runs, b_runs = list(a_runs), list(b_runs)
    if not b_runs:
        return "No runs."
    if not a_runs:
        return f"{alone(b_runs, split)} No twin: run with --twin."
    domain = headline([*a_runs, *b_runs])
    rows = [row for row in paired(a_runs, b_runs, split) if row["domain"] == domain]
    method, other = label(kind_of(b_runs[0])), label(kind_of(a_runs[0]))
    against = f"its {other} twin" if kind_of(a_runs[0]) == TWIN else other
    if not rows:
        return f"{method} against {against}: no seed is finished in both, so nothing can be said yet."
    counts = sorted({row["seeds"] for row in rows})
    seeds = "one seed" if counts == [1] else f"{'-'.join(map(str, counts))} paired seeds"
    where = "" if domain == "all" else f" on {domain}"
    gains = ", ".join(_gain(row, " points" if row is rows[0] else "") for row in rows)
    numbers = f"{method} against {against}, {split.replace('_', '-')} accuracy{where} over {seeds}: {gains}."
    return " ".join(filter(None, (numbers, _judgement(rows), extra_words(a_runs, b_runs))))


def alone(runs: Sequence[Any], split: str = "test") -> str:
    """What an arm reached, without anything to compare it with."""
    method, done = label(kind_of(runs[0])), by_seed(runs)
    domain = headline(runs)
    reached = []
    for pool in pools_of(runs):
        value = mean(number(dig(run.result, split, pool, domain, "accuracy")) for run in done.values())
        if value is not None:
            reached.append(f"{pool} {points(value)} %")
    if not reached:
        return f"{method}: no run has finished."
    seeds = "one seed" if len(done) == 1 else f"{len(done)} seeds"
    return f"{method}, {split.replace('_', '-')} accuracy over {seeds}: {', '.join(reached)}."


def outcome(row: dict[str, Any] | None) -> str:
    """What one paired row shows: gain, loss, unclear (the interval contains zero), hint (one seed) or none."""
    if row is None:
        return "none"
    if row["low"] is None:
        return "hint"
    return "gain" if row["low"] > 0 else "loss" if row["high"] < 0 else "unclear"


def extra_words(a_runs: Iterable[Any], b_runs: Iterable[Any]) -> str:
    """The extra cost of b as a sentence, such as "No extra client bytes; +1,280 server steps."."""
    a_runs, b_runs = list(a_runs), list(b_runs)
    sent, steps = extra_cost(a_runs, b_runs, "client_bytes"), extra_cost(a_runs, b_runs, "server_steps")
    parts = []
    if sent is not None:
        more, base = sent
        share = f"{100 * more / base:+.1f} % client bytes" if base else f"{more:+,.0f} client bytes"
        parts.append(share if abs(more) >= 0.5 else "no extra client bytes")
    if steps is not None:
        parts.append(f"{steps[0]:+,.0f} server steps" if abs(steps[0]) >= 0.5 else "no extra server steps")
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _gain(row: dict[str, Any], unit: str) -> str:
    return f"{row['pool']} {points(row['difference'], sign=True)}{unit} {interval(row['low'], row['high'])}".rstrip()


def _judgement(rows: Sequence[dict[str, Any]]) -> str:
    """The sentence after the numbers."""
    found = {kind: [row["pool"] for row in rows if outcome(row) == kind] for kind in ("gain", "loss", "unclear", "hint")}
    if found["hint"] and len(found["hint"]) == len(rows):
        return "One seed: a hint, not evidence."
    for kind, one, many in (
        ("gain", "The gain is above zero.", "gains are above zero."),
        ("loss", "This is a loss: the interval is below zero.", "are losses: the intervals are below zero."),
        ("unclear", "No difference is shown: the interval contains zero.", "intervals contain zero: no difference is shown."),
    ):
        if len(found[kind]) == len(rows):
            return one if len(rows) == 1 else f"{'Both' if len(rows) == 2 else f'All {len(rows)}'} {many}"
    words = {
        "gain": "A gain, above zero",
        "loss": "A loss, below zero",
        "unclear": "No difference is shown",
        "hint": "One seed, a hint only",
    }
    return " ".join(f"{words[kind]}: {', '.join(names)}." for kind, names in found.items() if names)
