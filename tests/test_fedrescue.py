"""FedResCuE: the loss by hand, what a broken transmission leaves, and its identity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import SHORT, TASK, finish, gauss_federation, same_bits

from fedcodist import keys, losses
from fedcodist.methods import FedAvg, MergedCodist
from fedcodist.models import MLP
from fedcodist.objectives import NextToken
from fedcodist.rules import FedResCuE
from fedcodist.rules.carriers import Carriers, Width
from fedcodist.rules.progressive import Progressive, _Nested
from fedcodist.runs import cost
from fedcodist.schedule import Constant
from fedcodist.settings import SettingError
from fedcodist.types import Data
from fedcodist.work import LocalSGD

THREE = (Width(1.0, Carriers(take=3)), Width(0.5, Carriers(take=3)), Width(0.25))


def test_with_one_width_fedrescue_is_fedavg_to_the_bit():
    one, plain = (finish(gauss_federation(**given), FedAvg(), rounds=3) for given in ({"rule": FedResCuE((Width(1.0),))}, {}))
    for pool in plain.state:
        assert same_bits(one.state[pool][:2], plain.state[pool][:2])
        assert {k: one.info[pool][k] for k in plain.info[pool]} == plain.info[pool]


def test_one_step_is_that_of_the_three_terms():
    """CE(whole) + CE(p) + KL(whole || p) for both prefixes p; the whole does not learn from the KL."""
    model, lr = MLP((4,)).build((4,), 3), 0.5
    params = model.init(keys.root(1))
    n = 6
    x, y = (jnp.asarray(a[:n]) for a in (TASK.held_out.x, TASK.held_out.y))
    frozen = model.apply(params, x, None)

    def loss(p):
        total = TASK.objective.loss(model.apply(p, x, None), y)
        for rate in (0.25, 0.5):
            sub = model.narrow(rate)
            part = sub.model.apply(sub.cut(p), x, None)
            total += TASK.objective.loss(part, y) + losses.kl(frozen, part)
        return total.mean()

    work = Progressive(LocalSGD(lr=lr, batch=n), 0.0, (0.25, 0.5), 2, (2, 1, 0), 3, False)
    reply = work(model, TASK.objective, params, Data(x, y, jnp.int32(n)), keys.root(0))
    for a, b in zip(jax.tree.leaves(reply.value), jax.tree.leaves(jax.grad(loss)(params)), strict=True):
        assert np.asarray(a) == pytest.approx(lr * np.asarray(b), abs=1e-5)


def test_in_text_padding_says_nothing():
    objective = NextToken(oov=4, scale=1.0)
    said = jnp.array([[[0.0, 1, 2, 3, 4], [4.0, 3, 2, 1, 0]]])
    part = jnp.zeros((1, 2, 5))
    y = jnp.array([[3, 0]])
    found = _Nested(objective).loss((said, [part], jnp.array([[1.0, 0.0]])), y)
    want = objective.loss(said, y) + objective.loss(part, y) + losses.kl(said, part)[:, 0]
    assert np.asarray(found) == pytest.approx(np.asarray(want))


def test_what_a_broken_transmission_leaves():
    model = MLP((4,)).build((4,), 3)
    params = model.init(keys.root(1))
    x, y = (jnp.asarray(a[:6]) for a in (TASK.held_out.x, TASK.held_out.y))
    work = Progressive(LocalSGD(lr=0.5, batch=6), 0.5, (0.25, 0.5), 2, (2, 1, 0), 3, True)
    whole = Progressive(work.work, 0.0, (0.25, 0.5), 2, (2, 1, 0), 3, False)
    run = jax.jit(lambda key, work=work: work(model, TASK.objective, params, Data(x, y, jnp.int32(6)), key).value)
    want = whole(model, TASK.objective, params, Data(x, y, jnp.int32(6)), keys.root(0)).value
    units, seen = {-1: 0, 2: 1, 1: 2, 0: 4}, set()
    for i in range(40):
        value, arrived = run(keys.derive(keys.root(0), i))
        place = int(arrived.argmax()) if arrived.any() else -1
        seen.add(place)
        kept, lost = np.split(np.asarray(value["dense0"]["b"]), [units[place]])
        assert kept == pytest.approx(np.asarray(want["dense0"]["b"])[: units[place]], abs=1e-6) and not lost.any()
        assert float(arrived.sum()) == (place >= 0)
    assert seen == {-1, 0, 1, 2}


def test_columns_are_averaged_over_those_who_delivered_them():
    """With all transmissions whole, a loss of nearly nothing changes nothing."""
    states = [
        finish(gauss_federation(("large",), rule=FedResCuE(THREE[:2] + THREE[2:], loss=loss)), FedAvg(), rounds=2) for loss in (0.0, 1e-9)
    ]
    for a, b in zip(jax.tree.leaves(states[0].state["large"].params), jax.tree.leaves(states[1].state["large"].params), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-6)
    lossy = finish(gauss_federation(rule=FedResCuE(loss=0.5)), MergedCodist(Constant(0.5), SHORT), rounds=3)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(lossy.state))


def test_prefixes_cost_operations():
    """A wide client's example costs the whole and the two narrower models; of four prefixes, two drawn ones."""
    rule = FedResCuE((Width(1.0, Carriers(take=3)), Width(0.5)))
    fed = gauss_federation(("large",), rule=rule)
    found = cost.of_rounds(fed, FedAvg(), [{"large": {"clients": 2, "examples": 2, "client_bytes": 0, "trained": {"1": 1, "0.5": 1}}}])
    half = gauss_federation(("large",), rule=FedResCuE((Width(0.5),)))
    narrow = cost.work_flops(half, *half.pools["large"].rule.trains(half.pools["large"])["0.5"], 4)
    whole = cost.training_flops(fed, "large")
    assert found["client_flops"]["large"] == pytest.approx(whole + 2 * narrow)
    few = FedResCuE(tuple(Width(r, Carriers(take=1) if r > 0.25 else Carriers()) for r in (1.0, 0.75, 0.5, 0.25)), samples=1)
    fed = gauss_federation(("large",), rule=few)
    model, work = few.trains(fed.pools["large"])["1"]
    each = [cost.work_flops(fed, model.narrow(r).model, LocalSGD(lr=0.1, batch=4), 4) for r in (0.25, 0.5, 0.75)]
    assert cost.work_flops(fed, model, work, 4) == pytest.approx(whole + sum(each) / 3)


def test_widths_that_do_not_lie_in_each_other_are_refused():
    rule = FedResCuE((Width(0.5, Carriers(take=1)), Width(0.3)))
    with pytest.raises(SettingError, match=r"widths: got 0.3 inside 0.5; allowed rates whose widths, rounded up, lie in each other"):
        gauss_federation(("small",), rule=rule, model=lambda _: MLP((3,)))  # 2 units, and 0.6 of them is 2, not 1
