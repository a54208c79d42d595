"""The engine of real devices against a post without a network: its bits are the simulation's, and nobody's fault is a round's end."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from devices import FakePost
from worlds import SHORT, TASK, finish, gauss_federation, same_bits

from fedcodist import keys
from fedcodist.engines import wire
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.flower import Flower, NoClients, Terms
from fedcodist.engines.roll import Roll
from fedcodist.engines.wire import Fault, Parcel
from fedcodist.errors import ConfigError
from fedcodist.folds import Krum, Mean, Median, NormBound, TrimmedMean
from fedcodist.methods import MergedCodist
from fedcodist.rules import FedMiD, Scaffold
from fedcodist.schedule import Constant
from fedcodist.testing import check_engine
from fedcodist.testing import finish as last
from fedcodist.train import Experiment, train

MERGED = MergedCodist(alpha=Constant(0.5), distill=SHORT)
HIGH = sorted(TASK.clients)[:5]  # the second pool's clients, as testing.federation has them
ATTRIBUTES = {client: {"capacity": "high" if client in HIGH else "low"} for client in TASK.clients}


def pools(client, attributes):
    return ["small", "large"] if attributes.get("capacity") == "high" else ["small"]


def world(terms=None, cohort=3, away=(), **given):
    """(post, engine, federation on it); the cohort is the small pool's."""
    post, said = FakePost(TASK.clients, ATTRIBUTES), []
    post.away = set(away)
    roll = Roll(("small", "large"), TASK.spec, pools, 1000, say=said.append)
    engine = Flower(post, roll, TASK.spec, terms or Terms(), said.append, post.clock, post.sleep)
    engine.meet(10)
    fed = gauss_federation(engine=engine, **given)
    here = {name: dataclasses.replace(pool, clients=roll.rosters[name]) for name, pool in fed.pools.items()}
    here["small"] = dataclasses.replace(here["small"], cohort=cohort)
    post.said = said
    return post, engine, dataclasses.replace(fed, pools=here)


def arrays(change):
    """A device that changes its arrays."""
    return lambda question, answer: Parcel(answer.text, change(dict(answer.arrays)))


def value(array):
    """A device whose first array of numbers is another one."""

    def change(found):
        name = next(name for name in found if name.startswith("0/value"))
        return found | {name: wire.packed(array(wire.unpacked(found[name])))}

    return arrays(change)


def weight(number, dtype=np.float32):
    return arrays(lambda found: found | {"0/weight": wire.packed(dtype(number))})


def question(answer_of):
    return lambda question, answer: Parcel(wire.written({"answers": answer_of(json.loads(answer.text)["answers"])}), answer.arrays)


def filled(number):
    return value(lambda a: np.full_like(a, number))


OFFENDERS = {
    "NaN": (filled(np.nan), "NaN or infinite"),
    "infinite": (filled(np.inf), "NaN or infinite"),
    "1e30": (filled(1e30), "norm"),
    "shape": (value(lambda a: a.reshape(-1)[:1]), "shape"),
    "turned": (value(lambda a: a[None]), "shape"),
    "float64": (value(lambda a: a.astype(np.float64)), "dtype"),
    "weight 1e12": (weight(1e12), "weight"),
    "weight -5": (weight(-5), "weight"),
    "weight 0": (weight(0), "weight"),
    "weight 1.5": (weight(1.5), "weight"),
    "weight NaN": (weight(np.nan), "NaN or infinite"),
    "weight an integer": (weight(3, np.int64), "dtype"),
    "extra array": (arrays(lambda found: found | {"0/value/more": found["0/weight"]}), "names"),
    "an array of no answer": (arrays(lambda found: found | {"7/value": found["0/weight"]}), "names"),
    "an array less": (arrays(lambda found: {name: a for name, a in found.items() if name != "0/weight"}), "names"),
    "nothing": (lambda question, answer: Parcel("", {}), "malformed"),
    "no JSON": (lambda question, answer: Parcel("{", answer.arrays), "malformed"),
    "another round": (question(lambda said: [[*one[:2], one[2] + 1, *one[3:]] for one in said]), "stale"),
    "another pool": (question(lambda said: [[one[0], "huge", *one[2:]] for one in said]), "stale"),
    "another run": (question(lambda said: [["0", *one[1:]] for one in said]), "stale"),
    "bytes": (arrays(lambda found: found | {"0/weight": b"\x80\x04pickle"}), "malformed"),
    "a header that lies": (arrays(lambda found: found | {"0/weight": found["0/weight"] + bytes(8)}), "size"),
}


def test_a_federation_of_devices_ends_with_the_bits_of_blocks_of_one():
    post, _, fed = world()
    assert same_bits(last(fed, MERGED).state, finish(gauss_federation(engine=Compiled(block=1)), MERGED).state)
    asked = [(client, json.loads(parcel.text)) for client, kind, parcel in post.sent if kind == "train"]
    assert len(asked) <= 4 * 6 and any(len(said["questions"]) == 2 for _, said in asked)  # one message for both pools


@pytest.mark.parametrize("fold", [Median(), TrimmedMean(0.3), Krum(faulty=1, keep=2), NormBound(0.1)])
def test_robust_folds_on_devices_have_the_bits_of_the_simulation_and_bear_a_liar(fold):
    def gradient(fold, spoil=(), engine=None):
        post, _, fed = world(Terms(norm_factor=1e9), cohort=7, fold=fold)
        fed = gauss_federation(("small",), engine=engine) if engine else fed
        post.spoil = dict(spoil)
        pools = {"small": dataclasses.replace(fed.pools["small"], cohort=7, fold=fold)}
        fed = dataclasses.replace(fed, pools=pools)
        key = keys.root(0)
        _, grads, info = fed.gradients(fed.init(key), 1, key)
        assert info["small"]["clients"] == 7
        return grads["small"]

    def moved(fold):
        pairs = zip(jax.tree.leaves(gradient(fold, liar)), jax.tree.leaves(gradient(fold)), strict=True)
        return max(float(np.abs(a - b).max()) for a, b in pairs)

    liar = {"c02": value(lambda a: a + 50)}
    here, simulated = gradient(fold), gradient(fold, engine=Compiled(block=1))
    if type(fold) is NormBound:  # the norm is summed in another program than the client's own, and may round differently
        assert all(np.allclose(*leaves, rtol=1e-6, atol=1e-8) for leaves in zip(*map(jax.tree.leaves, (here, simulated)), strict=True))
    else:
        assert same_bits(here, simulated)
    assert moved(fold) < 0.5 < 4 < moved(Mean())


def test_it_keeps_the_contract_of_engines():
    check_engine(world()[1])


def test_no_tensor_of_the_large_model_goes_to_a_client_without_the_capacity():
    post, _, fed = world()
    large = {tuple(leaf.shape) for leaf in jax.tree.leaves(fed.pools["large"].shapes)}
    small = {tuple(leaf.shape) for leaf in jax.tree.leaves(fed.pools["small"].shapes)}
    last(fed, MERGED, rounds=2)
    seen = {"high": set(), "low": set()}
    for client, kind, parcel in post.sent:
        if kind == "train":
            seen[ATTRIBUTES[client]["capacity"]] |= {wire.unpacked(data).shape for data in parcel.arrays.values()}
    assert seen["high"] & (large - small) and not seen["low"] & (large - small)


@pytest.mark.parametrize("offender", OFFENDERS)
def test_an_offender_is_dropped_with_its_reason_and_the_others_are_folded_without_it(offender):
    spoil, reason = OFFENDERS[offender]
    post, _, fed = world(cohort=5)
    experiment = Experiment(dataclasses.replace(fed, pools={"small": fed.pools["small"]}), MERGED, 1)
    bad = experiment.federation.pools["small"].sample(_cohort_key(experiment))[0][1]
    post.spoil[bad] = spoil
    (step,) = train(experiment)
    assert step.info["small"]["reasons"] == {reason: 1} and step.info["small"]["clients"] == 4
    quiet, _, other = world(cohort=5)
    quiet.spoil[bad] = lambda question, answer: Fault("failed")
    (without,) = train(dataclasses.replace(experiment, federation=dataclasses.replace(other, pools={"small": other.pools["small"]})))
    assert same_bits(step.state, without.state)


def _cohort_key(experiment):
    from fedcodist import keys

    return keys.derive(keys.root(experiment.seed), "cohort", 1, 0)


def test_who_never_answers_is_late_at_the_deadline_and_the_round_goes_on():
    post, _, fed = world(Terms(deadline_seconds=30), cohort=8)
    post.spoil["c00"] = lambda question, answer: None
    step = last(fed, MERGED, rounds=1)
    assert step.info["small"]["reasons"] == {"late": 1} and step.info["small"]["clients"] == 7
    assert 30 <= post.now < 33


def test_who_fails_is_asked_again_and_changes_nothing():
    post, _, fed = world()
    failures = iter(["died", "offline"])
    for client in HIGH[:2]:
        post.spoil[client] = lambda question, answer: Fault(why) if (why := next(failures, None)) else answer
    assert same_bits(last(fed, MERGED).state, finish(gauss_federation(engine=Compiled(block=1)), MERGED).state)
    assert next(failures, None) is None


def test_below_its_quorum_a_pool_is_skipped_and_the_others_go_on():
    post, _, fed = world(Terms(quorum=0.3, deadline_seconds=5), cohort=8)
    for client in HIGH:
        post.spoil[client] = lambda question, answer: None
    steps = list(train(Experiment(fed, MERGED, 2)))
    assert [step.info["large"]["skipped"] for step in steps] == ["no quorum"] * 2
    assert [step.info["small"]["clients"] for step in steps] == [3, 3]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(steps[-1].state))


def test_without_any_quorum_for_long_the_run_stops_and_says_so():
    post, _, fed = world(Terms(deadline_seconds=5, patience=2))
    post.away = set(TASK.clients)
    with pytest.raises(NoClients, match="quorum: got none in 2 exchanges"):
        last(fed, MERGED)
    assert post.now >= 10  # it waited for them to come back


def test_spares_are_asked_and_count_only_where_the_cohort_fails():
    post, _, fed = world(Terms(deadline_seconds=5), spare=2)
    assert same_bits(last(fed, MERGED).state, finish(gauss_federation(engine=Compiled(block=1)), MERGED).state)
    cohort = fed.pools["small"].sample(_cohort_key(Experiment(fed, MERGED, 1)))[0]
    post, _, fed = world(Terms(deadline_seconds=5), spare=2)
    post.spoil[cohort[0]] = lambda question, answer: None
    assert last(fed, MERGED, rounds=1).info["small"]["clients"] == 3 and post.now < 5


def test_a_repeated_offender_is_not_asked_for_some_rounds():
    post, _, fed = world(Terms(strikes=2, quarantine_rounds=2, deadline_seconds=5), cohort=8)
    fed = dataclasses.replace(fed, pools={"small": fed.pools["small"]})
    post.spoil["c03"] = filled(np.nan)
    reasons = [step.info["small"]["reasons"] for step in train(Experiment(fed, MERGED, 6))]
    assert [list(found) for found in reasons] == [["NaN or infinite"]] * 2 + [["quarantined"]] * 2 + [["NaN or infinite"]] * 2


def test_a_device_that_comes_late_is_sampled_from_its_next_round_on():
    post, _, fed = world(cohort=8, away=["c07"])
    counts = []
    for step in train(Experiment(fed, MERGED, 3)):
        counts.append(step.info["small"]["clients"])
        post.away.clear()
    assert counts == [7, 7, 8]  # it says in round 2 what it has


def test_a_device_that_changes_what_it_is_is_refused():
    post, engine, _ = world()
    post.attributes = ATTRIBUTES | {"c07": {"capacity": "high"}}
    engine._roll.forget("c07")
    engine.meet(10)
    assert any("c07 is refused: it declared {'capacity': 'low'}" in line for line in post.said)
    assert "c07" not in engine._roll.rosters["large"]


def test_rules_that_keep_something_at_their_clients_are_refused():
    _, _, fed = world()
    pool = fed.pools["small"]
    ask = fed.ask(pool, fed.init(np.zeros(2, np.uint32))["small"].params, 1, np.zeros(2, np.uint32))
    with pytest.raises(ConfigError, match="that keep something of their own"):
        fed.gather([ask._replace(own=dict.fromkeys(ask.clients, ()))])
    assert Scaffold().problems(pool)


def test_works_that_no_config_can_name_are_refused():
    _, _, fed = world(rule=FedMiD())
    with pytest.raises(ConfigError, match="pools.large: got the work MirrorSGD"):
        last(fed, MERGED)
