"""What is said of a comparison: gains, losses, hints and costs."""

from __future__ import annotations

import pytest
from made_runs import both, run

from fedcodist.reports.verdicts import outcome, verdict


def test_verdict_on_gains():
    reached = [{"small": 0.51, "large": 0.64}, {"small": 0.52, "large": 0.65}, {"small": 0.515, "large": 0.63}]
    a, b = both([{"small": 0.5, "large": 0.6}] * 3, reached, steps=1280)
    assert verdict(a, b) == (
        "MergedCodist against its FedAvg twin, test accuracy over 3 paired seeds: small +1.5 points [0.3, 2.7], large +4.0 [1.5, 6.5]. "
        "Both gains are above zero. No extra client bytes; +1,280 server steps."
    )


def test_verdict_on_a_loss_is_a_loss():
    a, b = both([{"x": 0.5}] * 3, [{"x": 0.48}, {"x": 0.481}, {"x": 0.479}])
    said = verdict(a, b)
    assert "x -2.0 points [-2.2, -1.8]" in said and "This is a loss: the interval is below zero." in said and "above zero" not in said
    a, b = both([{"x": 0.5, "y": 0.5}] * 2, [{"x": 0.4, "y": 0.4}] * 2)
    assert "Both are losses" in verdict(a, b)


def test_verdict_on_mixed_pools_names_each():
    a, b = both([{"p": 0.5, "q": 0.5, "r": 0.5}] * 3, [{"p": 0.55 + d, "q": 0.45 + d, "r": 0.5 + 9 * d} for d in (-0.001, 0.0, 0.001)])
    assert "A gain, above zero: p. A loss, below zero: q. No difference is shown: r." in verdict(a, b)


def test_verdict_on_nothing_shown():
    a, b = both([{"x": 0.5, "y": 0.5}] * 2, [{"x": 0.6, "y": 0.4}, {"x": 0.4, "y": 0.6}])
    assert "Both intervals contain zero: no difference is shown." in verdict(a, b)


def test_verdict_on_one_seed_is_a_hint():
    said = verdict(*both([{"x": 0.5}], [{"x": 0.6}]))
    assert "over one seed: x +10.0 points. One seed: a hint, not evidence." in said and "above zero" not in said


def test_verdict_without_a_twin_and_without_a_result():
    _, b = both([], [{"x": 0.5}])
    assert verdict([], b) == "MergedCodist, test accuracy over one seed: x 50.0 %. No twin: run with --twin."
    assert "no seed is finished in both" in verdict([run("fedavg", 0, {"x": 0.5})], [run("merged", 0, None)])
    assert "no run has finished" in verdict([], [run("merged", 0, None)])
    assert verdict([], []) == "No runs."


def test_extra_client_bytes_are_not_hidden():
    a, b = both([{"x": 0.5}] * 2, [{"x": 0.6}] * 2, sent=1100)
    assert "+10.0 % client bytes; no extra server steps." in verdict(a, b)


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0.1, 0.2, "gain"), (-0.2, -0.1, "loss"), (-0.1, 0.1, "unclear"), (0.0, 0.1, "unclear"), (None, None, "hint")]
)
def test_outcome(low, high, said):
    assert outcome({"low": low, "high": high}) == said
