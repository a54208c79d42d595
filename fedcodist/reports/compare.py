"""Tables of results: the accuracy of each arm, and the differences of runs from the first of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedcodist import runs
from fedcodist.errors import ConfigError
from fedcodist.reports import units
from fedcodist.reports.arms import dig, domains_of, group, kind_of, metric_of, number, pools_of, twin_of
from fedcodist.reports.statistics import mean, paired, spread
from fedcodist.reports.units import points

QUARTILES, DASH = ("q25", "median", "q75"), "-"


def results(recorded: Iterable[Any], split: str = "test") -> list[dict[str, Any]]:
    """The accuracy of each arm: a row for each arm, pool and domain, with the paired gain over its twin where there is one."""
    arms = group(recorded)
    rows = []
    for arm in arms:
        twin = twin_of(arm, arms)
        gains = {(row["pool"], row["domain"]): row for row in (paired(twin.runs, arm.runs, split) if twin else ())}
        for pool in pools_of(arm.finished):
            for domain in domains_of(arm.finished):
                known = [v for run in arm.finished if (v := number(dig(run.result, split, pool, domain, metric_of(split)))) is not None]
                if known:
                    gain = gains.get((pool, domain)) or dict.fromkeys(("difference", "low", "high"))
                    rows.append(
                        {"method": arm.label, "pool": pool, "domain": domain, "seeds": len(known), "accuracy": fmean(known)}
                        | {"spread": spread(known), "gain": gain["difference"], "low": gain["low"], "high": gain["high"]}
                    )
    return rows


def personal(recorded: Iterable[Any]) -> list[dict[str, Any]]:
    """What each arm's clients reached on their own test splits: means over seeds of the mean over clients and of its distribution. Empty
    where no run has any."""
    recorded = list(recorded)
    rows = results(recorded, "personal_test")
    finished = {(arm.label, pool): arm.finished for arm in group(recorded) for pool in pools_of(arm.finished)}
    for row in rows:
        for name in QUARTILES:
            values = [
                number(dig(run.result, "personal_test", row["pool"], "all", f"personal_{name}"))
                for run in finished[row["method"], row["pool"]]
            ]
            row[name] = mean(values)
    return rows


def display_personal(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `personal` in percent and points."""
    shown = []
    for row, first in zip(rows, display(rows, "own test accuracy, %"), strict=True):
        low, middle, high = (DASH if row[name] is None else points(row[name]) for name in QUARTILES)
        shown.append({**first, "quartiles of clients, %": f"{low} | {middle} | {high}"})
    return shown


def display(rows: Sequence[dict[str, Any]], head: str = "test accuracy, %") -> list[dict[str, Any]]:
    """Rows of `results` in percent and points. A column of domains that are all `all` is left out.

    >>> row = {"method": "FedAvg", "pool": "small", "domain": "all", "seeds": 2, "accuracy": 0.5, "spread": 0.01}
    >>> display([row | {"gain": 0.02, "low": -0.01, "high": 0.05}])[0]["gain, points"]
    '+2.0 [-1.0, 5.0]'
    """
    names = ["method", "pool", "domain", "seeds"]
    if all(row["domain"] == "all" for row in rows):
        names.remove("domain")
    shown = []
    for row in rows:
        accuracy = points(row["accuracy"]) + ("" if row["spread"] is None else f" +- {points(row['spread'])}")
        gain = units.gain(row["gain"], row["low"], row["high"])
        shown.append({name: row[name] for name in names} | {head: accuracy, "gain, points": gain})
    return shown


def of_paths(paths: Sequence[Path], split: str = "test") -> list[dict[str, Any]]:
    """Paired rows of every path's runs against the first one's. A path is a run directory, or holds some."""
    first, *others = [(path, [runs.read(run) for run in runs.find_all([path])]) for path in paths]
    if not others:
        raise ConfigError("compare: got one run; allowed two or more: every run is compared with the first")
    for path, found in (first, *others):
        kinds = sorted({kind_of(run) for run in found})
        if len(kinds) > 1:
            raise ConfigError(f"compare: got {path}, which holds {' and '.join(kinds)}; allowed one method, as in {path / kinds[0]}")
    rows = []
    for path, found in others:
        if len({run.config.get("data") for run in (*first[1], *found)}) > 1:
            raise ConfigError(f"compare: {first[0]} and {path} were trained on different data; allowed runs on the same data")
        compared = paired(first[1], found, split)
        if not compared:
            raise ConfigError(f"compare: {first[0]} and {path} have no finished seed in common; allowed runs that share seeds")
        rows += [{"run": str(path), "against": str(first[0]), **row} for row in compared]
    return rows


def display_pairs(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `of_paths` in percent and points.

    >>> row = {"run": "x/merged", "against": "x/fedavg", "pool": "small", "domain": "all", "a": 0.5, "b": 0.52, "seeds": 2, "note": ""}
    >>> shown = display_pairs([row | {"difference": 0.02, "low": -0.01, "high": 0.05}])[0]
    >>> shown["against, %"], shown["run, %"], shown["difference, points"]
    ('50.0', '52.0', '+2.0 [-1.0, 5.0]')
    """
    shown = []
    for row in rows:
        names = {key: row[key] for key in ("run", "against", "pool", "domain")}
        values = {"run, %": points(row["b"]), "against, %": points(row["a"])}
        values["difference, points"] = units.gain(row["difference"], row["low"], row["high"])
        shown.append(names | values | {"seeds": row["seeds"], "note": row["note"]})
    return shown
