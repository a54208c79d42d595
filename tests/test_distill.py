"""What a student is asked to say, and on which data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import TASK, gauss_federation

from fedcodist import distill, keys, losses
from fedcodist.distill import Distiller, targets, with_labels
from fedcodist.federation import params_of
from fedcodist.settings import SettingError

Z = [jnp.log(jnp.array([[0.2, 0.8]])), jnp.log(jnp.array([[0.6, 0.4]]))]


def softmax(z):
    return np.asarray(jax.nn.softmax(z))


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


@pytest.mark.parametrize("name", losses.LOSSES)
def test_losses(name):
    loss = losses.LOSSES[name]
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
    assert losses.resolve("fedcodist.losses:js") is losses.js
    with pytest.raises(SettingError, match="Distiller.loss: got 'nope'"):
        Distiller(loss="nope")


def test_the_stream_is_one_reshuffled_pass_after_another():
    how = Distiller(steps=3, batch=4)  # 12 rows a distillation, of 10 public examples
    stream = np.concatenate([how.rows(keys.root(0), nth, 10).ravel() for nth in range(5)])
    for epoch in range(6):
        assert sorted(stream[epoch * 10 : (epoch + 1) * 10].tolist()) == list(range(10))
    assert stream[:10].tolist() != stream[10:20].tolist()
    assert Distiller(steps=2, batch=2, shuffle=False).rows(keys.root(0), 1, 10).tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize("mix", ["probs", "logits"])
def test_codistillation_against_a_plain_loop(mix):
    """The compiled steps against the definition, written out with numpy-sized pieces: three students, two teachers each and themselves."""
    fed = gauss_federation(("small", "large", "huge"))
    theta = params_of(fed.init(keys.root(1)))
    how = Distiller(steps=3, batch=8, mix=mix)
    student, info = fed.codistill(how, theta, 1, keys.root(1), nth=2)
    x = TASK.public.x[how.rows(keys.root(1), 2, len(TASK.public.x))]
    apply = {n: pool.model.apply for n, pool in fed.pools.items()}
    for name in fed.names:
        params, optimizer = theta[name], how.optimizer()
        opt = optimizer.init(params)
        for step in range(3):
            others = [n for n in fed.names if n != name]
            weights = [0.45, 0.45, 0.1]
            z = [apply[n](theta[n], x[step], None) for n in [*others, name]]
            q = sum(w * softmax(zj) for w, zj in zip(weights, z, strict=True))
            if mix == "logits":
                q = softmax(sum(w * zj for w, zj in zip(weights, z, strict=True)))

            def loss(p, q=q, x=x[step], name=name):
                return jnp.mean(jnp.sum(q * (jnp.log(q) - jax.nn.log_softmax(apply[name](p, x, None))), -1))

            update, opt = optimizer.update(jax.grad(loss)(params), opt, params)
            params = jax.tree.map(lambda p, u: p + 0.01 * u, params, update)
        for a, b in zip(jax.tree.leaves(student[name]), jax.tree.leaves(params), strict=True):
            assert np.asarray(a) == pytest.approx(np.asarray(b), abs=2e-5)
    assert set(info["huge"]["agreement"]) == {"small", "large"}


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
    from dataclasses import replace

    labelled = replace(TASK, public=TASK.public._replace(y=np.zeros(50, np.int32)))
    fed = gauss_federation(task=labelled)
    theta = params_of(fed.init(keys.root(0)))
    student, _ = fed.codistill(Distiller(steps=60, batch=25, labels=0.9), theta, 1, keys.root(0), 0)
    guess = jnp.argmax(fed.pools["large"].model.apply(student["large"], TASK.public.x, None), -1)
    assert (guess == 0).mean() > 0.9
