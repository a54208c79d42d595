"""`fedcodist tune`: what is printed and in what order, twins, and what is refused."""

from __future__ import annotations

import json
import re

import pytest
from tuned import by_alpha, by_alpha_or, finish, searched

from fedcodist.tuning import dotted, ranking, tune, twins

pytestmark = pytest.mark.usefixtures("prepared")


def test_all_of_the_front_is_put_to_the_test_of_fresh_seeds(base, tmp_path, pretend, call):
    pretend(lambda one, t: {"small": 0.1 * one.method.distill.steps, "large": 0.9 - 0.1 * one.method.distill.steps})
    (tmp_path / "mine.toml").write_text("method.distill.steps = { low = 1, high = 4 }\n")
    given = (
        "--space",
        tmp_path / "mine.toml",
        "--objective",
        "pareto",
        "--trials",
        12,
        "--top",
        12,
        "--confirm",
        2,
        "--format",
        "json",
        "--quiet",
    )
    code, said, _ = call(*given)
    assert code == 0
    shown = json.loads(said)
    steps = {row["trial"]: row["method.distill.steps"] for row in shown["trials"]}
    assert {steps[row["trial"]] for row in shown["fresh"]} == {1, 2, 3, 4}
    for row in shown["fresh"]:
        assert row["accuracy"] == pytest.approx(row["won with"]) and row["seeds"] == 2
        assert row["pool"] != "small" or row["accuracy"] == pytest.approx(0.1 * steps[row["trial"]])
    assert call(*given)[1] == said


def test_a_trial_that_diverges_is_worth_nothing_and_no_failure(base, tmp_path, pretend, call):
    pretend(lambda one, t: by_alpha(one, t) if dotted.get(one, "method.alpha") < 0.75 or t < 3 else -1)
    found = finish(searched(base, trials=12), tmp_path / "out")
    diverged = [t for t in found if t.state == "diverged"]
    assert 0 < len(diverged) < 8 and {t.value for t in diverged} == {0.0} and len(found) == 12
    assert [t.state for t in ranking.ranked(found)[-len(diverged) :]] == ["diverged"] * len(diverged)
    code, said, errors = call("--space", "distillation", "--trials", 14, "--top", 20)
    assert code == 0 and "diverged" in said
    pretend(lambda one, t: -1)
    code, said, errors = call("--space", "distillation", "--trials", 2, "--name", "bad")
    assert (
        code == 7
        and said == ""
        and errors.splitlines()[0].endswith("trial 0: diverged: the server model of pool small is not finite in round 1; 0 s left")
    )
    assert "error: tune merged: no trial came to its end: the server model of pool small is not finite in round 1" in errors


def test_values_that_are_refused_together_are_a_result_and_the_study_goes_on(base, tmp_path, call):
    (tmp_path / "mine.toml").write_text("pools.small.clients.take = { choices = [3, 10] }\npools.small.cohort = { choices = [2, 10] }\n")
    given = (
        "--set",
        "pools.small.clients.take=10",
        "--set",
        "pools.small.cohort=2",
        "--set",
        "rounds=1",
        "--space",
        tmp_path / "mine.toml",
    )
    code, said, errors = call(*given, "--trials", 8)
    assert code == 0 and "tune merged: 8 of 8" in errors, errors
    assert "refused: pools.small.cohort: got 10; allowed at most 3 clients" in errors and re.search(r"refused +0\.00", said)
    code, again, errors = call(*given, "--trials", 8)
    assert (code, again) == (0, said) and "is repeated" not in errors


def test_twin_first_with_as_many_trials_and_its_rates(base, tmp_path, pretend, call):
    trained = pretend(
        lambda one, t: 0.5 + (0.2 - abs(one.pools["small"].server.lr - 0.05)) + (one.method.kind == "merged") * one.seeds[0] / 100
    )
    code, said, errors = call("--twin", "--space", "distillation", "--trials", 6)
    assert code == 0
    lines = [line.split(":")[0] for line in errors.splitlines()]
    assert lines == ["tune fedavg"] * 6 + ["rates of merged"] + ["tune merged"] * 6 + ["fresh seeds"] * 7
    assert "fresh seeds: 0, 1, 2\n" in errors and "fresh seeds: 6 of 6: merged seed 2: " in errors
    twin = twins.twin(searched(base, trials=6))
    best = ranking.winner(tune.trials(twin, tmp_path / "out"))
    assert best.value > 0.6 and set(twin.space) == {"pools.*.work.lr", "pools.small.server.lr", "pools.large.server.lr"}
    fixed = twins.fixed(searched(base, trials=6), twin, best)
    assert fixed.config.pools["small"].server.lr == best.values["pools.small.server.lr"] != base.pools["small"].server.lr
    assert {p.work.lr for p in fixed.config.pools.values()} == {best.values["pools.*.work.lr"]}
    own = tune.trials(fixed, tmp_path / "out")[0]
    assert own.own and own.config.pools["large"].server.lr == best.values["pools.large.server.lr"]
    assert re.search(r"MergedCodist +0 +small +\d\d\.\d +\d\d\.\d \+- 0\.0 +\+7\.0 \[7\.0, 7\.0\]", said), said
    assert f"best: {tmp_path}/out/small/fedavg/best.toml\nbest: {tmp_path}/out/small/merged/best.toml\n" in said
    again = [f"fedcodist run {tmp_path}/out/small/{kind}/best.toml" for kind in ("fedavg", "merged")]
    assert said.splitlines()[-3:-1] == again and said.splitlines()[-1].startswith(
        f"fedcodist compare runs/small-tuned-{best.number}/fedavg runs/small-tuned-"
    )
    # The same command again trains nothing, and shows the same.
    trained.clear()
    code, again, _ = call("--twin", "--space", "distillation", "--trials", 6, "--quiet")
    assert (code, again, trained) == (0, said, [])
    # Without --twin the rates of the twin that is there can be had too.
    code, third, errors = call("--rates-from", "twin", "--space", "distillation", "--trials", 6, "--quiet", "--format", "json")
    assert (code, errors, trained) == (0, "", [])
    shown = json.loads(third)
    assert {row["method"] for row in shown["trials"]} == {"merged"} and shown["fresh"] == [] and len(shown["trials"]) == 6
    assert shown["trials"][0]["method.alpha"] == 0.7


def test_more_trials_go_on_where_the_twin_has_another_winner(tmp_path, pretend, call):
    trained = pretend(lambda one, t: 0.2 + len(trained) / 1000)  # the last trial is the best
    given = ("--twin", "--space", "distillation", "--confirm", 0)
    code, _, errors = call(*given, "--trials", 3)
    assert code == 0 and errors.splitlines()[3] == "rates of merged: those of trial 2 of its twin"
    code, said, errors = call(*given, "--trials", 6)
    assert code == 0 and "rates of merged: those of trial 2 of its twin\n" in errors
    assert "note: MergedCodist stands on the rates of trial 2 of its twin, with which it was begun, and trial 5 is better by now" in said
    assert "tune fedavg: 6 of 6" in errors and "tune merged: 6 of 6" in errors and "MergedCodist: trial 5" in said
    for form in ("json", "csv"):
        code, shown, errors = call(*given, "--trials", 6, "--quiet", "--format", form)
        assert "trial 5 is better by now" in (json.loads(shown)["notes"][0] if form == "json" else errors)
    code, said, errors = call(*given, "--trials", 3, "--restart")
    assert code == 0 and "rates of merged: those of trial 2 of its twin\n" in errors and "note: " not in said


def test_a_twin_that_comes_later_gets_as_many_trials(base, tmp_path, pretend, call):
    pretend(by_alpha_or(0.5))
    assert call("--trials", 7, "--quiet")[0] == 0
    code, said, errors = call("--twin", "--trials", 3, "--confirm", 2)
    assert code == 0 and "merged has had 7 trials by now, and its twin gets as many" in errors
    assert [len(tune.trials(s, tmp_path / "out")) for s in (twins.twin(searched(base, "all")), searched(base, "all"))] == [7, 7]
    assert call("--twin", "--trials", 3, "--confirm", 2, "--quiet")[1] == said


def test_the_commands_for_a_clamped_study_clamp(pretend, call, tmp_path):
    pretend(lambda one, t: 0.5)
    code, said, _ = call("--set", "pools.large.cohort=99", "--clamp", "--twin", "--trials", 2, "--quiet")
    runs = [line for line in said.splitlines() if line.startswith("fedcodist run")]
    assert code == 0 and len(runs) == 2 and all(line.endswith("best.toml --clamp") for line in runs)
    assert "best.toml --clamp\n" in (tmp_path / "out/small/merged/best.toml").read_text()


def test_twin_of_a_whole_space(base, tmp_path, pretend, call):
    pretend(lambda one, t: 0.5)
    # A space without rates: nobody but the twin would have tuned ones.
    code, _, errors = call("--twin", "--only", "method.alpha", "--trials", 6, "--confirm", 0, "--name", "alpha")
    assert code == 0 and "rates of merged: those of trial " in str(errors)
    code, said, _ = call("--twin", "--trials", 2, "--confirm", 0, "--quiet", "--format", "csv")
    rows = said.splitlines()
    assert code == 0 and len(rows) == 5 and rows[0].startswith("method,trial,state,value,accuracy small,accuracy large,server_flops,rounds")
    assert [row.split(",")[0] for row in rows[1:]] == ["fedavg"] * 2 + ["merged"] * 2
    merged = tune.trials(searched(base, "all"), tmp_path / "out")
    assert len(merged[0].values) == 12 and merged[0].config == base, "nothing is taken from the twin unasked"


@pytest.mark.parametrize("form", ["table", "json", "csv", "md", "latex"])
def test_formats(pretend, call, form):
    pretend(by_alpha)
    code, said, errors = call(
        "--space", "distillation", "--only", "method.alpha", "--trials", 3, "--confirm", 2, "--quiet", "--format", form
    )
    assert code == 0 and errors == "" and "merged" in said.lower() and "method.alpha" in said.replace("\\_", "_")
    if form == "json":
        shown = json.loads(said)
        assert [row["seeds"] for row in shown["fresh"]] == [2, 2] and len(shown["trials"]) == 3


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--trials", "0"], "--trials: got 0; allowed an integer >= 1"),
        (["--jobs", "0"], "--jobs: got 0; allowed an integer >= 1"),
        (["--confirm", "-1"], "--confirm: got -1; allowed an integer >= 0"),
        (["--trials", "x"], "argument --trials: invalid int value: 'x'"),
        (["--space", "rate"], "--space: got 'rate'; allowed rates | distillation | all, or a TOML file (did you mean rates?)"),
        (["--space", "no.toml"], "no.toml: No such file or directory"),
        (["--only", "alpha"], "--only: got 'alpha'; allowed a pattern that matches one of"),
        (["--rates-from", "twin"], "fedavg: there is no study here; fedcodist tune with --twin makes one"),
        (
            ["--set", "method.kind='fedavg'", "--set", "method={ kind = 'fedavg' }", "--rates-from", "twin"],
            "--rates-from: got it for fedavg",
        ),
        (["--set", "method={ kind = 'fedavg' }", "--twin"], "--twin: got it for fedavg; allowed for a method that has a twin"),
        (["--twin", "--rates-from", "twin", "--space", "rates", "--trials", "1"], "--rates-from: got a space that has nothing else"),
        (["--set", "pools.large.cohort=99"], "pools.large.cohort: got 99; allowed at most 4 clients"),
        (["--trials", "2", "--trials", "3"], "--trials is given twice"),
    ],
)
def test_bad_commands(pretend, call, argv, words):
    trained = pretend(lambda one, t: 0.5)
    code, said, errors = call(*argv)
    last = errors.splitlines()[-1]
    assert code == 2 and said == "" and last.startswith("error: ") and words in last and not trained
