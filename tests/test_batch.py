"""Several runs: which seeds, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedcodist import config
from fedcodist.errors import ConfigError
from fedcodist.runs import batch


def test_seeds_are_the_configs_or_those_that_are_there_or_drawn(tmp_path):
    base = replace(config.read("quick/toy"), seeds=())
    (drawn,), note = batch.choose_seeds(base, tmp_path)
    assert 0 <= drawn < 2**31 and note == f"no seed given: drew {drawn}, kept in the run directory"
    for name in ("seed-3", "seed-12", "seed-x"):
        (tmp_path / base.name / base.method.kind / name).mkdir(parents=True)
    assert batch.choose_seeds(base, tmp_path) == ([12, 3], "")
    assert batch.choose_seeds(replace(base, seeds=(5, 1)), tmp_path) == ([5, 1], "")


def test_arms_are_checked_at_once_and_run_seed_by_seed(tmp_path):
    base = config.read("quick/toy", ["rounds=1"])
    arms, task, wrapped = [config.twin(base), base], base.task.load(), []
    with pytest.raises(ConfigError, match="cohort: got 99"):
        batch.perform([*arms, config.read("quick/toy", ["pools.large.cohort=99"])], task, [0], tmp_path)
    events = list(batch.perform(arms, task, [1, 0], tmp_path, wrap=lambda run: wrapped.append(run) or run))
    over = [(event.seed, event.config.method.kind) for event in events if event.kind == "finished"]
    assert over == [(1, "fedavg"), (1, "merged"), (0, "fedavg"), (0, "merged")] and len(wrapped) == 4
