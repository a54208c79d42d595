"""A run's models: opened again, used on raw rows, and written as files that give the same logits without fedcodist."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shutil
import sys
import zipfile

import jax
import numpy as np
import pytest
from safetensors import safe_open

import fedcodist as fc
from fedcodist import testing
from fedcodist.cli.main import main
from fedcodist.errors import ConfigError, DataError
from fedcodist.evaluate import evaluate
from fedcodist.models import CNN, LSTM, MLP
from fedcodist.objectives import Classify, Images, NextToken
from fedcodist.runs import model_files, session
from fedcodist.runs.trained import Trained, described
from fedcodist.storage.durable import CheckpointError
from fedcodist.task import Row, Spec

SEEN = {
    "numbers": (MLP((6,)), Spec(Classify(), Row((4,), "float32"), Row((), "int32"), 3)),
    "images": (CNN((2, 3, 3), (4, 5)), Spec(Classify(Images(8)), Row((10, 10, 3), "uint8"), Row((), "int32"), 3)),
    "text": (LSTM(embed=3, hidden=4), Spec(NextToken(8), Row((5,), "uint16"), Row((5,), "uint16"), 9)),
}


def trained(name: str) -> Trained:
    part, spec = SEEN[name]
    model = part.build(spec.inputs, spec.classes)
    labels = ("one", "two", "three") if spec.classes == 3 else ()
    return Trained("small", 7, part, model, model.init(fc.keys.root(0)), spec, labels, "runs/a")


def rows(model: Trained, n: int = 5) -> np.ndarray:
    draw = np.random.Generator(np.random.PCG64(1))
    return draw.integers(0, 9 if model.pool == "text" else 8, (n, *model.spec.x.shape)).astype(model.spec.x.dtype)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("trained")
    *_, last = session.perform(fc.load("quick/toy", ["rounds=2"], seed=0), root)
    return last.path


def test_a_run_gives_its_models_back(run):
    opened = fc.open_run(run)
    model, task = opened.model("small"), opened.config.task.load()
    assert opened.pools == ("large", "small") and model.round == 2 and model.spec == task.spec
    *_, last = fc.train(fc.load("quick/toy", ["rounds=2"], seed=0))
    assert testing.same_bits(model.params, last.models["small"].params)
    assert np.mean(model.predict(task.test.x) == task.test.y) == pytest.approx(
        evaluate(last.experiment.federation, last.models, "test")["small"]["all"]["accuracy"]
    )
    assert np.allclose(model.probabilities(task.test.x[:3]).sum(-1), 1) and model(task.test.x[:1]).shape == (1, 4)
    assert np.allclose(model(task.test.x)[150:], model(task.test.x[150:]), atol=1e-6)  # however rows are cut into batches


def test_what_cannot_be_used_is_one_line(run, tmp_path):
    opened = fc.open_run(run)
    with pytest.raises(ConfigError, match=r"pool: got 'smal'; allowed large \| small \(did you mean small\?\)"):
        opened.model("smal")
    with pytest.raises(ConfigError, match=r"pool: got nothing; allowed large \| small"):
        opened.model()
    with pytest.raises(DataError, match=r"model small: got float64 of shape \[8\]; allowed \[rows, 8\], float32"):
        opened.model("small").predict(np.zeros(8))
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for file in copy.glob("checkpoints/*/small.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no good checkpoint: 000002"):
        fc.open_run(copy).model("small")


def test_a_run_that_is_not_over_asks_its_task(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "result.json").unlink()
    assert np.array_equal(
        fc.open_run(copy).model("large").predict(np.ones((2, 8))), fc.open_run(run).model("large").predict(np.ones((2, 8)))
    )


def test_rows_of_bytes_are_taken_as_bytes_and_classes_by_name():
    model, x = trained("images"), rows(trained("images"))
    assert np.array_equal(model(x), model(x.astype(np.float64))) and set(model.predict(x)) <= {"one", "two", "three"}
    with pytest.raises(DataError, match=r"model small: got rows of float64, 0.0 to 0.5; allowed uint8, as the data it was trained on"):
        model(np.linspace(0, 0.5, 300).reshape(1, 10, 10, 3))
    told = described(fc.load("quick/toy").federation.task)
    assert json.loads(json.dumps(told)) == told and told["x"] == {"shape": [8], "dtype": "float32"}


@pytest.mark.parametrize("name", SEEN)
def test_stablehlo_gives_the_same_logits_anywhere(name):
    model, x = trained(name), rows(trained(name))
    data = model_files.to_stablehlo(model)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        program, card = jax.export.deserialize(bytearray(archive.read("program.jax"))), json.loads(archive.read("card.json"))
        assert archive.read("program.stablehlo")[:4] == b"ML\xefR"  # MLIR bytecode
    for some in (x, x[:1]):  # any number of rows
        assert np.allclose(program.call(some), model(some), rtol=0, atol=1e-5)
    called = set(re.findall(r"custom_call @(\w+)", program.mlir_module()))
    assert called <= {"shape_assertion"} and set(program.platforms) >= {"cpu", "cuda", "tpu"}  # no kernel of this machine
    assert card["rows"] == {"shape": list(model.spec.x.shape), "dtype": model.spec.x.dtype} and card["labels"] == list(model.labels)


def test_safetensors_hold_the_parameters_and_the_card(tmp_path):
    model = trained("numbers")
    path = model_files.export(model, "safetensors", tmp_path / "deep" / "a.safetensors")
    with safe_open(path, "numpy") as file:
        card, p = json.loads(file.metadata()["card"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    x = rows(model)
    hidden = np.maximum(x @ p["dense0/w"] + p["dense0/b"], 0)
    assert np.allclose(hidden @ p["dense1/w"] + p["dense1/b"], model(x), atol=1e-5)
    assert card["network"] == {"kind": "mlp", "hidden": [6]} and card["labels"] == ["one", "two", "three"] and card["classes"] == 3


@pytest.mark.parametrize("name", SEEN)
def test_onnx_gives_the_same_logits(name):
    if importlib.util.find_spec("jax2onnx") is None:
        pytest.skip("jax2onnx is not installed: make test-onnx")
    import onnxruntime

    model, x = trained(name), rows(trained(name))
    session = onnxruntime.InferenceSession(model_files.to_onnx(model))
    at_once = session.get_inputs()[0]
    parts = np.split(x, len(x)) if at_once.shape[0] == 1 else [x, x[:2]]
    said = np.concatenate([session.run(None, {at_once.name: part})[0] for part in parts])[: len(x)]
    assert (at_once.shape[0] == 1) == (name == "images")  # where the converter does not leave the number of rows free
    assert np.allclose(said, model(x), rtol=0, atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["card"])["classes"] == model.spec.classes


def test_the_verb(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export-model", str(run), "--pool", "small"]) == 0
    assert capsys.readouterr().out.startswith("small.safetensors: ") and (tmp_path / "small.safetensors").stat().st_size > 100
    assert main(["export-model", str(run), "--pool", "small", "--to", "onx"]) == 2
    assert "--to: got 'onx'; allowed safetensors | stablehlo | onnx (did you mean onnx?)" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "jax2onnx", None)  # then its import fails
    assert main(["export-model", str(run), "--pool", "small", "--to", "onnx"]) == 2
    assert "needs the package jax2onnx, which is not installed: pip install 'fedcodist[onnx]'" in capsys.readouterr().err
