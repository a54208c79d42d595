"""Identities that follow from the paper's formulas; the rest of them are in contract/ and in test_methods.py."""

import jax
import numpy as np
import pytest
from worlds import SHORT, TASK, finish, gauss_federation, same_bits

from fedcodist import keys
from fedcodist.federation import params_of
from fedcodist.methods import MergedCodist, PeriodicCodist
from fedcodist.pool import Learns, Teaches
from fedcodist.schedule import Constant


def codistil(fed, how=SHORT):
    theta = params_of(fed.init(keys.root(0)))
    return theta, *fed.codistill(how, theta, 1, keys.root(0), nth=0)


def test_gamma_one_has_nothing_to_learn_at_the_first_step():
    """The target is the student's own first words: a gradient of rounding errors, which Adam's eps keeps from becoming a step."""
    from fedcodist.distill import Distiller

    theta, student, info = codistil(gauss_federation(learns=Learns(lr=1e-3, self_weight=1.0)), Distiller(steps=1, batch=40))
    assert info["small"]["distill_loss"][0] == pytest.approx(0, abs=1e-6)
    for a, b in zip(jax.tree.leaves(theta), jax.tree.leaves(student), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=3e-5)


def test_an_endless_temperature_asks_for_the_uniform_distribution():
    from fedcodist.distill import Distiller

    fed = gauss_federation(teaches=Teaches(1e3), learns=Learns(lr=0.03, self_weight=0.0, decay=1.0))
    _, student, _ = codistil(fed, Distiller(steps=200, batch=50))
    said = jax.nn.softmax(fed.pools["large"].model.apply(student["large"], TASK.public.x, None))
    assert np.asarray(said) == pytest.approx(np.full((50, 3), 1 / 3), abs=0.05)


def test_two_pools_are_the_papers_two_models():
    """With two pools the only other teacher has all the weight that the student leaves it."""
    fed = gauss_federation()
    assert fed.table == {"small": {"large": 1.0}, "large": {"small": 1.0}}
    assert fed.teachers("small") == {"small": (0.1, 1.0), "large": (0.9, 1.0)}


def test_without_a_teacher_both_methods_are_fedavg():
    from fedcodist.methods import FedAvg

    plain = finish(gauss_federation(), FedAvg()).state
    for method in (PeriodicCodist(2, SHORT), MergedCodist(Constant(0.5), SHORT)):
        assert same_bits(plain, finish(gauss_federation(topology="none"), method).state)


def test_merged_teaches_from_the_start_of_the_round_and_periodic_from_its_end(monkeypatch):
    from fedcodist.federation import Federation

    seen = []
    codistill = Federation.codistill

    def spy(self, how, theta, *args, **kwargs):
        seen.append(theta)
        return codistill(self, how, theta, *args, **kwargs)

    monkeypatch.setattr(Federation, "codistill", spy)
    fed = gauss_federation()
    start = params_of(fed.init(keys.root(0)))
    finish(fed, MergedCodist(Constant(0.5), SHORT), rounds=1)
    assert same_bits(seen[0], start)
    finish(fed, PeriodicCodist(1, SHORT), rounds=1)
    assert not same_bits(seen[1], start)  # A25: after this round's step


def test_the_learning_rate_of_distillation_shapes_only_the_direction_in_merged():
    """delta is rescaled to |g|: a student that moves ten times as far along nearly the same line gives nearly the same step."""
    from fedcodist.distill import Distiller

    one = Distiller(steps=1, batch=50)
    states = [
        finish(gauss_federation(learns=Learns(lr=lr, self_weight=0.0)), MergedCodist(Constant(0.5), one), rounds=1).state["small"].params
        for lr in (1e-4, 1e-3)
    ]
    for a, b in zip(jax.tree.leaves(states[0]), jax.tree.leaves(states[1]), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-3)
