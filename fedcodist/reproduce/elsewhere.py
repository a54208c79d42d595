"""Results from several machines in one file: what was not run here is taken from an earlier result file, if it is the same experiment.

A cell is kept as it was found, with the gains over the twin that was trained beside it, so that no pair is made of runs from two places:
rounding may differ between processors, and after some hundred rounds so do the models. The cell with more seeds wins, and of equal ones that
which was run here. Deliberately absent: adding seeds of one place to those of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedcodist.compare import dig
from fedcodist.errors import bad
from fedcodist.reproduce import claims

Result = dict[str, Any]
AS_HERE = ("wanted", "studies")  # of a cell that is kept: what it is to be, not what it was


def join(here: Result, known: Result) -> Result:
    """`here` with cells of `known` where it has fewer seeds."""
    before = {cell["id"]: cell for cell in known["cells"]}
    told, kept = [], False
    for cell in here["cells"]:
        other = before.get(cell["id"])
        if other is None or not _is_more(other, cell):
            told.append(cell)
            continue
        if cell["data"] and cell["data"] != other["data"]:
            raise bad(cell["id"], "other data than in the result file that is there", "the same data", "give another directory to --docs")
        told.append(_kept(other, before, cell))
        kept = True
    return {**here, "cells": told, "provenance": _both(here["provenance"], known["provenance"]) if kept else here["provenance"]}


def _is_more(other: Mapping[str, Any], cell: Mapping[str, Any]) -> bool:
    return other["run"] == cell["run"] and len(other["seeds"]) > len(cell["seeds"])


def _kept(other: Result, before: Mapping[str, Result], cell: Result) -> Result:
    """A cell as it was, with each seed's gain, which files of old leave to be found from the twin."""
    accuracy = {
        pool: {domain: _with_each(other, before, pool, domain) for domain in domains} for pool, domains in other["accuracy"].items()
    }
    state = "done" if {*cell["wanted"]} <= {*other["seeds"]} else "partly"
    return {**other, "accuracy": accuracy, **{key: cell[key] for key in AS_HERE if key in cell}, "state": state}


def _with_each(other: Result, before: Mapping[str, Result], pool: str, domain: str) -> Result:
    told = other["accuracy"][pool][domain]
    if not dig(told, "gain") or dig(told, "gain", "each"):
        return told
    gains = claims.gains(before, other["id"], pool, domain)
    return {**told, "gain": {**told["gain"], "each": {str(seed): round(value, 4) for seed, value in gains.items()}}}


def _both(here: Result, known: Result) -> Result:
    """The provenance of all that is told."""
    environments = [*here["environments"], *(one for one in known["environments"] if one not in here["environments"])]
    return {
        "version": here["version"],
        "commits": sorted({*here["commits"], *known["commits"]}),
        "uncommitted": max(here["uncommitted"], known["uncommitted"]),  # a run of here may be among those that are known
        "data": {**known["data"], **here["data"]},
        "environments": environments,
    }
