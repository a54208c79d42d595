"""FLANC: factored layers by hand, what is shared and what is each width's own, and its identity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import SHORT, finish, gauss_federation, same_bits

from fedcodist import keys, tree
from fedcodist.methods import FedAvg, MergedCodist
from fedcodist.models import CNN, MLP
from fedcodist.rules import FLANC
from fedcodist.rules.carriers import Carriers, Width
from fedcodist.rules.factored import Factored, composed
from fedcodist.rules.orthogonal import Orthogonal, apart
from fedcodist.runs import cost
from fedcodist.schedule import Constant
from fedcodist.settings import SettingError
from fedcodist.types import Data
from fedcodist.work import LocalSGD, Prox

TWO = FLANC((Width(1.0, Carriers(take=1)), Width(0.5)))


def test_a_layer_from_its_basis_by_hand():
    """Two groups of one input, a basis of two filters, one output: w = [3 * 1 + 4 * 2, 3 * 5 + 4 * 6]."""
    basis = {"dense0": jnp.array([[3.0, 4.0]])}
    own = {"dense0": {"mix": jnp.array([[[1.0], [2.0]], [[5.0], [6.0]]]), "b": jnp.zeros(1)}, "dense1": {"w": jnp.ones((1, 2))}}
    found = composed(basis, own)
    assert found["dense0"]["w"].tolist() == [[11], [39]] and found["dense1"] is own["dense1"]


def test_filters_see_every_group_of_channels_alike():
    """A convolution of the composed kernel is the basis on each group, and then the coefficients, as 1x1 convolutions."""
    rng = np.random.default_rng(0)
    basis, mix = rng.normal(size=(3, 3, 2, 5)), rng.normal(size=(3, 5, 4))
    image = rng.normal(size=(3, 3, 6))
    kernel = np.asarray(composed({"conv": jnp.asarray(basis)}, {"conv": {"mix": jnp.asarray(mix), "b": 0}})["conv"]["w"])
    seen = [np.einsum("hwc,hwcn->n", image[..., 2 * g : 2 * g + 2], basis) for g in range(3)]
    assert np.einsum("hwc,hwco->o", image, kernel) == pytest.approx(sum(seen[g] @ mix[g] for g in range(3)), abs=1e-4)


def test_the_distance_from_an_orthonormal_basis_by_hand():
    assert float(apart({"a": jnp.eye(2), "b": jnp.eye(3)[:, :2]})) == 0
    assert float(apart({"a": jnp.array([[2.0, 0.0], [0.0, 1.0]])})) == pytest.approx(9 / 4)  # (4 - 1)^2 over four entries
    assert float(apart({"a": jnp.array([[1.0, 1.0]])})) == pytest.approx(2 / 4)  # two filters that are the same


def test_the_true_sizes_of_the_papers_cnn():
    wide = CNN((32, 64, 64), (128, 256)).build((24, 24, 3), 100)
    model = FLANC().model(wide)
    shapes = jax.eval_shape(model.init, keys.root(0))
    assert tree.size(shapes) == sum(tree.size(part) for part in (shapes["basis"], *shapes["own"].values()))
    sizes = {rate: tree.size(jax.eval_shape(model.spec.part.at(rate).build(*model.spec[1:]).init, keys.root(0))) for rate in (0.5, 1.0)}
    assert sizes == {0.5: 70_652, 1.0: 219_276} and tree.size(shapes) == 277_888
    assert FLANC().model(model) is model


def test_a_factored_layer_begins_as_wide_as_its_own_would():
    """The composed weights have the deviation of haiku's initialisation, 1/sqrt(fan_in), of which truncation leaves 0.88 a factor."""
    part = Factored(MLP((64, 64)), (1.0,), 0.25, 0.5)
    model = part.build((64,), 10)
    params = model.init(keys.root(0))
    w = composed(params["basis"], params["own"]["1"])["dense1"]["w"]
    assert w.shape == (64, 64) and float(w.std()) * 8 == pytest.approx(0.88**2, rel=0.1)


def test_with_one_width_and_lambda_0_flanc_is_fedavg_on_factored_weights_to_the_bit():
    one = finish(gauss_federation(("large",), rule=FLANC((Width(1.0),), weight=0.0)), FedAvg(), rounds=3)
    fed = gauss_federation(("large",))
    part = Factored(fed.pools["large"].model.spec.part, (1.0,), 0.125, 0.25)
    plain = finish(gauss_federation(("large",), model=lambda _: part), FedAvg(), rounds=3)
    assert same_bits(one.state["large"][:2], plain.state["large"][:2])
    assert {k: one.info["large"][k] for k in plain.info["large"]} == plain.info["large"]


def test_the_basis_learns_from_all_and_coefficients_from_their_width():
    fed = gauss_federation(("small",), rule=TWO, cohort=8)
    state, grads, info = fed.gradients(fed.init(keys.root(0)), 1, keys.root(0))
    of_width, n = {}, info["small"]["trained"]
    for width in (1.0, 0.5):
        ids = [c for c in fed.pools["small"].ids if (c == next(iter(fed.pools["small"].clients))) == (width == 1.0)]
        label = f"{width:g}"
        model, work = TWO.trains(fed.pools["small"])[label]
        params = state["small"].params
        sent = {"basis": params["basis"], "own": params["own"][label]}
        ask = fed.ask(fed.pools["small"], sent, 1, keys.root(0))
        (of_width[label],) = fed.gather([ask._replace(clients=tuple(ids), model=model, work=work)])
        for a, b in zip(jax.tree.leaves(of_width[label].value["own"]), jax.tree.leaves(grads["small"]["own"][label]), strict=True):
            assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-6)
    for name, leaf in grads["small"]["basis"].items():
        want = sum(n[label] * np.asarray(of_width[label].value["basis"][name]) for label in n) / sum(n.values())
        assert np.asarray(leaf) == pytest.approx(want, abs=1e-6)


def test_the_term_is_added_to_the_basis_alone():
    part = Factored(MLP((4,)), (1.0,), 0.5, 0.5, 1.0)
    model = part.build((4,), 3)
    params = model.init(keys.root(0))
    objective = gauss_federation(("small",)).task.objective
    data = Data(jnp.ones((2, 4)), jnp.array([0, 1]), jnp.int32(2))
    plain, term = (
        Orthogonal(LocalSGD(lr=0.5, batch=2), weight, weight > 0)(model, objective, params, data, keys.root(0)).value
        for weight in (0.0, 3.0)
    )
    more = jax.grad(lambda basis: 0.5 * 3.0 * apart(basis))(params["basis"])
    for name in more:
        assert np.asarray(term["basis"][name]) == pytest.approx(np.asarray(plain["basis"][name] + more[name]), abs=1e-5)
    assert same_bits(plain["own"], term["own"])


def test_coefficients_of_a_width_that_nobody_carries_in_a_round_stay():
    fed = gauss_federation(rule=TWO, cohort=1)
    step = finish(fed, MergedCodist(Constant(0.5), SHORT), rounds=1)
    before, after = fed.init(keys.root(0))["small"].params, step.state["small"].params
    (trained,) = step.info["small"]["trained"]
    assert trained == "0.5" and not same_bits(before["own"]["0.5"], after["own"]["0.5"])  # and the widest was taught
    assert list(step.models) == ["small", "small@0.5", "large", "large@0.5"]
    plain = finish(fed, FedAvg(), rounds=1).state["small"].params
    assert same_bits(before["own"]["1"], plain["own"]["1"]) and not same_bits(before["basis"], plain["basis"])
    assert not same_bits(before["own"]["1"], after["own"]["1"])


def test_a_round_costs_its_basis_and_coefficients():
    fed = gauss_federation(("small",), rule=TWO, cohort=8)
    params, info = fed.init(keys.root(0))["small"].params, finish(fed, FedAvg(), rounds=1).info["small"]
    sent = {label: tree.nbytes((params["basis"], own)) for label, own in params["own"].items()}
    assert info["client_bytes"] == 2 * (sent["1"] + 7 * sent["0.5"]) == cost.expected(fed, FedAvg(), 1)["client_bytes"]["small"]


def test_what_flanc_cannot_add_its_term_to_is_refused():
    with pytest.raises(SettingError, match=r"pools.small.work: got Prox with fold Mean; allowed local_sgd with fold mean"):
        gauss_federation(("small",), rule=FLANC(), work=Prox())
