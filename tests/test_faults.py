"""Simulated faults: their numbers by hand, that they are a function of seed, round and client, and that nothing changes without them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from statistics import NormalDist
from typing import Any

import jax
import numpy as np
import pytest
from worlds import finish, gauss_federation, methods, same_bits, scalar_federation

from fedcodist import config, keys, tree
from fedcodist.config import identity, plain, read
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.faults import Faults, Faulty, instead
from fedcodist.engines.serial import Serial
from fedcodist.errors import ConfigError
from fedcodist.folds import Krum, Median
from fedcodist.methods import FedAvg
from fedcodist.reports import curves
from fedcodist.reports.arms import group
from fedcodist.reports.scalars import scalars
from fedcodist.rules import Scaffold
from fedcodist.runs import read as read_run
from fedcodist.runs import session
from fedcodist.settings import SettingError
from fedcodist.train import Experiment, train
from fedcodist.tuning import prefixes

KEY = keys.derive(keys.root(0), "faults")
MIXED = Faults(
    available={"small": 0.8, "large": 0.9}, dropout=0.1, delay=0.6, deadline=2.0, byzantine=0.3, attack="noise", over=1.6, quorum=0.5
)


def faulty(fed: Any, faults: Faults) -> Any:
    pools = {name: dataclasses.replace(pool, spare=faults.spare(pool.cohort)) for name, pool in fed.pools.items()}
    return dataclasses.replace(fed, pools=pools, engine=Faulty(fed.engine, faults, fed.names))


def scalar_gradient(**given: Any) -> Any:
    """Of pool a: Anna says -0.5 with weight 1, Bert 1 with weight 3."""
    fed = faulty(scalar_federation(), Faults(**given))
    _, grads, info = fed.gradients(fed.init(keys.root(0)), 1, keys.root(0))
    return (float(grads["a"]["w"]) if "a" in grads else None), info["a"]


@pytest.mark.parametrize(
    ("attack", "strength", "said"), [("sign_flip", 2.0, -1.25), ("scaling", 4.0, 2.5), ("noise", 0.0, 0.625), ("scaling", 1.0, 0.625)]
)
def test_lies_are_what_they_say(attack, strength, said):
    assert scalar_gradient(byzantine=1.0, attack=attack, strength=strength)[0] == pytest.approx(said)


def test_noise_has_the_size_of_the_reply():
    values = [scalar_gradient(byzantine=1.0, attack="noise", strength=s)[0] for s in (0.0, 1.0, 2.0)]
    assert values[2] - values[0] == pytest.approx(2 * (values[1] - values[0]), rel=1e-5) and values[1] != values[0]


def test_a_lie_that_is_no_number_is_dropped_as_any_such_reply():
    faults = Faults(byzantine=0.5, attack="nan")
    chosen = next(key(k) for k in range(100) if lying(faults, key(k)) == {"anna"})
    fed = dataclasses.replace(scalar_federation(), engine=Faulty(Compiled(), faults, ("a", "b"), chosen))
    _, grads, info = fed.gradients(fed.init(keys.root(0)), 1, keys.root(0))
    assert float(grads["a"]["w"]) == pytest.approx(1.0)  # Bert alone
    assert (info["a"]["clients"], info["a"]["dropped"]) == (1, 1) and "reasons" not in info["a"]  # a journal has those that are simulated


def key(k: int) -> Any:
    return keys.derive(keys.root(k), "faults")


def lying(faults: Faults, key: Any) -> set[str]:
    return {client for client in ("anna", "bert") if faults.lies(key, client)}


@pytest.mark.parametrize("given", [{"dropout": 1.0}, {"byzantine": 1.0, "attack": "nan"}, {"delay": 1.0, "deadline": 1e-9}])
def test_a_pool_without_any_reply_is_skipped(given):
    grad, info = scalar_gradient(**given)
    assert grad is None and info["skipped"] == "no quorum"


def test_a_pool_below_its_quorum_is_skipped_and_the_others_go_on():
    for available in ({"small": 0.01, "large": 1.0}, {"small": 1.0, "large": 1.0}):
        fed = faulty(gauss_federation(cohort=5), Faults(available=available, quorum=1.0))
        info = finish(fed, FedAvg(), rounds=1).info
        assert "clients" in info["large"] and "skipped" not in info["large"]
        assert ("skipped" in info["small"]) == (available["small"] < 1)  # its other three clients are hardly ever there


@pytest.mark.parametrize("faults", [Faults(), Faults(over=2.0), Faults(day=10, night=0.0), Faults(quorum=1.0)])
def test_without_a_fault_no_bit_changes(faults):
    plainly = finish(gauss_federation(), FedAvg(), rounds=2)
    wrapped = finish(faulty(gauss_federation(), faults), FedAvg(), rounds=2)
    assert same_bits(plainly.state, wrapped.state)
    surplus = {"small": {"surplus": 3}, "large": {"surplus": 2}} if faults.over > 1 else {"small": None, "large": None}
    assert {name: info.get("reasons") for name, info in wrapped.info.items()} == surplus


def test_shares_come_out_as_they_are_asked_for():
    faults = Faults(available=0.8, dropout=0.25, delay=0.5, deadline=1.5)
    fates = Counter(faults.fate(KEY, t, f"c{i}", "a")[0] for t in range(60) for i in range(60))
    late = 1 - NormalDist().cdf(math.log(1.5) / 0.5)
    expected = {"unavailable": 0.2, "dropout": 0.8 * 0.25, "late": 0.6 * late, "": 0.6 * (1 - late)}
    assert {why: n / 3_600 for why, n in fates.items()} == pytest.approx(expected, abs=0.03)
    liars = [Faults(byzantine=0.3).lies(KEY, f"c{i}") for i in range(3_600)]
    assert np.mean(liars) == pytest.approx(0.3, abs=0.03)


def test_zones_spread_the_night_over_the_clients():
    def shares(zones: float, t: int) -> list[float]:
        faults = Faults(day=10, night=1.0, zones=zones)
        return [faults.share(KEY, t, f"c{i}", "a") for i in range(400)]

    assert shares(0.0, 0) == [1.0] * 400 and max(shares(0.0, 5)) == pytest.approx(0.0)
    assert np.mean(shares(1.0, 0)) == pytest.approx(0.5, abs=0.06) == np.mean(shares(1.0, 5))


@dataclasses.dataclass(frozen=True, eq=False)
class Spy:
    """An engine that notes its questions."""

    seen: list[Any]
    engine: Any = Compiled()

    @property
    def host(self) -> Any:
        return self.engine.host

    def gather(self, population: Any, asks: Any) -> Any:
        self.seen.extend(asks)
        return self.engine.gather(population, asks)


def test_the_first_replies_that_are_enough_are_used_and_bytes_are_of_all():
    faults, seen = Faults(dropout=0.2, delay=1.0, deadline=3.0, over=2.0, available=0.9), []
    fed = faulty(gauss_federation(("small",), Spy(seen), cohort=4), faults)
    pool = fed.pools["small"]
    theta = fed.init(keys.root(0))["small"].params
    late = 0
    for t in range(1, 6):
        ask = fed.ask(pool, theta, t, keys.root(0))
        (answer,) = fed.gather([ask])
        fates = {client: faults.fate(KEY, t, client, "small") for client in (*ask.clients, *ask.spare)}
        in_time = sorted((time, client) for client, (why, time) in fates.items() if not why)
        assert seen[-1].clients == tuple(sorted(client for _, client in in_time[:4])) and seen[-1].spare == ()
        surplus = max(0, len(in_time) - 4)
        reasons = Counter(why for why, _ in fates.values() if why) + Counter({"surplus": surplus})
        assert answer.reasons == dict(sorted(reasons.items())) and sum(reasons.values()) + int(answer.used) == len(fates) == 8
        assert int(answer.dropped) == sum(reasons.values()) - reasons["unavailable"]
        size = tree.nbytes(theta)
        assert answer.bytes_down == size * (8 - reasons["unavailable"])
        assert answer.bytes_up == size * (8 - reasons["unavailable"] - reasons["dropout"])
        late += reasons["late"]
    assert late


def test_spare_clients_stand_in_for_those_out_of_reach_in_the_order_of_the_draw():
    seen: list[Any] = []
    fed = faulty(gauss_federation(("small",), Spy(seen), cohort=2), faults := Faults(available=0.5, over=4.0))
    for t in range(1, 6):
        ask = fed.ask(fed.pools["small"], (theta := fed.init(keys.root(0))["small"].params), t, keys.root(0))
        assert len(ask.spare) == 6 and theta
        fed.gather([ask])
        there = [client for client in (*ask.clients, *ask.spare) if not faults.fate(KEY, t, client, "small")[0]]
        assert seen[-1].clients == tuple(sorted(there[:2]))


def test_a_lie_that_is_no_number_fills_no_place():
    faults = Faults(byzantine=0.5, attack="nan", over=2.0)
    fed = faulty(gauss_federation(("small",), cohort=4), faults)
    met = 0
    for t in range(1, 6):
        ask = fed.ask(fed.pools["small"], None, t, keys.root(0))
        order = [*ask.clients, *ask.spare]
        honest = [client for client in order if not faults.lies(KEY, client)]
        until = order.index(honest[3]) + 1 if len(honest) > 3 else len(order)
        asked = fed.engine._ask({}, ask)
        assert asked.ask.clients == tuple(sorted(order[:until])) and asked.reasons["surplus"] == len(order) - until
        assert [bool(lies) for _, lies in asked.ask.own.values()] == [faults.lies(KEY, client) for client in asked.ask.own]
        met += until > 4
    assert met and len(honest) in range(1, 8)


OFTEN = {"merged", "scaffold", "krum"}  # the others are for `make long`


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n not in OFTEN)) for n in (*methods(), "scaffold", "krum")])
def test_engines_agree_and_a_resumed_run_is_a_straight_one(name):
    rule = {"rule": Scaffold()} if name == "scaffold" else {"fold": Krum()} if name == "krum" else {}
    names, method = (("small",) if rule else ("small", "large")), methods().get(name, FedAvg())
    faults = dataclasses.replace(MIXED, available=dict.fromkeys(names, 0.8))

    def experiment(engine: Any, rounds: int = 3) -> Experiment:
        return Experiment(faulty(gauss_federation(names, engine, rounds=3, cohort=4, **rule), faults), method, rounds)

    steps = list(train(experiment(Compiled(workers=1, block=2))))
    other = list(train(experiment(Compiled(workers=3, block=2))))
    assert same_bits(steps[-1].state, other[-1].state) and [s.info for s in steps] == [s.info for s in other]
    assert any("reasons" in info for step in steps for info in step.info.values())
    resumed = list(train(experiment(Compiled(workers=2, block=2)), steps[0].state, after=1))
    assert same_bits(resumed[-1].state, steps[-1].state) and resumed[-1].info == steps[-1].info
    if name == "scaffold":  # what clients keep and who lies, through the reference engine
        slow = next(train(experiment(Serial(), rounds=1)))
        for a, b in zip(leaves(slow.state), leaves(steps[0].state), strict=True):
            assert np.allclose(a, b, rtol=0, atol=1e-3)
        assert slow.info["small"]["reasons"] == steps[0].info["small"]["reasons"]


def leaves(state: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def test_robust_folds_withstand_what_the_mean_does_not():
    honest = finish(gauss_federation(("small",), cohort=8, fold=Median()), FedAvg(), rounds=1).info["small"]["grad_norm"]
    faults = Faults(byzantine=0.15, attack="scaling", strength=1e4)
    assert sum(faults.lies(KEY, f"c{i:02d}") for i in range(8)) in (1, 2)
    norms = {}
    for name, fold in (("median", Median()), ("krum", Krum(faulty=2)), ("mean", None)):
        fed = gauss_federation(("small",), cohort=8, **({"fold": fold} if fold else {}))
        norms[name] = finish(faulty(fed, faults), FedAvg(), rounds=1).info["small"]["grad_norm"]
    assert norms["median"] < 3 * honest and norms["krum"] < 3 * honest and norms["mean"] > 100 * honest


# -- from a config --

TABLE = """\
like = "quick/toy"
[faults]
dropout = 0.4
byzantine = 0.4
attack = "nan"
quorum = 0.5
"""


@pytest.fixture
def path(tmp_path) -> Path:
    (tmp_path / "mine.toml").write_text(TABLE)
    return tmp_path / "mine.toml"


def test_a_config_without_faults_has_the_digest_that_it_had(path):
    toy = read("quick/toy")
    assert "faults" not in plain(toy) and identity(toy) == identity(dataclasses.replace(toy, faults=Faults()))
    mine = read(path)
    assert plain(mine)["faults"]["dropout"] == 0.4 and identity(mine) != identity(dataclasses.replace(mine, faults=Faults()))
    assert prefixes.digest(mine, 0, False, "") != prefixes.digest(dataclasses.replace(mine, faults=Faults()), 0, False, "")
    assert not isinstance(config.load("quick/toy").federation.engine, Faulty)


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("faults.dropout=1.5", "faults.dropout: got 1.5; allowed a number >= 0 and <= 1"),
        ("faults.available={small=0.5}", "faults.available.large: got nothing; allowed a share for every pool"),
        ("faults.available={small=0.5, large=0.5, larg=1.0}", "faults.available.larg: got an unknown pool; allowed small | large"),
        ("faults.available={small=0.5, large=2.0}", "faults.available.large: got 2.0; allowed a number > 0 and <= 1"),
        ("faults.attack='lie'", "faults.attack: got 'lie'; allowed sign_flip | scaling | noise | nan"),
        ("faults.dropouts=0.5", "faults.dropouts: got an unknown key"),
        ("faults.deadline=0", "faults.deadline: got 0.0; allowed a number > 0 and <= 1e+09"),
    ],
)
def test_what_is_not_allowed_is_said(assignment, said):
    with pytest.raises(ConfigError) as caught:
        read("quick/toy", [assignment])
    assert str(caught.value).startswith(said)


def test_python_is_told_too():
    with pytest.raises(SettingError, match="available.small: got 0"):
        Faults(available={"small": 0.0})


def test_a_run_tells_the_reasons_in_its_journal_its_report_and_its_table(path, tmp_path):
    experiment = config.load(path)
    assert isinstance(experiment.federation.engine, Faulty) and experiment.federation.engine.workers == 0
    for root in ("straight", "cut"):
        events = session.perform(experiment, tmp_path / root)
        for event in events:
            if root == "cut" and event.t == 4:
                events.close()
                list(session.perform(experiment, tmp_path / root))
    straight, cut = (read_run(next((tmp_path / root).rglob("rounds.jsonl")).parent) for root in ("straight", "cut"))
    assert straight.rounds == cut.rounds and straight.result == cut.result
    infos = [info for row in straight.rounds for info in row["pools"].values()]
    assert any("dropout" in info.get("reasons", {}) for info in infos) and any("skipped" in info for info in infos)
    assert any("not finite" in info.get("reasons", {}) for info in infos)
    rows = curves.lost_of(group([straight])[0])
    assert {row["pool"] for row in rows} == {"small", "large"} and any("dropout" in row["reasons"] for row in rows)
    assert any(name.startswith("train/lost_dropout/") for row in straight.rounds for name in scalars(row))
    json.dumps(straight.rounds)


def test_another_engine_takes_the_place_of_the_one_below():
    engine = Faulty(Compiled(), Faults(dropout=0.1), ("a",))
    other = instead(engine, Serial())
    assert isinstance(other, Faulty) and other.engine == Serial() and other.faults == engine.faults
    assert instead(Compiled(), Serial()) == Serial()


def test_a_run_of_another_seed_has_faults_of_its_own():
    """Several seeds share one assembled experiment: each must have the faults that it has alone."""
    first, alone = (config.load("quick/toy-faults", seed=seed) for seed in (0, 1))
    shared = dataclasses.replace(first, seed=1)
    draws = [one.federation.engine.key.tolist() for one in (first, shared, alone)]
    assert draws[0] != draws[1] == draws[2]
