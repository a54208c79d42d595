"""What every method, engine, fold and pool must keep, run over the registries."""

import dataclasses
import itertools
import typing

import jax
import numpy as np
import pytest
from worlds import SHORT, TASK, finish, gauss_federation, methods, same_bits

from fedcodist import keys, testing
from fedcodist.engines import ENGINES
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.serial import Serial
from fedcodist.folds import FOLDS
from fedcodist.methods import METHODS, FedAvg, MergedCodist, PeriodicCodist
from fedcodist.models import MODELS
from fedcodist.rules import RULES
from fedcodist.schedule import Constant, Every
from fedcodist.tasks import TASKS
from fedcodist.techniques import LOSSES
from fedcodist.train import Experiment, train
from fedcodist.types import Ask, Consumed
from fedcodist.work import WORKS, LocalSGD, Prox

ALL = methods()


def question(fed, theta, cohort):
    pool = fed.pools["small"]
    return Ask("small", tuple(cohort), pool.model, TASK.objective, pool.work, pool.fold, theta, keys.root(3), 1)


def test_every_method_is_under_contract():
    assert set(ALL) == set(METHODS)


DIGESTS_FIRST = {"fedmd", "quped", "hfd", "akd", "faug"}  # or has another loss
# Several programs a round, or many widths: their whole contract is for `make long`; each has tests of its identity, resume and engines.
SEVERAL = {"local_only", "fd", "fedmd", "dsfl", "quped", "hfd", "akd", "faug"}
SEVERAL |= {"fedmid", "heterofl", "splitmix", "fedrescue", "flanc", "feddualavg", "fedftg", "feddual"}


def often(names):
    """The names, those of SEVERAL for `make long` alone."""
    return [pytest.param(name, marks=[pytest.mark.long] * (name in SEVERAL)) for name in names]


@pytest.mark.parametrize("name", often(METHODS))
def test_methods(name):
    testing.check_method(ALL[name])


GENTLE = {
    "flanc": {"weight": 0.01},  # its penalty's default is for wide layers: at the contract's client rate it diverges on a tiny one
    "fedftg": {"iterations": 2, "generator_lr": 1e-3},  # its generator's fresh Adam makes larger steps of the last bits at its own rate
}


@pytest.mark.parametrize("name", often(RULES))
def test_rules(name):
    testing.check_rule(RULES[name](**GENTLE.get(name, {})))


CONSUMED = set(typing.get_args(Consumed))


@pytest.mark.parametrize("name", [*METHODS, *RULES, *LOSSES])
def test_what_is_named_in_a_config_says_what_it_consumes(name):
    part = next(parts[name] for parts in (METHODS, RULES, LOSSES) if name in parts)
    assert {"consumes", "secure"} <= set(vars(part)), f"{name} does not declare it itself"
    assert set(part.consumes) <= CONSUMED and isinstance(part.secure, bool)
    assert not (part.secure and "single models" in part.consumes), "single models do not fit secure aggregation"


@pytest.mark.parametrize("name", FOLDS)
def test_folds(name):
    testing.check_fold(FOLDS[name]())


@pytest.mark.parametrize("name", WORKS)
def test_works(name):
    testing.check_work(WORKS[name](batch=2))


SHAPES = {"cnn": ((12, 12, 3), "float32"), "lstm": ((5,), "int32"), "mlp": ((3, 2), "float32"), "subclass": ((3, 2), "float32")}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    shape, dtype = SHAPES[name]
    testing.check_model(MODELS[name](), shape, 7, dtype)


EMBEDDED = ("toy", "fashion", "stdlib_text")  # the others need files, and have tests of their own


@pytest.mark.parametrize("name", EMBEDDED)
def test_tasks(name):
    testing.check_task(TASKS[name](**{"modules": 12, "vocab": 100} if name == "stdlib_text" else {}))


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "ray"])  # which make test-ray holds to it, on a cluster
def test_engines(name):
    testing.check_engine(ENGINES[name]())


@pytest.mark.parametrize("form", ["scan", "vmap"])
def test_workers_and_order_of_clients_change_no_bit(form):
    states = []
    for workers, shuffle in itertools.product((1, 2, 5), (False, True)):
        fed = gauss_federation(engine=Compiled(workers=workers, block=2, form=form))
        theta = fed.init(keys.root(0))["small"].params
        cohort = sorted(TASK.clients)
        if shuffle:
            np.random.default_rng(workers).shuffle(cohort)
        states += fed.gather([question(fed, theta, cohort)])
    assert all(same_bits(states[0], other) for other in states[1:])


def test_serial_does_not_see_the_order_of_clients():
    fed = gauss_federation(engine=Serial())
    theta = fed.init(keys.root(0))["small"].params
    cohort = sorted(TASK.clients)[:4]
    gathered = [fed.gather([question(fed, theta, c)]) for c in (cohort, cohort[::-1])]
    assert same_bits(*gathered)


def test_equal_pools_still_draw_their_own_clients():
    fed = gauss_federation()
    twin = dataclasses.replace(fed, pools={n: dataclasses.replace(fed.pools["small"], name=n) for n in ("one", "two")})
    state = finish(twin, FedAvg(), rounds=1).state
    assert not same_bits(state["one"].params, state["two"].params)


@pytest.mark.parametrize("pools", [("small", "large"), ("small", "large", "third")])
def test_alpha_one_is_fedavg_to_the_bit_and_never_distils(pools, monkeypatch):
    plain = finish(gauss_federation(pools), FedAvg())
    fed = gauss_federation(pools)
    from fedcodist import distill

    for verb in ("inputs", "teacher_logits", "learn"):
        monkeypatch.setattr(distill, verb, lambda *args: pytest.fail("alpha = 1 must skip the cost of distillation"))
    merged = finish(fed, MergedCodist(alpha=Constant(1.0), distill=SHORT))
    assert same_bits(plain.state, merged.state)


def test_alpha_every_k_rounds_distils_only_then():
    fed = gauss_federation()
    method = MergedCodist(alpha=Every(2, 0.5), distill=SHORT)
    marks = [any("codistilled" in i for i in step.info.values()) for step in train(Experiment(fed, method, 4))]
    assert marks == [False, True, False, True]


def test_periodic_beyond_the_last_round_is_fedavg():
    assert same_bits(finish(gauss_federation(), FedAvg()).state, finish(gauss_federation(), PeriodicCodist(9, SHORT)).state)


def test_three_pools_all_teach_all():
    fed = gauss_federation(("small", "large", "third"))
    step = finish(fed, ALL["merged"])
    for student in fed.names:
        assert set(step.info[student]["agreement"]) == set(fed.names) - {student}
    assert set(step.evaluate()) == set(fed.names)


def test_prox_without_pull_is_local_sgd_and_with_it_stays_closer():
    runs = {mu: finish(gauss_federation(work=Prox(mu=mu, lr=0.1, batch=4, epochs=3)), FedAvg(), rounds=1) for mu in (0.0, 5.0)}
    plain = finish(gauss_federation(work=LocalSGD(lr=0.1, batch=4, epochs=3)), FedAvg(), rounds=1)
    for a, b in zip(jax.tree.leaves(runs[0.0].state), jax.tree.leaves(plain.state), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-6)
    assert runs[5.0].info["small"]["grad_norm"] < plain.info["small"]["grad_norm"]


def test_pools_may_differ_in_everything():
    from fedcodist.servers import Average, FedYogi

    fed = gauss_federation(("small", "large", "third"))
    pools = dict(fed.pools)
    pools["large"] = dataclasses.replace(pools["large"], work=Prox(mu=0.1, batch=2), server=FedYogi().optimizer(), cohort=5)
    pools["third"] = dataclasses.replace(pools["third"], server=Average().optimizer(), lr=Constant(1.0), cohort=1)
    step = finish(dataclasses.replace(fed, pools=pools), ALL["merged"])
    assert [step.info[n]["clients"] for n in ("small", "large", "third")] == [3, 5, 1]


AUGMENTED = {"faug"}  # its clients train on more examples than they have


@pytest.mark.parametrize("name", often(METHODS))
def test_a_twin_starts_from_the_same_models_and_asks_the_same_clients(name):
    plain = next(iter(train(Experiment(gauss_federation(), FedAvg(), 4))))
    other = next(iter(train(Experiment(gauss_federation(), ALL[name], 4))))
    for pool in plain.info:  # the same cohorts, batches and initial models give the same first gradient to the bit
        same = 1 if name in AUGMENTED else 2 if name in DIGESTS_FIRST else 3 if ALL[name].personal else 4
        for seen in ("clients", "examples", "train_loss", "grad_norm")[:same]:
            assert plain.info[pool][seen] == other.info[pool][seen]
