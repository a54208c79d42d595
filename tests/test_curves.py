"""Values over rounds, and who taught whom."""

from __future__ import annotations

from typing import Any

import pytest
from made_runs import run

from fedcodist.reports.arms import group
from fedcodist.reports.curves import paired_series, taught


def test_agreement_is_of_the_last_quarter():
    pairs = [[0.5, 0.6]] * 6 + [[0.8, 0.9]] * 2
    rounds = [{"round": t, "pools": {"small": {"agreement": {"large": pair}}}} for t, pair in enumerate(pairs, 1)]
    b = [run("merged", 0, {"small": 0.6, "large": 0.7}, rounds=rounds)]
    arm, twin = group(b)[0], group([run("fedavg", 0, {"small": 0.5, "large": 0.7})])[0]
    rows = {(row["teacher"], row["student"]): row for row in taught(arm, twin)}
    row = rows["large", "small"]
    assert (row["before"], row["after"], row["weight"], row["temperature"]) == pytest.approx((0.8, 0.9, 1.0, 2.0))
    assert row["gain"]["difference"] == pytest.approx(0.1)
    assert rows["small", "large"]["before"] is None


def test_paired_series_is_taken_seed_by_seed():
    def rows(*values: float) -> list[dict[str, Any]]:
        return [{"round": t, "v": v} for t, v in enumerate(values, 1)]

    a = [run("fedavg", 0, {"x": 1}, rounds=rows(1, 2)), run("fedavg", 1, {"x": 1}, rounds=rows(5, 6))]
    b = [run("merged", 0, {"x": 1}, rounds=rows(2, 4)), run("merged", 1, {"x": 1}, rounds=rows(8, 10))]
    assert paired_series(a, b, lambda row: row["v"]) == [(1, 2.0, 1.0, 3.0), (2, 3.0, 2.0, 4.0)]
