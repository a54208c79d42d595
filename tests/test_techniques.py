"""Distillation techniques: what they come to where they must be plain distillation, numbers by hand, and what is refused."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import gauss_federation, same_bits

from fedcodist import config, distill, keys, losses, testing
from fedcodist.distill import Distiller
from fedcodist.errors import ConfigError
from fedcodist.federation import params_of
from fedcodist.methods import FedDF, MergedCodist, PeriodicCodist
from fedcodist.models import CNN, MLP, Subclass
from fedcodist.schedule import Constant
from fedcodist.settings import SettingError
from fedcodist.techniques import CRD, LOSSES, Bregman, FitNets, Hinton, Subclasses, bregman
from fedcodist.train import Experiment

HOW = Distiller(steps=6, batch=20)


def lesson(loss, fed=None, t=1, how=HOW):
    fed = fed or gauss_federation()
    theta = params_of(fed.init(keys.root(0)))
    return fed.codistill(replace(how, loss=loss), theta, t, keys.root(0), 0)


def close(a, b, **within):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x) == pytest.approx(np.asarray(y), **within)


def batch_of(logits, target=None, features=({},), step=0, how=HOW, labels=None, rows=None, inputs=None):
    teachers = (jnp.asarray(logits),)
    inputs = jnp.zeros((len(logits), 4)) if inputs is None else inputs
    target = distill.targets(teachers, jnp.ones(1), jnp.ones(1)) if target is None else target
    return losses.Batch(inputs, labels, rows, target, teachers, features, jnp.ones(1), jnp.ones(1), how, jnp.int32(step))


DEFAULT = {"bregman": {"k": 1}}  # there are three classes
NEEDED = {"subclass": {"model": lambda mlp: Subclass(mlp, 2)}}


@pytest.mark.parametrize("name", [name for name, loss in LOSSES.items() if isinstance(loss, type)])
def test_techniques(name):
    testing.check_loss(LOSSES[name](**DEFAULT.get(name, {})), **NEEDED.get(name, {}))


@pytest.mark.parametrize("plain", [FitNets(weight=0.0), Hinton(temperature=1.0), CRD(weight=0.0), Bregman(k=2)])
def test_what_is_plain_distillation_is_it_to_the_bit(plain):
    assert same_bits(lesson("kl")[0], lesson(plain)[0])
    assert not same_bits(lesson("kl")[0], lesson(type(plain)(**DEFAULT.get(plain.kind, {})))[0])


def test_a_technique_in_a_config():
    given = config.read("quick/toy", ['method.distill.loss={ kind = "fitnets", weight = 3.0 }']).method.distill
    assert given.loss == FitNets(weight=3.0) and Distiller(loss="fitnets") == Distiller(loss=FitNets())
    assert config.read("quick/toy", ["method.distill.loss={ kind = 'js' }"]) == config.read("quick/toy", ["method.distill.loss=js"])
    named, table = (config.read("quick/toy", [f"method.distill.loss={loss}"]) for loss in ("hinton", "{ kind = 'hinton' }"))
    assert config.identity(named) == config.identity(table)
    with pytest.raises(ConfigError, match=r"method.distill.loss.weigth: got an unknown key; .*did you mean weight"):
        config.read("quick/toy", ['method.distill.loss={ kind = "fitnets", weigth = 3.0 }'])
    with pytest.raises(ConfigError, match=r"method.distill.loss: got 'fitnet'; allowed kl .* fitnets .*did you mean fitnets"):
        config.read("quick/toy", ["method.distill.loss=fitnet"])


# -- Hinton's --


def test_hinton_by_hand():
    """Two classes at T = 2: the teacher's logits (2 ln 3, 0) become probabilities 3/4 and 1/4, the student's (0, 0) stay even."""
    model = MLP(()).build((4,), 2)
    params = jax.tree.map(jnp.zeros_like, model.init(keys.root(0)))
    teacher = np.array([[2 * np.log(3), 0.0]], np.float32)
    values, logits, _ = Hinton(temperature=2.0)(model, params, (), (), batch_of(teacher), None)
    soft = 4 * (0.75 * np.log(1.5) + 0.25 * np.log(0.5))
    assert float(values[0]) == pytest.approx(soft, rel=1e-5) and logits.tolist() == [[0.0, 0.0]]
    labelled = batch_of(teacher, labels=jnp.array([1]), how=replace(HOW, labels=0.25))
    values, *_ = Hinton(temperature=2.0)(model, params, (), (), labelled, None)
    assert float(values[0]) == pytest.approx(0.75 * soft + 0.25 * np.log(2), rel=1e-5)


# -- FitNets --


def test_a_hint_by_hand():
    """The student's layer is relu(1 * x) = (1, 2, 0); through the map (1, 1, 1) and bias 1 that is 4, and the teacher's layer is 6."""
    model = MLP((3,)).build((3,), 2)
    params = {"dense0": {"w": jnp.eye(3), "b": jnp.zeros(3)}, "dense1": {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}}
    own = [{"w": jnp.ones((3, 1)), "b": jnp.ones(1)}]
    batch = batch_of(np.zeros((1, 2)), features=({"dense0": jnp.array([[6.0]])},), inputs=jnp.array([[1.0, 2.0, -5.0]]))
    both, *_ = FitNets(weight=10.0)(model, params, own, (), batch, None)
    assert float(both[0]) == pytest.approx(10 * 4.0)
    staged = FitNets(weight=10.0, first=0.5)
    assert [float(staged(model, params, own, (), batch._replace(step=jnp.int32(k)), None)[0][0]) for k in (2, 3)] == [40.0, 0.0]


def test_the_maps_are_learned_with_the_student():
    fed = gauss_federation(("small", "large"))
    plain, hinted = (lesson(loss, fed, how=replace(HOW, steps=60, batch=50))[1]["small"] for loss in ("kl", FitNets(weight=5.0)))
    assert hinted["distill_loss"][1] < 0.8 * hinted["distill_loss"][0] and plain["distill_loss"][0] < hinted["distill_loss"][0]


def test_hints_that_cannot_be():
    fed, periodic = gauss_federation(), PeriodicCodist(2, HOW)
    with pytest.raises(SettingError, match=r"method.distill.loss.layer: got 'dense7'; allowed a layer of pool \w+: dense0"):
        Experiment(fed, replace(periodic, distill=replace(HOW, loss=FitNets(layer="dense7"))), 4)
    hidden = replace(fed.pools["small"], model=fed.pools["small"].model._replace(features=None))
    blind = replace(fed, pools={**fed.pools, "small": hidden})
    with pytest.raises(SettingError, match=r"pools.small.model: got a model without `features`; .* the loss fitnets compares"):
        Experiment(blind, replace(periodic, distill=replace(HOW, loss="fitnets")), 4)
    Experiment(blind, replace(periodic, distill=replace(HOW, loss=FitNets(weight=0.0))), 4)  # plain distillation needs no layers
    method = 'method={ kind = "periodic", period = 2, distill = { batch = 20, loss = { kind = "fitnets", layer = "conv0" } } }'
    large = 'pools.large.model={ kind = "cnn", filters = [32, 64, 64], dense = [128, 256] }'
    images = config.read("quick/images", [method, "pools.small.model=cnn", large])
    with pytest.raises(
        ConfigError, match=r"got conv0 of pool small, 12x12x16, for conv2 of pool large, 6x6x64; allowed layers that differ"
    ):
        config.build(images, 0)


@pytest.mark.parametrize("method", [MergedCodist(Constant(0.5), HOW), FedDF(HOW)])
def test_hints_go_with_every_method(method):
    for loss in ("fitnets", "hinton"):
        step = testing.finish(gauss_federation(), replace(method, distill=replace(HOW, loss=loss)), rounds=2)
        assert np.isfinite(step.info["small"]["distill_loss"]).all() and step.info["small"]["codistilled"]


# -- CRD --


def test_a_contrast_by_hand():
    """Two rows whose projections are the unit vectors, alike on both sides: at temperature 1 each row has e / (e + 1) of the pairs."""
    unit = jnp.eye(2)
    assert np.asarray(CRD(temperature=1.0)._within(unit, unit)) == pytest.approx([2 * np.log(1 + np.exp(-1.0))] * 2)
    assert np.asarray(CRD(temperature=1.0)._within(unit, unit[::-1])) == pytest.approx([2 * np.log(1 + np.e)] * 2)


def test_a_memory_by_hand():
    """Three rows in the memory of each side, of which the first is asked for, at temperature 1: densities are exp of inner products over
    three times their mean, the noise has density 2/3."""
    memory = {side: jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]) for side in ("student", "teacher")} | {"scale": jnp.zeros(2)}
    here = jnp.array([[1.0, 0.0]])
    values, after = CRD(bank=True, temperature=1.0, momentum=0.5)._remembered(here, jnp.array([[0.0, 1.0]]), memory, jnp.array([0]))
    want = 0.0
    for near in (np.exp([1.0, 0.0, -1.0]), np.exp([0.0, 1.0, 0.0])):
        p = near / near.sum()
        want -= np.log(p[0] / (p[0] + 2 / 3)) + np.log(2 / 3 / (p[1:] + 2 / 3)).sum()
    assert float(values[0]) == pytest.approx(want, rel=1e-5)
    assert np.asarray(after["teacher"][0]) == pytest.approx([np.sqrt(0.5)] * 2, rel=1e-5) and after["student"][0].tolist() == [1.0, 0.0]
    assert np.asarray(after["scale"]) == pytest.approx([np.exp([1.0, 0.0, -1.0]).sum(), np.exp([0.0, 1.0, 0.0]).sum()], rel=1e-5)


def test_a_contrast_brings_rows_of_student_and_teacher_together():
    told = {}
    for bank in (False, True):
        _, info = lesson(CRD(bank=bank), how=replace(HOW, steps=80, batch=25, shuffle=True))
        told[bank] = info["small"]["distill_loss"]
    assert all(after < 0.9 * before for before, after in told.values()) and told[False] != told[True]


def test_a_contrast_that_cannot_be():
    fed, how = gauss_federation(), replace(HOW, loss="crd")
    Experiment(fed, PeriodicCodist(2, how), 4)
    for method in (MergedCodist(Constant(0.5), how), FedDF(how)):
        with pytest.raises(
            SettingError, match=rf"method.distill.loss: got crd under {method.kind}; allowed a method whose lessons are rare"
        ):
            Experiment(fed, method, 4)
    method = 'method={ kind = "periodic", period = 2, distill = { batch = 20, loss = "crd" } }'
    images = config.read("quick/images", [method, "pools.small.model=cnn", "pools.large.model=cnn"])
    with pytest.raises(
        ConfigError, match=r"method.distill.loss: got crd with mixup; allowed task.mixup_beta = 0: a mixed image has no row"
    ):
        config.build(images, 0)


# -- subclasses --


def test_a_class_has_what_its_subclasses_have():
    model = Subclass(MLP(()), 2).build((3,), 2)
    params = {"dense0": {"w": jnp.zeros((3, 4)), "b": jnp.log(jnp.array([0.1, 0.2, 0.3, 0.4]))}}
    logits, seen = model.features(params, jnp.zeros((1, 3)), None)
    assert np.exp(np.asarray(logits)) == pytest.approx(np.array([[0.3, 0.7]]), rel=1e-5)
    assert np.exp(np.asarray(seen["subclasses"])) == pytest.approx(np.array([[0.1, 0.2, 0.3, 0.4]]), rel=1e-5)
    wide = Subclass(CNN(), 5).build((24, 24, 3), 100)
    assert sum(leaf.size for leaf in jax.tree.leaves(wide.init(keys.root(0)))) == 109_348 + 129 * 400  # the paper's, and a wider head
    sub = wide.narrow(0.5)
    assert sub.model.apply(sub.cut(wide.init(keys.root(0))), jnp.zeros((1, 24, 24, 3)), None).shape == (1, 100)


def test_one_subclass_is_plain_distillation_to_the_bit():
    fed = gauss_federation(model=lambda mlp: Subclass(mlp, 1))
    assert same_bits(lesson("kl", fed)[0], lesson("kl")[0])
    assert same_bits(lesson("subclass", fed)[0], lesson("kl")[0])
    two = gauss_federation(model=lambda mlp: Subclass(mlp, 2))
    assert not same_bits(lesson("subclass", two)[0], lesson("kl", two)[0])


def test_subclasses_that_cannot_be():
    fed, method = gauss_federation(), PeriodicCodist(2, replace(HOW, loss=Subclasses()))
    with pytest.raises(SettingError, match=r"pools.small.model: got a model without subclasses; allowed model = \{ kind = \"subclass\""):
        Experiment(fed, method, 4)
    many = iter((2, 3))
    uneven = gauss_federation(model=lambda mlp: Subclass(mlp, next(many)))
    with pytest.raises(SettingError, match=r"pools: got 2 subclasses a class in small, 3 subclasses a class in large"):
        Experiment(uneven, method, 4)
    even = gauss_federation(model=lambda mlp: Subclass(mlp, 2))
    with pytest.raises(SettingError, match=r"subclass under feddf, with 2 pools; allowed one pool"):
        Experiment(even, FedDF(method.distill), 4)


# -- Bregman --


def test_all_directions_lead_back():
    """Through all classes - 1 directions log-probabilities come back as they were, but for a constant; coefficients are orthonormal in the
    geometry of the mean."""
    rng = np.random.default_rng(0)
    target = np.log(rng.dirichlet(np.ones(5), 40))
    mean, down, up = bregman.of_softmax(target, 4)
    assert np.exp(mean) == pytest.approx(np.exp(target).mean(0), rel=1e-5)
    back = mean + ((target - mean) @ down) @ up
    assert np.ptp(back - target, axis=1) == pytest.approx(np.zeros(40), abs=1e-4)
    share = np.exp(mean)
    assert up @ (np.diag(share) - np.outer(share, share)) @ up.T == pytest.approx(np.eye(4), abs=1e-4)
    few = []
    for k in (1, 2, 3):
        m, d, u = bregman.of_softmax(target, k)
        few.append(float(losses.kl(jnp.asarray(target), jnp.asarray(m + ((target - m) @ d) @ u)).mean()))
    assert few[0] > few[1] > few[2] > 1e-3  # each direction explains more


def test_a_divergence_by_hand():
    """Of a leaky ReLU with slope 1/2: F(a) = a^2 / 2 above zero and a^2 / 4 below."""
    here, there = jnp.array([2.0, -2.0, -2.0, 1.0]), jnp.array([1.0, 2.0, -4.0, 1.0])
    assert bregman.divergence(here, there, 0.5).tolist() == [0.5, 1.0 - 2.0 + 8.0, 1.0 - 4.0 + 4.0, 0.0]
    assert np.asarray(bregman.unleak(jnp.array([3.0, -1.0]), 0.5)).tolist() == [3.0, -2.0]
    mean, _, up, leak = bregman.of_leaky(np.array([[3.0, -2.0], [1.0, -2.0]]), 1, 0.5)
    assert mean.tolist() == [2.0, -2.0] and leak == 0.5 and np.abs(up) == pytest.approx(np.array([[1.0, 0.0]]), abs=1e-6)


def test_a_hidden_layer_is_matched_through_its_directions():
    fed = gauss_federation(model=lambda mlp: MLP(mlp.hidden, leak=0.2))
    how = replace(HOW, steps=60, batch=50)
    plain, matched = (lesson(Bregman(k=2, layer=layer, hidden=2), fed, how=how)[1]["small"]["distill_loss"] for layer in ("", "dense0"))
    assert matched[0] > plain[0] and matched[1] < 0.8 * matched[0]


def test_directions_that_cannot_be():
    fed, periodic = gauss_federation(), PeriodicCodist(2, HOW)
    with pytest.raises(SettingError, match=r"method.distill.loss.k: got 10 of 3 classes; allowed at most classes - 1"):
        Experiment(fed, replace(periodic, distill=replace(HOW, loss="bregman")), 4)
    with pytest.raises(SettingError, match=r"pools.small.model.leak: got 0; allowed > 0: a layer with ReLU cannot be turned back"):
        Experiment(fed, replace(periodic, distill=replace(HOW, loss=Bregman(k=1, layer="dense0"))), 4)
    leaky = gauss_federation(model=lambda mlp: MLP(mlp.hidden, leak=0.2))
    with pytest.raises(SettingError, match=r"method.distill.loss.hidden: got 8; allowed at most 4, the width of dense0 in small"):
        Experiment(leaky, replace(periodic, distill=replace(HOW, loss=Bregman(k=1, layer="dense0"))), 4)


def test_a_leak_is_a_slope_below_zero():
    leaky, plain = (MLP((2,), leak).build((2,), 2) for leak in (0.5, 0.0))
    params = {"dense0": {"w": jnp.eye(2), "b": jnp.zeros(2)}, "dense1": {"w": jnp.eye(2), "b": jnp.zeros(2)}}
    x = jnp.array([[2.0, -2.0]])
    assert leaky.apply(params, x, None).tolist() == [[2.0, -1.0]] and plain.apply(params, x, None).tolist() == [[2.0, 0.0]]
    images = np.random.default_rng(0).normal(size=(2, 24, 24, 3)).astype(np.float32)
    cnn, near = CNN().build((24, 24, 3), 10), CNN(leak=1e-6).build((24, 24, 3), 10)
    drawn = cnn.init(keys.root(0))
    assert np.asarray(near.apply(drawn, images, None)) == pytest.approx(np.asarray(cnn.apply(drawn, images, None)), abs=1e-3)
    assert config.identity(config.read("quick/toy")) == config.identity(config.read("quick/toy", ["pools.small.model.leak=0.0"]))
