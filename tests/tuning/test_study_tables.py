"""Tables of tuning."""

from __future__ import annotations

import pytest

from fedcodist.reports import studies
from fedcodist.tuning import trial, twins
from fedcodist.tuning.study import Search, Trial

pytestmark = pytest.mark.usefixtures("prepared")


@pytest.mark.parametrize("how", ["diverged", "refused"])
def test_a_winner_that_fails_on_a_fresh_seed_counts_as_nothing_and_is_told(base, how):
    won = trial.Outcome([(1, {"small": 0.4, "large": 0.6})], 1, 1, 0.0)
    seeds = {7: won, 8: trial.Outcome([], 0, 0, 0.0, **{how: "a reason"})}
    search = Search(base, {})
    winner = Trial(0, "complete", search, {}, won)
    rows = studies.fresh([twins.Tuned(search, [winner], winner, [(winner, seeds)])])
    assert [(row["pool"], row["accuracy"], row["failed"]) for row in rows] == [("small", 0.2, 1), ("large", 0.3, 1)]
    assert [row["fresh seeds, %"].split("(")[1] for row in studies.display_fresh(rows)] == ["1 failed)"] * 2
