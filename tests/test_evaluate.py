"""Metrics by hand: over examples, over clients, for each domain, whatever the batch."""

import importlib
import math

import jax.numpy as jnp
import numpy as np
import pytest

import fedcodist as fc
from fedcodist import config, runs
from fedcodist.objectives.next_token import NextToken
from fedcodist.runs import session

module = importlib.import_module("fedcodist.evaluate")  # the package has a function of the same name

# The rows are the logits: what a model says is written in the data. Row 0, and so the padding of the first batch, is wrong.
RIGHT = np.array([0, 1, 1, 1, 0, 1, 1], bool)
Y = np.array([0, 1, 2, 0, 1, 2, 0], np.int32)
SURE = 2.0
X = np.where(np.eye(3, dtype=bool)[np.where(RIGHT, Y, (Y + 1) % 3)], SURE, 0.0).astype(np.float32)
CLIENT = np.array([5, 0, 5, 1, 1, 0, 5])  # neither in order nor without gaps
DOMAIN = np.array([0, 0, 0, 0, 1, 1, 0])
SCALE = {"w": jnp.float32(1.0)}


def says(params, x, key=None):
    assert key is None, "evaluation gives no key"
    return params["w"] * x


def federation(held_out, objective=None, test=None, domains=("here", "there", "nowhere"), names=("a",)):
    examples = {"someone": fc.Examples(X, Y)}
    task = fc.Task("written", objective or fc.Classify(), examples, fc.Examples(X), held_out, test or held_out, 3, domains)
    pools = {name: fc.Pool(name, fc.Model(lambda key: SCALE, says), examples, 1) for name in names}
    return fc.Federation(task, pools)


def loss(right):
    total = np.log(np.exp(SURE) + 2)
    return np.where(right, total - SURE, total).mean()


WHOLE = fc.Split(X, Y, CLIENT, DOMAIN)


def test_metrics_by_hand():
    found = fc.evaluate(federation(WHOLE), {"a": SCALE})["a"]
    assert list(found) == ["all", "here", "there"]  # a domain without rows has no metrics
    assert found["all"]["accuracy"] == pytest.approx(5 / 7)
    assert found["here"]["accuracy"] == pytest.approx(4 / 5)
    assert found["there"]["accuracy"] == pytest.approx(1 / 2)
    # Clients 5, 1 and 0: 2 of 3, 1 of 2, 2 of 2. In `here` 2 of 3, 1 of 1, 1 of 1; in `there` 0 of 1, 1 of 1. Each counts once.
    assert found["all"]["accuracy_clients"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert found["here"]["accuracy_clients"] == pytest.approx((2 / 3 + 1 + 1) / 3)
    assert found["there"]["accuracy_clients"] == pytest.approx(1 / 2)
    assert "client_quantiles" not in found["all"]
    quantiles = fc.evaluate(federation(WHOLE), {"a": SCALE}, quantiles=True)["a"]["all"]["client_quantiles"]
    assert len(quantiles) == 21 and quantiles[::10] == pytest.approx([1 / 2, 2 / 3, 1], abs=1e-6)  # lowest, median, highest
    for domain, rows in (("all", RIGHT), ("here", RIGHT[DOMAIN == 0]), ("there", RIGHT[DOMAIN == 1])):
        assert found[domain]["loss"] == pytest.approx(loss(rows), rel=1e-5)
        sure = np.exp(SURE) / (np.exp(SURE) + 2)
        assert found[domain]["calibration"] == pytest.approx(abs(sure - rows.mean()), rel=1e-4)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 6, 7, 8, 500])
def test_the_batch_changes_nothing(batch, monkeypatch):
    seen = []

    def spy(model, objective, params, x, y, real=module.row_sums):
        seen.append(x.shape[:2])
        return real(model, objective, params, x, y)

    want = fc.evaluate(federation(WHOLE), {"a": SCALE})
    monkeypatch.setattr(module, "LOGIT_BYTES", batch * 4 * 3)  # three logits a row
    monkeypatch.setattr(module, "row_sums", spy)
    fed = federation(WHOLE)
    found = fc.evaluate(fed, {"a": SCALE})
    size = min(batch, 7)
    several = min(module.BATCHES, -(-7 // size))
    assert seen == [(several, size)] * -(-7 // (several * size))  # one shape: the last program is filled up
    for domain, metrics in want["a"].items():
        assert found["a"][domain] == pytest.approx(metrics, rel=1e-6)
    sums = module.measure(fed, [fc.Voice(fed.pools["a"].model, SCALE)], WHOLE)
    assert all(len(value) == 7 for value in sums.values())  # and the padding is cut off again
    assert sums["correct"].tolist() == RIGHT.tolist()


def test_a_batch_is_never_empty(monkeypatch):
    monkeypatch.setattr(module, "LOGIT_BYTES", 1)  # less than a single row needs
    assert fc.evaluate(federation(WHOLE), {"a": SCALE})["a"]["all"]["accuracy"] == pytest.approx(5 / 7)


def test_what_is_not_known_is_not_told():
    found = fc.evaluate(federation(fc.Split(X, Y)), {"a": SCALE})["a"]
    assert list(found) == ["all"] and "accuracy_clients" not in found["all"]
    assert list(fc.evaluate(federation(WHOLE, domains=("all",)), {"a": SCALE})["a"]) == ["all"]


def test_each_pool_and_each_split_on_its_own():
    fed = federation(WHOLE, test=fc.Split(X[5:], Y[5:]), names=("a", "b"))
    models = {"a": SCALE, "b": {"w": jnp.float32(-1.0)}}  # b says the opposite
    held_out, test = fc.evaluate(fed, models), fc.evaluate(fed, models, "test")
    assert set(held_out) == {"a", "b"}
    assert test["a"]["all"]["accuracy"] == 1.0
    assert test["b"]["all"]["accuracy"] == 0.0
    assert held_out["a"]["all"]["accuracy"] == pytest.approx(5 / 7)
    with pytest.raises(KeyError, match="train"):
        fc.evaluate(fed, models, "train")


def test_both_engines_evaluate_alike():
    fed = federation(WHOLE)
    serial = fc.Federation(fed.task, fed.pools, engine=fc.Serial())
    assert fc.evaluate(serial, {"a": SCALE}) == fc.evaluate(fed, {"a": SCALE})


def test_images_are_evaluated_without_augmentation():
    # Noise images, told apart by their centre: any crop but the central one, or any flip, would be another image.
    x = np.random.default_rng(0).integers(0, 256, (9, 6, 6, 1), dtype=np.uint8)
    centre = np.asarray(fc.Images(size=4).inputs(x)).reshape(9, -1)

    def nearest(params, seen, key=None):
        return params["w"] * seen.reshape(len(seen), -1) @ centre.T

    split = fc.Split(x, np.arange(9, dtype=np.int32))
    clients = {"someone": fc.Examples(x, split.y)}
    task = fc.Task("centre", fc.Classify(fc.Images(size=4)), clients, fc.Examples(x), split, split, 9)
    fed = fc.Federation(task, {"a": fc.Pool("a", fc.Model(lambda key: SCALE, nearest), clients, 1)})
    assert fc.evaluate(fed, {"a": SCALE})["a"]["all"]["accuracy"] == 1.0


def test_text_counts_tokens_and_clients():
    # Two rows of up to three words: the first client has one right of three, the second its only one.
    y = np.array([[3, 4, 5], [4, 0, 0]], np.int32)
    guess = np.array([[3, 3, 3], [4, 4, 4]])
    x = (5.0 * np.eye(7)[guess]).astype(np.float32)
    split = fc.Split(x, y, np.array([0, 1]))
    found = fc.evaluate(federation(split, NextToken(oov=6)), {"a": SCALE})["a"]["all"]
    assert found["accuracy"] == pytest.approx(2 / 4)  # over tokens
    assert found["accuracy_clients"] == pytest.approx((1 / 3 + 1) / 2)


# -- all pools' models together --

# Two models that know two rows by heart, as probabilities. One says more than logarithms: a constant changes nothing of its opinion.
HEART = {"a": np.log([[0.6, 0.4], [0.9, 0.1]]) + 5.0, "b": np.log([[0.2, 0.8], [0.3, 0.7]])}


def by_heart(y):
    model = fc.Model(lambda key: {"t": jnp.zeros((2, 2))}, lambda params, x, key=None: params["t"][x[:, 0].astype(int)])
    split = fc.Split(np.array([[0], [1]], np.float32), np.array(y, np.int32), np.array([0, 0]), np.array([0, 1]))
    clients = {"someone": fc.Examples(split.x, split.y)}
    task = fc.Task("heart", fc.Classify(), clients, fc.Examples(split.x), split, split, 2, ("first", "second"))
    return fc.Federation(task, {name: fc.Pool(name, model, clients, 1) for name in HEART})


def test_an_ensemble_by_hand():
    fed, models = by_heart([1, 0]), {name: {"t": jnp.asarray(table, jnp.float32)} for name, table in HEART.items()}
    # The means are [0.4, 0.6] and [0.6, 0.4]: right in both rows, where a alone is right in the second and b in the first.
    assert {name: found["all"]["accuracy"] for name, found in fc.evaluate(fed, models).items()} == {"a": 0.5, "b": 0.5}
    found = module.ensemble(fed, models)
    assert list(found) == ["all", "first", "second"]
    for domain in found:
        assert found[domain]["accuracy"] == found[domain]["accuracy_clients"] == 1.0
        assert found[domain]["loss"] == pytest.approx(-math.log(0.6), rel=1e-5)
        assert found[domain]["calibration"] == pytest.approx(0.4, rel=1e-5)
    wrong = module.ensemble(by_heart([0, 0]), models, "test")
    assert wrong["first"]["accuracy"] == 0.0 and wrong["first"]["loss"] == pytest.approx(-math.log(0.4), rel=1e-5)
    assert wrong["all"]["loss"] == pytest.approx(-(math.log(0.4) + math.log(0.6)) / 2, rel=1e-5)


def test_an_ensemble_of_the_same_is_the_same():
    fed = federation(WHOLE, names=("a", "b"))
    alone = fc.evaluate(fed, {"a": SCALE, "b": SCALE})["a"]
    for domain, metrics in module.ensemble(fed, {"a": SCALE, "b": SCALE}).items():
        assert metrics == pytest.approx(alone[domain], rel=1e-5)
    one = federation(WHOLE)
    assert module.ensemble(one, {"a": SCALE}) == fc.evaluate(one, {"a": SCALE})["a"]  # of one model: itself, to the bit


def test_an_ensemble_shares_the_memory_of_a_batch(monkeypatch):
    seen = []

    def spy(models, objective, params, x, y, real=module.row_sums):
        seen.append((len(models), x.shape[1]))
        return real(models, objective, params, x, y)

    fed, models = federation(WHOLE, names=("a", "b")), {"a": SCALE, "b": {"w": jnp.float32(0.5)}}
    want = module.ensemble(fed, models)
    monkeypatch.setattr(module, "LOGIT_BYTES", 4 * 4 * 3)  # four rows of three logits
    monkeypatch.setattr(module, "row_sums", spy)
    found = module.ensemble(fed, models)
    fc.evaluate(fed, models)
    assert set(seen) == {(2, 2), (1, 4)}
    for domain in want:
        assert found[domain] == pytest.approx(want[domain], rel=1e-6)


def test_a_result_tells_of_the_ensemble(tmp_path):
    made = config.read("quick/toy", ["rounds=2"])
    experiment = config.build(made, 0)
    *_, last = session.perform(experiment, tmp_path)
    result = runs.read(last.path).result
    *_, step = fc.train(experiment)
    models, fed = step.models, step.experiment.federation
    assert result["ensemble"] == {split: module.ensemble(fed, models, split) for split in ("held_out", "test")}
    assert set(result["ensemble"]["test"]) == {"all", *fed.task.domains}
    assert result["test"] == fc.evaluate(fed, models, "test") and set(result["test"]) == {"small", "large"}
    spread = result["client_quantiles"]["small"]["all"]
    assert len(spread) == 21 and spread == sorted(spread)
    assert result["labels"]["small"]["clients"] == len(fed.pools["small"].clients)


def test_a_single_pool_is_no_ensemble(tmp_path):
    file = tmp_path / "one.toml"
    file.write_text('rounds = 1\ntask = "toy"\n[pools.small]\nmodel = { kind = "mlp", hidden = [4] }\ncohort = 4\n')
    made = config.read(file)
    *_, last = session.perform(config.build(made, 0), tmp_path)
    assert "ensemble" not in runs.read(last.path).result
