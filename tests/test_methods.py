"""A round of each method with numbers worked out by hand, on every engine. See worlds.py for the one-parameter model."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import finish, gauss_federation, methods, same_bits, scalar_federation

from fedcodist import config, distill, keys, runs, settings
from fedcodist.cli import arguments, main
from fedcodist.distill import Distiller
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.serial import Serial
from fedcodist.errors import ConfigError
from fedcodist.federation import Federation, params_of
from fedcodist.methods import FedAvg, MergedCodist, PeriodicCodist
from fedcodist.methods.merged import merge
from fedcodist.pool import Learns, Teaches
from fedcodist.reports import report
from fedcodist.rule import Diverged
from fedcodist.runs import cost, plan, session
from fedcodist.schedule import After, Constant
from fedcodist.train import train
from fedcodist.work import LocalSGD

ENGINES = [Serial(), Compiled(), Compiled(form="vmap"), Compiled(block=1, workers=3)]
ONE_STEP = Distiller(steps=1, batch=1, shuffle=False, augment=False)


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def one_round(fed, method, t=1):
    state = method.init(fed, keys.root(0))
    state, info = method.round(fed, state, t, keys.root(0))
    return {name: float(params["w"]) for name, params in params_of(state).items()}, info


def client_gradient(w):
    """Anna: one example x = 1, y = 1. Bert: three of x = 2, y = 0, one batch. SGD with learning rate 1, one step each."""
    anna = sigmoid(w) - 1  # before minus after = gradient
    bert = sigmoid(2 * w) * 2
    return (1 * anna + 3 * bert) / 4


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_fedavg_by_hand(engine):
    after, info = one_round(scalar_federation(engine=engine), FedAvg())
    # At w = 0 all probabilities are 1/2: Anna sends -0.5, Bert +1, the mean over examples is (-0.5 + 3) / 4 = 0.625.
    assert after["a"] == pytest.approx(-0.625)
    assert after["b"] == pytest.approx(2.0 - client_gradient(2.0), rel=1e-6)
    assert info["a"]["clients"] == 2 and info["a"]["examples"] == 4
    assert info["a"]["grad_norm"] == pytest.approx(0.625)
    assert info["a"]["train_loss"] == pytest.approx(math.log(2))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_periodic_by_hand(engine):
    method = PeriodicCodist(period=2, distill=ONE_STEP)
    fed = scalar_federation(engine=engine)
    stepped = {"a": -0.625, "b": 2.0 - client_gradient(2.0)}
    assert one_round(fed, method, t=1)[0] == pytest.approx(stepped)  # no codistillation in odd rounds
    after, info = one_round(fed, method, t=2)
    # Teachers and students are the models after the step. On x = 1 the gradient of KL(q || p) in w is p - q; Adam's first step
    # is lr g / (|g| + eps) with lr 0.1.
    for student, teacher in (("a", "b"), ("b", "a")):
        g = sigmoid(stepped[student]) - sigmoid(stepped[teacher])
        assert after[student] == pytest.approx(stepped[student] - 0.1 * g / (abs(g) + 1e-5), rel=1e-5)
        assert info[student]["codistilled"] and info[student]["dist_norm"] == pytest.approx(0.1, rel=1e-3)
    assert after["a"] > stepped["a"] and after["b"] < stepped["b"]  # they came closer


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_merged_by_hand(engine):
    fed = scalar_federation(engine=engine)
    after, info = one_round(fed, MergedCodist(alpha=Constant(0.8), distill=ONE_STEP))
    # Both gradients from theta at the start. In one dimension the rescaled distillation gradient is |g| with delta's sign:
    # a (w = 0) is pulled up towards b (w = 2), so delta_a < 0 < delta_b.
    g = {"a": 0.625, "b": client_gradient(2.0)}
    assert after["a"] == pytest.approx(0.0 - (0.8 * g["a"] - 0.2 * g["a"]), rel=1e-5)
    assert after["b"] == pytest.approx(2.0 - (0.8 * g["b"] + 0.2 * g["b"]), rel=1e-5)
    assert info["a"]["cosine"] == pytest.approx(-1) and info["b"]["cosine"] == pytest.approx(1)


def test_gamma_and_temperature_by_hand():
    fed = scalar_federation(0.5, 2.0, learns=Learns(lr=0.1, decay=1.0, self_weight=0.25), teaches=Teaches(2.0), work=LocalSGD(lr=1e-9))
    theta = params_of(fed.init(keys.root(0)))
    student, _ = fed.codistill(Distiller(steps=2, batch=1), theta, 1, keys.root(0), nth=0)
    # Step 1: q = 0.75 sigmoid(2 / T) + 0.25 sigmoid(0.5), T = 2 for the teacher and 1 for the student's own start.
    q = 0.75 * sigmoid(1.0) + 0.25 * sigmoid(0.5)
    g1 = sigmoid(0.5) - q
    w1 = 0.5 - 0.1 * g1 / (abs(g1) + 1e-5)
    # Step 2: the target stays, Adam has m = .9 m + .1 g and v = .999 v + .001 g^2 with bias correction.
    g2 = sigmoid(w1) - q
    m, v = (0.09 * g1 + 0.1 * g2) / 0.19, (0.000999 * g1**2 + 0.001 * g2**2) / 0.001999
    assert float(student["a"]["w"]) == pytest.approx(w1 - 0.1 * m / (math.sqrt(v) + 1e-5), rel=1e-5)


def test_the_distillation_rate_decays_to_its_fraction():
    fed = scalar_federation(learns=Learns(lr=0.1, decay=0.2, self_weight=0.0))
    object.__setattr__(fed, "rounds", 10)
    theta = params_of(fed.init(keys.root(0)))
    moved = [float(fed.codistill(ONE_STEP, theta, t, keys.root(0), nth=0)[0]["a"]["w"]) for t in (1, 6)]
    assert moved == pytest.approx([0.1, 0.1 * (1 - 0.8 * 0.5)], rel=1e-3)  # A14: lr (1 - (1 - c) (t - 1) / R)


def test_merge_is_equation_2():
    g, d = {"w": jnp.array([3.0, 4.0])}, {"w": jnp.array([0.0, 2.0])}  # norms 5 and 2
    assert merge(g, d, 0.8)["w"].tolist() == pytest.approx([2.4, 3.2 + 0.2 * 5])
    assert merge(g, {"w": jnp.zeros(2)}, 0.8)["w"].tolist() == pytest.approx([2.4, 3.2])  # no NaN
    assert merge({"w": jnp.zeros(2)}, d, 0.8)["w"].tolist() == [0.0, 0.0]
    assert merge(g, d, 1.0)["w"].tolist() == [3.0, 4.0]


def test_a_vanishing_distillation_gradient_adds_nothing():
    fed = scalar_federation(start_a=1.0, start_b=1.0)  # teacher equals student: nothing to learn
    after, info = one_round(fed, MergedCodist(alpha=Constant(0.8), distill=ONE_STEP))
    assert info["a"]["dist_norm"] == 0
    assert after["a"] == pytest.approx(1.0 - 0.8 * client_gradient(1.0), rel=1e-5)


def test_one_way_teaching_leaves_the_teacher_alone():
    fed = scalar_federation()
    object.__setattr__(fed, "topology", {"a": {"b": 1.0}})
    after, info = one_round(fed, MergedCodist(alpha=Constant(0.8), distill=ONE_STEP))
    assert after["b"] == pytest.approx(2.0 - client_gradient(2.0), rel=1e-6)  # b has no teacher: plain FedAvg
    assert "codistilled" in info["a"] and "codistilled" not in info["b"]


def test_alpha_by_pool():
    after, info = one_round(scalar_federation(), MergedCodist(alpha={"a": Constant(0.8)}, distill=ONE_STEP))
    assert after["b"] == pytest.approx(2.0 - client_gradient(2.0), rel=1e-6)
    assert info["b"]["alpha"] == 1.0 and "codistilled" not in info["b"]


def test_fedavg_until_the_teachers_are_good():
    late = 'method.alpha={ kind = "after", k = 2, value = 0.5 }'
    merged, plain = (config.read("quick/toy", ["rounds=4", given]) for given in (late, 'method={ kind = "fedavg" }'))
    assert merged.method.alpha == After(2, 0.5)
    task = merged.task.load()
    experiment = config.assemble(merged, task, 0)
    steps = zip(train(experiment), train(config.assemble(plain, task, 0)), strict=True)
    same = [same_bits(a.state, b.state) and all("codistilled" not in info for info in a.info.values()) for a, b in steps]
    assert same == [True, True, False, False]
    assert cost.expected(experiment.federation, experiment.method, 4)["server_steps"] == 2 * 2 * 8  # two rounds, two students, 8 steps
    with pytest.raises(ConfigError, match=r"method.alpha.value: got 2.0; allowed a number >= 0 and <= 1"):
        config.read("quick/toy", ['method.alpha={ kind = "after", k = 2, value = 2.0 }'])


# -- hearing only oneself --


def apart(a, b):
    """The largest difference of two trees."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


def test_a_student_of_itself_hears_its_own_start_alone():
    # Its self-weight has no say, and its temperature does: at 1 there is nothing to learn.
    for gamma in (0.0, 0.25):
        learns = Learns(lr=0.1, decay=1.0, self_weight=gamma)
        fed = dataclasses.replace(scalar_federation(learns=learns, teaches=Teaches(2.0)), topology="self")
        assert [fed.teachers(name) for name in ("a", "b")] == [{"a": (1.0, 2.0)}, {"b": (1.0, 2.0)}]
    assert set(scalar_federation(learns=learns).teachers("a")) == {"a", "b"}


@pytest.mark.parametrize("loss", ["kl", "reverse_kl", "js"])
def test_a_fresh_student_of_itself_has_nothing_to_learn(loss):
    fed = gauss_federation(topology="self", learns=Learns(lr=0.01, self_weight=0.3))
    theta = params_of(fed.init(keys.root(0)))
    student, info = fed.codistill(Distiller(steps=1, batch=10, loss=loss), theta, 1, keys.root(0), 0)
    assert set(student) == {"small", "large"}
    for name in student:  # a gradient is a step of 0.01 to Adam; rounding is less than a twentieth of it
        assert apart(student[name], theta[name]) < 0.01 / 20
        assert info[name]["distill_loss"] == pytest.approx([0, 0], abs=1e-6) and info[name]["agreement"] == {}
    taught, _ = gauss_federation().codistill(Distiller(steps=1, batch=10, loss=loss), theta, 1, keys.root(0), 0)
    assert all(apart(taught[name], theta[name]) > 0.009 for name in taught)  # where another teaches it is a whole step


def test_a_student_of_itself_becomes_surer_by_a_low_temperature():
    fed = gauss_federation(topology="self", learns=Learns(lr=0.01), teaches=Teaches(0.5))
    theta = params_of(fed.init(keys.root(0)))
    student, _ = fed.codistill(Distiller(steps=30, batch=50), theta, 1, keys.root(0), 0)
    for name, pool in fed.pools.items():
        before, after = (np.asarray(jax.nn.softmax(pool.model.apply(params[name], fed.task.public.x, None))) for params in (theta, student))
        assert after.max(-1).mean() > before.max(-1).mean() + 0.02
        assert (after.argmax(-1) == before.argmax(-1)).mean() > 0.9


def test_the_first_periodic_codistillation_can_be_moved_so_that_the_last_ends_the_run():
    def rounds(**how):
        method = PeriodicCodist(period=200, **how)
        return [t for t in range(1, 1501) if method.students(["small"], t)]

    assert rounds() == [200, 400, 600, 800, 1000, 1200, 1400]  # the paper's
    assert rounds(first=300) == [300, 500, 700, 900, 1100, 1300, 1500]
    assert rounds(first=1) == [1, 201, 401, 601, 801, 1001, 1201, 1401]
    assert "first" not in settings.plain(PeriodicCodist()) and settings.plain(PeriodicCodist(first=300))["first"] == 300
    assert PeriodicCodist(first=30).warnings(["small"], 20) == ["method.first: 30 is more than the 20 rounds: codistillation never happens"]


def test_the_stream_of_public_data_begins_with_the_first_codistillation(monkeypatch):
    fed, seen = scalar_federation(), []
    monkeypatch.setattr(Federation, "codistill", lambda self, how, theta, t, key, nth: seen.append((t, nth)) or ({}, {}))
    method = PeriodicCodist(period=2, first=3, distill=ONE_STEP)
    state = method.init(fed, keys.root(0))
    for t in range(1, 8):
        state, _ = method.round(fed, state, t, keys.root(0))
    assert seen == [(3, 0), (5, 1), (7, 2)]


def test_periodic_codistillation_with_oneself_is_fedavg_but_for_the_restart():
    how = Distiller(steps=1, batch=10)
    fed = gauss_federation(topology="self")
    fedavg = finish(fed, FedAvg(), 3).state
    kept = finish(fed, PeriodicCodist(2, how, restart=False), 3).state
    assert apart(kept, fedavg) < 2e-3
    state = FedAvg().init(fed, keys.root(0))
    for t in (1, 2, 3):
        state, _ = FedAvg().round(fed, state, t, keys.root(0))
        if t == 2:
            state = fed.restart(state, params_of(state))
    restarted = finish(fed, PeriodicCodist(2, how), 3).state
    assert apart(params_of(restarted), params_of(state)) < 2e-3
    assert apart(params_of(restarted), params_of(fedavg)) > 1e-2


def test_each_model_speaks_once_to_itself_and_that_is_what_it_costs(monkeypatch):
    spoken = []

    def speak(model, params, inputs, real=distill.teacher_logits):
        spoken.append((model, inputs.shape[0] * inputs.shape[1]))
        return real(model, params, inputs)

    monkeypatch.setattr(distill, "teacher_logits", speak)
    fed, how = gauss_federation(topology="self"), Distiller(steps=4, batch=10)
    fed.codistill(how, params_of(fed.init(keys.root(0))), 1, keys.root(0), 0)
    assert sorted(spoken, key=repr) == sorted(((pool.model, 40) for pool in fed.pools.values()), key=repr)
    found = cost.expected(fed, PeriodicCodist(2, how), 5)  # in rounds 2 and 4
    for name in fed.names:
        assert found["server_flops"][name] == 2 * 40 * (cost.training_flops(fed, name) + cost.forward_flops(fed, name))
    assert found["server_steps"] == 2 * 2 * 4
    assert found == cost.expected(gauss_federation(), PeriodicCodist(2, how), 5)  # no more and no less than to teach each other
    assert cost.expected(gauss_federation(topology="none"), PeriodicCodist(2, how), 5)["server_steps"] == 0


def test_a_teacher_that_is_no_student_costs_what_it_says():
    how = Distiller(steps=4, batch=10)
    one_way = cost.expected(gauss_federation(topology={"large": {"small": 1.0}}), PeriodicCodist(2, how), 5)["server_flops"]
    fed = gauss_federation()
    assert one_way["small"] == 2 * 40 * cost.forward_flops(fed, "small")
    assert one_way["large"] == 2 * 40 * (cost.training_flops(fed, "large") + cost.forward_flops(fed, "large"))  # it hears itself too
    silent = cost.expected(gauss_federation(topology={"large": {"small": 1.0}}, learns=Learns(self_weight=0.0)), PeriodicCodist(2, how), 5)
    assert silent["server_flops"]["large"] == 2 * 40 * cost.training_flops(fed, "large")


@pytest.mark.parametrize("kind", ["periodic", "merged"])
def test_a_run_with_oneself_is_planned_run_and_reported(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(arguments, "prepare_jax", lambda: None)
    more = {"periodic": "period = 2", "merged": "alpha = 0.7"}[kind]
    given = ["rounds=2", "topology=self", f'method={{ kind = "{kind}", {more}, distill = {{ steps = 2, batch = 20 }} }}']
    made = config.read("quick/toy", given)
    task = made.task.load()
    assert [row["teachers"] for row in plan.plan(config.assemble(made, task, 0))["pools"]] == ["small 1", "large 1"]
    assert main.main(["show", "quick/toy", *(word for one in given for word in ("--set", one)), "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["topology"] == "self" and shown["total"]["server_steps"] == {"periodic": 1, "merged": 2}[kind] * 2 * 2
    for one in (made, config.twin(made)):
        *_, last = session.perform(config.assemble(one, task, 0), tmp_path)
        assert last.kind == "finished"
    found = [runs.read(path) for path in runs.find(tmp_path)]
    result = next(run.result for run in found if run.result["method"] == kind)
    assert result["table"] == {"small": {"small": 1.0}, "large": {"large": 1.0}}
    assert result["cost"]["server_steps"] == shown["total"]["server_steps"]
    (taught,) = report.content(found)["transfer"]
    assert [(row["teacher"], row["student"], row["weight"]) for row in taught["rows"]] == [("small", "small", 1.0), ("large", "large", 1.0)]
    assert "small" in report.render(found, {})


def test_momentum_restarts_and_the_schedule_does_not():
    fed = gauss_federation(rounds=4)
    method = methods()["periodic"]
    state = method.init(fed, keys.root(0))
    for t in (1, 2):
        state, _ = method.round(fed, state, t, keys.root(0))
    fresh = {name: fed.pools[name].fresh(s.params) for name, s in state.items()}
    assert same_bits({n: s.opt for n, s in state.items()}, {n: s.opt for n, s in fresh.items()})  # m, v, count: all zero again
    assert fed.pools["small"].lr(3) == pytest.approx(0.05 * 0.5)  # a function of the round alone
    kept = PeriodicCodist(2, method.distill, restart=False)
    state = kept.init(fed, keys.root(0))
    for t in (1, 2):
        state, _ = kept.round(fed, state, t, keys.root(0))
    assert any(np.asarray(leaf).any() for leaf in state["small"].opt[0].mu["dense0"].values())


def test_divergence_names_pool_and_round():
    fed = scalar_federation(lr=lambda t: float("inf"))
    with pytest.raises(Diverged, match="the server model of pool . is not finite in round 1"):
        one_round(fed, FedAvg())


def test_a_client_that_diverges_is_dropped_and_the_rest_goes_on():
    fed = scalar_federation()
    poisoned = {"anna": fed.task.clients["anna"], "bert": fed.task.clients["bert"]._replace(x=np.full((3, 1), np.nan, np.float32))}
    fed = scalar_federation()
    for pool in fed.pools.values():
        object.__setattr__(pool, "clients", poisoned)
    after, info = one_round(fed, FedAvg())
    assert info["a"]["dropped"] == 1 and after["a"] == pytest.approx(0.5)  # Anna alone: 0 - (-0.5)


def test_a_federation_refuses_pools_that_cannot_work():
    from fedcodist.settings import SettingError

    fed = scalar_federation()
    with pytest.raises(SettingError, match="pools.x: got a pool named a"):
        dataclasses.replace(fed, pools={"x": fed.pools["a"]})
    with pytest.raises(SettingError, match="pools.a.cohort: got 3; allowed 1 to its 2 clients"):
        dataclasses.replace(fed, pools={"a": dataclasses.replace(fed.pools["a"], cohort=3)})
    with pytest.raises(SettingError, match="topology.a.c: got an unknown pool"):
        dataclasses.replace(fed, topology={"a": {"c": 1.0}})
