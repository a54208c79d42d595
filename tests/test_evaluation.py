"""In which rounds a run is evaluated, and that it changes nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedcodist import config, runs
from fedcodist.errors import ConfigError
from fedcodist.methods import PeriodicCodist
from fedcodist.reproduce.budgets import methods
from fedcodist.runs import evaluation, session


def test_without_a_setting_there_are_about_twenty_evaluations():
    base = config.read("quick/toy", ["rounds=50"])
    assert evaluation.interval(replace(base, evaluate_every=0)) == 3
    assert [t for t in range(1, 51) if evaluation.is_regular(replace(base, evaluate_every=20), t)] == [20, 40, 50]


def test_evaluate_after_changes_what_is_seen_and_nothing_else(tmp_path):
    base = config.read("quick/toy", ["rounds=10", f"method={methods(4, 3, 2, 20)['periodic']}", "evaluate_every=10"])
    more = replace(base, evaluate_after=(1, 3))
    assert isinstance(base.method, PeriodicCodist) and config.identity(base) == config.identity(more)
    task, seen, bits = base.task.load(), [], []
    for name, made in (("base", base), ("more", more)):
        for _ in session.perform(config.assemble(replace(made, name=name), task, 0), tmp_path):
            pass
        path = tmp_path / name / "periodic" / "seed-0"
        seen.append([row["round"] for row in runs.read(path).rounds if "held_out" in row])
        bits.append({file.name: file.read_bytes() for file in (path / "checkpoints/000010").glob("*.safetensors")})
    assert seen == [[4, 8, 10], [3, 4, 5, 7, 8, 9, 10]]  # before 4 and 8, at them, and 1 and 3 rounds later (7 = 4 + 3)
    assert bits[0] == bits[1] and len(bits[0]) == 2
    for _ in session.perform(config.assemble(replace(base, name="more"), task, 0), tmp_path):  # the same run, whatever is evaluated
        pass
    with pytest.raises(ConfigError, match=r"evaluate_after\[0\]: got 0; allowed an integer >= 1"):
        config.read("quick/toy", ["evaluate_after=[0]"])


def test_only_periodic_codistillation_is_looked_around():
    merged = config.read("quick/toy", ["rounds=10", "evaluate_every=10", "evaluate_after=[1]"])
    assert [t for t in range(1, 11) if evaluation.is_due(merged, t)] == [10]
