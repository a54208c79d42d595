"""FedDual: complete mixing is FedAvg; meetings, noise and its cutting by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import TASK, finish, gauss_federation, same_bits

from fedcodist import config, keys, tree
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.serial import Serial
from fedcodist.errors import ConfigError
from fedcodist.methods import FedAvg
from fedcodist.rules import RULES, FedDual
from fedcodist.rules.gossip import matched, meet, middle
from fedcodist.rules.nodes import NodeSGD
from fedcodist.runs import cost
from fedcodist.settings import SettingError
from fedcodist.train import Experiment, train
from fedcodist.types import Data
from fedcodist.work import LocalSGD, Prox


@pytest.mark.parametrize("seed", [0, 1])
def test_complete_mixing_without_noise_is_fedavg_to_the_bit(seed):
    nodes, plain = (finish(gauss_federation(rule=rule), FedAvg(), 3, seed) for rule in (FedDual(mixing="complete"), RULES["average"]()))
    for pool in plain.state:
        assert same_bits(nodes.state[pool].params, plain.state[pool].params) and nodes.info[pool] == plain.info[pool]


def test_pairs_meet_in_the_middle_and_one_stays_alone():
    names = [f"n{k}" for k in range(5)]
    start = {name: {"w": np.zeros(2, np.float32)} for name in names}
    after = {name: {"w": np.float32([k, 10 * k])} for k, name in enumerate(names)}
    pairs = matched(keys.root(3), names)
    nodes, numbers = meet(start, after, [pairs], top=1.0)
    assert len(pairs) == 2 and numbers == 2 * 2
    for a, b in pairs:
        want = (after[a]["w"] + after[b]["w"]) / 2
        assert nodes[a]["w"].tolist() == nodes[b]["w"].tolist() == want.tolist()
    (alone,) = set(names) - {name for pair in pairs for name in pair}
    assert nodes[alone]["w"].tolist() == after[alone]["w"].tolist()
    assert middle(nodes)["w"] == pytest.approx(middle(after)["w"])  # meetings keep the mean
    assert len({tuple(matched(keys.root(seed), names)) for seed in range(9)}) > 5


def test_noise_is_cut_by_meeting_where_both_changed_most():
    start = {name: np.float32([5.0, 5.0, 5.0, 5.0]) for name in "ab"}
    after = {"a": np.float32([9.0, 2.0, 5.1, 5.0]), "b": np.float32([7.0, 5.2, 1.0, 5.0])}  # top halves: {0, 1} and {0, 2}
    nodes, numbers = meet(start, after, [[("a", "b")]], top=0.5)
    assert nodes["a"].tolist() == pytest.approx([8.0, 2.0, 5.1, 5.0]) and nodes["b"].tolist() == pytest.approx([8.0, 5.2, 1.0, 5.0])
    assert numbers == 1 + 2  # one value, and the places of two


def test_a_nodes_update_is_clipped_and_noised():
    fed = gauss_federation(("small",))
    params = fed.init(keys.root(0))["small"].params
    one = TASK.clients["c05"]
    data = Data(jnp.asarray(one.x), jnp.asarray(one.y), jnp.int32(len(one.y)), params)

    def update(clip, noise):
        reply = NodeSGD(LocalSGD(lr=0.1, batch=4), clip, noise)(fed.pools["small"].model, TASK.objective, (), data, keys.root(1))
        moved = tree.sub(params, reply.own)
        assert all(
            np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-6)
            for a, b in zip(*map(jax.tree.leaves, (moved, reply.value)), strict=True)
        )
        return reply.value

    free = update(None, 0.0)
    assert float(tree.norm(free)) > 0.1 and float(tree.norm(update(0.1, 0.0))) == pytest.approx(0.1, rel=1e-5)
    noise = np.concatenate([np.ravel(a - b) for a, b in zip(*map(jax.tree.leaves, (update(0.1, 30.0), update(0.1, 0.0))), strict=True)])
    assert noise.std() == pytest.approx(3.0, rel=0.3) and abs(noise.mean()) < 1.5


def test_the_pools_model_is_the_mean_of_all_nodes_and_more_meetings_bring_them_together():
    ends = {}
    for ticks in (1, 8):
        rule = FedDual(ticks=ticks)
        step = finish(gauss_federation(("small",), rule=rule, cohort=8), FedAvg(), rounds=3)
        nodes = step.state["small"].kept
        assert len(nodes) == 8 and same_bits(step.state["small"].params, middle(nodes))
        ends[ticks] = step.info["small"]["spread"]
    assert 0 < ends[8] < ends[1] / 2


def test_who_sleeps_keeps_its_model():
    first, second = train(Experiment(gauss_federation(("small",), rule=FedDual()), FedAvg(), 2))
    before, after = (step.state["small"].kept for step in (first, second))
    assert sum(not same_bits(before[node], after[node]) for node in before) == second.info["small"]["clients"] == 3


def test_what_meetings_cost():
    fed = gauss_federation(("small",), rule=FedDual(ticks=2))
    found = cost.of_rounds(fed, FedAvg(), [finish(fed, FedAvg(), rounds=1).info])
    size = cost.parameters(fed)["small"]
    assert found["client_bytes"]["small"] == 2 * 2 * 2 * 4 * size  # two ticks of one pair, two nodes, each sends and is sent a model
    assert found["client_bytes"] == cost.expected(fed, FedAvg(), 1)["client_bytes"]


@pytest.mark.parametrize("rule", [FedDual(ticks=2, clip=1.0, noise=0.01, top=0.5)])
def test_a_resumed_run_is_a_straight_one_and_engines_agree(rule):
    steps = list(train(Experiment(gauss_federation(rule=rule), FedAvg(), 3)))
    resumed = list(train(Experiment(gauss_federation(rule=rule), FedAvg(), 3), steps[0].state, after=1))[-1]
    assert same_bits(resumed.state, steps[-1].state) and resumed.info == steps[-1].info
    assert same_bits(steps[-1].state, finish(gauss_federation(rule=rule, engine=Compiled(workers=3, block=2)), FedAvg(), 3).state)
    plain = dataclasses.replace(rule, top=1.0)  # at the border of a top set engines may differ
    one, other = (finish(gauss_federation(rule=plain, engine=engine), FedAvg(), 2).state for engine in (Serial(), Compiled(block=2)))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-3)


def test_what_cannot_be():
    with pytest.raises(SettingError, match="FedDual.noise: got 0.1 without clip; allowed 0, or a clip"):
        FedDual(noise=0.1)
    with pytest.raises(SettingError, match="pools.small.work: got prox; allowed local_sgd"):
        gauss_federation(rule=FedDual(), work=Prox())
    with pytest.raises(SettingError, match="feddual, which keeps .* bytes for 8 nodes; allowed at most 100"):
        gauss_federation(rule=FedDual(most_bytes=100))
    with pytest.raises(ConfigError, match="pools.small.rule: got feddual; allowed a rule whose model can be taught: merged distils"):
        config.read("quick/toy", ["pools.small.rule=feddual"])
    assert config.read("quick/toy-feddual").pools["small"].rule.ticks == 2
