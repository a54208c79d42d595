"""Tables of tuning: the trials of a study, the parameters of its winner, and the winners on fresh seeds.

Searches, trials and outcomes are those of fedcodist.tuning, which this floor does not import.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import Any

from fedcodist.reports import units
from fedcodist.reports.arms import label
from fedcodist.reports.statistics import spread, t_interval
from fedcodist.reports.units import points


def display_trials(search: Any, trials: Sequence[Any]) -> list[dict[str, Any]]:
    """How each trial ended, and its accuracy in percent."""
    rows = []
    for trial in trials:
        outcome = trial.outcome
        row = {"method": method(search), "trial": str(trial.number), "state": trial.state, "held-out, %": f"{100 * trial.value:.2f}"}
        row |= {pool: f"{100 * outcome.accuracy[pool]:.2f}" if outcome.accuracy else "" for pool in search.config.pools}
        if search.objective == "pareto":
            row["server, GFLOP"] = f"{outcome.server_flops / 1e9:,.3f}"
        rows.append(row | {"rounds": str(outcome.rounds), "seconds": f"{outcome.seconds:.1f}"})
    return rows


def display_parameters(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `tuning.ranking.parameters`: a parameter that sets several keys to one value shows it once."""

    def shown(values: Sequence[Any]) -> str:
        return ", ".join(dict.fromkeys(f"{v:.4g}" if isinstance(v, float) else json.dumps(v) for v in values))

    return [row | {"was": shown(row["was"]), "best": shown(row["best"])} for row in rows]


def fresh(studies: Sequence[Any]) -> list[dict[str, Any]]:
    """Each study's winners and pools on the fresh seeds, beside the value that won, and the paired gain over the best of the first study,
    which is the twin's where there are two."""
    rows = []
    for nth, study in enumerate(studies):
        for (trial, seeds), pool in product(study.fresh, study.search.config.pools):
            values = [_accuracy(seeds[seed], pool) for seed in sorted(seeds)]
            row = {"method": method(study.search), "trial": trial.number, "pool": pool}
            row |= {"won with": trial.outcome.accuracy[pool], "seeds": len(values)}
            row |= {"accuracy": fmean(values), "spread": spread(values), "gain": None, "low": None, "high": None}
            row["failed"] = sum(bool(outcome.failed) for outcome in seeds.values())
            if nth:
                _, twin = studies[0].fresh[0]
                gains = [value - _accuracy(twin[seed], pool) for value, seed in zip(values, sorted(seeds), strict=True)]
                low, high = t_interval(gains) or (None, None)
                row |= {"gain": fmean(gains), "low": low, "high": high}
            rows.append(row)
    return rows


def display_fresh(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `fresh` in percent and points."""
    shown = []
    for row in rows:
        names = {"method": row["method"], "trial": str(row["trial"]), "pool": row["pool"], "won with, %": points(row["won with"])}
        width = "" if row["spread"] is None else f" +- {points(row['spread'])}"
        failed = f" ({row['failed']} failed)" if row["failed"] else ""
        gain = units.gain(row["gain"], row["low"], row["high"])
        shown.append(names | {"fresh seeds, %": points(row["accuracy"]) + width + failed, "gain, points": gain})
    return shown


def older_rates(search: Any, rates: Any) -> str:
    """A note if the method was begun with rates that are not its twin's best by now; else empty."""
    if rates is None or rates.used.number == rates.best.number:
        return ""
    return (
        f"{method(search)} stands on the rates of trial {rates.used.number} of its twin, with which it was begun, and trial "
        f"{rates.best.number} is better by now: a gain is not one at equal rates. Another --name tunes both afresh."
    )


def method(search: Any) -> str:
    """The name of a search's method."""
    return label(search.config.method.kind)


def _accuracy(outcome: Any, pool: str) -> float:
    return 0.0 if outcome.failed else outcome.accuracy[pool]
