"""The examples run and say what they promise; networks of other libraries train like our own, on every engine."""

import contextlib
import importlib.util
import io
import runpy
import sys
import types
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest

import fedcodist as fc
from fedcodist import tree
from fedcodist.models import from_equinox, from_flax
from fedcodist.tasks.toy import Toy

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("[0-9]*.py"))
SAYS = {
    "01_quick": "round 10: held-out accuracy",
    "02_by_hand": "they agree",
    "03_own_data": "outdoors",
    "04_flax": "round 15: held-out accuracy",
    "05_equinox": "round 15: held-out accuracy",
    "06_own_loss": "who teaches whom",
    "07_tracking": "round 10: test/accuracy/small",
    "08_haiku": "round 15: held-out accuracy",
    "09_keras": "round 15: held-out accuracy",
}
NEEDS = {"04_flax": "flax", "05_equinox": "equinox", "08_haiku": "haiku", "09_keras": "keras"}


@lru_cache  # once: the tests below borrow what an example defines
def ran(name: str, cwd: str) -> tuple[dict, str]:
    """The names that an example defines, and what it prints."""
    said = io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(said):
        return runpy.run_path(str(EXAMPLES[[e.stem for e in EXAMPLES].index(name)]), run_name="__main__"), said.getvalue()


@pytest.fixture(scope="module")
def cwd(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("examples"))


def needs(name: str) -> None:
    if importlib.util.find_spec(NEEDS.get(name, "jax")) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, cwd):
    needs(path.stem)
    _names, said = ran(path.stem, cwd)
    assert SAYS[path.stem] in said
    assert not list(Path(cwd).iterdir())  # an example leaves nothing behind


@pytest.mark.parametrize("library", ["mlflow", "wandb"])
def test_trackers_are_told_every_round(library, cwd, monkeypatch):
    class Fake(types.ModuleType):
        """What the example uses of mlflow and of wandb: all values go to `heard`."""

        heard: ClassVar[list[tuple[dict, int]]] = []
        ended = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            type(self).ended += 1

        def log(self, values, step):
            self.heard.append((values, step))

        def set_experiment(self, name):
            assert name == "fedcodist"

        def log_params(self, params):
            assert params == {"method": "merged", "rounds": 10}

        def start_run(self, run_name):
            return self

        def init(self, project, name, config):
            assert project == "fedcodist" and config["rounds"] == 10
            return self

        log_metrics = log

    monkeypatch.setitem(sys.modules, library, fake := Fake(library))
    monkeypatch.setenv("TRACK", library)
    ran.__wrapped__("07_tracking", cwd)
    assert [t for _, t in fake.heard] == [*range(1, 11), 10] and fake.ended == 1
    assert all(0 < values["held_out/accuracy/small"] <= 1 for values, _ in fake.heard[:-1]) and "test/accuracy/large" in fake.heard[-1][0]
    monkeypatch.setenv("TRACK", "mlfow")
    with pytest.raises(SystemExit, match="TRACK: got 'mlfow'; allowed mlflow"):
        ran.__wrapped__("07_tracking", cwd)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_introduce_themselves(path):
    text = path.read_text()
    assert text.startswith('"""') and len(text.splitlines()) <= 60


def test_every_example_is_expected_to_say_something():
    assert {path.stem for path in EXAMPLES} == set(SAYS)


def foreign_model(library: str, cwd: str, features: int, classes: int) -> fc.Model:
    """The other library's network of its example, as a Model."""
    name = next(name for name, needed in NEEDS.items() if needed == library)
    needs(name)
    names, _said = ran(name, cwd)
    if library == "flax":
        return from_flax(names["Net"](classes), (features,))
    return from_equinox(lambda key: names["Net"](features, classes, key))


@pytest.mark.parametrize("library", ["flax", pytest.param("equinox", marks=pytest.mark.long)])
def test_a_foreign_model_trains_alike_on_both_engines(library, cwd):
    task = Toy(clients=2, examples=4, public=20, held_out=10, test=10).load()
    models = {"ours": fc.MLP((4,)).build((8,), 4), "theirs": foreign_model(library, cwd, 8, 4)}
    pools = {name: fc.Pool(name, model, task.clients, cohort=2, work=fc.LocalSGD(lr=0.1, batch=4)) for name, model in models.items()}
    method = fc.MergedCodist(fc.Constant(0.5), fc.Distiller(steps=2, batch=8))
    steps = [next(fc.train(fc.Experiment(fc.Federation(task, pools, engine=e), method, 1))) for e in (fc.Serial(), fc.Compiled())]
    for pool in pools:
        a, b = (jax.tree.leaves(step.models[pool].params) for step in steps)
        assert all(np.asarray(x) == pytest.approx(np.asarray(y), abs=1e-3) for x, y in zip(a, b, strict=True))
        assert steps[0].info[pool]["codistilled"] and steps[1].info[pool]["codistilled"]
        assert steps[0].info[pool]["train_loss"] == pytest.approx(steps[1].info[pool]["train_loss"], rel=1e-3)
        assert float(tree.norm(steps[1].models[pool].params)) > 0
    # Something was learned at all: the same comparison of two untouched models would pass too.
    start = fc.FedAvg().init(steps[0].experiment.federation, fc.keys.root(0))["theirs"].params
    assert float(tree.norm(tree.sub(start, steps[0].models["theirs"].params))) > 0.01
    assert np.isfinite(steps[0].evaluate()["theirs"]["all"]["loss"])


def test_a_foreign_model_sees_no_key_in_evaluation(cwd):
    # Dropout is what a key is for: with one, two keys give two answers; without, an answer is always the same.
    model = foreign_model("flax", cwd, 8, 4)
    params, x = model.init(fc.keys.root(0)), np.ones((5, 8), np.float32)
    assert np.array_equal(model.apply(params, x, None), model.apply(params, x, None))
    assert not np.array_equal(model.apply(params, x, fc.keys.root(1)), model.apply(params, x, fc.keys.root(2)))
