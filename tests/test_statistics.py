"""Statistics over seeds, by numbers small enough to check by hand."""

from __future__ import annotations

import pytest
from made_runs import both, run

from fedcodist.reports.statistics import paired


def test_paired_difference_and_interval_by_hand():
    # differences 1, 2 and 3 points: mean 2, standard deviation 1, t(2 degrees, 97.5 %) = 4.30265, half width 4.30265 / sqrt(3) = 2.48414
    a, b = both([{"small": 0.50}, {"small": 0.60}, {"small": 0.40}], [{"small": 0.51}, {"small": 0.62}, {"small": 0.43}])
    (row,) = paired(a, b)
    assert (row["pool"], row["domain"], row["metric"], row["seeds"], row["note"]) == ("small", "all", "accuracy", 3, "")
    assert [row[k] for k in ("a", "b", "difference", "spread", "low", "high")] == pytest.approx(
        [0.5, 0.52, 0.02, 0.01, -0.0048414, 0.0448414], abs=1e-6
    )


def test_two_seeds_have_one_degree_of_freedom():
    a, b = both([{"x": 0.5}, {"x": 0.5}], [{"x": 0.51}, {"x": 0.53}])
    (row,) = paired(a, b)  # 2 points, sd sqrt(2), t(1) = 12.7062, half width 12.7062
    assert (100 * row["low"], 100 * row["high"]) == pytest.approx((-10.7062, 14.7062), abs=1e-3)


def test_only_shared_finished_seeds_are_paired():
    a = [run("fedavg", seed, {"x": 0.5}) for seed in (0, 1, 2)]
    b = [run("merged", 1, {"x": 0.7}), run("merged", 2, None), run("merged", 9, {"x": 0.1})]
    (row,) = paired(a, b)
    assert row["seeds"] == 1 and row["difference"] == pytest.approx(0.2)
    assert row["low"] is None and row["high"] is None and row["note"] == "one seed: no interval"


def test_every_pool_and_domain_has_a_row_small_models_first():
    value = {"s": {"code": 0.1, "all": 0.2}, "m": {"code": 0.3, "all": 0.4}, "l": {"code": 0.5, "all": 0.6}}
    a, b = both([value] * 2, [value] * 2)
    assert [(r["pool"], r["domain"]) for r in paired(a, b)] == [(p, d) for p in "sml" for d in ("all", "code")]


def test_not_a_number_is_left_out():
    a, b = both([{"x": 0.5, "y": 0.5}], [{"x": float("nan"), "y": 0.6}])
    assert [row["pool"] for row in paired(a, b)] == ["y"]
