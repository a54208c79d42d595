"""The small pure parts: trees, keys, schedules, folds, topologies, server optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedcodist import keys, servers, topology, tree
from fedcodist.fold import Mean
from fedcodist.schedule import SCHEDULES, After, Constant, Cosine, Every, Linear, over_rounds
from fedcodist.settings import SettingError
from fedcodist.types import Reply

MEAN = Mean()


def test_tree_algebra():
    a, b = {"w": jnp.array([3.0, 0.0])}, {"w": jnp.array([1.0, 2.0])}
    assert tree.sub(a, b)["w"].tolist() == [2.0, -2.0]
    assert tree.add(a, tree.scale(b, 2))["w"].tolist() == [5.0, 4.0]
    assert float(tree.dot(a, b)) == 3.0
    assert float(tree.norm({"x": a, "y": jnp.array(4.0)})) == 5.0
    assert bool(tree.finite(a)) and not bool(tree.finite({"w": jnp.array([1.0, jnp.nan])}))


def test_names_of_draws_do_not_run_together():
    root = keys.root(0)
    different = [("ab",), ("a", "b"), ("1",), (1,), ("a", 11), ("a1", 1), ("client", 1, "x"), ("client", 2, "x")]
    assert len({keys.derive(root, *names).tobytes() for names in different}) == len(different)
    assert keys.root(0).tolist() != keys.root(1).tolist()
    with pytest.raises(ValueError, match="seed: got -1"):
        keys.root(-1)


def test_keys_are_the_same_on_every_machine():
    # Written down once: a change here would change every result of every run.
    assert keys.root(7).tolist() == [2131481925, 3476549816]
    assert keys.derive(keys.root(7), "client", 3, "anna").tolist() == [2629097052, 1392523973]
    assert keys.permutation(keys.root(7), 6).tolist() == [5, 1, 3, 4, 2, 0]


def test_jax_draws_do_not_depend_on_padding():
    # work.py shuffles padded clients by these bits; jax draws them by counter, so a longer draw starts like a shorter one.
    key = keys.root(3)
    assert jax.random.bits(key, (50,))[:7].tolist() == jax.random.bits(key, (7,)).tolist()


def test_schedules():
    assert [Linear(1.0, 0.0, over=4)(t) for t in range(1, 5)] == [1.0, 0.75, 0.5, 0.25]
    assert Cosine(1.0, 0.5, over=10)(1) == 1.0
    assert Cosine(1.0, 0.5, over=10)(6) == pytest.approx(0.75)
    assert [Every(2, 0.3)(t) for t in (1, 2, 3, 4)] == [1.0, 0.3, 1.0, 0.3]
    assert [After(2, 0.3)(t) for t in (1, 2, 3, 4)] == [1.0, 1.0, 0.3, 0.3]
    assert [After(1, 0.3, otherwise=0.9)(t) for t in (1, 2)] == [0.9, 0.3]
    assert After(0, 0.3)(1) == 0.3  # after nothing: from the start
    assert SCHEDULES["after"] is After and over_rounds(After(2, 0.3), 8) == After(2, 0.3)
    assert over_rounds(Linear(1.0, 0.0), 8)(5) == 0.5
    assert over_rounds(Constant(0.5), 8) == Constant(0.5)
    with pytest.raises(SettingError, match="value: got -1"):
        Constant(-1)
    with pytest.raises(SettingError, match="After.k: got -1; allowed an integer >= 0"):
        After(-1, 0.5)


def reply(value, weight):
    return Reply({"w": jnp.asarray(value, jnp.float32)}, jnp.float32(weight), {"loss": jnp.float32(weight)})


def folded(replies):
    total = MEAN.zero(replies[0])
    for r in replies:
        total = MEAN.add(total, r)
    return MEAN.done(total, None, keys.root(0))


def test_mean_is_weighted_by_examples():
    done = folded([reply([1.0, 0.0], 1), reply([5.0, 4.0], 3)])
    assert done.value["w"].tolist() == [4.0, 3.0]
    assert (int(done.used), int(done.dropped), float(done.weight)) == (2, 0, 4.0)
    assert float(done.info["loss"]) == pytest.approx((1 * 1 + 3 * 3) / 4)


@pytest.mark.parametrize("bad", [reply([np.nan, 0.0], 9), reply([np.inf, 0.0], 9), reply([1.0, 1.0], np.nan), reply([1.0, 1.0], -5)])
def test_a_bad_reply_is_dropped_and_changes_nothing(bad):
    good = [reply([1.0, 0.0], 1), reply([5.0, 4.0], 3)]
    done = folded([good[0], bad, good[1]])
    assert done.value["w"].tolist() == folded(good).value["w"].tolist()
    assert (int(done.used), int(done.dropped)) == (2, 1)


def test_blocks_join_to_the_whole():
    replies = [reply([float(i), 1.0], i + 1) for i in range(4)]
    left, right = MEAN.zero(replies[0]), MEAN.zero(replies[0])
    for r in replies[:2]:
        left = MEAN.add(left, r)
    for r in replies[2:]:
        right = MEAN.add(right, r)
    assert MEAN.done(MEAN.join(left, right), None, keys.root(0)).value["w"].tolist() == folded(replies).value["w"].tolist()


@pytest.mark.parametrize("name", topology.TOPOLOGIES)
@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"], list("abcdef")])
def test_every_topology_is_a_table_of_weights(name, names):
    table = topology.TOPOLOGIES[name](names)
    assert list(table) == names
    for student, teachers in table.items():
        assert (student in teachers) == (name == "self")
        assert set(teachers) <= set(names)
        if teachers:
            assert sum(teachers.values()) == pytest.approx(1)
        else:
            assert name == "none" or len(names) == 1


def test_hearing_only_oneself():
    assert topology.TOPOLOGIES["self"](["a", "b"]) == {"a": {"a": 1.0}, "b": {"b": 1.0}}
    (found,) = topology.problems({"a": {"a": 1.0}}, ["a", "b"])  # by hand it stays the self-weight's business
    assert "pools.a.learns.self_weight instead" in str(found)


def test_a_table_by_hand():
    names = ["a", "b", "c"]
    assert topology.weigh({"a": {"b": 1.0}}, names) == {"a": {"b": 1.0}, "b": {}, "c": {}}  # one way
    bad = topology.problems({"a": {"a": 1.0, "x": 1.0, "b": -1.0}, "y": {}}, names)
    assert [p.path for p in bad] == ["topology.a.a", "topology.a.x", "topology.a.b", "topology.y"]


# Two steps with gradients 2 and then 1 on one number, worked out by hand.
BY_HAND = {
    "average": [-2.0, -1.0],
    "momentum": [-2.0, -(0.9 * 2.0 + 1.0)],
    # bias-corrected: m = g / v = g^2 in step 1; then m = (.9*.2+.1)/.19, v = (.999*.004+.001)/.001999
    "adam": [-2.0 / (2.0 + 1e-5), -(0.28 / 0.19) / (np.sqrt(0.004996 / 0.001999) + 1e-5)],
    # v0 = tau^2: v1 = .99e-6 + .01*4, m1 = .2; v2 = .99 v1 + .01, m2 = .28
    "fedadam": [-0.2 / (np.sqrt(0.04 + 0.99e-6) + 1e-3), -0.28 / (np.sqrt(0.99 * (0.04 + 0.99e-6) + 0.01) + 1e-3)],
    # v1 = 1e-6 + .01*4 (v < g^2); v2 = v1 + .01 (v < 1)
    "fedyogi": [-0.2 / (np.sqrt(1e-6 + 0.04) + 1e-3), -0.28 / (np.sqrt(1e-6 + 0.05) + 1e-3)],
    "fedadagrad": [-2.0 / (np.sqrt(1e-6 + 4.0) + 1e-3), -1.0 / (np.sqrt(1e-6 + 5.0) + 1e-3)],
}


@pytest.mark.parametrize("kind", BY_HAND)
def test_server_optimizers_by_hand(kind):
    optimizer = servers.SERVERS[kind]().optimizer()
    state = optimizer.init(jnp.zeros(1))
    for grad, want in zip([2.0, 1.0], BY_HAND[kind], strict=True):
        update, state = optimizer.update(jnp.array([grad]), state, jnp.zeros(1))
        assert float(update[0]) == pytest.approx(want, rel=2e-5)  # float32: 1 - 0.999**2


def test_any_optax_optimizer_by_name():
    optimizer = servers.Optax(name="lion", args={"b1": 0.5}).optimizer()
    update, _ = optimizer.update(jnp.array([3.0]), optimizer.init(jnp.zeros(1)), jnp.zeros(1))
    assert float(update[0]) == -1.0  # the sign, at learning rate 1
    with pytest.raises(SettingError, match="did you mean adamw"):
        servers.Optax(name="adamww")
    with pytest.raises(SettingError, match="args.beta"):
        servers.Optax(name="lion", args={"beta": 0.5})


def test_the_paper_decays_the_server_rate_linearly():
    assert [servers.rate(servers.Adam(lr=1.0), 4)(t) for t in (1, 2, 4)] == [1.0, 0.75, 0.25]
    assert servers.rate(servers.FedYogi(lr=1.0), 4)(4) == 1.0
