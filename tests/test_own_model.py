"""A user's own network in a config: read, refused in one line, trained like any other, and the adapters of other libraries."""

from __future__ import annotations

import importlib.util
import json
import tomllib

import jax
import numpy as np
import pytest

import fedcodist as fc
from fedcodist import config, testing
from fedcodist.cli.main import main
from fedcodist.config import toml
from fedcodist.errors import ConfigError
from fedcodist.models import Own
from fedcodist.runs import session
from fedcodist.tuning import dotted

LIBRARIES = {"linen": "flax", "nnx": "flax", "equinox": "equinox", "haiku": "haiku", "keras": "keras"}


def own(table: str, *more: str) -> config.Config:
    return config.read("quick/toy", ["rounds=2", f"pools.small.model={{ function = {table} }}", *more])


def refused(table: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config.build(own(table), 0)
    (line,) = caught.value.lines
    return line


def test_a_function_is_named_with_its_keys_and_said_again():
    said = own('"own_nets:linear", scale = 2.0')
    assert said.pools["small"].model == Own("own_nets:linear", {"scale": 2.0})
    plain = config.plain(said)
    assert plain["pools"]["small"]["model"] == {"function": "own_nets:linear", "scale": 2.0}
    again = tomllib.loads(toml.text({"pools": plain["pools"]}))["pools"]["small"]["model"]  # as a report and a study write it
    assert again == plain["pools"]["small"]["model"]
    other = dotted.put(said, "pools.small.model.scale", 3.0)  # as `tune` does
    assert other.pools["small"].model.keys == {"scale": 3.0} and config.identity(other) != config.identity(said)
    built = said.pools["small"].model.build((8,), 4)
    assert built is own('"own_nets:linear", scale = 2.0').pools["small"].model.build((8,), 4)  # and so are its programs


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ('"own_nets"', "pools.small.model.function: got 'own_nets'; allowed module:function, called with (shape, classes)"),
        ('"own_nets:missing"', "got 'own_nets:missing', which cannot be imported (module 'own_nets' has no attribute"),
        ('"own_nets:linear", scales = 1', "model.scales: got an unknown key; allowed function, outputs, dtype, scale (--set) did you"),
        ('"own_nets:fails"', "model.when: got nothing; allowed a value: the function has no default"),
        ('"math:sqrt"', "model.function: got a function of (x, /); allowed a function of (shape, classes) and the other keys"),
        (
            '"own_nets:linear", outputs = 5',
            "pools.small.model: got own_nets:linear, whose logits for 2 rows are float32[2, 5], not float32[2, 4]; allowed a model for "
            "inputs of 8 float32 and 4 classes",
        ),
        ('"own_nets:linear", dtype = "int32"', "whose parameter w is int32, not floating-point; allowed a model for inputs of 8 float32"),
        ('"own_nets:fails", when = "building"', "got own_nets:fails, which raised RuntimeError: no way; allowed a model for inputs of"),
        ('"own_nets:fails", when = "training"', "got own_nets:fails, which raised AssertionError: not in training; allowed"),
        ('"own_nets:nothing"', "which is refused (its result: got a NoneType; allowed a Model, such as fedcodist.models.from_flax makes)"),
    ],
)
def test_what_does_not_fit_is_one_line(table, line):
    assert line in refused(table)


def test_a_module_that_raises_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "broken_net.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    assert "got 'broken_net:build', whose module raised ZeroDivisionError: division by zero; allowed" in refused('"broken_net:build"')


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_network_of_another_library(name):
    if importlib.util.find_spec(LIBRARIES[name]) is None:
        pytest.skip(f"{LIBRARIES[name]} is not installed")
    part = Own(f"own_nets:{name}")
    testing.check_model(part, (3,), 2)
    model, x = part.build((3,), 2), np.ones((5, 3), np.float32)
    params, other = model.init(fc.keys.root(0)), model.init(fc.keys.root(1))
    assert not testing.same_bits(params, other)
    inside = jax.eval_shape(lambda: model.init(fc.keys.root(0)))  # also while something else is traced
    assert jax.tree.map(np.shape, inside) == jax.tree.map(np.shape, params)
    drawn = [np.asarray(model.apply(params, x, fc.keys.root(seed))) for seed in (1, 1, 2)]  # dropout goes by the key, and by nothing else
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    line = refused(f'"own_nets:{name}", norm = true')
    assert "state that is not trained (" in line and "GroupNorm or LayerNorm in the place of BatchNorm" in line


def test_it_runs_beside_its_twin_and_resumes_to_the_bit(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(
        'like = "quick/toy"\nrounds = 3\ncheckpoint_every = 1\n[pools.small]\nmodel = { function = "own_nets:linear" }\n'
    )
    where = str(tmp_path / "mine.toml")
    assert main(["run", where, "--twin", "--seeds", "0", "--out", str(tmp_path / "a"), "--quiet", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["method"] for row in rows} == {"FedAvg", "MergedCodist"}
    begun = session.perform(config.load(where, seed=0), tmp_path / "b")
    assert [next(begun).kind for _ in range(2)] == ["started", "round"]
    begun.close()
    assert [event.kind for event in session.perform(config.load(where, seed=0), tmp_path / "b")] == [
        "started",
        "round",
        "round",
        "finished",
    ]
    files = [sorted((tmp_path / root).rglob("merged/seed-0/checkpoints/000003/*.safetensors")) for root in "ab"]
    assert len(files[0]) == 2 and [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
