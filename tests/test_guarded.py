"""The guard: lessons that harm are refused, others are taken, and a run with it resumes to the bit."""

import dataclasses
import json

import numpy as np
import pytest
from worlds import SHORT, finish, gauss_federation, methods, same_bits

from fedcodist import config, keys, runs, tree
from fedcodist.cli import main
from fedcodist.distill import Distiller
from fedcodist.evaluate import evaluate
from fedcodist.federation import params_of
from fedcodist.methods import FedAvg, MergedCodist, PeriodicCodist
from fedcodist.methods.guarded import Guard, Guarded, between
from fedcodist.runs import cost
from fedcodist.settings import SettingError
from fedcodist.train import Experiment, train

NEVER = Guard(doubt=100.0)


def guarded(guard, pools=("small", "large")):
    fed = gauss_federation(pools)
    return Guarded(**{f.name: getattr(fed, f.name) for f in dataclasses.fields(fed)}, guard=guard)


def harmful(fed):
    """Lessons at a learning rate that destroys a model."""
    pools = {n: dataclasses.replace(p, learns=dataclasses.replace(p.learns, lr=100.0)) for n, p in fed.pools.items()}
    return dataclasses.replace(fed, pools=pools)


@pytest.mark.parametrize("name", ["periodic", "merged", "steady", "feddf", "takfl"])
def test_a_guard_that_never_refuses_changes_no_bit(name):
    method = methods()[name]
    assert same_bits(finish(guarded(NEVER), method).state, finish(gauss_federation(), method).state)


@pytest.fixture
def by_length(monkeypatch):
    """Accuracies that fall with the length of a model's parameters, so that a harmful lesson is surely worse."""
    lengths = np.linspace(1.0, 1.1, 5)
    monkeypatch.setattr(Guarded, "_accuracies", lambda self, pool, params, data: lengths / (1 + float(tree.norm(params))))


def test_a_harmful_lesson_is_refused_and_the_round_is_plain(by_length):
    plain = finish(gauss_federation(), FedAvg(), rounds=3).state
    for method in (MergedCodist(0.5, SHORT), PeriodicCodist(2, SHORT)):
        refused = finish(harmful(guarded(Guard())), method, rounds=3)
        assert same_bits(params_of(refused.state), params_of(plain))
        assert not same_bits(params_of(finish(harmful(gauss_federation()), method, rounds=3).state), params_of(plain))


def test_a_refusal_is_journaled_with_its_accuracies(by_length):
    steps = [*train(Experiment(harmful(guarded(Guard())), PeriodicCodist(2, SHORT), 2))]
    for info in steps[1].info.values():
        assert info["guard"]["share"] == 0.0 and info["guard"]["after"] < info["guard"]["before"]
        assert "codistilled" not in info and "distill_loss" in info
    assert all("guard" not in info for info in steps[0].info.values())


def test_on_the_way_to_a_student_the_best_place_is_taken(by_length):
    fed = harmful(guarded(Guard(shares=(0.5, 1e-9, 1.0), doubt=100.0)))  # a step of nearly nothing beside half and all of the harm
    (step,) = [s for s in train(Experiment(fed, PeriodicCodist(2, SHORT), 2)) if s.t == 2]
    assert {info["guard"]["share"] for info in step.info.values()} == {1e-9}


def test_accuracies_are_those_of_the_evaluation():
    fed = guarded(Guard())
    theta = params_of(finish(fed, FedAvg(), rounds=1).state)
    data = fed._rows(keys.root(0))
    groups = fed._accuracies("small", theta["small"], data)
    rows = [len(part) for part in np.array_split(np.arange(len(data.x)), len(groups))]
    assert np.average(groups, weights=rows) == pytest.approx(evaluate(fed, theta)["small"]["all"]["accuracy"])


def test_between_by_hand():
    start, end = {"w": np.array([1.0])}, {"w": np.array([5.0])}
    assert between(start, end, 0.25)["w"] == pytest.approx([2.0]) and between(start, end, 1.0) is end


def test_ranges():
    with pytest.raises(SettingError, match="Guard.rows: got 10; allowed an integer >= 100"):
        Guard(rows=10)
    with pytest.raises(SettingError, match="Guard.doubt"):
        Guard(doubt=-1.0)


def server_operations(path):
    result = runs.read(path).result
    assert result is not None
    return result["cost"]["server_flops"]["small"]


def test_in_a_config_it_is_counted_resumed_and_told(tmp_path, capsys):
    given = ["--set", "guard={ rows = 100 }", "--set", "method={ kind = 'periodic', period = 2, distill = { steps = 4, batch = 10 } }"]
    command = ["run", "quick/toy", *given, "--set", "rounds=4", "--quiet", "--out", str(tmp_path / "a")]
    assert main.main(command) == 0
    path = runs.run_path(tmp_path / "a", "toy", "periodic", 0)
    rows = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    assert ["guard" in row["pools"]["small"] for row in rows] == [False, True, False, True]
    assert "guard" not in config.plain(config.read("quick/toy"))  # so that digests hold
    spent = server_operations(path)
    assert main.main([*command[:2], *given[2:], *command[6:-1], str(tmp_path / "b")]) == 0  # the same without the guard
    without = server_operations(runs.run_path(tmp_path / "b", "toy", "periodic", 0))
    assert spent > without
    planned = cost.expected(
        config.build(config.read("quick/toy", [*given[1::2], "rounds=4"]), 0).federation, PeriodicCodist(2, Distiller(4, 10)), 4
    )
    assert planned["server_flops"]["small"] == pytest.approx(spent)


def test_the_report_tells_how_many_lessons_were_refused(tmp_path, by_length):
    harm = ["--set", "pools.small.learns.lr=100.0", "--set", "pools.large.learns.lr=100.0"]
    method = "method={ kind = 'periodic', period = 2, distill = { steps = 4, batch = 10 } }"
    more = ["--set", "guard={}", "--set", method, "--set", "rounds=4", "--quiet", "--out", str(tmp_path)]
    assert main.main(["run", "quick/toy", *harm, *more]) == 0
    assert "0 %; a guard refused 2 lessons" in (tmp_path / "toy" / "report.html").read_text()
