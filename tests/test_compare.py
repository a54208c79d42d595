"""Statistics on runs, by numbers small enough to check by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedcodist.reports import compare
from fedcodist.reports.compare import arms, outcome, paired, points, taught, verdict


def run(
    kind: str, seed: int, accuracy: dict[str, Any] | None, steps: int = 0, sent: int = 1000, name: str = "demo", rounds: Any = ()
) -> Any:
    """A run that reached these accuracies ({pool: value} or {pool: {domain: value}}); None: it never finished."""
    by_domain = {p: a if isinstance(a, dict) else {"all": a} for p, a in (accuracy or {}).items()}
    result = {
        "seed": seed,
        "method": kind,
        "parameters": {pool: 10 * (i + 1) for i, pool in enumerate(by_domain)},
        "test": {pool: {d: {"accuracy": v} for d, v in of.items()} for pool, of in by_domain.items()},
        "table": {p: {q: 1.0 for q in by_domain if q != p} for p in by_domain},
        "cost": {"client_bytes": dict.fromkeys(by_domain, sent), "server_steps": steps},
    }
    path = Path("runs") / name / kind / f"seed-{seed}"
    config = {"name": name, "method": {"kind": kind}, "rounds": 8, "pools": {"large": {"teaches": {"temperature": 2.0}}}}
    return SimpleNamespace(path=path, config=config, rounds=list(rounds), timing=[], result=result if accuracy else None, notes=[])


def both(a: list[dict[str, Any]], b: list[dict[str, Any]], **more: Any) -> tuple[list[Any], list[Any]]:
    return [run("fedavg", i, x) for i, x in enumerate(a)], [run("merged", i, x, **more) for i, x in enumerate(b)]


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
    assert "Above zero: p. A loss, below zero: q. Not told apart from zero: r." in verdict(a, b)


def test_verdict_on_nothing_shown():
    a, b = both([{"x": 0.5, "y": 0.5}] * 2, [{"x": 0.6, "y": 0.4}, {"x": 0.4, "y": 0.6}])
    assert "Both intervals hold zero: no difference is shown." in verdict(a, b)


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


def test_points_never_hide_the_sign():
    assert [points(v) for v in (0.0192, 0.0004, -0.0004, -0.00001, 0.1)] == ["1.9", "0.04", "-0.04", "0.0", "10.0"]


def test_arms_are_ordered_and_named():
    found = arms([run("merged", 1, {"x": 1}), run("other", 0, None), run("merged", 0, None), run("fedavg", 0, {"x": 1})])
    seeds = {arm.label: [compare.seed_of(r) for r in arm.runs] for arm in found}
    assert list(seeds.items()) == [("FedAvg", [0]), ("MergedCodist", [0, 1]), ("other", [0])]
    two = arms([run("merged", 0, {"x": 1}, name="b"), run("fedavg", 0, {"x": 1}, name="a")])
    assert [arm.label for arm in two] == ["a: FedAvg", "b: MergedCodist"]
    assert compare.twin_of(two[1], two) is None  # a twin is of the same experiment


def test_agreement_is_of_the_last_quarter():
    pairs = [[0.5, 0.6]] * 6 + [[0.8, 0.9]] * 2
    rounds = [{"round": t, "pools": {"small": {"agreement": {"large": pair}}}} for t, pair in enumerate(pairs, 1)]
    b = [run("merged", 0, {"small": 0.6, "large": 0.7}, rounds=rounds)]
    arm, twin = arms(b)[0], arms([run("fedavg", 0, {"small": 0.5, "large": 0.7})])[0]
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
    assert compare.paired_series(a, b, lambda row: row["v"]) == [(1, 2.0, 1.0, 3.0), (2, 3.0, 2.0, 4.0)]


def test_results_have_means_spread_and_gain():
    rows = compare.results([r for pair in both([{"x": 0.4}, {"x": 0.6}], [{"x": 0.5}, {"x": 0.7}]) for r in pair])
    assert [(row["method"], row["seeds"]) for row in rows] == [("FedAvg", 2), ("MergedCodist", 2)]
    assert rows[0]["accuracy"] == pytest.approx(0.5) and rows[0]["spread"] == pytest.approx(0.02**0.5) and rows[0]["gain"] is None
    assert rows[1]["gain"] == pytest.approx(0.1)


def test_foreign_files_are_read_as_far_as_they_go():
    odd = SimpleNamespace(path=Path("x"), config={}, rounds=[3, {"round": "a"}, {"round": 1, "pools": 7}], timing=[], result=None, notes=[])
    (arm,) = arms([odd])
    assert compare.seed_of(odd) == "x" and compare.rounds_done(odd) == 1 and compare.pools([odd]) == [] and taught(arm, None) == []


def test_paths_of_several_methods_or_of_other_data_are_refused(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from fedcodist import runs
    from fedcodist.errors import ConfigError

    def run(path):
        name, kind = path.parts[-3:-1]
        result = {"seed": 0, "test": {"p": {"all": {"accuracy": 0.5}}}}
        config = {"method": {"kind": kind}, "data": name, "pools": {"p": {}}}
        return SimpleNamespace(path=path, config=config, rounds=[], timing=[], result=result, notes=[])

    places = [tmp_path / name / kind / "seed-0" for name in ("x", "y") for kind in ("fedavg", "merged")]
    monkeypatch.setattr(runs, "find_all", lambda paths: [p for p in places if paths[0] in (p, *p.parents)])
    monkeypatch.setattr(runs, "read", run)
    with pytest.raises(ConfigError, match="holds fedavg and merged; allowed one method"):
        compare.of_paths([tmp_path / "x", tmp_path / "y"])
    with pytest.raises(ConfigError, match="trained on different data"):
        compare.of_paths([tmp_path / "x/fedavg", tmp_path / "y/merged"])
    assert compare.of_paths([tmp_path / "x/fedavg", tmp_path / "x/merged"])[0]["difference"] == 0
