"""The Python API is as good as the command line: the same runs, and plain values where parts are expected."""

from __future__ import annotations

import optax
import pytest

import fedcodist as fc
from fedcodist import config
from fedcodist.cli.main import main
from fedcodist.errors import ConfigError
from fedcodist.schedule import Constant, Linear
from fedcodist.servers import Adam
from fedcodist.settings import SettingError
from fedcodist.testing import FEATURES, TASK

MODEL = fc.MLP((4,)).build((FEATURES,), 3)


def test_a_run_from_python_is_the_commands_run(tmp_path, monkeypatch):
    monkeypatch.setattr("fedcodist.reports.report.available", lambda: False)
    done = fc.run("quick/toy", tmp_path / "a", rounds=2, seeds=[0], twin=True, quiet=True)
    assert [path.relative_to(tmp_path / "a").as_posix() for path in done.paths] == ["toy/fedavg/seed-0", "toy/merged/seed-0"]
    assert {row["method"] for row in done.rows} == {"FedAvg", "MergedCodist"} and done.verdicts and "MergedCodist" in repr(done)
    assert done.report == tmp_path / "a/toy/report.html" and done.report.is_file() and done.open().model("small").round == 2
    assert main(["run", "quick/toy", "--set", "rounds=2", "--seeds", "0", "--out", str(tmp_path / "b"), "--quiet"]) == 0
    for file in ("config.json", "result.json", "rounds.jsonl", "checkpoints/000002/small.safetensors"):
        assert (done.paths[1] / file).read_bytes() == (tmp_path / "b/toy/merged/seed-0" / file).read_bytes()
    before = {path: path.stat().st_mtime_ns for path in done.paths[1].rglob("*.safetensors")}
    again = fc.run(fc.load("quick/toy", rounds=2, seed=0), tmp_path / "a", quiet=True)  # an experiment's own seed; skipped, as it is done
    assert again.report == done.report and "FedAvg" in again.report.read_text("utf-8")  # of all runs there, not only of these
    assert again.paths == done.paths[1:] and before == {path: path.stat().st_mtime_ns for path in before}


def test_keys_of_a_config_are_keywords():
    experiment = fc.load("quick/toy", rounds=2, method={"kind": "merged", "alpha": 0.25}, **{"pools.small.cohort": 3})
    assert experiment.rounds == 2 and experiment.federation.pools["small"].cohort == 3
    assert experiment.config == config.read("quick/toy", ["rounds=2", 'method={kind="merged", alpha=0.25}', "pools.small.cohort=3"])
    with pytest.raises(ConfigError, match=r"round: got an unknown key.*did you mean rounds\?"):
        fc.load("quick/toy", round=2)


@pytest.mark.parametrize(
    ("what", "keys", "said"),
    [
        (7, {}, "run: got a int; allowed a path, a Config or an experiment of fedcodist.load"),
        (config.read("quick/toy"), {"rounds": 2}, "run: got the key rounds for what is read already; allowed keys beside the path"),
        ("quick/toy", {"seeds": [1, 1]}, r"seeds: got \[1, 1\]; allowed whole numbers from 0, each once"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(tmp_path, what, keys, said):
    with pytest.raises(ConfigError, match=said):
        fc.run(what, tmp_path, **keys)


def test_plain_values_stand_for_parts():
    one, two = (fc.Pool(name, MODEL, TASK.clients, cohort=3, server=Adam(lr=0.02)) for name in ("one", "two"))
    by_hand = fc.Pool("two", MODEL, TASK.clients, cohort=3, server=optax.sgd(1.0), lr=0.1)
    assert by_hand.lr == Constant(0.1) and one.server is Adam(lr=1.0, decay="none").optimizer() and one.lr == Linear(0.02, 0.0)
    fed = fc.Federation(TASK, [one, two])
    assert list(fed.pools) == ["one", "two"]
    experiment = fc.Experiment(fed, fc.MergedCodist(0.7), 4)
    assert [experiment.federation.pools["one"].lr(t) for t in (1, 4)] == [0.02, pytest.approx(0.005)]  # over the experiment's rounds
    assert fc.MergedCodist(0.7) == fc.MergedCodist(Constant(0.7)) and fc.MergedCodist({"one": 1}).alpha["one"](3) == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fc.MergedCodist(1.5), "MergedCodist.alpha: got 1.5; allowed a number >= 0 and <= 1, or a schedule"),
        (lambda: fc.Pool("a", MODEL, {}, 1, lr="0.1"), "Pool.lr: got '0.1'; allowed a number >= 0 and <= 1000.*without quotes"),
        (lambda: fc.Pool("a", fc.MLP(), {}, 1), r"Pool.model: got MLP; allowed a Model: MLP\(\(32,\)\).build\(shape, classes\)"),
        (lambda: fc.Pool("a", MODEL, {}, 1, server="adam"), "Pool.server: got str; allowed an optax optimizer"),
        (
            lambda: fc.Pool("a", MODEL, {}, 1, server=Adam(), lr=0.1),
            "Pool.lr: got a rate, and a server with its own; allowed one of the two",
        ),
        (lambda: fc.Federation(TASK, [fc.Pool("a", MODEL, TASK.clients, 1)] * 2), "pools: got two named a; allowed each name once"),
        (lambda: fc.Experiment(fc.Federation(TASK, [fc.Pool("a", MODEL, TASK.clients, 1)]), fc.FedAvg(), 0), "Experiment.rounds: got 0"),
    ],
)
def test_mistakes_are_refused_where_they_are_made(make, said):
    with pytest.raises(SettingError, match=said):
        make()
