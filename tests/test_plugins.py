"""Parts of another package, offered by entry points: each one file there, and nothing to change here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedcodist.methods import METHODS
from fedcodist.registry import Registry

ROOT = Path(__file__).parent.parent
PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar

from fedcodist import Compiled, Told
from fedcodist.fold import Mean
from fedcodist.models import MLP
from fedcodist.rule import summary
from fedcodist.tasks import Toy
from fedcodist.types import Method, Rule
from fedcodist.work import LocalSGD


@dataclass(frozen=True)
class Slowly(Method):
    """FedAvg that skips every k-th round's step."""

    kind: ClassVar[str] = "slowly"
    label: ClassVar[str] = "Slowly"
    k: int = 2

    def round(self, fed, state, t, key):
        state, grad, info = fed.gradients(state, t, key)
        return (state if t % self.k == 0 else fed.step(state, grad, t)), info


@dataclass(frozen=True)
class Twice(Rule):
    """Asks the same clients twice in a round, and takes the mean of both answers."""

    kind: ClassVar[str] = "twice"

    def talk(self, fed, pool, state, t, key):
        (first,) = yield [fed.ask(pool, state.params, t, key, "first")]
        (second,) = yield [fed.ask(pool, state.params, t, key, "second")]
        import jax

        return Told(jax.tree.map(lambda a, b: (a + b) / 2, first.value, second.value), (), summary(first, pool, t))


def named(cls, name):
    return type(name.title(), (cls,), {"kind": name})


KINDS = (LocalSGD, "mywork"), (Mean, "myfold"), (MLP, "mymodel"), (Toy, "mytask"), (Compiled, "myengine")
MyWork, MyFold, MyModel, MyTask, MyEngine = (named(*kind) for kind in KINDS)
'''
OFFERS = {
    "methods": "slowly = mine:Slowly\nfedavg = mine:Slowly\nwrong = mine:Twice",
    "rules": "twice = mine:Twice\nabsent = not_there:Rule",
    "works": "mywork = mine:MyWork",
    "folds": "myfold = mine:MyFold",
    "models": "mymodel = mine:MyModel",
    "tasks": "mytask = mine:MyTask",
    "engines": "myengine = mine:MyEngine",
}
CONFIG = """
rounds = 3
task = "mytask"
engine = "myengine"
method = { kind = "slowly", k = 3 }

[pools.only]
model = { kind = "mymodel", hidden = [4] }
cohort = 3
work = "mywork"
fold = "myfold"
rule = "twice"
"""
USE = """
import mine
from fedcodist import config, testing
from fedcodist.cli.main import main
from fedcodist.errors import ConfigError
from fedcodist.methods import METHODS, FedAvg

assert METHODS["fedavg"] is FedAvg and METHODS["slowly"] is mine.Slowly
testing.check_method(mine.Slowly(k=2))
made = config.load("mine.toml")
assert type(made.method) is mine.Slowly and type(made.federation.pools["only"].rule) is mine.Twice
for given in ("method=slow", "method=wrong", "pools.only.rule=absent"):
    try:
        config.read("mine.toml", [given])
    except ConfigError as error:
        print(error)
assert main(["run", "mine.toml", "--twin", "--seeds", "0", "--quiet"]) == 0
assert main(["list", "methods", "--format", "csv"]) == 0
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    place = tmp_path_factory.mktemp("plugin")
    (place / "mine.py").write_text(PLUGIN)
    (place / "mine.toml").write_text(CONFIG)
    info = place / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(f"[fedcodist.{group}]\n{lines}\n" for group, lines in OFFERS.items()))
    paths = os.pathsep.join([str(place), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=place, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_method_of_another_package_passes_the_contract_and_runs(said):
    assert "Slowly" in said and "FedAvg" in said and "report" in said


def test_its_names_are_known_and_its_faults_are_told_in_one_line(said):
    assert re.search(r"method: got 'slow'; allowed .*slowly.* did you mean slowly\?", said)
    assert re.search(r"method: got 'wrong'; allowed a plugin that can be imported .*kind 'twice'", said)
    assert re.search(r"pools.only.rule: got 'absent'; allowed a plugin that can be imported .*not_there", said)
    assert re.search(r"^methods,slowly,FedAvg that skips", said, re.M)


def test_without_plugins_there_is_what_the_package_has():
    assert list(METHODS)[:3] == ["fedavg", "periodic", "merged"] and "nothing" not in METHODS and len(METHODS) == len(list(METHODS))
    with pytest.raises(KeyError):
        Registry("methods")["nothing"]
