"""What runs that were made by hand say, and how they are grouped."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from made_runs import run

from fedcodist.reports.arms import group, pools_of, rounds_done, seed_of, twin_of
from fedcodist.reports.curves import taught


def test_arms_are_ordered_and_named():
    found = group([run("merged", 1, {"x": 1}), run("other", 0, None), run("merged", 0, None), run("fedavg", 0, {"x": 1})])
    seeds = {arm.label: [seed_of(r) for r in arm.runs] for arm in found}
    assert list(seeds.items()) == [("FedAvg", [0]), ("MergedCodist", [0, 1]), ("other", [0])]
    two = group([run("merged", 0, {"x": 1}, name="b"), run("fedavg", 0, {"x": 1}, name="a")])
    assert [arm.label for arm in two] == ["a: FedAvg", "b: MergedCodist"]
    assert twin_of(two[1], two) is None  # a twin is of the same experiment


def test_foreign_files_are_read_as_far_as_they_go():
    odd = SimpleNamespace(path=Path("x"), config={}, rounds=[3, {"round": "a"}, {"round": 1, "pools": 7}], timing=[], result=None, notes=[])
    (arm,) = group([odd])
    assert seed_of(odd) == "x" and rounds_done(odd) == 1 and pools_of([odd]) == [] and taught(arm, None) == []
