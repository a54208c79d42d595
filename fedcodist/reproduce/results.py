"""What came out of a table or figure, as one small JSON file: each cell's accuracies by seed, gains over the FedAvg twin, cost, provenance.

The file is all that the page, the figures and the claims are made from. Accuracies are shares of 1, rounded to four decimals, the paper's
too; keys have a fixed order, and there is no clock, path or host name in it. Runs that are not finished are not counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import fedcodist
from fedcodist import runs
from fedcodist.config import plain
from fedcodist.errors import data_error
from fedcodist.reports import curves, statistics
from fedcodist.reports.arms import COSTS, by_seed, cost_of, dig, domains_of, number, pools_of, rounds_done, seed_of
from fedcodist.reproduce import clocks, paper, rivals, studies
from fedcodist.reproduce.budgets import BUDGETS
from fedcodist.reproduce.cells import Cell
from fedcodist.reproduce.running import run_directory, run_key

SCHEMA = 1
DIGITS = 4
SHORT = 120  # characters of JSON that stay on one line
ENVIRONMENT = ("python", "numpy", "jax", "jaxlib", "optax", "fedcodist", "blas", "platform", "cpu", "cores", "backend", "kernels")
LOOSER = ("accuracy_no_eos", "accuracy_nonpad")  # A7's other counts of next words
Result = dict[str, Any]


def collect(table: str, budget: str, cells: Sequence[Cell], root: Path, failed: Mapping[str, str] | None = None) -> Result:
    """The results of all cells, as far as their runs are finished."""
    found = {cell.id: _finished(cell, root) for cell in cells}
    _check_data(cells, found)
    spent = BUDGETS[budget]
    families = studies.families(spent) if table == "studies" else spent.shifted if table in ("table2", "figure3") else spent.families
    used = dict.fromkeys(cell.family for cell in cells)
    everyone = [run for mine in found.values() for run in mine]
    return {
        "schema": SCHEMA,
        "table": table,
        "budget": budget,
        "says": spent.says,
        "rounds": spent.rounds,
        "paper_rounds": paper.ROUNDS,
        "decides": spent.decides,
        "families": {
            name: {
                "data": families[name].data,
                "paper_data": paper.DATA.get(families[name].half or name) if families[name].paper else None,
                "outside_data": families[name].outside_data,
                "unit": families[name].unit,
                "columns": list(families[name].columns),
                **({"balanced": families[name].balanced} if families[name].balanced else {}),
                "sizes": list(families[name].sizes),
                "domains": dict(families[name].domains),
            }
            for name in used
        },
        "cells": [
            _cell(table, cell, found[cell.id], found.get(cell.twin, [])) | {"diverged": _diverged(cell, found[cell.id], failed or {})}
            for cell in cells
        ],
        "provenance": {
            "version": fedcodist.__version__,
            "commits": sorted({name for run in everyone for name in run.commits}),  # that the runs were made by
            "uncommitted": sum(not run.commits for run in everyone),  # runs of which that is not known
            "data": {_data(cell, families): found[cell.id][0].config.get("data") for cell in cells if found[cell.id]},
            "environments": _distinct({key: run.environment.get(key) for key in ENVIRONMENT} for run in everyone),
        },
    }


def _finished(cell: Cell, root: Path) -> list[Any]:
    """All finished runs of a cell, by seed, also of seeds that an earlier command asked for."""
    recorded = [runs.read(path) for path in runs.find(run_directory(cell, 0, root).parent, depth=1)]
    done = by_seed(recorded)
    return [rivals.seen(done[seed], cell) for seed in sorted(seed for seed in done if isinstance(seed, int))]


def _diverged(cell: Cell, finished: Sequence[Any], failed: Mapping[str, str]) -> dict[str, str]:
    """{seed: why} of the cell's runs that could not be finished, also of seeds that an earlier command asked for."""
    done, beginning = {str(seed_of(run)) for run in finished}, run_key(cell, 0).removesuffix("0")
    lost = {key.removeprefix(beginning): why for key, why in failed.items() if key.startswith(beginning)}
    return {seed: why for seed, why in sorted(lost.items()) if seed not in done}


def _check_data(cells: Sequence[Cell], found: Mapping[str, Sequence[Any]]) -> None:
    """Runs on other data must not be averaged, or taken for twins."""
    for cell in cells:
        twin = found.get(cell.twin, []) if cell.public in ("", "in-domain") else []  # other public data is another digest
        digests = {str(run.config.get("data")) for run in (*found[cell.id], *twin)}
        if len(digests) > 1:
            raise data_error(cell.id, f"runs on {len(digests)} different data sets", "runs on the same data", "use another --out")


def _cell(table: str, cell: Cell, mine: Sequence[Any], twin: Sequence[Any]) -> Result:
    pools = pools_of(mine)
    accuracy: dict[str, Any] = {}
    for pool in pools:
        accuracy[pool] = {}
        for domain in domains_of(mine):
            values = _by_split(mine, pool, domain)
            if not values["test"]:
                continue
            told: Result = {**values, **summary(values["test"])}
            looser = {name: statistics.mean(number(dig(run.result, "test", pool, domain, name)) for run in mine) for name in LOOSER}
            if None not in looser.values():
                told["looser"] = {name: _round(value) for name, value in looser.items()}
            if cell.twin:
                told["over_twin"] = _over_twin(twin, mine, pool, domain)
                if gains := list(told["over_twin"].values()):
                    told["gain"] = gain(gains)
            accuracy[pool][domain] = told
    state = "none" if not mine else "done" if {*cell.seeds} <= {seed_of(run) for run in mine} else "partly"
    found: Result = {
        "id": cell.id,
        "family": cell.family,
        "row": cell.row,
        "method": cell.method,
        "column": cell.column,
        "public": cell.public,
        "clients": cell.clients,
        "twin": cell.twin,
        "state": state,
        "tuned": cell.tuned,
        "wanted": list(cell.seeds),
        "seeds": [seed_of(run) for run in mine],
        "rounds": cell.config.rounds,
        "run": f"{cell.name}/{cell.method}",
        "data": next((str(run.config.get("data")) for run in mine), ""),
        "identity": next((str(dig(run.result, "identity")) for run in mine), ""),
        "commits": sorted({name for run in mine for name in run.commits}),
        "uncommitted": sum(not run.commits for run in mine),
        "paper": {pool: {domain: _share(value) for domain, value in of.items()} for pool, of in cell.paper.items()},
        "accuracy": accuracy,
        "cost": {what: round(value) for what in COSTS if (value := statistics.mean(cost_of(run, what) for run in mine)) is not None},
        "settings": _settings(cell.config),
    }
    if ensemble := _ensemble(mine):
        found["ensemble"] = ensemble
    if took := clocks.taken(mine):
        found["clock"] = took
    if cell.rival:
        found["rival"] = dict(cell.rival)
        found["accuracy"] = {pool: told for pool, told in accuracy.items() if told}  # without widths that stand for no pool
    if table == "studies":
        found["studies"] = dict(cell.studies)
        found["distilled"] = len({t for pool in pools for t in curves.codistilled(mine, pool)})  # rounds
    if table == "figure3" and mine:
        found["curve"] = _curve(mine, pools)
        if spikes := _spikes(mine, twin, pools):
            found["spikes"] = spikes
    return found


def gain(gains: Sequence[float]) -> dict[str, Any]:
    """Their mean with its interval, from the very numbers that verdicts are given by."""
    low, high = statistics.t_interval(gains) or (None, None)
    return {"difference": _round(fmean(gains)), "low": _round(low), "high": _round(high), "seeds": len(gains)}


def _over_twin(twin: Sequence[Any], mine: Sequence[Any], pool: str, domain: str) -> dict[str, float]:
    """{seed: gain over the twin}; empty if none is finished. Stored, because files of several machines may be joined."""
    values = [
        {seed: number(dig(run.result, "test", pool, domain, "accuracy")) for seed, run in of.items()} for of in map(by_seed, (twin, mine))
    ]
    theirs, ours = ({seed: value for seed, value in of.items() if value is not None} for of in values)
    return {str(seed): round(value - theirs[seed], DIGITS) + 0.0 for seed, value in sorted(ours.items()) if seed in theirs}


def _settings(config: Any) -> dict[str, Any]:
    """What was tuned, or could have been: the method, and for each pool its rates, weight and temperature."""
    table = plain(config)
    told: dict[str, Any] = {"method": table["method"]}
    for name, pool in table["pools"].items():
        rates = {"client_lr": pool["work"].get("lr"), "server_lr": pool["server"].get("lr")}
        told[name] = rates
        if "distill" in table["method"]:
            told[name] |= {f"distill_{key}": value for key, value in pool["learns"].items()} | pool["teaches"]
    return told


def _data(cell: Cell, families: Mapping[str, Any]) -> str:
    """The data of a cell in words."""
    family = families[cell.family]
    if cell.public in ("", "in-domain"):
        return family.data
    return f"{family.data}, public {family.outside_data}" if cell.public == "out-of-domain" else f"{family.data}, {cell.public} public"


def _by_split(mine: Sequence[Any], pool: str, domain: str) -> dict[str, list[float | None]]:
    return {split: _known(number(dig(run.result, split, pool, domain, "accuracy")) for run in mine) for split in ("test", "held_out")}


def _known(values: Iterable[float | None]) -> list[float | None]:
    """Rounded, one for each seed; empty if no seed has one."""
    rounded = [_round(value) for value in values]
    return rounded if any(value is not None for value in rounded) else []


def summary(values: Sequence[float | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    return {"mean": _round(fmean(known)), "spread": _round(statistics.spread(known))}


def _ensemble(mine: Sequence[Any]) -> dict[str, Any]:
    """The two models together, {domain: ...}, of runs whose result has it."""
    found = {}
    for domain in dict.fromkeys(d for run in mine for d in dig(run.result, "ensemble", "test") or ()):
        values = {s: _known(number(dig(run.result, "ensemble", s, domain, "accuracy")) for run in mine) for s in ("test", "held_out")}
        if values["test"]:
            found[domain] = {**values, **summary(values["test"])}
    return found


def _curve(mine: Sequence[Any], pools: Sequence[str]) -> dict[str, Any]:
    """Held-out accuracy by round: {pool: {domain: [[round, mean, lowest, highest], ...]}}, and the rounds of codistillation."""
    lines: dict[str, Any] = {"codistilled": sorted({t for pool in pools for t in curves.codistilled(mine, pool)})}
    if len(lines["codistilled"]) > 0.5 * rounds_done(mine[0]):
        lines["codistilled"] = "every round"
    for pool in pools:
        lines[pool] = {}
        for domain in domains_of(mine):
            line = curves.series(mine, _accuracy(pool, domain))
            lines[pool][domain] = [[t, *(_round(value) for value in values)] for t, *values in line]
    return lines


def _spikes(mine: Sequence[Any], twin: Sequence[Any], pools: Sequence[str]) -> dict[str, Any]:
    """What a periodic codistillation does: {pool: {domain: {rounds after it: [change since the round before, by seed]}}}, less what the
    FedAvg twin gained in the same rounds, the mean over the codistillations of a run that have all of these rounds."""
    after = dig(mine[0].config, "evaluate_after") or []
    period = dig(mine[0].config, "method", "period")
    if not isinstance(period, int) or not after:
        return {}
    offsets, twins = [0, *after], by_seed(twin)
    pairs = [(run, twins[seed]) for run in mine if (seed := seed_of(run)) in twins]
    found: dict[str, Any] = {}
    for pool in pools:
        found[pool] = {}
        for domain in domains_of(mine):
            seen = [_changes(run, other, pool, domain, offsets) for run, other in pairs]
            if seen and all(seen):
                found[pool][domain] = {str(k): [_round(of_run[k]) for of_run in seen] for k in offsets}
    return found


def _changes(run: Any, twin: Any, pool: str, domain: str, offsets: Sequence[int]) -> dict[int, float]:
    """{rounds after a codistillation: mean change of held-out accuracy since the round before it, less the twin's} of one run; empty if
    none is whole. The twin is evaluated more seldom: between its evaluations its line is straight."""
    line, base = ({t: value for t, value, *_ in curves.series([one], _accuracy(pool, domain))} for one in (run, twin))
    if not base:
        return {}
    whole = [t for t in curves.codistilled([run], pool) if t - 1 in line and all(t + k in line for k in offsets)]
    beyond = {t: line[t] - float(np.interp(t, list(base), list(base.values()))) for t in line}
    return {k: fmean(beyond[t + k] - beyond[t - 1] for t in whole) for k in offsets} if whole else {}


def _accuracy(pool: str, domain: str) -> Callable[[Any], Any]:
    return lambda row: dig(row, "held_out", pool, domain, "accuracy")


def read(path: Path) -> Result:
    """A result file; DataError if it is none, or of another version."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise data_error(str(path), f"{getattr(error, 'strerror', None) or 'no JSON'}", "a result file of `fedcodist reproduce`") from None
    version = found.get("schema") if isinstance(found, dict) else None
    if version != SCHEMA:
        raise data_error(
            str(path), f"schema {version}", f"schema {SCHEMA}", "made by another version: run `fedcodist reproduce ... --report` again"
        )
    if found.get("table") not in paper.TABLES or found.get("budget") not in BUDGETS:
        got = f"{found.get('table')} under budget {found.get('budget')}"
        raise data_error(str(path), got, f"{', '.join(paper.TABLES)} under {', '.join(BUDGETS)}")
    return found


def dump(value: Any, indent: str = "") -> str:
    """JSON for people and for diffs: a line a key; lists of numbers, and whatever is short, on one line.

    >>> print(dump({"a": [1, 2], "b": {"c": None}}))
    {
     "a": [1, 2],
     "b": {"c": null}
    }
    """
    inner = indent + " "
    text = json.dumps(value)
    if len(text) <= SHORT and not (isinstance(value, dict) and any(isinstance(item, dict) for item in value.values())):
        return text
    if isinstance(value, dict):
        rows = (f"{inner}{json.dumps(str(key))}: {dump(item, inner)}" for key, item in value.items())
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(f"{inner}{dump(item, inner)}" for item in value) + f"\n{indent}]"
    return text


def _share(percent: Any) -> float | None:
    return None if (value := number(percent)) is None else round(value / 100, DIGITS)


def _round(value: Any) -> float | None:
    return None if (known := number(value)) is None else round(known, DIGITS) + 0.0  # no minus zero


def _distinct(tables: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(text) for text in sorted({json.dumps(table, sort_keys=False) for table in tables})]
