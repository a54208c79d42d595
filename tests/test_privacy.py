"""Client-level differential privacy: what a client can move, what the noise is, what is paid for it, and that a run stops in time."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from test_flower import MERGED, world
from worlds import finish, gauss_federation, same_bits

from fedcodist import config, keys, tree
from fedcodist.config import identity, plain, read
from fedcodist.deploy import layout, serving
from fedcodist.engines.accountant import Account, Charge, Noise, Privacy
from fedcodist.engines.clipped import Clipped
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.private import BudgetSpent, Private, gaussian
from fedcodist.engines.serial import Serial
from fedcodist.errors import ConfigError
from fedcodist.methods import FedAvg
from fedcodist.runs import session
from fedcodist.storage.journal import decode_lines
from fedcodist.train import Experiment, train
from fedcodist.types import Reply

pytest.importorskip("dp_accounting")
FREE = Privacy(budget=1e6)


def private(fed, how=FREE, clip=1.0, noise=1.0, **more):
    pools = {name: (Noise(clip, noise), fed.pools[name].cohort) for name in fed.names}
    return dataclasses.replace(fed, engine=Private(fed.engine, how, pools, **more))


def values(*trees):
    return np.concatenate([np.ravel(leaf) for one in trees for leaf in jax.tree.leaves(one)]).astype(np.float64)


# -- what a client can move --


def reply(w, b, weight=1.0):
    return Reply({"w": np.float32([w]), "b": np.float32(b)}, np.float32(weight), {"loss": np.float32(weight)})


def test_a_reply_is_clipped_over_the_whole_value_and_weighs_as_any_other():
    fold = Clipped(bound=1.0, cohort=4)
    total = fold.zero(reply(0, 0))
    for one in (reply(3, 4, 10), reply(0.3, 0.4), reply(np.nan, 0)):  # norms 5 and 0.5, and one that cannot be used
        total = fold.add(total, one)
    folded = fold.done(total, None, keys.root(0))
    assert np.allclose(folded.value["w"], [(0.6 + 0.3) / 4]) and np.allclose(folded.value["b"], (0.8 + 0.4) / 4)
    assert (int(folded.used), int(folded.dropped), float(folded.weight)) == (2, 1, 11.0)
    assert np.isclose(folded.info["loss"], 101 / 11)  # the journal's mean is by examples, as ever


def test_one_client_moves_the_sum_by_no_more_than_the_clip():
    rng = np.random.default_rng(0)
    fold = Clipped(bound=0.5, cohort=1)
    others = [reply(*rng.normal(0, 3, 2)) for _ in range(5)]

    def folded(replies):
        total = fold.zero(others[0])
        for one in replies:
            total = fold.add(total, one)
        return values(fold.done(total, None, keys.root(0)).value)

    for one in (reply(1e6, -1e6, 1e6), reply(0.1, 0.1), reply(3e38, 3e38)):
        assert np.linalg.norm(folded([*others, one]) - folded(others)) <= 0.5 * (1 + 1e-5)


# -- the noise --


def test_a_round_is_the_clipped_mean_plus_the_noise_of_its_name():
    quiet = finish(private(gauss_federation(), noise=1e-3, clip=1e-3), FedAvg(), rounds=1)
    fed = private(gauss_federation(), clip=0.3, noise=2.0)
    pool, state = fed.pools["small"], fed.init(keys.root(0))
    ask = fed.ask(pool, state["small"].params, 1, keys.root(0))
    engine = fed.engine.seeded(0)
    population = {name: p.clients for name, p in fed.pools.items()}
    (noised,) = engine.gather(population, [ask])
    (bare,) = Compiled().gather(population, [ask._replace(fold=Clipped(0.3, pool.cohort))])
    noise = values(noised.value) - values(bare.value)
    size = 2.0 * 0.3 / pool.cohort
    assert abs(noise.std() / size - 1) < 4 / math.sqrt(2 * len(noise)) and abs(noise.mean()) < 4 * size / math.sqrt(len(noise))
    (again,), (later,) = engine.gather(population, [ask]), engine.gather(population, [ask._replace(t=2)])
    assert same_bits(again.value, noised.value) and not np.allclose(values(later.value), values(noised.value))
    (other,) = fed.engine.seeded(1).gather(population, [ask])
    assert not np.allclose(values(other.value), values(noised.value))
    assert quiet.info["small"]["epsilon"] > 0


def test_noise_is_another_one_for_each_pool_and_is_normal():
    a, b = (gaussian(seed, {"w": np.zeros(10_000)}, 1.0)["w"] for seed in (b"a", b"b"))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.04
    for quantile in (0.025, 0.5, 0.975):
        assert abs(np.mean(a < norm.ppf(quantile)) - quantile) < 0.02


def test_with_a_secret_key_an_equal_sum_is_the_same_release_and_another_one_has_noise_of_its_own():
    fed = gauss_federation(("small",))
    engine = private(fed).engine.hidden(b"secret")
    ask = dataclasses.replace(fed).ask(fed.pools["small"], fed.init(keys.root(0))["small"].params, 1, keys.root(0))
    value = tree.zeros(ask.sent)
    moved = jax.tree.map(lambda leaf: leaf + 1, value)
    (first, tag), (again, tag_again), (other, tag_other) = (engine._noised(ask, jax.device_get(one)) for one in (value, value, moved))
    assert same_bits(first, again) and tag == tag_again != tag_other
    assert np.std(values(other) - values(first)) > 0.1  # with one noise the difference of the sums would be bare: exactly 1
    open_key = dataclasses.replace(engine, secret=False)
    assert np.std(values(open_key._noised(ask, jax.device_get(moved))[0]) - values(open_key._noised(ask, jax.device_get(value))[0])) < 1e-6


def test_neither_the_engine_nor_its_workers_change_a_round():
    fed = gauss_federation(("small",))
    pool = fed.pools["small"]
    ask = fed.ask(pool, fed.init(keys.root(0))["small"].params, 1, keys.root(0))
    found = []
    for engine in (Compiled(), Compiled(workers=1), Serial()):
        (answer,) = private(dataclasses.replace(fed, engine=engine)).engine.gather({"small": pool.clients}, [ask])
        found.append(answer.value)
    assert same_bits(found[0], found[1]) and np.allclose(values(found[0]), values(found[2]), atol=1e-5)


# -- the account --


def charge(pool, t, clients=("a",), of=1):
    return Charge(pool, t, tuple(clients), of)


def exactly(paid, delta):
    """Epsilon of Gaussian mechanisms whose 1 / noise^2 add up to `paid`, from the definition (Balle and Wang 2018)."""
    mu = math.sqrt(paid)
    return brentq(lambda e: norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu) - delta, 0, 700)


def test_without_amplification_a_client_pays_for_the_rounds_it_was_asked_in():
    account = Account(Privacy(100, 1e-5), {"small": 1.0, "large": 2.0})
    assert account.epsilon() == 0.0
    account.pay([charge("small", 1, "ab"), charge("large", 1, "a")])
    account.pay([charge("small", 2, "bc")])
    assert account.epsilon() == pytest.approx(exactly(2.0, 1e-5), rel=1e-4)  # b: twice 1; a: 1 + 1/4
    account.pay([charge("large", t, "a") for t in range(2, 6)])
    assert account.epsilon() == pytest.approx(exactly(2.25, 1e-5), rel=1e-4)  # one account for both pools
    account.pay([charge("large", t, "a") for t in range(2, 6)])
    assert account.epsilon() == pytest.approx(exactly(2.25, 1e-5), rel=1e-4)  # a replayed round is the same release
    assert account.epsilon([charge("small", 3, "c")]) == account.epsilon() < account.epsilon([charge("small", 3, "a")])


@pytest.mark.parametrize(
    "sampling, noise, small, large, both",
    [("poisson", 1.0, 20.12, 393.24, 403.32), ("without_replacement", 2.0, 42.65, None, None)],
)
def test_sampled_cohorts_come_to_the_numbers_of_the_accountant(sampling, noise, small, large, both):
    def epsilon(**of):
        account = Account(Privacy(1e6, 1e-5, sampling), dict.fromkeys(of, noise))
        account._drawn.update({(pool, 20, many): 1500 for pool, many in of.items()})
        return account.epsilon()

    assert epsilon(small=315) == pytest.approx(small, abs=0.01)  # of dp-accounting 0.6.0, composed 1,500 times by itself
    if both is not None:
        assert epsilon(large=47) == pytest.approx(large, abs=0.01)
        assert epsilon(small=315, large=47) == pytest.approx(both, abs=0.01)


def test_pools_without_a_client_in_common_do_not_pay_for_each_other():
    def epsilon(population):
        account = Account(Privacy(1e6, 1e-5, "poisson"), {"a": 1.0, "b": 1.0})
        account.meet(population)
        account._drawn.update({("a", 2, 10): 10, ("b", 2, 10): 10})
        return account.epsilon()

    assert epsilon({"a": "xy", "b": "z"}) < epsilon({"a": "xy", "b": "yz"})


def test_one_release_by_hand():
    """Renyi divergence of the Gaussian mechanism at order a is a / (2 noise^2); sampling everybody amplifies nothing."""
    account = Account(Privacy(100, 1e-5, "poisson"), {"a": 2.0})
    account._drawn["a", 10, 10] = 3

    def bound(order):
        return 3 * order / 8 + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)

    assert account.epsilon() == pytest.approx(min(bound(1 + x / 10) for x in range(1, 1000)), rel=1e-3)


# -- a run --


def made(budget, **more):
    text = [f"privacy={{ budget={budget}, delta=1e-3 }}", "pools.small.privacy={ clip=0.5, noise=1.0 }", *more.get("set", [])]
    return config.load("quick/toy", ["rounds=4", "checkpoint_every=10", *text])


def events(experiment, root):
    return list(session.perform(experiment, root))


def test_a_run_stops_before_the_round_that_would_pass_the_budget_and_goes_on_when_it_is_raised(tmp_path):
    whole = events(made(100.0), tmp_path / "whole")
    told = [step.info["small"]["epsilon"] for step in train(made(100.0))]
    assert told == sorted(told) and told[0] > 0 and whole[-1].result["privacy"]["epsilon"] == told[-1]
    assert "cohorts are public" in whole[0].notes[-1]
    budget = round((told[1] + told[2]) / 2, 3)
    with pytest.raises(BudgetSpent, match=r"privacy.budget: got round 3 would make epsilon .* the models of round 2 are kept") as caught:
        events(made(budget), tmp_path / "stopped")
    assert caught.value.code == 8
    run = tmp_path / "stopped/toy/merged/seed-0"
    rows, notes = decode_lines((run / "privacy.jsonl").read_bytes(), "")
    assert not notes and rows[-1] == {"stopped_before": 3, "epsilon": told[2], "budget": budget}
    assert len((run / "rounds.jsonl").read_text().splitlines()) == 2
    again = events(made(100.0), tmp_path / "stopped")
    assert again[0].t == 2 and f"so far {told[1]:g}" in again[0].notes[-1]
    assert again[-1].result["privacy"] == whole[-1].result["privacy"]
    assert (run / "rounds.jsonl").read_bytes() == (tmp_path / "whole/toy/merged/seed-0/rounds.jsonl").read_bytes()


def test_what_is_written_is_paid_although_the_release_never_came(tmp_path):
    experiment = made(100.0)
    steps = session.perform(experiment, tmp_path)
    while next(steps).kind != "round":
        pass
    steps.close()
    path = tmp_path / "toy/merged/seed-0/privacy.jsonl"
    before = path.read_bytes()
    path.write_bytes(before[:-5])  # a line that was not whole was no release
    events(made(100.0), tmp_path)
    assert path.read_bytes().startswith(before[: before[:-5].rfind(b"\n") + 1])
    assert len(path.read_bytes().splitlines()) == 8 - 1  # the torn line is of round 1, which is committed and not released again


# -- what is refused, and what is unchanged --


def test_without_privacy_nothing_is_said_of_it():
    toy = read("quick/toy")
    table = plain(toy)
    assert "privacy" not in table and not any("privacy" in pool for pool in table["pools"].values())
    assert identity(read("quick/toy-private", ["privacy.budget=5"])) == identity(read("quick/toy-private")) != identity(toy)
    assert type(config.build(toy, 0).federation.engine) is Compiled


@pytest.mark.parametrize(
    "changes, said",
    [
        (["pools.small.privacy.clip=0"], "pools.small.privacy.clip: got 0.0; allowed a number > 0"),
        (["pools.small.privacy.noise=0"], "pools.small.privacy.noise: got 0.0; allowed a number >= 0.001"),
        (["privacy.delta=0"], "privacy.delta: got 0.0; allowed a number > 0 and < 1"),
        (["privacy.delta=1"], "privacy.delta: got 1.0; allowed a number > 0 and < 1"),
        (["privacy.sampling='poison'"], "privacy.sampling"),
        (["method='feddf'"], "method: got feddf; allowed a method that needs only sums"),
        (["method='fd'"], "method: got fd; allowed a method that needs only sums"),
        (["pools.small.rule='scaffold'"], "pools.small.rule: got scaffold; allowed average"),
        (["pools.small.fold='median'"], "pools.small.fold: got median; allowed mean"),
        (["privacy.delta=0.2"], "privacy.delta: got 0.2; allowed less than 1 over the 12 clients of pool small"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, said):
    with pytest.raises(ConfigError, match=said):
        config.load("quick/toy-private", changes)


def test_all_pools_or_none(tmp_path):
    with pytest.raises(ConfigError, match="pools.mid.privacy: got nothing; allowed a table for every pool, or for none"):
        read("quick/three-pools", ["privacy={ budget=8 }", "pools.small.privacy={}"])
    with pytest.raises(ConfigError, match="pools.small.privacy: got a table; allowed a table privacy with the budget"):
        read("quick/toy", ["pools.small.privacy={}"])


# -- real devices --


def test_a_deployment_releases_what_a_simulation_with_its_key_does():
    post, _, fed = world()
    simulated = dataclasses.replace(gauss_federation(engine=Compiled(block=1)))
    live, here = (private(one, clip=0.2).engine.hidden(b"secret") for one in (fed, simulated))
    a, b = (finish(dataclasses.replace(one, engine=engine), MERGED, rounds=2) for one, engine in ((fed, live), (simulated, here)))
    assert same_bits(a.state, b.state) and a.info["small"]["epsilon"] == b.info["small"]["epsilon"]
    asked = [parcel.text for _, kind, parcel in post.sent if kind == "train"]
    assert asked and not any("clip" in text or "noise" in text for text in asked)  # devices need to know nothing of it


def test_a_long_update_is_clipped_and_decides_about_no_other():
    def clients(spoil, **more):
        post, _, fed = world(cohort=8)
        post.spoil = dict.fromkeys([f"c{i:02}" for i in range(7)], spoil)
        fed = dataclasses.replace(fed, pools={"small": fed.pools["small"]})
        fed = private(fed, **more) if more else fed
        (step,) = train(Experiment(fed, FedAvg(), 1))
        return step.info["small"]["clients"]

    from test_flower import filled

    tiny = filled(1e-6)  # then the one honest client would be far from the median of the others
    assert clients(tiny) <= clients(tiny, clip=0.1) == 8


def test_a_deployment_has_a_secret_key_and_claims_no_amplification(tmp_path):
    assert "noise.key" in {path.name for path in _initialised(tmp_path).iterdir()}
    key = tmp_path / "fed/server/noise.key"
    assert key.stat().st_mode & 0o777 == 0o600 and len(key.read_bytes()) >= 32
    _, _, fed = world()
    from fedcodist.engines.private import misfits

    (problem,) = misfits(Privacy(8.0, sampling="poisson"), {"small": fed.pools["small"].clients})
    assert "a deployment has no amplification" in str(problem)
    assert key.name == serving.NOISE_KEY


def _initialised(tmp_path):
    pytest.importorskip("cryptography")
    layout.init(tmp_path / "fed", "quick/devices", "127.0.0.1", 9092, [])
    return tmp_path / "fed" / "server"


def test_the_published_table_is_what_the_account_says():
    import json

    from tools import make_privacy

    found = json.loads(make_privacy.FILE.read_text())["rows"]
    for row in (found[0], found[8]):
        for name, pools in {"small": ["small"], "large": ["large"]}.items():
            assert make_privacy.epsilon(row["sampling"], row["noise"], pools) == row[name]
