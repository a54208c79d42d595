"""Whole studies: what is refused before them, and the files that they leave."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import pytest
from tuned import PERIODIC, finish, searched

from fedcodist import config, runs, settings
from fedcodist.cli import main
from fedcodist.errors import ConfigError
from fedcodist.tuning import ranking, space, study
from fedcodist.tuning.study import Search

pytestmark = pytest.mark.usefixtures("prepared")


def test_what_the_data_refuses_is_refused_before_the_first_trial(base, tmp_path, pretend):
    trained = pretend(lambda one, t: 0.5)
    ranges = {"batch": space.Range(("method.distill.batch",), choices=(20, 10_000))}
    with pytest.raises(ConfigError, match="method.distill.batch: got 10000; allowed at most the 200 public examples"):
        finish(Search(base, ranges), tmp_path)
    assert not trained and not any(tmp_path.rglob("study.journal"))


def test_the_winners_file_is_the_winner_and_runs(read, tmp_path, capsys):
    base = read(PERIODIC, "topology={ small = { large = 1.0 }, large = { small = 1.0 } }", "pools.small.clients.where={ capacity = 'low' }")
    found = finish(searched(base), tmp_path)
    best = ranking.winner(found)
    path = study.place(tmp_path, base) / "best.toml"
    assert config.read(path) == replace(best.config, name=f"small-tuned-{best.number}", seeds=(0, 1, 2)), "seeds that no trial has seen"
    head = path.read_text().split("task =")[0]
    assert (
        f"# The best of 3 trials by random draws over {len(best.search.space)} parameters, trained on seed 7 and judged on held-out data:"
        in head
    )
    assert f"trial {best.number}, mean accuracy {best.value:.4f} (small " in head and f"Run it: fedcodist run {path}" in head
    assert f"# tuned: pools.small.learns.lr = {best.get('pools.small.learns.lr')}, was 0.001" in head
    assert main.main(["run", str(path), "--seeds", "7", "--out", str(tmp_path / "runs"), "--quiet"]) == 0
    (run,) = runs.find(tmp_path / "runs")
    result = runs.read(run).result
    assert {pool: result["held_out"][pool]["all"]["accuracy"] for pool in base.pools} == best.outcome.accuracy, (
        "what tuning saw is what a run gives"
    )
    capsys.readouterr()
    rows = [json.loads(line) for line in (path.parent / "trials.jsonl").read_text().splitlines()]
    assert [row["trial"] for row in rows] == [t.number for t in found] and [row["value"] for row in rows] == [t.value for t in found]
    assert rows[1]["pools.small.learns.lr"] == found[1].values["pools.small.learns.lr"] and rows[1]["state"] in ("complete", "pruned")
    assert rows[0]["trained"] == rows[0]["rounds"] == 4 and rows[1]["trained"] == 2 and rows[0]["seconds"] > 0
    assert rows[0]["curve"] == [[t, accuracy] for t, accuracy in found[0].outcome.curve]


def test_three_pools(tmp_path):
    base = config.read(
        "quick/toy", ["rounds=1", "pools.mid={ like = 'small', clients = { take = 6 }, model = { kind = 'mlp', hidden = [24] } }"]
    )
    found = finish(searched(base, trials=2), tmp_path)
    assert len(found[0].values) == 13 and all(set(t.outcome.accuracy) == {"small", "mid", "large"} for t in found)
    assert found[1].value == pytest.approx(sum(found[1].outcome.accuracy.values()) / 3)
    assert jax.tree.leaves(settings.plain(config.read(study.place(tmp_path, base) / "best.toml")))
