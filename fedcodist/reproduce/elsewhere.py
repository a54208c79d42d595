"""Results from several machines in one file: what was not run here is taken from an earlier result file, if it is the same experiment.

Every seed keeps the gain over the twin that was trained beside it: rounding may differ between processors, and after some hundred rounds so
do the models, which would widen a gain that is made of both. A cell has the seeds of all places; if a seed was run in two, ours counts.
Cells with a curve, which is of all their seeds together, cannot be joined: the one with more seeds wins, of equally many the one that was
run here, if the seeds are the same, and else the one that is published. What diverged anywhere is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedcodist.errors import data_error
from fedcodist.reproduce import claims, results

Result = dict[str, Any]
AS_HERE = ("wanted", "studies", "rival")  # of a cell that is kept: what it is to be, not what it was


def join(here: Result, known: Result) -> Result:
    """`here` with what `known` has besides."""
    before = {cell["id"]: cell for cell in known["cells"]}
    told, kept = [], []
    for cell in here["cells"]:
        other = before.get(cell["id"])
        if other is None or not _has_more(other, cell):
            told.append(cell)
            continue
        was = _kept(other, before, cell)
        told.append(_added(was, cell) if cell["seeds"] and "curve" not in cell else was)
        kept.append(other)
    return {**here, "cells": told, "provenance": _both(here["provenance"], known["provenance"], kept) if kept else here["provenance"]}


def _has_more(other: Mapping[str, Any], cell: Mapping[str, Any]) -> bool:
    if other["run"] != cell["run"]:
        return False
    more = len(other["seeds"]) - len(cell["seeds"])
    return not {*other["seeds"]} <= {*cell["seeds"]} if "curve" not in cell else more > 0 or (more == 0 and other["seeds"] != cell["seeds"])


def _added(was: Result, cell: Result) -> Result:
    """A cell with its own seeds and those that were run elsewhere."""
    seeds = sorted({*was["seeds"], *cell["seeds"]})
    both = {what: _by_seed(was[what], cell[what], was["seeds"], cell["seeds"]) for what in ("ensemble",) if what in was and what in cell}
    accuracy = {
        pool: _by_seed(was["accuracy"].get(pool, {}), domains, was["seeds"], cell["seeds"]) for pool, domains in cell["accuracy"].items()
    }
    clock = {"clock": took} if (took := {**was.get("clock", {}), **cell.get("clock", {})}) else {}
    commits = {"commits": sorted({*was.get("commits", ()), *cell.get("commits", ())})}
    done = {"seeds": seeds, "state": "done" if {*cell["wanted"]} <= {*seeds} else "partly"}
    return {
        **was,
        **cell,
        **both,
        **clock,
        **commits,
        **done,
        "accuracy": accuracy,
        "diverged": {**was["diverged"], **cell.get("diverged", {})},
    }


def _by_seed(was: Result, here: Result, others: Sequence[int], seeds: Sequence[int]) -> Result:
    """{domain: values} of two places, seed by seed."""
    found = {}
    for domain, ours in here.items():
        theirs, told = was.get(domain, {}), dict(ours)
        for split in ("test", "held_out"):
            values = dict(zip(others, theirs.get(split, ()), strict=False)) | dict(zip(seeds, ours.get(split, ()), strict=False))
            told[split] = [value for _, value in sorted(values.items())]
        told |= results.summary(told["test"])
        if "over_twin" in ours or "over_twin" in theirs:
            gains = {**theirs.get("over_twin", {}), **ours.get("over_twin", {})}
            told["over_twin"] = dict(sorted(gains.items(), key=lambda gain: int(gain[0])))
            told |= {"gain": results.gain(list(gains.values()))} if gains else {}
        found[domain] = told
    return found


def _kept(other: Result, before: Mapping[str, Result], cell: Result) -> Result:
    """A cell as it was, with each seed's gain, which files of old leave to be found from the twin."""
    accuracy = {
        pool: {domain: _over_twin(other, before, pool, domain) for domain in domains} for pool, domains in other["accuracy"].items()
    }
    return {
        **other,
        **{key: cell[key] for key in AS_HERE if key in cell},
        "accuracy": accuracy,
        "state": "done" if {*cell["wanted"]} <= {*other["seeds"]} else "partly",
        "diverged": {**cell.get("diverged", {}), **other.get("diverged", {})},
    }


def _over_twin(other: Result, before: Mapping[str, Result], pool: str, domain: str) -> Result:
    told = other["accuracy"][pool][domain]
    if not other["twin"] or "over_twin" in told:
        return told
    gains = claims.gains(before, other["id"], pool, domain)
    return {**told, "over_twin": {str(seed): round(value, 4) for seed, value in gains.items()}}


def _both(here: Result, known: Result, kept: Sequence[Result]) -> Result:
    """The provenance of all that is told, some cells of `known` among it. Cells of old files do not say which commits are theirs: of these
    as many runs may be without one as all of `known` had."""
    for name in here["data"].keys() & known["data"].keys():
        if here["data"][name] != known["data"][name]:
            raise data_error(
                name, "other data here than in the result file that is there", "the same data", "give another directory to --docs"
            )
    silent = sum(len(cell["seeds"]) for cell in kept if "uncommitted" not in cell)
    environments = [*here["environments"], *(one for one in known["environments"] if one not in here["environments"])]
    return {
        "version": here["version"],
        "commits": sorted({*here["commits"], *known["commits"]}),
        "uncommitted": here["uncommitted"] + sum(cell.get("uncommitted", 0) for cell in kept) + min(silent, known["uncommitted"]),
        "data": {**known["data"], **here["data"]},
        "environments": environments,
    }
