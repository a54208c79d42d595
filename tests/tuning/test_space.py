"""What is searched: the paper's ranges and spaces of one's own."""

from __future__ import annotations

import re

import pytest
from tuned import PERIODIC

from fedcodist import config
from fedcodist.errors import ConfigError
from fedcodist.tuning import space

pytestmark = pytest.mark.usefixtures("prepared")


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
