"""TAKFL: task vectors by hand, and its identity with PeriodicCodist."""

import jax
import numpy as np
import pytest
from worlds import SHORT, finish, gauss_federation, same_bits

from fedcodist import config, keys
from fedcodist.errors import ConfigError
from fedcodist.evaluate import evaluate
from fedcodist.federation import params_of
from fedcodist.methods import TAKFL, PeriodicCodist
from fedcodist.methods.task_vectors import merged
from fedcodist.pool import Learns
from fedcodist.runs import cost

THREE = ("small", "large", "third")


@pytest.mark.parametrize(
    "given", [{}, {"topology": "self"}, {"learns": Learns(lr=0.01, self_weight=0.0)}], ids=["two pools", "self", "no self"]
)
def test_one_teacher_with_weight_one_is_periodic_codistillation_without_restart_to_the_bit(given):
    one, other = (
        finish(gauss_federation(**given), method, rounds=3) for method in (TAKFL(2, SHORT), PeriodicCodist(2, SHORT, restart=False))
    )
    assert same_bits(one.state, other.state)
    without = lambda info: {i: {k: v for k, v in of.items() if k != "task_weights"} for i, of in info.items()}  # noqa: E731
    assert without(one.info) == other.info
    half = finish(gauss_federation(**given), TAKFL(2, SHORT, weights={"small": {"large": 0.5}, "large": {"small": 0.5}}), rounds=3)
    assert given.get("topology") == "self" or not same_bits(half.state, other.state)


def test_several_teachers_are_heard_one_by_one():
    """The round's end is theta + sum_j lambda_j (student_j - theta), each student taught by one teacher and itself."""
    fed, method = gauss_federation(THREE), TAKFL(1, SHORT, weights={"large": {"small": 0.75, "third": 0.5}}, self_temperature=4.0)
    key, begin = keys.root(0), method.init(fed, keys.root(0))
    object.__setattr__(fed, "rounds", 4)
    after, info = method.round(fed, begin, 1, key)
    state, grad, _ = fed.gradients(begin, 1, key)
    theta = params_of(fed.step(state, grad, 1))
    students = {}
    for j in ("small", "third"):
        hears = {"large": {j: (0.9, 1.0), "large": (0.1, 4.0)}}
        ordered = {"large": {name: hears["large"][name] for name in fed.names if name in hears["large"]}}
        students[j] = fed.codistill(SHORT, theta, 1, key, 0, hears=ordered)[0]["large"]
    for got, start, one, other in zip(
        *map(jax.tree.leaves, (after["large"].params, theta["large"], students["small"], students["third"])), strict=True
    ):
        want = start + 0.75 * (one - start) + 0.5 * (other - start)
        assert np.asarray(got) == pytest.approx(np.asarray(want), abs=1e-5)
    assert info["large"]["task_weights"] == {"small": 0.75, "third": 0.5} and set(info["large"]["agreement"]) == {"small", "third"}
    assert info["small"]["task_weights"] == {"third": 0.5, "large": 0.5}  # the topology's


def test_what_is_taught_by_each_teacher_costs_as_much_each_time():
    fed, method = gauss_federation(THREE), TAKFL(2, SHORT)
    found, once = cost.expected(fed, method, 2), cost.expected(fed, PeriodicCodist(2, SHORT), 2)
    assert found["server_steps"] == 2 * once["server_steps"] and found["server_flops"] == {
        i: 2 * n for i, n in once["server_flops"].items()
    }
    taken = finish(fed, method, rounds=2).info
    assert cost.of_rounds(fed, method, [taken])["server_flops"] == found["server_flops"]


def test_weights_may_be_chosen_by_labels():
    fed, method = gauss_federation(THREE), TAKFL(1, SHORT, choose=True)
    begin = method.init(fed, keys.root(0))
    object.__setattr__(fed, "rounds", 4)
    after, info = method.round(fed, begin, 1, keys.root(0))
    given = TAKFL(1, SHORT, weights={i: info[i]["task_weights"] for i in fed.names}).round(fed, begin, 1, keys.root(0))[0]
    plain = TAKFL(1, SHORT).round(fed, begin, 1, keys.root(0))[0]
    for i in fed.names:
        assert same_bits(after[i].params, given[i].params)
        right = [evaluate(fed, {i: state[i].params})[i]["all"]["accuracy"] for state in (after, plain)]
        assert right[0] >= right[1]


def test_a_student_without_vectors_stays_and_one_with_weight_zero_moves_nowhere():
    theta, student = {"w": np.float32([1.0, 2.0])}, {"w": np.float32([5.0, -1.0])}
    assert same_bits(merged(theta, [student], [1.0]), student) and same_bits(merged(theta, [student], [0.0]), theta)


def test_weights_name_pools():
    with pytest.raises(ConfigError, match=r"method.weights.small.lage: got an unknown pool; allowed small, large .*did you mean large"):
        config.read("quick/toy", ["method={ kind = 'takfl', weights = { small = { lage = 1.0 } } }"])
    made = config.read("quick/toy-takfl").method
    assert made.period == 2 and made.weights == {"large": {"small": 0.75, "middle": 0.25}}
