"""What a student is asked to say, and on which data."""

import inspect
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import TASK, gauss_federation

from fedcodist import config, distill, keys, losses, techniques
from fedcodist.distill import Distiller, gated, targets, with_labels
from fedcodist.federation import params_of
from fedcodist.methods import PeriodicCodist
from fedcodist.methods.ensembles import ensemble, weighted
from fedcodist.settings import SettingError
from fedcodist.train import Experiment
from fedcodist.types import Voice

Z = [jnp.log(jnp.array([[0.2, 0.8]])), jnp.log(jnp.array([[0.6, 0.4]]))]


def softmax(z):
    return np.asarray(jax.nn.softmax(z))


def distance(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return math.sqrt(sum(float(((np.asarray(x) - np.asarray(y)) ** 2).sum()) for x, y in pairs))


def test_targets_mix_probabilities():
    assert softmax(targets(Z, jnp.array([0.75, 0.25]), jnp.ones(2))) == pytest.approx(np.array([[0.3, 0.7]]))


def test_targets_mix_logits():
    z = [jnp.array([[1.0, 3.0]]), jnp.array([[4.0, 0.0]])]
    mixed = targets(z, jnp.array([0.5, 0.5]), jnp.array([1.0, 2.0]), "logits")
    assert mixed.tolist() == [[0.5 + 1.0, 1.5]]


def test_temperature_divides_each_teachers_logits():
    z = jnp.array([[0.0, 2.0]])
    assert softmax(targets([z], jnp.ones(1), jnp.array([2.0]))) == pytest.approx(softmax(jnp.array([[0.0, 1.0]])))
    assert softmax(targets([z], jnp.ones(1), jnp.array([1e3]))) == pytest.approx(np.full((1, 2), 0.5), abs=1e-3)  # T -> inf: uniform
    assert softmax(targets([z], jnp.ones(1), jnp.array([1e-3]))) == pytest.approx(np.array([[0.0, 1.0]]))


def test_weight_zero_silences_a_teacher():
    loud = jnp.array([[jnp.inf, 0.0]]) * 0 + jnp.array([[1e4, -1e4]])
    assert softmax(targets([Z[0], loud], jnp.array([1.0, 0.0]), jnp.ones(2))) == pytest.approx(np.array([[0.2, 0.8]]))


@pytest.mark.parametrize("gate", [0.0, 0.5, 1e-40])
@pytest.mark.parametrize("mix", ["probs", "logits"])
def test_weight_zero_silences_even_a_teacher_that_is_not_a_number(mix, gate):
    broken = jnp.full((1, 2), jnp.nan)
    for order in (1, -1):
        spoken, weights = [Z[0], broken][::order], jnp.array([1.0, 0.0][::order])
        assert softmax(targets(spoken, weights, jnp.ones(2), mix, gate)) == pytest.approx(np.array([[0.2, 0.8]]))
    assert np.isnan(targets([Z[0], broken], jnp.array([0.5, 0.5]), jnp.ones(2), mix, gate)).all()  # one that is heard is not hidden


# Of two classes: a teacher of even odds has entropy ln 2, so its weight is halved by gate 1; one that is certain keeps its weight.
EVEN, CERTAIN = [0.0, 0.0], [30.0, 0.0]


def test_the_gate_by_hand():
    z = [jnp.array([EVEN, EVEN, CERTAIN]), jnp.array([CERTAIN, EVEN, CERTAIN])]  # three examples: each has its own weights
    half = jnp.array([0.5, 0.5])
    # First example: 1/2 * 1/2 against 1/2 * 1 is 1/3 and 2/3, and q = 1/3 [1/2, 1/2] + 2/3 [1, 0]. In the others both are equally sure.
    assert softmax(targets(z, half, jnp.ones(2), gate=1.0)) == pytest.approx(np.array([[5 / 6, 1 / 6], [0.5, 0.5], [1.0, 0.0]]))
    # Gate 1/2 quarters the even one. With weights 0.8 and 0.2 both are at 0.2 then.
    q = softmax(targets(z, jnp.array([0.8, 0.2]), jnp.ones(2), gate=0.5))
    assert q == pytest.approx(np.array([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0]]))
    # The same weights on logits: 1/3 * 0 + 2/3 * 30.
    assert targets(z, half, jnp.ones(2), "logits", 1.0)[0].tolist() == pytest.approx([20.0, 0.0])
    shares = gated(z, [jnp.log(0.5), jnp.log(0.5)], 1.0)
    assert np.exp(shares)[..., 0] == pytest.approx(np.array([[1 / 3, 0.5, 0.5], [2 / 3, 0.5, 0.5]]))  # together 1 for each example
    # One number a prediction, so text, [rows, length, words], goes the same way.
    text = targets([jnp.stack([a, a[::-1]]) for a in z], half, jnp.ones(2), gate=1.0)
    assert softmax(text)[[0, 1], [0, 2]] == pytest.approx(np.array([[5 / 6, 1 / 6]] * 2))


def test_the_gate_asks_how_sure_a_teacher_is_at_its_temperature():
    against = jnp.array([[0.0, 30.0]])
    q = softmax(targets([jnp.array([CERTAIN]), against], jnp.array([0.5, 0.5]), jnp.array([1.0, 1e6]), gate=1.0))
    assert q == pytest.approx(np.array([[5 / 6, 1 / 6]]), abs=1e-4)  # the second has become even, and is halved


def test_a_class_that_is_impossible_is_no_doubt():
    z = [jnp.array([[-jnp.inf, 0.0, 0.0]]), jnp.array([[-jnp.inf, 30.0, 0.0]])]  # entropies ln 2 and 0, as above
    assert softmax(targets(z, jnp.array([0.5, 0.5]), jnp.ones(2), gate=1.0)) == pytest.approx(np.array([[0.0, 5 / 6, 1 / 6]]))


@pytest.mark.parametrize("mix", ["probs", "logits"])
def test_the_gate_between_open_and_shut(mix):
    weights, temperatures = jnp.array([0.3, 0.7]), jnp.array([1.0, 2.0])
    ungated = softmax(targets(Z, weights, temperatures, mix))
    assert softmax(targets(Z, weights, temperatures, mix, gate=1e6)) == pytest.approx(ungated, abs=1e-6)
    for shut in (1e-3, 1e-40):  # the first is surer, however close to nothing the gate is
        assert softmax(targets(Z, weights, temperatures, mix, gate=shut)) == pytest.approx(np.array([[0.2, 0.8]]))


def test_the_gate_in_a_config():
    assert config.read("quick/toy", ["method.distill.gate=0.5"]).method.distill.gate == 0.5
    assert config.read("quick/toy").method.distill.gate == 0  # as in the paper
    with pytest.raises(SettingError, match="Distiller.gate: got -1; allowed a number >= 0"):
        Distiller(gate=-1)


def test_labels_take_their_share():
    q = softmax(with_labels(Z[0], jnp.array([0]), 0.25))
    assert q == pytest.approx(np.array([[0.75 * 0.2 + 0.25, 0.75 * 0.8]]))
    assert np.isfinite(losses.kl(with_labels(Z[0], jnp.array([0]), 1.0), Z[1])).all()


P, Q = np.array([0.2, 0.8]), np.array([0.6, 0.4])
BY_HAND = {
    "kl": (P * np.log(P / Q)).sum(),
    "reverse_kl": (Q * np.log(Q / P)).sum(),
    "js": 0.5 * (P * np.log(P / ((P + Q) / 2))).sum() + 0.5 * (Q * np.log(Q / ((P + Q) / 2))).sum(),
    "mse_logits": ((np.log(P) - np.log(Q)) ** 2).mean(),
}


@pytest.mark.parametrize("name", [name for name, loss in techniques.LOSSES.items() if not inspect.isclass(loss)])
def test_losses(name):
    loss = techniques.LOSSES[name]
    assert float(loss(Z[0], Z[1])[0]) == pytest.approx(BY_HAND[name], rel=1e-5)
    assert float(loss(Z[0], Z[0])[0]) == pytest.approx(0, abs=1e-6)
    grad = jax.grad(lambda z: loss(Z[0], z).sum())(Z[0])
    assert np.asarray(grad) == pytest.approx(np.zeros((1, 2)), abs=1e-6)  # gamma = 1 and a fresh student: nothing to learn
    far = jax.grad(lambda z: loss(jnp.array([[200.0, -200.0]]), z).sum())(jnp.array([[-200.0, 200.0]]))
    assert np.isfinite(np.asarray(far)).all()


def test_a_loss_of_your_own():
    def absolute(target, logits):
        return jnp.abs(jax.nn.softmax(target) - jax.nn.softmax(logits)).sum(-1)

    fed = gauss_federation()
    theta = params_of(fed.init(keys.root(0)))
    _student, info = fed.codistill(Distiller(steps=8, batch=10, loss=absolute), theta, 1, keys.root(0), 0)
    assert info["small"]["distill_loss"][1] < info["small"]["distill_loss"][0]
    assert techniques.resolve("fedcodist.techniques.functions:js") is techniques.LOSSES["js"]
    with pytest.raises(SettingError, match="Distiller.loss: got 'nope'"):
        Distiller(loss="nope")


def test_a_loss_of_your_own_sees_activations_if_it_asks():
    told = {}

    def near(target, logits, features):
        told.update(student={k: v.shape for k, v in features.student.items()}, teachers=[list(of) for of in features.teachers])
        (large,) = (of for of in features.teachers if of)
        gap = features.student["dense0"].mean(-1) - large["dense0"].mean(-1)
        return losses.kl(target, logits) + 0.1 * gap**2

    fed = gauss_federation()
    theta = params_of(fed.init(keys.root(0)))
    how = Distiller(steps=8, batch=50, shuffle=False, loss=near)
    student, info = fed.codistill(how, theta, 1, keys.root(0), 0, students=["small"])
    assert info["small"]["distill_loss"][1] < info["small"]["distill_loss"][0]
    assert told == {"student": {"dense0": (50, 4)}, "teachers": [[], ["dense0"]]}  # none of the student itself
    plain, _ = fed.codistill(replace(how, loss="kl"), theta, 1, keys.root(0), 0, students=["small"])
    assert distance(student["small"], plain["small"]) > 1e-4
    voice = feddf_ensemble(fed, theta)
    hears = {"small": {"ensemble": (1.0, 1.0)}}
    fed.codistill(how, theta, 1, keys.root(0), 0, hears=hears, voices={"ensemble": voice})
    assert told["teachers"] == [["dense0"]]


def feddf_ensemble(fed, theta):
    models = tuple(fed.pools[name].model for name in fed.names)
    return Voice(ensemble(models), tuple(jax.tree.map(lambda a: jnp.stack([a, 2 * a]), theta[name]) for name in fed.names))


def test_the_features_of_an_ensemble_are_means_side_by_side():
    fed = gauss_federation()
    theta = params_of(fed.init(keys.root(0)))
    voice, x = feddf_ensemble(fed, theta), TASK.public.x[:5]
    logits, seen = voice.model.features(voice.params, x, None)
    assert np.asarray(logits) == pytest.approx(np.asarray(voice.model.apply(voice.params, x, None)))
    want = [1.5 * np.asarray(fed.pools[name].model.features(theta[name], x, None)[1]["dense0"]) for name in fed.names]
    assert np.asarray(seen["dense0"]) == pytest.approx(np.concatenate(want, -1), rel=1e-5)  # of one layer with ReLU and no bias
    heard = (voice.params, (jnp.array([0.0, 0.5]), jnp.array([0.5, 0.0])))  # as when a client's model is left out
    silent = weighted(tuple(fed.pools[name].model for name in fed.names)).features(heard, x, None)[1]["dense0"]
    part = [np.asarray(fed.pools[name].model.features(theta[name], x, None)[1]["dense0"]) for name in fed.names]
    assert np.asarray(silent) == pytest.approx(np.concatenate([2 * part[0], part[1]], -1), rel=1e-5)


def test_a_model_that_hides_its_layers_is_refused():
    def near(target, logits, features):
        return losses.kl(target, logits)

    fed = gauss_federation()
    hidden = replace(fed.pools["small"], model=fed.pools["small"].model._replace(features=None))
    fed = replace(fed, pools={**fed.pools, "small": hidden})
    with pytest.raises(SettingError, match=r"pools.small.model: got a model without `features`; allowed one that shows its layers"):
        Experiment(fed, PeriodicCodist(2, Distiller(steps=2, batch=10, loss=near)), 4)


def test_the_stream_is_one_reshuffled_pass_after_another():
    how = Distiller(steps=3, batch=4)  # 12 rows a distillation, of 10 public examples
    stream = np.concatenate([how.rows(keys.root(0), nth, 10).ravel() for nth in range(5)])
    for epoch in range(6):
        assert sorted(stream[epoch * 10 : (epoch + 1) * 10].tolist()) == list(range(10))
    assert stream[:10].tolist() != stream[10:20].tolist()
    assert Distiller(steps=2, batch=2, shuffle=False).rows(keys.root(0), 1, 10).tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize("gate", [0.0, 0.2])
@pytest.mark.parametrize("mix", ["probs", "logits"])
def test_codistillation_against_a_plain_loop(mix, gate):
    """The compiled steps against the definition, written out with numpy-sized pieces: three students, two teachers each and themselves."""
    fed = gauss_federation(("small", "large", "third"))
    theta = params_of(fed.init(keys.root(1)))
    how = Distiller(steps=3, batch=8, mix=mix, gate=gate)
    student, info = fed.codistill(how, theta, 1, keys.root(1), nth=2)
    if gate:
        ungated, _ = fed.codistill(replace(how, gate=0.0), theta, 1, keys.root(1), nth=2)
        assert all(distance(student[name], ungated[name]) > 1e-3 for name in fed.names)
    x = TASK.public.x[how.rows(keys.root(1), 2, len(TASK.public.x))]
    apply = {n: pool.model.apply for n, pool in fed.pools.items()}
    for name in fed.names:
        params, optimizer = theta[name], how.optimizer()
        opt = optimizer.init(params)
        for step in range(3):
            others = [n for n in fed.names if n != name]
            z = [apply[n](theta[n], x[step], None) for n in [*others, name]]
            weights = np.array([0.45, 0.45, 0.1])[:, None, None]
            if gate:
                entropy = np.stack([-(softmax(zj) * np.log(softmax(zj))).sum(-1, keepdims=True) for zj in z])
                weights = weights * np.exp(-entropy / gate)
                weights = weights / weights.sum(0)
            q = sum(w * softmax(zj) for w, zj in zip(weights, z, strict=True))
            if mix == "logits":
                q = softmax(sum(w * zj for w, zj in zip(weights, z, strict=True)))

            def loss(p, q=q, x=x[step], name=name):
                return jnp.mean(jnp.sum(q * (jnp.log(q) - jax.nn.log_softmax(apply[name](p, x, None))), -1))

            update, opt = optimizer.update(jax.grad(loss)(params), opt, params)
            params = jax.tree.map(lambda p, u: p + 0.01 * u, params, update)
        for a, b in zip(jax.tree.leaves(student[name]), jax.tree.leaves(params), strict=True):
            assert np.asarray(a) == pytest.approx(np.asarray(b), abs=2e-5)
    assert set(info["third"]["agreement"]) == {"small", "large"}


def test_pieces_change_nothing_but_memory(monkeypatch):
    fed = gauss_federation()
    theta = params_of(fed.init(keys.root(0)))
    how = Distiller(steps=4, batch=10)
    whole, _ = fed.codistill(how, theta, 1, keys.root(0), 0)
    monkeypatch.setattr(distill, "CHUNK_BYTES", 1)
    pieces, _info = fed.codistill(how, theta, 1, keys.root(0), 0)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(pieces), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-6)


def test_labelled_interpolation_learns_the_labels():
    labelled = replace(TASK, public=TASK.public._replace(y=np.zeros(50, np.int32)))
    fed = gauss_federation(task=labelled)
    theta = params_of(fed.init(keys.root(0)))
    student, _ = fed.codistill(Distiller(steps=60, batch=25, labels=0.9), theta, 1, keys.root(0), 0)
    guess = jnp.argmax(fed.pools["large"].model.apply(student["large"], TASK.public.x, None), -1)
    assert (guess == 0).mean() > 0.9
