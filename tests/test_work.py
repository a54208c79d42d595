"""What a client does, against a plain numpy loop."""

from dataclasses import dataclass

import jax
import numpy as np
import pytest
from worlds import finish, gauss_federation, same_bits

from fedcodist import keys
from fedcodist.engines import blocks
from fedcodist.methods.fedavg import FedAvg
from fedcodist.models import MLP
from fedcodist.objectives.classify import Classify
from fedcodist.types import Data
from fedcodist.work import LocalSGD, Prox

MODEL = MLP(()).build((3,), 2)  # logistic regression: w [3, 2], b [2]
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(7, 3)).astype(np.float32), RNG.integers(0, 2, 7).astype(np.int32)


def run(work, padded=0, n=7, key=0):
    params = MODEL.init(keys.root(1))
    x, y = np.concatenate([X[:n], np.full((padded, 3), 1e9, np.float32)]), np.concatenate([Y[:n], np.zeros(padded, np.int32)])
    return params, jax.jit(lambda p, d, k: work(MODEL, Classify(), p, d, k))(params, Data(x, y, np.int32(n)), keys.root(key))


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize(("epochs", "batch"), [(1, 3), (2, 3), (1, 7), (3, 100)])
def test_sgd_against_numpy(epochs, batch, mu):
    """Seven rows in batches of three: the last batch of each epoch is short, and its mean is over what it has."""
    work = Prox(mu=mu, lr=0.5, epochs=epochs, batch=batch, shuffle=False) if mu else LocalSGD(0.5, epochs, batch, shuffle=False)
    params, reply = run(work)
    w, b = (np.asarray(params["dense0"][k], np.float64) for k in ("w", "b"))
    w0, b0 = w.copy(), b.copy()
    for _ in range(epochs):
        for i in range(0, 7, batch):
            x, y = X[i : i + batch], Y[i : i + batch]
            error = (softmax(x @ w + b) - np.eye(2)[y]) / len(x)
            w, b = w - 0.5 * (x.T @ error + mu * (w - w0)), b - 0.5 * (error.sum(0) + mu * (b - b0))
    assert np.asarray(reply.value["dense0"]["w"]) == pytest.approx(w0 - w, abs=1e-5)
    assert np.asarray(reply.value["dense0"]["b"]) == pytest.approx(b0 - b, abs=1e-5)
    assert float(reply.weight) == 7


@pytest.mark.parametrize("padded", [1, 2, 13])
def test_padding_changes_nothing(padded):
    work = LocalSGD(0.1, 2, 3)
    plain, with_padding = run(work)[1], run(work, padded)[1]
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(with_padding), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-6)


def test_shuffling_depends_on_the_key_alone():
    work = LocalSGD(0.5, 1, 2)
    a, b, other = run(work, key=0)[1], run(work, key=0)[1], run(work, key=1)[1]
    assert np.asarray(a.value["dense0"]["w"]).tobytes() == np.asarray(b.value["dense0"]["w"]).tobytes()
    assert np.abs(np.asarray(a.value["dense0"]["w"]) - np.asarray(other.value["dense0"]["w"])).max() > 1e-4


def test_every_row_is_seen_once_an_epoch():
    from fedcodist.work import _order

    order = _order(keys.root(5), 10, np.int32(7), 4, True)
    assert sorted(order[:7].tolist()) == list(range(7)) and len(order) == 12
    assert order[:7].tolist() != list(range(7))


def test_one_example_is_a_short_batch():
    _, reply = run(LocalSGD(0.5, 1, 20), padded=3, n=1)
    assert float(reply.weight) == 1 and np.isfinite(np.asarray(reply.value["dense0"]["w"])).all()
    assert np.asarray(reply.value["dense0"]["w"]).any()


@dataclass(frozen=True)
class Strict:
    """A work of somebody else's, which looks at its own rate and says nothing of `rates`."""

    lr: float = 0.1

    def __post_init__(self):
        assert 0 < self.lr < 1

    def __call__(self, model, objective, sent, data, key):
        return LocalSGD(lr=self.lr if self.lr < 0.5 else 0.5, batch=4)(model, objective, sent, data, key)


def test_another_rate_compiles_nothing_and_a_work_of_ones_own_keeps_its_fields():
    def trained(work):
        return finish(gauss_federation(work=work), FedAvg(), rounds=1).state

    one = trained(LocalSGD(lr=0.1, batch=4))
    before = blocks._run._cache_size()
    other = trained(LocalSGD(lr=0.2, batch=4))
    assert blocks._run._cache_size() == before and not same_bits(one, other)
    own = trained(Strict(0.1))
    assert blocks._run._cache_size() > before
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), own, one)
