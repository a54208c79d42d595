"""FedFTG: its identity with the rule below, the generator's shapes, and what it learns from whom."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import SHORT, TASK, finish, gauss_federation, same_bits

from fedcodist import config, keys, tree
from fedcodist.errors import ConfigError
from fedcodist.folds.robust import Median
from fedcodist.methods import FedAvg, MergedCodist
from fedcodist.models import MLP
from fedcodist.rules import RULES, FedFTG, FedMiD, Scaffold
from fedcodist.rules.datafree import Plan, sameness, tuned
from fedcodist.rules.generator import Generator
from fedcodist.rules.labelled import Counted, seed_of
from fedcodist.runs import cost
from fedcodist.schedule import Constant
from fedcodist.settings import SettingError
from fedcodist.train import Experiment, train
from fedcodist.types import Data
from fedcodist.work import LocalSGD

FEW = {"iterations": 2, "steps": 2, "batch": 8, "noise": 5}


@pytest.mark.parametrize("over", [RULES["average"](), Scaffold(), FedMiD(l1=0.01)], ids=lambda rule: rule.kind)
def test_without_iterations_it_is_the_rule_below_to_the_bit(over):
    tuned, plain = (finish(gauss_federation(rule=rule), FedAvg(), 3) for rule in (FedFTG(over=over, iterations=0), over))
    for pool in plain.state:
        assert same_bits(tuned.state[pool][:2], plain.state[pool][:2]) and same_bits(tuned.state[pool].kept["base"], plain.state[pool].kept)
    assert tuned.info == plain.info


def test_with_a_rate_of_nothing_the_model_is_the_one_below():
    """The clients' counts and single models change nothing of the round itself."""
    fine, plain = (finish(gauss_federation(rule=rule), FedAvg(), 2) for rule in (FedFTG(lr=1e-30, **FEW), RULES["average"]()))
    for pool in plain.state:
        assert same_bits(fine.state[pool].params, plain.state[pool].params)
        assert fine.info[pool] == plain.info[pool] | {name: fine.info[pool][name] for name in ("server_digested", "server_predicted")}
    moved = finish(gauss_federation(rule=FedFTG(**FEW)), FedAvg(), 2)
    assert not same_bits(moved.state["small"].params, plain.state["small"].params)


@pytest.mark.parametrize("shape", [(4,), (8, 8, 3), (7, 5, 1), (3, 2)])
def test_generated_inputs_have_the_shape_and_the_scale_of_inputs(shape):
    generator = Generator(shape, classes=3, noise=6)
    params = generator.init(keys.root(0))
    x = generator.apply(params, jax.random.normal(keys.root(1), (16, 6)), jnp.arange(16) % 3)
    assert x.shape == (16, *shape) and float(jnp.abs(x.mean())) < 0.3 and 0.7 < float(x.std()) < 1.1
    other = generator.apply(params, jax.random.normal(keys.root(1), (16, 6)), (jnp.arange(16) + 1) % 3)
    assert not np.allclose(x, other)  # the class matters


def test_label_counts_go_with_the_reply_and_padding_does_not_count():
    fed = gauss_federation(("small",))
    params = fed.init(keys.root(0))["small"].params
    x, y = np.zeros((6, 4), np.float32), np.array([0, 2, 2, 1, 0, 0], np.int32)
    reply = Counted(LocalSGD(batch=2), 3)(
        fed.pools["small"].model, TASK.objective, params, Data(jnp.asarray(x), jnp.asarray(y), jnp.int32(4)), keys.root(0)
    )
    assert reply.value[1].tolist() == [1, 1, 2] and float(reply.weight) == 4


def test_the_model_learns_each_class_from_whoever_has_seen_it():
    """Two clients' models that say opposite things everywhere; the second alone has examples. The model comes to say what that one does."""
    model = MLP((8,)).build((4,), 2)
    said = [{**model.init(keys.root(0))} for _ in range(2)]
    for params, sign in zip(said, (1.0, -1.0), strict=True):
        params["dense1"] = {"w": params["dense1"]["w"] * 0, "b": jnp.array([3.0, -3.0]) * sign}
    members = jax.tree.map(lambda *leaves: jnp.stack(leaves), *said)
    generator, start = Generator((4,), 2, 5), model.init(keys.root(1))
    for counts, right in (([[0.0, 0.0], [5.0, 5.0]], 1), ([[9.0, 2.0], [0.0, 0.0]], 0)):
        args = (generator.init(keys.root(2)), members, jnp.array(counts), jnp.array([1.0, 0.01]), keys.root(3))
        after, made, first, last = tuned(model, generator, Plan(20, 5, 16), start, *args)
        assert last < first and bool(tree.finite((after, made)))
        x = generator.apply(made, jax.random.normal(keys.root(4), (50, 5)), jnp.arange(50) % 2)
        assert float((model.apply(after, x, None).argmax(-1) == right).mean()) > 0.9


def test_sameness_by_hand():
    noise, x = jnp.array([[0.0], [2.0]]), jnp.array([[0.0, 0.0], [1.0, 3.0]])
    assert float(sameness(noise, x)) == pytest.approx(np.exp(-(2 * 2.0 * 2.0) / 4))  # two of four pairs: |dz| = 2, mean |dx| = 2
    assert float(sameness(noise, jnp.zeros((2, 2)))) == 1.0


def test_generators_begin_differently_with_each_seed_and_are_kept():
    fed = gauss_federation(("small",), rule=FedFTG(**FEW))
    first, again, other = (FedAvg().init(fed, keys.root(seed))["small"] for seed in (0, 0, 1))
    assert same_bits(first.kept, again.kept) and not same_bits(first.kept["generator"], other.kept["generator"])
    assert not np.array_equal(seed_of(first.params), seed_of(other.params))
    steps = list(train(Experiment(fed, FedAvg(), 3)))
    assert set(steps[0].state["small"].kept) == {"base", "generator"}  # no client's model stays
    assert not same_bits(steps[0].state["small"].kept["generator"], steps[1].state["small"].kept["generator"])


@pytest.mark.parametrize("method", [FedAvg(), MergedCodist(Constant(0.5), SHORT)], ids=["fedavg", "merged"])
def test_over_scaffold_a_resumed_run_is_a_straight_one(method):
    rule = FedFTG(over=Scaffold(), **FEW)
    steps = list(train(Experiment(gauss_federation(rule=rule), method, 3)))
    resumed = list(train(Experiment(gauss_federation(rule=rule), method, 3), steps[0].state, after=1))[-1]
    assert same_bits(resumed.state, steps[-1].state) and resumed.info == steps[-1].info


def test_what_the_server_does_is_counted():
    fed = gauss_federation(("small",), rule=FedFTG(**FEW))
    found = cost.of_rounds(fed, FedAvg(), [finish(fed, FedAvg(), 1).info])["server_flops"]["small"]
    training, forward = cost.training_flops(fed, "small"), cost.forward_flops(fed, "small")
    assert found == 2 * 8 * ((2 * 3 + 2) * training + 2 * 3 * forward) == cost.expected(fed, FedAvg(), 1)["server_flops"]["small"]


def test_what_it_goes_over_and_what_not():
    made = config.read("quick/toy-fedftg").pools["small"].rule
    assert made.over == Scaffold() and made.iterations == 2
    with pytest.raises(ConfigError, match=r"pools.small.rule.over: got 'heterofl'; allowed average \| scaffold \| fedmid"):
        config.read("quick/toy", ["pools.small.rule={ kind = 'fedftg', over = 'heterofl' }"])
    with pytest.raises(SettingError, match="pools.small.fold: got median; allowed mean"):
        gauss_federation(rule=FedFTG(), fold=Median())
    text = {c: e._replace(y=np.stack([e.y, e.y], -1)) for c, e in TASK.clients.items()}
    with pytest.raises(SettingError, match="pools.small.rule: got fedftg on text; allowed one label a row"):
        gauss_federation(("small",), rule=FedFTG(), clients=text)
