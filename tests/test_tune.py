"""`fedcodist tune`: what is searched, how trials are counted, kept, shared, stopped and judged, and that nobody looks at the test split.

Most studies here have a training that is made up (`pretend`), so that the numbers can be foreseen; what is about training trains.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from worlds import same_bits

from fedcodist import config, keys, runs, settings
from fedcodist.cli import main
from fedcodist.cli import tune as tune_cli
from fedcodist.errors import ConfigError, DataError, Failure
from fedcodist.evaluate import evaluate
from fedcodist.federation import params_of
from fedcodist.runs import checkpoint
from fedcodist.runs.session import Signals
from fedcodist.storage import durable, lock
from fedcodist.tasks import Toy
from fedcodist.tuning import space, study, trial, tune
from fedcodist.types import Split

ROOT = Path(__file__).resolve().parent.parent
TEXT = """\
rounds = 4
seeds = [7]
task = "toy"

[pools.small]
model = { kind = "mlp", hidden = [4] }
cohort = 4
work = { kind = "local_sgd", lr = 0.1, batch = 10 }
server = { kind = "adam", lr = 0.03 }

[pools.large]
like = "small"
model = { kind = "mlp", hidden = [8] }
clients = { take = 4 }

[method]
kind = "merged"
alpha = 0.7
distill = { steps = 2, batch = 20 }
"""
PERIODIC = "method={ kind = 'periodic', period = 3, distill = { steps = 2, batch = 20 } }"
EVERY = "method.alpha={ kind = 'every', k = 3, value = 0.5 }"


pytestmark = pytest.mark.usefixtures("prepared")


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def base(file) -> config.Config:
    return config.read(file)


@pytest.fixture
def read(file):
    return lambda *assignments: config.read(file, assignments)


@pytest.fixture
def call(capsys, file, tmp_path):
    """`fedcodist tune small.toml ...`, as cli.py will have it: (exit code, stdout, stderr)."""

    def call(*argv: object, config: Path = file) -> tuple[int, str, str]:
        parser = main.Parser(prog="fedcodist tune")
        parser.add_argument("config")
        parser.add_argument("--set", action="append", default=[])
        parser.add_argument("--clamp", action="store_true")
        parser.add_argument("--format", default="table")
        parser.add_argument("--quiet", action="store_true")
        tune_cli.add(parser, main.Once)
        try:
            code = tune_cli.tune(parser.parse_args([str(config), "--out", str(tmp_path / "out"), *map(str, argv)]))
        except Failure as failure:
            code = failure.code
            print("\n".join(f"error: {line}" for line in failure.lines), file=sys.stderr)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def finish(search: tune.Search, root: Path, **how: Any) -> list[tune.Trial]:
    """All trials of a study, at its end."""
    return _end(tune.run(search, root, **how))


def _end(events: Any) -> Any:
    while True:
        try:
            next(events)
        except StopIteration as end:
            return end.value


def searched(base: config.Config, which: str = "distillation", **how: Any) -> tune.Search:
    return tune.Search(base, space.preset(base, which), **{"trials": 3, "seed": 7} | how)


def values(found: list[tune.Trial]) -> list[tuple]:
    """What was tried and what came of it, in order, without those that were lost."""
    return [(t.values, t.state, t.outcome.curve) for t in found if t.state != "lost"]


@pytest.fixture
def pretend(monkeypatch):
    """Trainings whose accuracy in round t is `accuracy(config, t)`, of all pools or of each; a negative one diverges. Counts rounds."""

    def pretend(accuracy):
        trained = []

        def perform(job, task):
            curve = []
            for t in range(1, job.config.rounds + 1):
                value = accuracy(job.config, t)
                value = value if isinstance(value, dict) else dict.fromkeys(job.config.pools, value)
                if min(value.values()) < 0:
                    return trial.Outcome(curve, t, t, 0.1, diverged=f"the server model of pool small is not finite in round {t}")
                trained.append(job.number)
                curve.append((t, value))
                if (yield trial.Report(t, curve[-1][1])) and t < job.config.rounds:
                    return trial.Outcome(curve, t, t, 0.1, pruned=True)
            steps = job.config.method.distill.steps if hasattr(job.config.method, "distill") else 0
            return trial.Outcome(curve, job.config.rounds, job.config.rounds, 0.1, server_flops=float(steps))

        monkeypatch.setattr(trial, "perform", perform)
        return trained

    return pretend


def by_alpha(one: config.Config, t: int) -> float:
    """The nearer to 0.4, the better."""
    return 1 - abs(space.get(one, "method.alpha") - 0.4)


def by_alpha_or(other: float) -> Any:
    return lambda one, t: by_alpha(one, t) if one.method.kind == "merged" else other


# -- the space --


def test_the_papers_space(base, read):
    fedavg = space.preset(config.twin(base))
    rate = (1e-4, 0.1, True)
    assert {name: (r.low, r.high, r.log) for name, r in fedavg.items()} == {
        "pools.*.work.lr": rate, "pools.small.server.lr": rate, "pools.large.server.lr": rate,
    }  # fmt: skip
    assert fedavg["pools.*.work.lr"].keys == ("pools.small.work.lr", "pools.large.work.lr")
    merged, periodic = space.preset(base), space.preset(read(PERIODIC))
    assert len(periodic) == 11 and len(merged) == 12 and set(merged) - set(periodic) == {"method.alpha"}
    assert merged["method.alpha"] == space.Range(("method.alpha",), 0.05, 0.95)
    assert {name.removeprefix("pools.large."): (r.low, r.high, r.log) for name, r in merged.items() if "large" in name} == {
        "server.lr": rate, "learns.lr": rate, "learns.decay": (1e-3, 1.0, True),
        "learns.self_weight": (1e-3, 0.5, True), "teaches.temperature": (0.1, 10.0, True),
    }  # fmt: skip
    assert space.preset(base, "rates") | space.preset(base, "distillation") == merged
    with pytest.raises(ConfigError, match=re.escape("--space: got distillation for fedavg, which has none; allowed rates | all")):
        space.preset(config.twin(base), "distillation")


def test_spaces_follow_pools_topology_and_alpha(read):
    three = space.preset(config.read("quick/three-pools"))
    assert sum(name.endswith("server.lr") for name in three) == 3 and len(three) == 1 + 3 + 3 * 4 + 2
    assert three["pools.*.work.lr"].keys == ("pools.small.work.lr", "pools.large.work.lr", "pools.mid.work.lr")
    one_way = space.preset(read("topology={ small = { large = 1.0 } }"), "distillation")
    assert {name for name in one_way if "pools" in name} == {
        "pools.small.learns.lr", "pools.small.learns.decay", "pools.small.learns.self_weight", "pools.large.teaches.temperature",
    }  # fmt: skip
    for alpha, names in {
        "{ kind = 'every', k = 2, value = 0.5 }": ["method.alpha.value"],
        "{ kind = 'linear', start = 1.0, end = 0.5 }": ["method.alpha.end"],
        "{ kind = 'linear', start = 0.9, end = 0.5 }": ["method.alpha.start", "method.alpha.end"],
        "{ small = 0.5 }": ["method.alpha.small"],
    }.items():
        assert [name for name in space.preset(read(f"method.alpha={alpha}")) if "alpha" in name] == names


def test_put_and_get(read):
    base = read("method.alpha={ small = 0.5, large = { kind = 'every', k = 2, value = 0.25 } }")
    for key, value in {
        "pools.small.work.lr": 0.5,
        "pools.large.cohort": 2,
        "pools.large.clients.take": 3,
        "method.alpha.small": 0.125,
        "method.alpha.large.value": 0.75,
        "method.distill.loss": "js",
        "topology": "chain",
    }.items():
        changed = space.put(base, key, value)
        assert space.get(changed, key) == value and changed != base
        assert space.put(changed, key, space.get(base, key)) == base
    assert space.put(base, "pools.small.server", "momentum").pools["small"].server.kind == "momentum"
    dotted = replace(config.twin(base), pools={"v1": base.pools["small"], "v1.5": base.pools["large"]})
    assert space.put(dotted, "pools.v1.5.cohort", 2).pools["v1.5"].cohort == 2


@pytest.mark.parametrize(
    "key, value, words",
    [
        ("pools.smal.work.lr", 0.1, "pools.smal: got an unknown key; allowed small, large (did you mean small?)"),
        ("pools.small.work.rate", 0.1, "pools.small.work.rate: got an unknown key; allowed lr, epochs"),
        ("pools.small.work.lr", -1.0, "pools.small.work.lr: got -1.0; allowed a number > 0 and <= 1000"),
        ("pools.small.cohort", 1.5, "pools.small.cohort: got 1.5; allowed an integer >= 1"),
        ("method.alpha", 2.0, "method.alpha: got 2.0; allowed a number >= 0 and <= 1"),
        ("method.alpha.small", 0.5, "method.alpha.small: got an unknown key; allowed kind, value"),
        ("pools.small", 1, "pools.small: got a whole pool; allowed a key of it"),
        ("pools.large.clients.share", 0.5, "pools.large.clients: got more than one of them; allowed one of take, share, ids"),
        ("method.alpha", {"smal": 0.5}, "method.alpha.smal: got an unknown pool; allowed small | large (did you mean small?)"),
        ("topology", "chian", "topology: got 'chian'; allowed auto | "),
    ],
)
def test_put_is_as_strict_as_a_file(base, key, value, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        space.put(base, key, value)


def test_a_space_of_ones_own(base, tmp_path):
    (tmp_path / "mine.toml").write_text("""
"pools.*.work.lr" = { low = 1e-3, high = 1, log = true }
"pools.small.server" = { choices = ["adam", { kind = "momentum", lr = 1.0 }] }
temperature = { keys = ["pools.small.teaches.temperature", "pools.large.teaches.temperature"], low = 1, high = 4 }
method.distill.steps = { low = 1, high = 8, log = true }
method.distill.loss = { choices = ["kl", "js"] }
""")
    found = space.read(tmp_path / "mine.toml", base)
    assert found == {
        "pools.*.work.lr": space.Range(("pools.small.work.lr", "pools.large.work.lr"), 1e-3, 1.0, True),
        "pools.small.server": space.Range(("pools.small.server",), choices=("adam", {"kind": "momentum", "lr": 1.0})),
        "temperature": space.Range(("pools.small.teaches.temperature", "pools.large.teaches.temperature"), 1.0, 4.0),
        "method.distill.steps": space.Range(("method.distill.steps",), 1, 8, True),
        "method.distill.loss": space.Range(("method.distill.loss",), choices=("kl", "js")),
    }
    assert found["method.distill.steps"].whole and not found["temperature"].whole
    changed = space.apply(
        base, found, {"temperature": 2.0, "pools.small.server": {"kind": "momentum", "lr": 1.0}, "method.distill.steps": 3}
    )
    assert {p.teaches.temperature for p in changed.pools.values()} == {2.0} and changed.pools["small"].server.kind == "momentum"
    assert changed.method.distill.steps == 3
    assert set(space.federated(found)) == {"pools.*.work.lr", "pools.small.server"}


@pytest.mark.parametrize(
    "text, words",
    [
        ('"method.alfa" = { low = 0, high = 1 }', "method.alfa: got an unknown key; allowed alpha, distill (FILE:1)"),
        ('\n"method.alpha" = { low = 0.9, high = 0.1 }', "method.alpha.low: got 0.9; allowed at most high, which is 0.1 (FILE:2)"),
        ('"method.alpha" = { low = 0, high = 1, log = true }', "method.alpha.low: got 0; allowed a number > 0 for a logarithmic range"),
        ('"method.alpha" = { low = 0.1 }', "method.alpha.high: got nothing; allowed a number"),
        ('"method.alpha" = { low = "0.1", high = 1 }', "method.alpha.low: got '0.1'; allowed a number"),
        ('"method.alpha" = { low = true, high = 1 }', "method.alpha.low: got true; allowed a number"),
        ('"method.alpha" = { low = 0.1, high = inf }', "method.alpha.high: got inf; allowed a number"),
        ('"method.alpha" = { low = 0.1, high = 1, lgo = true }', "method.alpha.lgo: got an unknown key; allowed keys, low"),
        ('"method.alpha" = { low = 0.1, high = 1, log = 1 }', "method.alpha.log: got 1; allowed true or false"),
        ('"method.alpha" = { low = 0.1, high = 2 }', "method.alpha: got 2; allowed a number >= 0 and <= 1"),
        ('"method.alpha" = { choices = [] }', "method.alpha.choices: got []; allowed a list of one or more values, each once"),
        ('"method.alpha" = { choices = [0.5, 0.5] }', "allowed a list of one or more values, each once"),
        ('"method.alpha" = { choices = [0.5], low = 0 }', "method.alpha.low: got it beside choices; allowed either choices"),
        ('"method.distill.loss" = { choices = ["kl", "kll"] }', "method.distill.loss: got 'kll'"),
        ('"method.distill.steps" = { low = 1.5, high = 3 }', "method.distill.steps: got 1.5; allowed an integer >= 1"),
        ('"method.alpha" = 3', "method.alpha: got 3; allowed a table with low and high, or with choices (FILE:1)"),
        ('"method.alpha" = {}', "method.alpha: got {}; allowed a table with low and high"),
        ("rounds = { low = 1, high = 3 }", "rounds: got 'rounds'; allowed a key under pools, method or topology"),
        ("x = { keys = [], low = 1, high = 3 }", "x.keys: got []; allowed a list of dotted keys"),
        ('x = { keys = ["pools.*.cohort"], low = 1, high = 3 }\n"pools.small.cohort" = { low = 1, high = 2 }',
         "pools.small.cohort: got pools.small.cohort, which x sets too; allowed each key once (FILE:2)"),
        ("= 3", "not TOML"),
    ],
)  # fmt: skip
def test_bad_spaces(base, tmp_path, text, words):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        space.read(path, base)
    assert words.replace("FILE", str(path)) in refused.value.lines[0] and len(refused.value.lines) == 1
    assert all(re.match(r"[ -~]+$", line) for line in refused.value.lines)


def test_only(base):
    found = space.preset(base)
    assert set(space.only(found, ["*.temperature", "method.alpha"])) == {
        "pools.small.teaches.temperature", "pools.large.teaches.temperature", "method.alpha",
    }  # fmt: skip
    assert set(space.only(found, ["pools.small.*"])) > {"pools.*.work.lr"}, "by the keys that a name sets, too"
    with pytest.raises(
        ConfigError, match=r"--only: got 'method.alfa'; allowed a pattern that matches one of .* \(did you mean method.alpha\?\)"
    ):
        space.only(found, ["method.alfa"])


# -- suggestions --


def test_the_first_trial_is_the_configs_own(base, tmp_path, pretend):
    pretend(by_alpha)
    found = finish(searched(base), tmp_path)
    assert found[0].own and found[0].config == base and found[0].values == space.own(base, found[0].search.space)[0]
    assert found[0].values["method.alpha"] == 0.7 and not any(t.own for t in found[1:])
    assert tune.winner(found).value >= found[0].value


def test_a_config_that_the_space_cannot_say_is_the_first_trial_all_the_same(read, tmp_path, pretend):
    base = read("pools.small.work.lr=0.5", "pools.large.work.lr=0.1", "pools.large.server.lr=1.0", "pools.large.learns.self_weight=0")
    seen = []
    pretend(lambda one, t: seen.append(one) or 0.5)
    events = list(tune.run(searched(base, "all", trials=2), tmp_path))
    assert seen[0] == base and seen[-1] != base
    assert [note.split(":")[0] for note in events[0].notes] == [
        "pools.*.work.lr", "pools.large.server.lr", "pools.large.learns.self_weight",
    ]  # fmt: skip
    assert "the config has 0.5, 0.1, which the space (0.0001 to 0.1, log) cannot say; trial 0 is the config as it is" in events[0].notes[0]
    row = json.loads((tune.place(tmp_path, base) / "trials.jsonl").read_text().splitlines()[0])
    assert row["pools.small.work.lr"] == 0.5 and row["pools.large.work.lr"] == 0.1 and row["pools.large.server.lr"] == 1.0


def test_optuna_does_not_learn_from_values_that_the_first_trial_did_not_have(read, tmp_path, pretend):
    base = read("method.alpha=0.97")
    pretend(lambda one, t: 0.9 if space.get(one, "method.alpha") == 0.97 else 0.1)
    search = replace(searched(base, trials=12), space=space.only(space.preset(base), ["method.alpha"]))
    found = finish(search, tmp_path)
    assert found[0].own and found[0].state == "complete" and found[0].value == pytest.approx(0.9) and tune.winner(found) == found[0]
    with study.opened(search, tune.place(tmp_path, base), trial.content(base.task.load())) as (opened, _):
        learned = [t for t in opened.get_trials() if t.state.name in ("COMPLETE", "PRUNED")]
    assert len(learned) == 11 and 0.95 not in {t.params["method.alpha"] for t in learned}
    assert values(finish(search, tmp_path)) == values(found) and len(found) == 12, "and it is not tried again"
    assert finish(replace(search, trials=13), tmp_path)[:12] == [t._replace(search=replace(search, trials=13)) for t in found]


def test_the_same_seed_gives_the_same_suggestions(base, tmp_path, pretend):
    pretend(by_alpha)
    a, b, c = (finish(searched(base, trials=14, seed=seed), tmp_path / name) for name, seed in (("a", 7), ("b", 7), ("c", 8)))
    assert values(a) == values(b) != values(c)
    assert len({t.values["method.alpha"] for t in a}) == 14


def test_a_study_goes_on_as_if_it_had_never_stopped(base, tmp_path, pretend):
    trained = pretend(by_alpha)
    straight = finish(searched(base, trials=14), tmp_path / "a")
    trained.clear()
    for trials in (1, 2, 6, 13, 14, 14, 3):
        found = finish(searched(base, trials=trials), tmp_path / "b")
    assert values(found) == values(straight) and len(trained) == sum(t.outcome.rounds for t in straight), "nothing is trained twice"
    assert max(by_alpha(t.config, 1) for t in straight[10:]) > 0.9, "it learns"


def by_server_rate(one: config.Config, t: int) -> dict[str, float]:
    """Each pool by its own rate alone: the small one wants a high rate, the large one a low one."""
    rates = {pool: math.log10(space.get(one, f"pools.{pool}.server.lr")) for pool in one.pools}
    return {"small": (5 + rates["small"]) / 5, "large": -rates["large"] / 5}


def test_the_last_trial_of_fedavg_joins_what_was_best_for_each_pool(read, tmp_path, pretend):
    pretend(by_server_rate)
    base = read('method={ kind = "fedavg" }')
    rates = space.only(space.preset(base, "rates"), ["*.server.lr"])
    search = tune.Search(base, rates, trials=7, seed=7)
    found = finish(search, tmp_path)
    *before, last = found
    small, large = (max(t.outcome.accuracy[pool] for t in before if t.state == "complete") for pool in ("small", "large"))
    assert last.outcome.accuracy == {"small": small, "large": large} and tune.winner(found) == last
    assert last.value > max(t.value for t in before), "no trial was the best for both"
    assert study.joined(search, found) is None, "it is tried once"
    more = finish(replace(search, trials=9), tmp_path)
    assert values(more)[:7] == values(found) and len(more) == 9, "more trials go on"
    assert values(finish(search, tmp_path / "again")) == values(found)


def test_the_trial_that_joins_waits_for_the_others(read, tmp_path, pretend):
    base = read('method={ kind = "fedavg" }')
    search = tune.Search(base, space.only(space.preset(base, "rates"), ["*.server.lr"]), trials=4, seed=7)
    path, data = tune.place(tmp_path, base), trial.content(base.task.load())
    with Signals() as signals, study.opened(search, path, data) as (opened, _):
        desk = study.Desk(search, opened, data, 3, signals, path)
        jobs = [desk.next() for _ in range(4)]
        assert [job and job.number for job in jobs] == [0, 1, 2, None]
        for job in jobs[:3]:
            assert desk.next() is None
            desk.told(job, trial.Outcome([(4, by_server_rate(job.config, 4))], 4, 4, 0.1))
        last = desk.next()
        best = {pool: max(by_server_rate(job.config, 4)[pool] for job in jobs[:3]) for pool in base.pools}
        assert by_server_rate(last.config, 4) == best and desk.next() is None
    search = replace(search, config=read(), space=space.preset(read(), "rates"))
    with Signals() as signals, study.opened(search, tune.place(tmp_path, read()), data) as (opened, _):
        desk = study.Desk(search, opened, data, 4, signals, path)
        assert all(desk.next() for _ in range(4)) and desk.next() is None, "nobody else waits"


def test_nothing_is_joined_where_pools_share_a_rate_or_teach(base, read, tmp_path, pretend):
    pretend(by_server_rate)
    alone = read('method={ kind = "fedavg" }')
    rates = space.preset(base, "rates")
    own = space.only(rates, ["*.server.lr"])
    one = [t for t in finish(tune.Search(alone, own, trials=3, seed=7), tmp_path) if t.state == "complete"]
    assert study.joined(tune.Search(alone, own), one) is not None
    assert study.joined(tune.Search(base, own), one) is None, "who teaches changes what suits the other"
    assert study.joined(tune.Search(alone, rates), one) is None, "a client rate for both pools"
    assert study.joined(tune.Search(alone, own, objective="pareto"), one) is None
    assert study.joined(tune.Search(alone, own), one[:1]) is None, "one trial is the best for all"
    assert study.joined(tune.Search(alone, own), []) is None


def test_choices_and_whole_numbers(base, tmp_path, pretend):
    pretend(lambda one, t: 0.5)
    ranges = {
        "method.distill.steps": space.Range(("method.distill.steps",), 1, 3),
        "pools.*.server": space.Range(("pools.small.server", "pools.large.server"), choices=("average", {"kind": "momentum", "lr": 0.5})),
        "method.distill.augment": space.Range(("method.distill.augment",), choices=(False, True)),
    }
    found = finish(tune.Search(base, ranges, trials=20), tmp_path)
    assert {t.config.method.distill.steps for t in found} == {1, 2, 3}
    assert {t.config.pools["large"].server.kind for t in found} == {"adam", "average", "momentum"}, "its own is no choice, but tried"
    assert found[0].config == base and found[0].own
    assert {t.config.method.distill.augment for t in found} == {False, True}
    assert values(finish(tune.Search(base, ranges, trials=20), tmp_path)) == values(found), "they come back from the journal as they were"


def test_what_the_data_refuses_is_refused_before_the_first_trial(base, tmp_path, pretend):
    trained = pretend(lambda one, t: 0.5)
    ranges = {"batch": space.Range(("method.distill.batch",), choices=(20, 10_000))}
    with pytest.raises(ConfigError, match="method.distill.batch: got 10000; allowed at most the 200 public examples"):
        finish(tune.Search(base, ranges), tmp_path)
    assert not trained and not any(tmp_path.rglob("study.journal"))


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
    assert (code, again) == (0, said) and "tried again" not in errors


# -- stopping early, diverging, judging --


def test_bad_trials_are_stopped_after_the_warm_up(read, tmp_path, pretend):
    base = read("rounds=20")
    trained = pretend(lambda one, t: (1 - space.get(one, "method.alpha")) * t / 20)
    found = finish(searched(base, trials=20), tmp_path / "a")
    stopped = [t for t in found if t.state == "pruned"]
    assert 3 <= len(stopped) <= 14 and len(trained) < 20 * 20 and len(found) == 20, "stopped trials count"
    assert min(t.outcome.rounds for t in stopped) == 7, "not in the first third"
    assert not any(t.state == "pruned" for t in found[: study.STARTUP])
    assert tune.winner(found).state == "complete" and max(t.value for t in stopped) < tune.winner(found).value
    order = [t.state for t in tune.ranked(found)]
    assert order == sorted(order) and order[0] == "complete"
    assert all(t.state == "complete" for t in finish(searched(base, trials=12, prune=False), tmp_path / "b"))


def test_the_configs_own_trial_is_never_stopped(base, tmp_path):
    search = searched(base, trials=8)
    path, data = tune.place(tmp_path, base), trial.content(base.task.load())
    with Signals() as signals, study.opened(search, path, data) as (opened, _):
        desk = study.Desk(search, opened, data, 8, signals, path)
        first, *others, last = [desk.next() for _ in range(7)]
        for job in others:
            for t in range(1, 5):
                desk.heard(job, trial.Report(t, {"small": 0.5, "large": 0.5}))
            desk.told(job, trial.Outcome([(4, {"small": 0.5, "large": 0.5})], 4, 4, 0.1))
        bad = trial.Report(3, {"small": 0.1, "large": 0.1})
        assert desk.heard(last, bad) and not desk.heard(first, bad)


def test_nothing_is_stopped_before_the_first_lesson_has_settled(read, tmp_path, pretend):
    base = read("rounds=20", "method={ kind = 'periodic', period = 12, distill = { steps = 2, batch = 20 } }")
    pretend(lambda one, t: one.pools["small"].learns.lr)
    found = finish(searched(base, trials=15), tmp_path)
    assert min(t.outcome.rounds for t in found if t.state == "pruned") == 14  # the lesson is in round 12, and a quarter of 9 rounds is 3


def test_a_trial_that_diverges_is_worth_nothing_and_no_failure(base, tmp_path, pretend, call):
    pretend(lambda one, t: by_alpha(one, t) if space.get(one, "method.alpha") < 0.75 or t < 3 else -1)
    found = finish(searched(base, trials=12), tmp_path / "out")
    diverged = [t for t in found if t.state == "diverged"]
    assert 0 < len(diverged) < 8 and {t.value for t in diverged} == {0.0} and len(found) == 12
    assert [t.state for t in tune.ranked(found)[-len(diverged) :]] == ["diverged"] * len(diverged)
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


def test_training_that_really_diverges(read, tmp_path):
    wild = "{ kind = 'average', lr = 1000.0 }"
    base = read("pools.small.work.lr=1000.0", f"pools.small.server={wild}", f"pools.large.server={wild}")
    found = finish(searched(base, trials=1), tmp_path)
    assert [t.state for t in found] == ["diverged"] and found[0].value == 0.0 and tune.winner(found) is None
    assert re.search(r"of pool (small|large) is not finite in round [1-4]$", found[0].outcome.diverged)
    assert not (tune.place(tmp_path, base) / "best.toml").exists()


def test_the_front(base, tmp_path, pretend):
    pretend(lambda one, t: min(0.9, 0.2 * one.method.distill.steps) if space.get(one, "method.alpha") < 0.9 or t < 2 else -1)
    ranges = {
        "method.distill.steps": space.Range(("method.distill.steps",), 1, 8),
        "method.alpha": space.Range(("method.alpha",), 0.1, 1.0),
    }
    search = tune.Search(base, ranges, trials=40, objective="pareto")
    found = finish(search, tmp_path)
    assert {t.state for t in found} == {"complete", "diverged"}, "nothing is stopped early where there is no one order"
    best = tune.front(found)
    assert [t.outcome.server_flops for t in best] == sorted(t.outcome.server_flops for t in best)
    assert {t.config.method.distill.steps for t in best} == {1, 2, 3, 4, 5}, "more than 5 steps cost more, and gain nothing"
    assert tune.winner(found).value == 0.9 and tune.winner(found) in found
    made = {path.name: config.read(path) for path in tune.place(tmp_path, base).glob("front-*.toml")}
    assert made == {f"front-{t.number}.toml": replace(t.config, name=f"small-tuned-{t.number}", seeds=(1, 2, 3)) for t in best}
    with study.opened(search, tune.place(tmp_path, base), trial.content(base.task.load())) as (opened, _):
        told = [t for t in opened.get_trials() if t.values]
    lost = {t.number for t in found if t.state == "diverged"}
    for t in told:
        before = [o.values[-1] for o in told if o.number < t.number]
        assert t.number not in lost or t.values == [0.0, 0.0, max([0.0, *before])], "one that diverged is not taken for a cheap one"


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


@pytest.mark.parametrize("how", ["diverged", "refused"])
def test_a_winner_that_fails_on_a_fresh_seed_counts_as_nothing_and_is_told(base, how):
    won = trial.Outcome([(1, {"small": 0.4, "large": 0.6})], 1, 1, 0.0)
    seeds = {7: won, 8: trial.Outcome([], 0, 0, 0.0, **{how: "a reason"})}
    search = tune.Search(base, {})
    winner = study.Trial(0, "complete", search, {}, won)
    rows = tune_cli._fresh([(search, [winner])], [[(winner, seeds)]])
    assert [(row["pool"], row["accuracy"], row["failed"]) for row in rows] == [("small", 0.2, 1), ("large", 0.3, 1)]
    assert [row["fresh seeds, %"].split("(")[1] for row in tune_cli._fresh_for_eyes(rows)] == ["1 failed)"] * 2


# -- one training --


@pytest.fixture
def watched(monkeypatch):
    """Every round that trials really train: (round, state)."""
    seen = []

    def train(*given):
        for step in real(*given):
            seen.append((step.t, step.state))
            yield step

    real = trial.train
    monkeypatch.setattr(trial, "train", train)
    return seen


@pytest.mark.parametrize("method, alone", [(PERIODIC, 2), (EVERY, 2), ("method.alpha=0.7", 0), ("method={ kind = 'fedavg' }", 0)])
def test_a_shared_beginning_changes_no_bit(read, tmp_path, watched, method, alone):
    base = read(method)
    task = base.task.load()
    assert trial.alone(config.assemble(base, task, 7)) == alone
    other = space.put(base, "pools.small.learns.lr", 0.05)
    straight = [_end(trial.perform(trial.Job(n, one, 7), task)) for n, one in enumerate((base, other))]
    last = {n: watched[4 * n + 3][1] for n in (0, 1)}
    watched.clear()
    data = trial.content(task)
    shared = [_end(trial.perform(trial.Job(n, one, 7, data=data, prefixes=tmp_path), task)) for n, one in enumerate((base, other))]
    assert [t for t, _ in watched] == [1, 2, 3, 4, *range(alone + 1, 5)], "the second begins where the first lesson is"
    assert [o.trained for o in shared] == [4, 4 - alone] and [o.rounds for o in shared] == [4, 4]
    assert [o.curve for o in shared] == [o.curve for o in straight] and [t for t, _ in shared[1].curve] == [1, 2, 3, 4]
    assert [o.server_flops for o in shared] == [o.server_flops for o in straight]
    assert same_bits(watched[3][1], last[0]) and same_bits(watched[-1][1], last[1])
    if base.method.kind != "fedavg":
        assert not same_bits(last[0], last[1]), "or this test shows nothing"


def test_what_a_shared_beginning_depends_on(read):
    base = read(PERIODIC)
    job = trial.Job(0, base, 7, data="d")
    name = trial.prefix(job)
    same = [
        ("pools.small.learns.lr", 0.05), ("pools.large.teaches.temperature", 3.0), ("method.period", 4), ("method.distill.steps", 9),
        ("topology", "chain"), ("engine.workers", 3), ("name", "other"), ("checkpoint_every", 5), ("seeds", [1]),
    ]  # fmt: skip
    for key, value in same:
        assert trial.prefix(job._replace(config=space.put(base, key, value), number=1)) == name, key
    other = [
        ("pools.small.work.lr", 0.05), ("pools.small.work.batch", 5), ("pools.large.server.lr", 0.05), ("pools.large.server", "average"),
        ("pools.small.cohort", 3), ("pools.large.clients.take", 5), ("pools.large.model", {"kind": "mlp", "hidden": [9]}),
        ("rounds", 5), ("task.noise", 2.0), ("engine.block", 2), ("engine", "serial"), ("evaluate_every", 2),
        ("pools.small.domain", "first"),
    ]  # fmt: skip
    names = [trial.prefix(job._replace(config=space.put(base, key, value))) for key, value in other]
    names += [trial.prefix(job._replace(**change)) for change in ({"seed": 8}, {"data": "e"}, {"clamp": True})]
    assert len({name, *names}) == 1 + len(names)


def test_all_trials_of_a_distillation_space_share_one_beginning(read, tmp_path, watched):
    base = read(PERIODIC)
    found = finish(searched(base, trials=3, prune=False), tmp_path)
    assert [t for t, _ in watched] == [1, 2, 3, 4, 3, 4, 3, 4]
    assert [t.outcome.trained for t in found] == [4, 2, 2] and [t.outcome.rounds for t in found] == [4, 4, 4]
    (kept,) = tmp_path.glob("small/prefixes/*/000002")
    # The same values without a beginning to share end with the same accuracy.
    task = base.task.load()
    assert _end(trial.perform(trial.Job(0, found[2].config, 7), task)).curve == found[2].outcome.curve
    # One that is damaged is trained again, and replaced.
    watched.clear()
    (kept / "small.safetensors").write_bytes(b"x")
    found = finish(searched(base, trials=5, prune=False), tmp_path)
    assert [t for t, _ in watched] == [1, 2, 3, 4, 3, 4] and checkpoint.verify(kept)
    # Rates that are drawn from a range have no beginning in common with anyone.
    job = next(iter(_jobs(searched(base, "all"), tmp_path / "b")))
    assert job.prefixes is None
    choices = {"lr": space.Range(("pools.small.work.lr",), choices=(0.1, 0.2))}
    assert next(iter(_jobs(tune.Search(base, choices), tmp_path / "c"))).prefixes is not None


def _jobs(search: tune.Search, root: Path):
    """What a study hands out first."""
    task = search.config.task.load()
    with tune.Signals() as signals, study.opened(search, tune.place(root, search.config), trial.content(task)) as (opened, _):
        yield study.Desk(search, opened, trial.content(task), 1, signals, root / "prefixes").next()


# -- the test split --


class Sealed:
    """A test split that must not be touched."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"somebody looked at the test split: {name}")

    def __iter__(self) -> Any:
        raise AssertionError("somebody looked at the test split")


@dataclass(frozen=True)
class Guarded(Toy):
    """A toy task whose test split must not be touched."""

    def load(self) -> Any:
        return replace(super().load(), test=Sealed())


@dataclass(frozen=True)
class Poisoned(Toy):
    """A toy task whose test rows are NaN."""

    def load(self) -> Any:
        task = super().load()
        return replace(task, test=Split(np.full_like(task.test.x, np.nan), task.test.y))


def test_nobody_looks_at_the_test_split(read, tmp_path, monkeypatch):
    base = replace(read(PERIODIC), task=Guarded())
    with pytest.raises(AssertionError, match="somebody looked"):
        config.digest(base.task.load())
    found = finish(searched(base), tmp_path)
    confirmed = _end(tune.confirm([found[0].config], [1], tmp_path))
    assert len(found) == 3 and confirmed[0][1].accuracy
    poisoned = replace(base, task=Poisoned())
    assert [t.outcome.curve for t in finish(searched(poisoned), tmp_path / "b")] == [t.outcome.curve for t in found]
    assert trial.content(base.task.load()) == trial.content(poisoned.task.load()), "not even its digest"
    # And if somebody tried, there would be nothing to see.
    seen = []
    monkeypatch.setattr(trial, "train", lambda experiment, *given: seen.append(experiment) or iter(()))
    _end(trial.perform(trial.Job(0, base, 7), base.task.load()))
    with pytest.raises(DataError, match="a split without rows"):
        evaluate(seen[0].federation, params_of(seen[0].federation.init(keys.root(0))), "test")


# -- worker processes --


@dataclass(frozen=True)
class Deadly(Toy):
    """A task that kills the process that loads it, unless that is `spared`."""

    spared: int = 0

    def load(self) -> Any:
        if os.getpid() != self.spared:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().load()


def test_two_workers_make_exactly_as_many_trials_with_the_same_results(read, tmp_path):
    base = replace(read(PERIODIC), task=Guarded())  # which the workers load themselves
    events = list(tune.run(searched(base, trials=5), tmp_path, jobs=2))
    found = tune.trials(searched(base), tmp_path)
    assert (
        len(found) == 5
        and {t.state for t in found} <= {"complete", "pruned"}
        and [e.done for e in events if e.kind == "over"] == [1, 2, 3, 4, 5]
    )
    running = [{e.job.number for e in events[i : i + 2] if e.job} for i in range(len(events) - 1)]
    assert any(len(pair) == 2 for pair in running), "side by side"
    assert {e.job.config.engine.workers for e in events if e.job} == {max(1, trial.cores() // 2)}
    task = base.task.load()
    for t in found:
        alone = _end(trial.perform(trial.Job(0, t.config, 7), task))
        assert alone.curve[: len(t.outcome.curve)] == t.outcome.curve
    assert len(finish(searched(base, trials=6), tmp_path)) == 6, "one process goes on with what two began"


def test_a_worker_that_dies_is_no_result(read, tmp_path):
    base = replace(read(), task=Deadly(spared=os.getpid()))
    with pytest.raises(trial.TrialFailed, match=r"trial \d: its process died \(signal 9\); the same command tries it again") as died:
        finish(searched(base), tmp_path, jobs=2)
    assert died.value.code == 9
    found = finish(searched(base), tmp_path)
    assert [t.state for t in found].count("complete") == 3 and sum(t.own and t.state == "complete" for t in found) == 1


def test_workers_train_on_the_data_of_the_study_or_not_at_all(read, tmp_path):
    base, other = read("rounds=1"), Toy(held_out=50).load()
    with pytest.raises(
        trial.TrialFailed, match="task: got data [0-9a-f]{12} in a worker; allowed that of the study, [0-9a-f]{12}"
    ) as refused:
        finish(searched(base), tmp_path, jobs=2, task=other)
    assert refused.value.code == DataError.code
    assert len(finish(searched(base), tmp_path, task=other)) >= 3, "one process takes it"


def test_what_the_desk_cannot_write_is_not_the_workers_death(read, tmp_path, monkeypatch):
    def full(*_: Any) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(study.Desk, "heard", full)
    with pytest.raises(OSError, match="No space left on device"):
        finish(searched(read("rounds=1")), tmp_path, jobs=2)


# -- kills --

SCRIPT = """
import sys
from fedcodist import config, space, tune
base = config.read(sys.argv[1])
if __name__ == "__main__":
    search = tune.Search(base, space.preset(base, "distillation"), trials=6, seed=7)
    for event in tune.run(search, sys.argv[2], jobs=int(sys.argv[3])):
        print(event.kind, event.done, event.t, flush=True)
"""


def start(tmp_path: Path, file: Path, jobs: int = 1) -> subprocess.Popen:
    (tmp_path / "script.py").write_text(SCRIPT)
    cache = {"JAX_COMPILATION_CACHE_DIR": os.environ["FEDCODIST_CACHE"], "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment = {**os.environ, **cache, "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0", "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, str(tmp_path / "script.py"), str(file), str(tmp_path / "out"), str(jobs)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def until(process: subprocess.Popen, line: str) -> None:
    for said in process.stdout:
        if said.strip() == line:
            return
    raise AssertionError("it ended before")


def test_killed_in_the_middle_of_a_trial(base, file, tmp_path):
    process = start(tmp_path, file)
    until(process, "round 2 2")  # the third trial is in its third round
    process.kill()
    process.wait()
    journal = tune.place(tmp_path / "out", base) / "study.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":6,"worker_id":"x')  # as if it had died in a write
    search = searched(base, trials=6)
    events = list(tune.run(search, tmp_path / "out"))
    assert events[0].done == 2 and "was interrupted, and is tried again" in events[0].notes[0]
    found = tune.trials(search, tmp_path / "out")
    assert [t.state for t in found if t.state != "lost"] == ["complete"] * 5 + [found[-1].state] and len(found) == 7
    assert values(found) == values(finish(search, tmp_path / "straight")), "as if nothing had happened"
    for t in (found[2], found[3]):
        assert t.values == found[2].values, "what was lost is what is tried again"


def test_interrupted_with_workers(base, file, tmp_path):
    process = start(tmp_path, file, jobs=2)
    until(process, "over 1 4")
    workers = _children(process.pid)
    assert len(workers) >= 2
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    for pid in workers:
        _gone(pid)
    found = finish(searched(base, trials=6), tmp_path / "out")
    assert sum(t.state != "lost" for t in found) == 6 and sum(t.own for t in found if t.state != "lost") == 1


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _gone(pid: int) -> None:
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"a worker is left: {Path(f'/proc/{pid}/cmdline').read_text()}")


# -- the study's directory --


def test_another_study_is_refused_and_set_aside_on_request(base, read, tmp_path, pretend, call):
    pretend(by_alpha)
    finish(searched(base), tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("study.j*")}
    for search in (
        searched(base, seed=8),
        searched(base, "all"),
        searched(base, objective="pareto"),
        searched(base, prune=False),
        searched(read("pools.small.cohort=3")),
        searched(read("task.noise=2.0")),
    ):
        with pytest.raises(runs.Mismatch, match="this study is another one: .* -> .*; use another --name, or --restart"):
            finish(search, tmp_path / "out")
    assert {path: path.read_bytes() for path in before} == before
    assert len(finish(searched(read("engine.workers=1", "seeds=[1, 2]", "keep=9")), tmp_path / "out")) == 3, (
        "what changes no result may change"
    )
    code, _, errors = call("--space", "distillation", "--trials", 2, "--seed", 8)
    assert code == 4 and errors.startswith("error: ") and "seed: 7 -> 8" in errors and len(errors.splitlines()) == 1
    code, _, errors = call("--space", "distillation", "--trials", 2, "--seed", 8, "--restart")
    assert code == 0 and "note: began again; what was there is in before-1" in errors
    aside = (tmp_path / "out/small/merged/before-1/study.journal").read_bytes()
    assert aside.startswith(before[tmp_path / "out/small/merged/study.journal"])


def test_a_study_has_one_writer(base, tmp_path, pretend):
    pretend(by_alpha)
    place = tune.place(tmp_path, base)
    durable.make_directories(place)
    held, _ = lock.take(place / "study.lock", "study")
    with pytest.raises(lock.Busy, match="is writing this study"):
        finish(searched(base), tmp_path)
    lock.release(held)
    assert len(finish(searched(base), tmp_path)) == 3


def test_damaged_files_are_told(base, tmp_path, pretend):
    pretend(by_alpha)
    finish(searched(base), tmp_path)
    place = tune.place(tmp_path, base)
    good = (place / "study.journal").read_bytes()
    (place / "study.journal").write_bytes(b"{]\n" + good)
    with pytest.raises(durable.CheckpointError, match=r"study.journal: damaged .*--restart begins again"):
        finish(searched(base), tmp_path)
    (place / "study.journal").write_bytes(good)
    (place / "study.json").write_text("{}")
    with pytest.raises(durable.CheckpointError, match=r"study.json: .*; nothing was changed; --restart begins again"):
        finish(searched(base), tmp_path)


def test_without_optuna(base, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError) as refused:
        finish(searched(base), tmp_path)
    assert str(refused.value) == "tune: got no optuna; allowed an installation with it (pip install 'fedcodist[tune]')"
    assert not list(tmp_path.rglob("study.*"))


def test_the_winners_file_is_the_winner_and_runs(read, tmp_path, capsys):
    base = read(PERIODIC, "topology={ small = { large = 1.0 }, large = { small = 1.0 } }", "pools.small.clients.where={ capacity = 'low' }")
    found = finish(searched(base), tmp_path)
    best = tune.winner(found)
    path = tune.place(tmp_path, base) / "best.toml"
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


# -- the command --


def test_twin_first_with_as_many_trials_and_its_rates(base, tmp_path, pretend, call):
    trained = pretend(
        lambda one, t: 0.5 + (0.2 - abs(one.pools["small"].server.lr - 0.05)) + (one.method.kind == "merged") * one.seeds[0] / 100
    )
    code, said, errors = call("--twin", "--space", "distillation", "--trials", 6)
    assert code == 0
    lines = [line.split(":")[0] for line in errors.splitlines()]
    assert lines == ["tune fedavg"] * 6 + ["rates of merged"] + ["tune merged"] * 6 + ["fresh seeds"] * 7
    assert "fresh seeds: 0, 1, 2\n" in errors and "fresh seeds: 6 of 6: merged seed 2: " in errors
    twin = tune.twin(searched(base, trials=6))
    best = tune.winner(tune.trials(twin, tmp_path / "out"))
    assert best.value > 0.6 and set(twin.space) == {"pools.*.work.lr", "pools.small.server.lr", "pools.large.server.lr"}
    fixed = tune.rated(searched(base, trials=6), twin, best)
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
    assert [len(tune.trials(s, tmp_path / "out")) for s in (tune.twin(searched(base, "all")), searched(base, "all"))] == [7, 7]
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
        (["--rates-from", "twin"], "fedavg: got no study; allowed one (fedcodist tune with --twin makes it)"),
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


def test_three_pools(tmp_path):
    base = config.read(
        "quick/toy", ["rounds=1", "pools.mid={ like = 'small', clients = { take = 6 }, model = { kind = 'mlp', hidden = [24] } }"]
    )
    found = finish(searched(base, trials=2), tmp_path)
    assert len(found[0].values) == 13 and all(set(t.outcome.accuracy) == {"small", "mid", "large"} for t in found)
    assert found[1].value == pytest.approx(sum(found[1].outcome.accuracy.values()) / 3)
    assert jax.tree.leaves(settings.plain(config.read(tune.place(tmp_path, base) / "best.toml")))
