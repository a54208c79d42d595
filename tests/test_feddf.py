"""FedDF with labels on the server: which student it keeps, and which clients' models it leaves out."""

import dataclasses

import jax
import numpy as np
import pytest
from worlds import SHORT, TASK, finish, gauss_federation, same_bits

from fedcodist import config, keys, settings, tree
from fedcodist.distill import Distiller, Watch
from fedcodist.evaluate import evaluate
from fedcodist.federation import params_of
from fedcodist.methods import FedDF
from fedcodist.methods.ensembles import ensemble, weighted
from fedcodist.methods.validation import Validation
from fedcodist.pool import Learns
from fedcodist.train import Experiment, train

LONG = Distiller(steps=40, batch=10)


def accuracy(fed, pool, params):
    return evaluate(fed, {pool: params})[pool]["all"]["accuracy"]


def test_whoever_looks_on_changes_nothing_and_sees_the_students_as_they_learn():
    fed, seen = gauss_federation(), []
    theta = params_of(fed.init(keys.root(0)))
    plain, info = fed.codistill(LONG, theta, 1, keys.root(0), 0)
    watched, same = fed.codistill(
        LONG, theta, 1, keys.root(0), 0, watch=Watch(12, lambda steps, students: seen.append((steps, students)) or ())
    )
    assert [steps for steps, _ in seen] == [12, 24, 36, 40] and all(set(students) == {"small", "large"} for _, students in seen)
    assert same_bits(watched, plain) and same_bits(seen[-1][1], plain) and not same_bits(seen[0][1], plain)
    assert same["small"]["agreement"] == info["small"]["agreement"]


def test_a_student_that_is_stopped_learns_no_more_and_costs_what_it_took():
    fed = gauss_federation()
    theta = params_of(fed.init(keys.root(0)))
    stopped, info = fed.codistill(
        LONG, theta, 1, keys.root(0), 0, watch=Watch(20, lambda steps, students: ["small"] if steps == 20 else [])
    )
    half = fed.codistill(LONG, theta, 1, keys.root(0), 0, watch=Watch(20, lambda steps, students: students if steps == 20 else []))[0]
    whole = fed.codistill(LONG, theta, 1, keys.root(0), 0)[0]
    assert same_bits(stopped["small"], half["small"]) and same_bits(stopped["large"], whole["large"])
    assert info["small"]["steps"] == 20 and "steps" not in info["large"]
    assert info["small"]["agreement"] == {} != info["large"]["agreement"]  # nobody had asked in the middle


def test_the_student_that_was_best_is_kept():
    """With a rate at which students become worse and better again, the one that is kept is the best that was seen, and not the last."""
    fed = gauss_federation(learns=Learns(lr=0.3), rounds=2)
    chosen, last = (finish(fed, FedDF(LONG, validate=how), rounds=1) for how in (Validation(every=4), None))
    theta = finish(fed, FedDF(None), rounds=1).state
    for pool in fed.names:
        kept = chosen.info[pool]["chosen"]
        assert kept["accuracy"] == accuracy(fed, pool, chosen.state[pool].params) >= accuracy(fed, pool, last.state[pool].params)
        assert kept["accuracy"] >= accuracy(fed, pool, theta[pool].params) and kept["steps"] % 4 == 0
    assert any(chosen.info[pool]["chosen"]["steps"] < 40 for pool in fed.names)
    always = finish(fed, FedDF(LONG, validate=Validation(every=40, patience=40)), rounds=1)
    for pool in fed.names:  # it looks twice: at the beginning and at the end
        assert same_bits(always.state[pool].params, (last if always.info[pool]["chosen"]["steps"] else chosen).state[pool].params) or (
            always.info[pool]["chosen"]["steps"] == 0 and same_bits(always.state[pool].params, theta[pool].params)
        )


def test_patience_ends_a_lesson():
    fed, patient = gauss_federation(learns=Learns(lr=1e-6), rounds=2), FedDF(LONG, validate=Validation(every=4, patience=8))
    info = finish(fed, patient, rounds=1).info
    assert all(info[pool]["steps"] == 8 and info[pool]["chosen"]["steps"] == 0 for pool in fed.names)  # such steps change no prediction
    from fedcodist.runs import cost

    taken = cost.of_rounds(fed, patient, [info])
    assert taken["server_steps"] == 16 and cost.expected(fed, patient, 1)["server_steps"] == 80


def liar(fed, client):
    """The federation with one client whose labels are wrong, so that its model is worse than chance."""
    wrong = TASK.clients[client]._replace(y=(TASK.clients[client].y + 1) % 3)
    pools = {n: dataclasses.replace(p, clients={**p.clients, client: wrong}) for n, p in fed.pools.items()}
    return dataclasses.replace(fed, pools=pools)


def test_a_client_whose_model_is_worse_than_chance_is_left_out_of_the_mean_and_the_ensemble():
    from fedcodist.work import LocalSGD

    given = {"cohort": 5, "work": LocalSGD(lr=0.3, batch=4, epochs=10)}
    fed = liar(gauss_federation(("small",), **given), "c04")
    dropping = [finish(fed, FedDF(SHORT, drop_worst=True), rounds=1, seed=seed) for seed in range(4)]
    asked = [fed.ask(fed.pools["small"], None, 1, keys.root(seed)).clients for seed in range(4)]
    assert [step.info["small"]["left_out"] for step in dropping] == [int("c04" in cohort) for cohort in asked] and len({*asked}) > 1
    seed = next(seed for seed, cohort in enumerate(asked) if "c04" in cohort)
    (answer,) = fed.gather([fed.ask(fed.pools["small"], fed.init(keys.root(seed))["small"].params, 1, keys.root(seed), each=True)])
    good = [k for k, client in enumerate(answer.each.clients) if client != "c04"]
    weights = answer.each.weights[good] / answer.each.weights[good].sum()
    mean = jax.tree.map(lambda leaf: np.tensordot(weights, np.asarray(leaf)[good], 1), answer.each.values)
    assert float(tree.norm(mean)) == pytest.approx(dropping[seed].info["small"]["grad_norm"], rel=1e-5)


def test_a_silent_model_does_not_count_even_if_it_is_not_finite():
    fed = gauss_federation(("small",))
    model = fed.pools["small"].model
    members = [model.init(keys.root(seed)) for seed in range(3)]
    members[1] = tree.scale(members[1], np.nan)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *members)
    some = jax.tree.map(lambda leaf: leaf[[0, 2]], stacked)
    x = fed.task.public.x[:4]
    shares = np.array([0.5, 0.0, 0.5], np.float32)
    said = weighted((model,)).apply(((stacked,), (shares,)), x, None)
    assert np.asarray(said) == pytest.approx(np.asarray(ensemble((model,)).apply((some,), x, None)), abs=1e-6)


def test_with_both_a_resumed_run_is_a_straight_one():
    method = FedDF(SHORT, validate=Validation(every=2), drop_worst=True)
    steps = list(train(Experiment(gauss_federation(), method, 3)))
    resumed = list(train(Experiment(gauss_federation(), method, 3), steps[0].state, after=1))[-1]
    assert same_bits(resumed.state, steps[-1].state) and resumed.info == steps[-1].info


def test_switches_are_off_and_unsaid_and_can_be_written():
    assert {"validate", "drop_worst"}.isdisjoint(settings.plain(FedDF()))
    made = config.read("quick/toy-feddf", ["method.validate={ every = 4 }", "method.drop_worst=true"]).method
    assert made.validate == Validation(every=4) and made.drop_worst
