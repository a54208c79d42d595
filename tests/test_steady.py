"""SteadyCodist: teachers that are running means of their own past."""

import dataclasses

import jax
import numpy as np
import pytest
from worlds import SHORT, finish, gauss_federation, same_bits

from fedcodist import keys, tree
from fedcodist.federation import params_of
from fedcodist.methods import MergedCodist, SteadyCodist
from fedcodist.methods.merged import merge
from fedcodist.schedule import Constant
from fedcodist.settings import SettingError
from fedcodist.types import Voice

HALF = Constant(0.5)


def test_without_memory_it_is_merged_to_the_bit():
    steady = finish(gauss_federation(), SteadyCodist(0.0, HALF, SHORT)).state
    merged = finish(gauss_federation(), MergedCodist(HALF, SHORT)).state
    assert same_bits({i: steady[i] for i in merged}, merged)
    assert not same_bits(finish(gauss_federation(), SteadyCodist(0.5, HALF, SHORT)).state["small"], merged["small"])


def test_the_mean_weighs_the_rounds_by_hand():
    method = SteadyCodist(0.75)
    mean = {"w": np.array([4.0])}
    assert method.renewed(mean, {"w": np.array([8.0])})["w"] == pytest.approx([5.0])  # 0.75 * 4 + 0.25 * 8


def test_a_round_teaches_from_the_means():
    fed, key, method = dataclasses.replace(gauss_federation(), rounds=2), keys.root(0), SteadyCodist(0.5, HALF, SHORT)
    start = method.init(fed, key)
    assert same_bits(start["small-mean"].params, start["small"].params)
    first, _ = method.round(fed, start, 1, key)
    second, _ = method.round(fed, first, 2, key)
    theta = {i: first[i].params for i in fed.names}
    mean = {i: jax.tree.map(lambda a, b: 0.5 * a + 0.5 * b, start[i].params, theta[i]) for i in fed.names}
    assert same_bits({i: second[f"{i}-mean"].params for i in fed.names}, mean)
    voices = {i: Voice(fed.pools[i].model, mean[i]) for i in fed.names}
    student, _ = fed.codistill(SHORT, theta, 2, key, nth=1, voices=voices)
    state, grad, _ = fed.gradients({i: first[i] for i in fed.names}, 2, key)
    merged = {i: merge(grad[i], tree.sub(theta[i], student[i]), 0.5) for i in fed.names}
    assert same_bits(params_of(fed.step(state, merged, 2)), params_of({i: second[i] for i in fed.names}))


def test_it_refuses_what_it_cannot_do():
    with pytest.raises(SettingError, match=r"SteadyCodist.memory: got 1.0; allowed a number >= 0 and < 1"):
        SteadyCodist(memory=1.0)
    assert [str(p) for p in SteadyCodist().problems(["a", "a-mean"])] == [
        "pools.a-mean: got a pool of this name; allowed another name: a running mean is kept under this one"
    ]
    assert SteadyCodist().problems(["a", "b-mean"]) == []


def test_alpha_is_searched_and_warned_about_as_in_merged():
    assert SteadyCodist(alpha=HALF).searched() == {"method.alpha": (0.05, 0.95)}
    assert SteadyCodist(alpha=Constant(1.0)).warnings(["a", "b"], 10) == ["method.alpha: 1 is plain FedAvg: distillation is skipped"]
