"""FedDualAvg: its identity with FedAvg, a round by hand, and what it is for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import ANNA, BERT, SHORT, finish, gauss_federation, same_bits, scalar_federation

from fedcodist import config, keys
from fedcodist.engines.serial import Serial
from fedcodist.errors import ConfigError
from fedcodist.methods import FedAvg, MergedCodist, PeriodicCodist
from fedcodist.rules import RULES, FedDualAvg
from fedcodist.rules.feddualavg import DualSGD
from fedcodist.schedule import Constant
from fedcodist.servers import Average
from fedcodist.settings import SettingError
from fedcodist.train import Experiment, train
from fedcodist.types import Data, Model
from fedcodist.work import LocalSGD

PLAIN = {"server": Average().optimizer(), "lr": Constant(1.0)}
MATRIX = Model(  # the scalar model with its one number in a matrix, so that it counts as a kernel of a dense layer
    init=lambda key: {"w": jnp.zeros((1, 1))},
    apply=lambda params, x, key=None: jnp.stack([jnp.zeros(len(x)), params["w"][0, 0] * x[:, 0]], -1),
)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


@pytest.mark.parametrize("server", [{}, PLAIN], ids=["adam", "average"])
def test_without_a_regulariser_feddualavg_is_fedavg_to_the_bit(server):
    dual, plain = (finish(gauss_federation(rule=rule, **server), FedAvg(), rounds=3) for rule in (FedDualAvg(l1=0.0), RULES["average"]()))
    for pool in plain.state:
        assert same_bits(dual.state[pool].params, plain.state[pool].params) and same_bits(dual.state[pool].opt, plain.state[pool].opt)


def test_two_steps_of_a_client_by_hand():
    """Bert has x = 2, y = 0, three times in one batch: the gradient at w is 2 sigmoid(2 w). Rate 1, lambda 0.01, elapsed rate 0.5."""
    sent = {"w": jnp.full((1, 1), 2.0)}, jnp.float32(0.5)
    data = Data(jnp.asarray(BERT.x), jnp.asarray(BERT.y), jnp.int32(3))
    reply = DualSGD(LocalSGD(lr=1.0, batch=3, epochs=2), 0.01)(MATRIX, scalar_federation().task.objective, sent, data, keys.root(0))
    z1 = 2.0 - 2 * sigmoid(2 * (2.0 - 0.005))  # the model is the dual one, shrunk by 0.5 lambda
    z2 = z1 - 2 * sigmoid(2 * (z1 - 0.015))  # one step of rate 1 later by 1.5 lambda
    assert float(reply.value["w"][0, 0]) == pytest.approx(2.0 - z2, rel=1e-5) and float(reply.info["elapsed"]) == 2.0


def test_two_rounds_by_hand():
    """Anna (x = 1, y = 1) alone, one step of rate 1 in a round, server rate 0.5, lambda 0.2: z moves by half the gradient at the model."""
    from dataclasses import replace

    fed = scalar_federation(rule=FedDualAvg(l1=0.2), server=Average().optimizer(), lr=Constant(0.5), cohort=1)
    pools = {"a": replace(fed.pools["a"], model=MATRIX, start={"w": jnp.zeros((1, 1))}, clients={"anna": ANNA})}
    first, second = train(Experiment(replace(fed, pools=pools), FedAvg(), 2))
    z = 0.5 * (1 - sigmoid(0.0))
    w = z - 0.5 * 0.2  # the elapsed rate is 0.5 * 1 * 1
    assert float(first.state["a"].params["w"][0, 0]) == pytest.approx(w)
    z += 0.5 * (1 - sigmoid(w))
    assert float(second.state["a"].kept["dual"]["w"][0, 0]) == pytest.approx(z)
    assert float(second.state["a"].params["w"][0, 0]) == pytest.approx(z - 1.0 * 0.2)


def test_a_regulariser_gives_zeros_and_the_dual_model_has_none():
    def state(l1):
        return finish(gauss_federation(("small",), rule=FedDualAvg(l1=l1), **PLAIN), FedAvg(), rounds=4).state["small"]

    def zeros(params):
        return float(np.mean(np.asarray(params["dense0"]["w"]) == 0))

    sparse = state(0.3)
    assert zeros(sparse.params) > 0.3 and zeros(sparse.kept["dual"]) == 0 == zeros(state(0.0).params)
    assert not (np.asarray(sparse.params["dense0"]["b"]) == 0).all()  # biases are left alone


def test_a_resumed_run_is_a_straight_one_and_engines_agree():
    rule = FedDualAvg(l1=0.01)
    steps = list(train(Experiment(gauss_federation(rule=rule), FedAvg(), 3)))
    resumed = list(train(Experiment(gauss_federation(rule=rule), FedAvg(), 3), steps[0].state, after=1))[-1]
    assert same_bits(resumed.state, steps[-1].state)
    serial = finish(gauss_federation(rule=rule, engine=Serial()), FedAvg(), rounds=3).state
    for a, b in zip(jax.tree.leaves(steps[-1].state), jax.tree.leaves(serial), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-3)


def test_it_is_refused_under_codistillation_in_one_line():
    given = ['pools.small.rule={ kind = "feddualavg", l1 = 0.01 }']
    with pytest.raises(ConfigError, match=r"pools.small.rule: got feddualavg; allowed a rule whose model can be taught: merged distils"):
        config.read("quick/toy", given)
    for method in (PeriodicCodist(2, SHORT), MergedCodist(distill=SHORT)):
        with pytest.raises(
            SettingError, match=f"pools.small.rule: got feddualavg; allowed a rule whose model can be taught: {method.kind} distils"
        ):
            Experiment(gauss_federation(rule=FedDualAvg()), method, 2)
    assert config.read("quick/toy-feddualavg").pools["small"].rule == FedDualAvg(l1=0.01)
