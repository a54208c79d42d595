"""Robust folds: numbers worked out by hand, and what every fold must keep."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import TASK, finish, gauss_federation, same_bits

from fedcodist import keys
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.serial import Serial
from fedcodist.fold import Mean
from fedcodist.folds import FOLDS
from fedcodist.folds.robust import Krum, Median, NormBound, TrimmedMean
from fedcodist.methods import FedAvg
from fedcodist.settings import SettingError
from fedcodist.types import Each, Reply


def folded(fold, values, weights=None):
    """The fold of these values, each a client's reply."""
    weights = weights or [1.0] * len(values)
    replies = [
        Reply({"w": jnp.array(v, jnp.float32)}, jnp.float32(n), {"loss": jnp.float32(0)}) for v, n in zip(values, weights, strict=True)
    ]
    total = fold.zero(replies[0])
    for reply in replies:
        total = fold.add(total, reply)
    each = Each(tuple("abcdefgh"[: len(values)]), {"w": np.array(values, np.float32)}, np.array(weights, np.float32)) if fold.each else None
    return fold.done(total, each, keys.root(0))


def test_the_median_of_each_coordinate():
    assert folded(Median(), [[1, 10], [2, -5], [1000, 0]]).value["w"].tolist() == [2, 0]
    assert folded(Median(), [[1], [3]]).value["w"].tolist() == [2]  # of an even number: the middle of the two in the middle


def test_a_trimmed_mean_leaves_out_both_ends():
    assert folded(TrimmedMean(0.2), [[0], [1], [2], [3], [1000]]).value["w"].tolist() == [2]  # one at each end: (1 + 2 + 3) / 3
    assert folded(TrimmedMean(0.0), [[0], [3]]).value["w"].tolist() == [1.5]


def test_a_norm_bound_cuts_long_replies_and_keeps_weights():
    # |(3, 4)| = 5 becomes (1.2, 1.6); (0, 1) stays; weights 1 and 3.
    assert np.asarray(folded(NormBound(2.0), [[3, 4], [0, 1]], [1.0, 3.0]).value["w"]) == pytest.approx([0.3, (1.6 + 3) / 4])
    assert (
        folded(NormBound(9.0), [[3, 4], [0, 1]], [1.0, 3.0]).value["w"].tolist()
        == folded(Mean(), [[3, 4], [0, 1]], [1.0, 3.0]).value["w"].tolist()
    )
    assert folded(NormBound(2.0), [[0, 0]]).value["w"].tolist() == [0, 0]


def test_krum_takes_the_reply_closest_to_its_neighbours():
    # With one faulty of five, a score sums the two nearest: 0: 1 + 4, 1: 1 + 1, 2: 1 + 1, 3: 1 + 4, 100: far. Of equals the first.
    assert folded(Krum(faulty=1), [[0], [1], [2], [3], [100]]).value["w"].tolist() == [1]
    assert folded(Krum(faulty=1, keep=2), [[0], [1], [2], [3], [100]]).value["w"].tolist() == [1.5]
    assert folded(Krum(faulty=9), [[0], [5]]).value["w"].tolist() == [0]  # fewer replies than it may doubt: still one of them


@pytest.mark.parametrize("fold", [Median(), TrimmedMean(0.25), Krum(1, 2)])
def test_one_liar_does_not_move_a_robust_fold_far(fold):
    honest = [[0.9], [1.0], [1.1]]
    assert abs(float(folded(fold, [*honest, [1e9]]).value["w"][0]) - 1) < 0.2
    assert float(folded(Mean(), [*honest, [1e9]]).value["w"][0]) > 1e8


def test_settings_are_checked():
    with pytest.raises(SettingError, match="TrimmedMean.trim: got 0.5; allowed a number >= 0 and < 0.5"):
        TrimmedMean(0.5)
    with pytest.raises(SettingError, match="NormBound.bound: got 0"):
        NormBound(0.0)


@pytest.mark.parametrize("kind", FOLDS)
def test_workers_and_the_order_of_clients_change_no_bit(kind):
    states = []
    for workers, turned in itertools.product((1, 3), (False, True)):
        clients = dict(reversed(TASK.clients.items())) if turned else TASK.clients
        fed = gauss_federation(("small",), Compiled(workers=workers, block=2), fold=FOLDS[kind](), clients=clients, cohort=5)
        states.append(finish(fed, FedAvg(), rounds=2).state)
    assert all(same_bits(states[0], other) for other in states[1:])


@pytest.mark.parametrize("kind", FOLDS)
def test_engines_agree(kind):
    states = [
        finish(gauss_federation(("small",), engine, fold=FOLDS[kind](), cohort=5), FedAvg(), rounds=2).state
        for engine in (Serial(), Compiled())
    ]
    for a, b in zip(*map(jax.tree.leaves, states), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=2e-4)


def test_another_bound_compiles_nothing():
    from fedcodist.engines import blocks

    finish(gauss_federation(("small",), fold=NormBound(0.1)), FedAvg(), rounds=1)
    before = blocks._run._cache_size()
    other = finish(gauss_federation(("small",), fold=NormBound(0.2)), FedAvg(), rounds=1)
    assert blocks._run._cache_size() == before and other.info["small"]["grad_norm"] <= 0.2 + 1e-6


def test_folds_of_two_kinds_are_never_one_program():
    kinds = [Mean(), Median(), NormBound(1.0), TrimmedMean(), Krum()]
    structures = [jax.tree.structure(fold) for fold in kinds]
    assert all(a != b for a, b in itertools.combinations(structures, 2))
    assert jax.tree.structure(NormBound(1.0)) == jax.tree.structure(NormBound(2.0))
    assert jax.tree.structure(Krum(1)) != jax.tree.structure(Krum(2))


@pytest.mark.parametrize("most, used", [(1e30, 2), (-1e30, 2), (1e18, 3)])
def test_a_finite_outlier_is_dropped_as_one_that_is_not_finite(most, used):
    """Its square is infinite, and with it Adam's second moment for good; it used to be blamed on the learning rate."""
    fold = Mean()
    replies = [Reply({"w": jnp.array([value, 1.0], jnp.float32)}, jnp.float32(1), {"loss": jnp.float32(0)}) for value in (1.0, most, 3.0)]
    total = fold.zero(replies[0])
    for reply in replies:
        total = fold.add(total, reply)
    folded = fold.done(total, None, None)
    assert (int(folded.used), int(folded.dropped)) == (used, 3 - used)
    assert used == 3 or folded.value["w"].tolist() == [2.0, 1.0]
