"""A round of each method with numbers worked out by hand, on every engine. See worlds.py for the one-parameter model."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from worlds import gauss_federation, methods, same_bits, scalar_federation

from fedcodist import keys
from fedcodist.distill import Distiller
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.serial import Serial
from fedcodist.federation import Diverged, params_of
from fedcodist.methods import FedAvg, MergedCodist, PeriodicCodist
from fedcodist.methods.merged import merge
from fedcodist.pool import Learns
from fedcodist.schedule import Constant
from fedcodist.work import LocalSGD

ENGINES = [Serial(), Compiled(), Compiled(form="vmap"), Compiled(block=1, workers=3)]
ONE_STEP = Distiller(steps=1, batch=1, shuffle=False, augment=False)


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def one_round(fed, method, t=1):
    state = method.init(fed, keys.root(0))
    state, info = method.round(fed, state, t, keys.root(0))
    return {name: float(params["w"]) for name, params in params_of(state).items()}, info


def client_gradient(w):
    """Anna: one example x = 1, y = 1. Bert: three of x = 2, y = 0, one batch. SGD with learning rate 1, one step each."""
    anna = sigmoid(w) - 1  # before minus after = gradient
    bert = sigmoid(2 * w) * 2
    return (1 * anna + 3 * bert) / 4


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_fedavg_by_hand(engine):
    after, info = one_round(scalar_federation(engine=engine), FedAvg())
    # At w = 0 all probabilities are 1/2: Anna sends -0.5, Bert +1, the mean over examples is (-0.5 + 3) / 4 = 0.625.
    assert after["a"] == pytest.approx(-0.625)
    assert after["b"] == pytest.approx(2.0 - client_gradient(2.0), rel=1e-6)
    assert info["a"]["clients"] == 2 and info["a"]["examples"] == 4
    assert info["a"]["grad_norm"] == pytest.approx(0.625)
    assert info["a"]["train_loss"] == pytest.approx(math.log(2))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_periodic_by_hand(engine):
    method = PeriodicCodist(period=2, distill=ONE_STEP)
    fed = scalar_federation(engine=engine)
    stepped = {"a": -0.625, "b": 2.0 - client_gradient(2.0)}
    assert one_round(fed, method, t=1)[0] == pytest.approx(stepped)  # no codistillation in odd rounds
    after, info = one_round(fed, method, t=2)
    # Teachers and students are the models after the step. On x = 1 the gradient of KL(q || p) in w is p - q; Adam's first step
    # is lr g / (|g| + eps) with lr 0.1.
    for student, teacher in (("a", "b"), ("b", "a")):
        g = sigmoid(stepped[student]) - sigmoid(stepped[teacher])
        assert after[student] == pytest.approx(stepped[student] - 0.1 * g / (abs(g) + 1e-5), rel=1e-5)
        assert info[student]["codistilled"] and info[student]["dist_norm"] == pytest.approx(0.1, rel=1e-3)
    assert after["a"] > stepped["a"] and after["b"] < stepped["b"]  # they came closer


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_merged_by_hand(engine):
    fed = scalar_federation(engine=engine)
    after, info = one_round(fed, MergedCodist(alpha=Constant(0.8), distill=ONE_STEP))
    # Both gradients from theta at the start. In one dimension the rescaled distillation gradient is |g| with delta's sign:
    # a (w = 0) is pulled up towards b (w = 2), so delta_a < 0 < delta_b.
    g = {"a": 0.625, "b": client_gradient(2.0)}
    assert after["a"] == pytest.approx(0.0 - (0.8 * g["a"] - 0.2 * g["a"]), rel=1e-5)
    assert after["b"] == pytest.approx(2.0 - (0.8 * g["b"] + 0.2 * g["b"]), rel=1e-5)
    assert info["a"]["cosine"] == pytest.approx(-1) and info["b"]["cosine"] == pytest.approx(1)


def test_gamma_and_temperature_by_hand():
    from fedcodist.pool import Teaches

    fed = scalar_federation(0.5, 2.0, learns=Learns(lr=0.1, decay=1.0, self_weight=0.25), teaches=Teaches(2.0), work=LocalSGD(lr=1e-9))
    theta = params_of(fed.init(keys.root(0)))
    student, _ = fed.codistill(Distiller(steps=2, batch=1), theta, 1, keys.root(0), nth=0)
    # Step 1: q = 0.75 sigmoid(2 / T) + 0.25 sigmoid(0.5), T = 2 for the teacher and 1 for the student's own start.
    q = 0.75 * sigmoid(1.0) + 0.25 * sigmoid(0.5)
    g1 = sigmoid(0.5) - q
    w1 = 0.5 - 0.1 * g1 / (abs(g1) + 1e-5)
    # Step 2: the target stays, Adam has m = .9 m + .1 g and v = .999 v + .001 g^2 with bias correction.
    g2 = sigmoid(w1) - q
    m, v = (0.09 * g1 + 0.1 * g2) / 0.19, (0.000999 * g1**2 + 0.001 * g2**2) / 0.001999
    assert float(student["a"]["w"]) == pytest.approx(w1 - 0.1 * m / (math.sqrt(v) + 1e-5), rel=1e-5)


def test_the_distillation_rate_decays_to_its_fraction():
    fed = scalar_federation(learns=Learns(lr=0.1, decay=0.2, self_weight=0.0))
    object.__setattr__(fed, "rounds", 10)
    theta = params_of(fed.init(keys.root(0)))
    moved = [float(fed.codistill(ONE_STEP, theta, t, keys.root(0), nth=0)[0]["a"]["w"]) for t in (1, 6)]
    assert moved == pytest.approx([0.1, 0.1 * (1 - 0.8 * 0.5)], rel=1e-3)  # A14: lr (1 - (1 - c) (t - 1) / R)


def test_merge_is_equation_2():
    g, d = {"w": jnp.array([3.0, 4.0])}, {"w": jnp.array([0.0, 2.0])}  # norms 5 and 2
    assert merge(g, d, 0.8)["w"].tolist() == pytest.approx([2.4, 3.2 + 0.2 * 5])
    assert merge(g, {"w": jnp.zeros(2)}, 0.8)["w"].tolist() == pytest.approx([2.4, 3.2])  # no NaN
    assert merge({"w": jnp.zeros(2)}, d, 0.8)["w"].tolist() == [0.0, 0.0]
    assert merge(g, d, 1.0)["w"].tolist() == [3.0, 4.0]


def test_a_vanishing_distillation_gradient_adds_nothing():
    fed = scalar_federation(start_a=1.0, start_b=1.0)  # teacher equals student: nothing to learn
    after, info = one_round(fed, MergedCodist(alpha=Constant(0.8), distill=ONE_STEP))
    assert info["a"]["dist_norm"] == 0
    assert after["a"] == pytest.approx(1.0 - 0.8 * client_gradient(1.0), rel=1e-5)


def test_one_way_teaching_leaves_the_teacher_alone():
    fed = scalar_federation()
    object.__setattr__(fed, "topology", {"a": {"b": 1.0}})
    after, info = one_round(fed, MergedCodist(alpha=Constant(0.8), distill=ONE_STEP))
    assert after["b"] == pytest.approx(2.0 - client_gradient(2.0), rel=1e-6)  # b has no teacher: plain FedAvg
    assert "codistilled" in info["a"] and "codistilled" not in info["b"]


def test_alpha_by_pool():
    after, info = one_round(scalar_federation(), MergedCodist(alpha={"a": Constant(0.8)}, distill=ONE_STEP))
    assert after["b"] == pytest.approx(2.0 - client_gradient(2.0), rel=1e-6)
    assert info["b"]["alpha"] == 1.0 and "codistilled" not in info["b"]


def test_momentum_restarts_and_the_schedule_does_not():
    fed = gauss_federation(rounds=4)
    method = methods()["periodic"]
    state = method.init(fed, keys.root(0))
    for t in (1, 2):
        state, _ = method.round(fed, state, t, keys.root(0))
    fresh = {name: fed.pools[name].fresh(s.params) for name, s in state.items()}
    assert same_bits({n: s.opt for n, s in state.items()}, {n: s.opt for n, s in fresh.items()})  # m, v, count: all zero again
    assert fed.pools["small"].lr(3) == pytest.approx(0.05 * 0.5)  # a function of the round alone
    kept = PeriodicCodist(2, method.distill, restart=False)
    state = kept.init(fed, keys.root(0))
    for t in (1, 2):
        state, _ = kept.round(fed, state, t, keys.root(0))
    assert any(np.asarray(leaf).any() for leaf in state["small"].opt[0].mu["dense0"].values())


def test_divergence_names_pool_and_round():
    fed = scalar_federation(lr=lambda t: float("inf"))
    with pytest.raises(Diverged, match="the server model of pool . is not finite in round 1"):
        one_round(fed, FedAvg())


def test_a_client_that_diverges_is_dropped_and_the_rest_goes_on():
    fed = scalar_federation()
    poisoned = {"anna": fed.task.clients["anna"], "bert": fed.task.clients["bert"]._replace(x=np.full((3, 1), np.nan, np.float32))}
    fed = scalar_federation()
    for pool in fed.pools.values():
        object.__setattr__(pool, "clients", poisoned)
    after, info = one_round(fed, FedAvg())
    assert info["a"]["dropped"] == 1 and after["a"] == pytest.approx(0.5)  # Anna alone: 0 - (-0.5)


def test_a_federation_refuses_pools_that_cannot_work():
    import dataclasses

    from fedcodist.settings import SettingError

    fed = scalar_federation()
    with pytest.raises(SettingError, match="pools.x: got a pool named a"):
        dataclasses.replace(fed, pools={"x": fed.pools["a"]})
    with pytest.raises(SettingError, match="pools.a.cohort: got 3; allowed 1 to its 2 clients"):
        dataclasses.replace(fed, pools={"a": dataclasses.replace(fed.pools["a"], cohort=3)})
    with pytest.raises(SettingError, match="topology.a.c: got an unknown pool"):
        dataclasses.replace(fed, topology={"a": {"c": 1.0}})
