"""Split-Mix: who trains which bases, the ensemble at its true size, and its identities."""

import jax
import numpy as np
import pytest
from worlds import SHORT, TASK, finish, gauss_federation, same_bits

from fedcodist import keys, tree
from fedcodist.methods import FedAvg, MergedCodist
from fedcodist.models import CNN
from fedcodist.rules import SplitMix
from fedcodist.rules.carriers import Carriers, Width
from fedcodist.rules.mix import Mix, drawn
from fedcodist.runs import cost
from fedcodist.schedule import Constant
from fedcodist.servers import Average
from fedcodist.settings import SettingError

HALVES = SplitMix((Width(1.0, Carriers(take=2)), Width(0.5)), rate=0.5)
PLAIN = {"server": Average().optimizer(), "lr": Constant(1.0)}


def test_by_turns_every_base_gets_its_clients():
    carried = {f"c{i}": 1 for i in range(3)}
    rounds = [drawn(keys.root(0), 0, t, 3, 4, carried) for t in range(1, 5)]
    turns = [bases[0] for found in rounds for bases in found.values()]
    assert [sorted(turns[i : i + 4]) for i in (0, 4, 8)] == [[0, 1, 2, 3]] * 3  # each cycle, across rounds, has every base once
    assert len({tuple(turns[i : i + 4]) for i in (0, 4, 8)}) > 1  # and an order of its own


def test_a_client_trains_as_many_bases_as_it_carries_and_none_twice():
    found = drawn(keys.root(1), 0, 1, 4, 8, {"a": 1, "b": 2, "c": 8, "d": 5})
    assert [len(set(bases)) for bases in found.values()] == [len(bases) for bases in found.values()] == [1, 2, 8, 5]
    assert found["c"] != drawn(keys.root(1), 0, 2, 4, 8, {"a": 1, "b": 2, "c": 8, "d": 5})["c"]


def test_with_one_base_split_mix_is_fedavg_to_the_bit():
    one, plain = (finish(gauss_federation(**given), FedAvg(), rounds=3) for given in ({"rule": SplitMix((Width(1.0),), rate=1.0)}, {}))
    for pool in plain.state:
        single = jax.tree.map(lambda leaf: leaf[0], one.state[pool].params)
        assert same_bits(single, plain.state[pool].params)
        assert {k: one.info[pool][k] for k in plain.info[pool]} == plain.info[pool]
    assert one.evaluate() == plain.evaluate()


def test_the_papers_models_as_two_halves():
    """Two half-width networks of 109,348 parameters in the place of one of 410,084."""
    wide = CNN((32, 64, 64), (128, 256)).build((24, 24, 3), 100)
    model = SplitMix(rate=0.5).model(wide)
    assert tree.size(jax.eval_shape(model.init, keys.root(0))) == 2 * 109_348
    assert SplitMix(rate=0.5).model(model) is model  # of its own it makes nothing else
    assert tree.size(jax.eval_shape(SplitMix(rate=0.25, bases=13).model(wide).init, keys.root(0))) == 13 * 30_788


def test_the_ensemble_is_the_mean_of_its_bases_logits():
    fed = gauss_federation(("small",), rule=HALVES)
    step = finish(fed, FedAvg(), rounds=2)
    assert list(step.models) == ["small", "small@0.5"] == list(step.evaluate())
    (model, params), base = step.models["small"], gauss_federation(("small",)).pools["small"].model.narrow(0.5).model
    bases = [jax.tree.map(lambda leaf, b=b: leaf[b], params) for b in range(2)]
    want = np.mean([base.apply(p, TASK.public.x[:5], None) for p in bases], 0)
    assert np.asarray(model.apply(params, TASK.public.x[:5], None)) == pytest.approx(want, abs=1e-6)
    narrow = step.models["small@0.5"]
    assert np.array_equal(narrow.model.apply(narrow.params, TASK.public.x[:5], None), base.apply(bases[0], TASK.public.x[:5], None))
    assert not same_bits(bases[0], bases[1])


def test_a_base_is_the_mean_of_its_own_clients():
    """Every client at the full budget trains both bases on the same batches: each base is FedAvg's from its own beginning."""
    rule = SplitMix((Width(1.0),), rate=0.5)
    fed = gauss_federation(("small",), rule=rule, **PLAIN)
    before = fed.init(keys.root(0))
    _, grads, info = fed.gradients(before, 1, keys.root(0))
    start = before["small"].params
    for b in range(2):
        own = jax.tree.map(lambda leaf, b=b: leaf[b], start)
        plain = gauss_federation(("small",), **PLAIN)
        pool = plain.pools["small"]
        base = pool.model.narrow(0.5).model
        (answer,) = plain.gather([plain.ask(pool, own, 1, keys.root(0))._replace(model=base)])
        for x, y in zip(jax.tree.leaves(grads["small"]), jax.tree.leaves(answer.value), strict=True):
            assert np.array_equal(x[b], y)
    assert info["small"]["trained"] == {"base": 2 * int(answer.weight)}
    assert info["small"]["client_bytes"] == 2 * 3 * tree.nbytes(start) == cost.expected(fed, FedAvg(), 1)["client_bytes"]["small"]


def test_a_base_that_nobody_trained_stays_unless_a_teacher_moves_it():
    rule = SplitMix((Width(0.5),), rate=0.5)
    for method, moves in ((FedAvg(), False), (MergedCodist(Constant(0.5), SHORT), True)):
        fed = gauss_federation(rule=rule, cohort=1)
        start, after = fed.init(keys.root(0)), finish(fed, method, rounds=1).state
        held = np.asarray(after["small"].kept["held"])
        assert held.sum() == 1
        old, new = (np.asarray(s["small"].params["dense0"]["w"]) for s in (start, after))
        assert [not np.array_equal(old[b], new[b]) for b in range(2)] == [moves or held[b] for b in range(2)]


def test_with_the_scaler_a_base_begins_as_a_prefix_of_a_wide_network():
    part = CNN((4, 4, 4), (8,))
    model, wide = Mix(part, 0.5, 1, True).build((12, 12, 3), 5), part.build((12, 12, 3), 5)
    key = keys.root(0)
    assert same_bits(jax.tree.map(lambda leaf: leaf[0], model.init(key)), wide.narrow(0.5).cut(wide.init(key)))


def test_what_carries_less_than_a_base_is_refused():
    with pytest.raises(SettingError, match=r"pools.small.rule.widths: got a rate of 0.25; allowed at least that of a base, 0.5"):
        gauss_federation(("small",), rule=SplitMix((Width(1.0, Carriers(take=2)), Width(0.25)), rate=0.5))
