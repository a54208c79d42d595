"""Methods whose models live at the clients: identities, numbers by hand, and what each client is measured on."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import ANNA, BERT, SCALAR, gauss_federation, methods, scalar_federation

from fedcodist import config, keys, runs, testing
from fedcodist.data.personal import Personal
from fedcodist.engines.serial import Serial
from fedcodist.methods import AKD, DSFL, FD, HFD, FAug, FedAvg, FedMD, Local, QuPeD
from fedcodist.methods.covariates import mean_inputs
from fedcodist.methods.digests import Digest, drawn
from fedcodist.methods.faug import balanced
from fedcodist.methods.labelled import alternating
from fedcodist.methods.quantise import centres, eased
from fedcodist.methods.tables import Table, Taught, class_means, empty
from fedcodist.objectives.classify import Classify
from fedcodist.reports import compare, report
from fedcodist.runs import personal, session
from fedcodist.settings import SettingError
from fedcodist.train import Experiment, train
from fedcodist.tuning.trial import without_test
from fedcodist.types import Data
from fedcodist.work import LocalSGD

ALL, ONE = methods(), ("small",)


def models(step, pool="small"):
    return step.experiment.method.clients(step.experiment.federation, step.state)[pool].params


def close(a, b, atol=1e-5):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=0, atol=atol)


def last(fed, method, rounds=2):
    return list(train(Experiment(fed, method, rounds)))[-1]


def data(rows):
    return Data(jnp.asarray(rows.x), jnp.asarray(rows.y), jnp.int32(len(rows.x)))


def tiny(name):
    """A method that fits the federation of numbers by hand, which has one public row."""
    return dataclasses.replace(ALL[name], rows=1) if hasattr(ALL[name], "rows") else ALL[name]


@pytest.mark.parametrize("name", [name for name, method in ALL.items() if (method.personal or name == "akd") and name != "faug"])
def test_a_run_resumes_to_the_bit_and_engines_agree(name):
    def experiment(**more):
        return Experiment(scalar_federation(**more), tiny(name), 3)

    steps = list(train(experiment()))
    testing._check_resume(name, steps, experiment)
    serial = next(iter(train(experiment(engine=Serial()))))
    close(serial.state, steps[0].state, atol=1e-4)


# -- Local --


def test_a_client_alone_is_sgd_by_hand():
    step = last(scalar_federation(), Local(), rounds=1)
    # From w = 0: Anna's one row has gradient (1/2 - 1) 1, and her rate is 1; Bert's rows have (1/2 - 0) 2.
    close(models(step, "a"), {"anna": {"w": 0.5}, "bert": {"w": -1.0}})
    assert step.info["a"]["client_bytes"] == 0 and not step.models


def test_who_is_not_asked_keeps_the_pools_initial_model():
    fed = gauss_federation(ONE)
    step = last(fed, Local(), rounds=1)
    start = fed.init(keys.root(0))["small"].params
    same = [c for c, own in models(step).items() if all(map(np.array_equal, jax.tree.leaves(own), jax.tree.leaves(start)))]
    assert len(same) == 8 - step.info["small"]["clients"] == 5


def test_more_client_state_than_allowed_is_refused():
    with pytest.raises(SettingError, match=r"pools.small.clients: got .* bytes for the models of 8 clients; allowed at most 10"):
        Experiment(gauss_federation(ONE), Local(most_bytes=10), 1)


# -- FD --


def test_fd_without_its_weight_is_local():
    alone, fd = (last(gauss_federation(ONE), method) for method in (Local(), FD(weight=0.0)))
    close(models(alone), models(fd))
    taught = last(gauss_federation(ONE), FD(weight=5.0))
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(jax.tree.leaves(models(alone)), jax.tree.leaves(models(taught)), strict=True))


def test_the_servers_sum_is_that_of_all_clients_tables():
    for step in train(Experiment(gauss_federation(ONE), FD(), 3)):
        kept = step.state["small"].kept
        tables = [own[1] for own in kept["clients"].values()]
        close(kept["sum"], jax.tree.map(lambda *leaves: np.sum(leaves, 0), *tables))
    assert step.info["small"]["client_bytes"] == 2 * 3 * 4 * (9 + 3)  # three clients, tables of three classes and their counts


def test_tables_by_hand():
    x, y = np.array([[1.0], [2.0], [9.0]], np.float32), np.array([0, 0, 1], np.int32)
    table = class_means(SCALAR, Classify(), {"w": jnp.float32(1.0)}, Data(jnp.asarray(x), jnp.asarray(y), jnp.int32(2)), batch=1)
    p = np.mean([1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(-2.0))])
    close(table, Table(np.array([[1 - p, p], [0, 0]], np.float32), np.array([1.0, 0.0], np.float32)))  # the third row is padding


def test_the_loss_of_fd_by_hand():
    target, known = jnp.array([[0.75, 0.25], [0.5, 0.5]]), jnp.array([True, False])
    found = Taught(Classify(), target, known, 2.0).loss(jnp.log(jnp.array([[0.5, 0.5], [0.9, 0.1]])), jnp.array([0, 1]))
    close(found, np.array([np.log(2) + 2 * np.log(2), -np.log(0.1)]))  # nobody else knows label 1


def test_fd_refuses_what_has_no_label_of_its_own():
    fed = scalar_federation()
    rows = fed.task.held_out._replace(y=np.zeros((2, 4), np.int32))
    with pytest.raises(SettingError, match=r"task: got labels of shape \[4\]; allowed one label a row, of which fd makes tables"):
        Experiment(dataclasses.replace(fed, task=dataclasses.replace(fed.task, held_out=rows)), FD(), 1)


# -- what each client is measured on --


def test_own_splits_are_disjoint_and_whole_and_the_same_however_clients_are_stored():
    part = config.read("quick/toy-local").personal
    task = config.read("quick/toy").task.load()
    key = keys.root(3)
    train_on, own = part.divide(task.clients, key)
    plain, split = part.divide({c: task.clients[c] for c in task.clients}, key)
    for client in task.clients:
        parts = [train_on[client], *(own[split][client] for split in ("held_out", "test"))]
        whole = np.concatenate([p.x for p in parts])
        assert sorted(map(tuple, whole)) == sorted(map(tuple, task.clients[client].x)) and len(parts[2].x) > len(parts[1].x) > 0
        assert np.array_equal(plain[client].x, train_on[client].x) and np.array_equal(split["test"][client].y, own["test"][client].y)
    assert Personal().divide(task.clients, key) == (task.clients, {})


def test_a_client_always_trains():
    for n in range(1, 9):
        rows = Personal(0.3, 0.6).rows(keys.root(0), "anna", n)
        assert len(rows["train"]) >= 1 and sorted(np.concatenate(list(rows.values()))) == list(range(n))
    with pytest.raises(SettingError, match="less than 1 together"):
        Personal(0.5, 0.5)


def test_clients_with_the_same_model_are_measured_like_the_pools():
    fed = gauss_federation(ONE)
    shared, owned = (Experiment(fed, method, 1) for method in (FedAvg(), Local()))
    found = [personal.evaluate(e, e.method.init(e.federation, keys.root(0))) for e in (shared, owned)]
    assert found[0].keys() == found[1].keys() == {"small"}
    for name, value in found[0]["small"]["all"].items():
        assert found[1]["small"]["all"][name] == pytest.approx(value, abs=1e-6), name
    assert found[0]["small"]["all"]["personal_clients"] == 8


def test_own_metrics_by_hand():
    fed = scalar_federation(start_a=1.0, personal={"held_out": {"anna": ANNA, "bert": BERT}})
    experiment = Experiment(fed, FedAvg(), 1)
    found = personal.evaluate(experiment, experiment.method.init(fed, keys.root(0)))["a"]["all"]
    assert (found["personal_accuracy"], found["personal_min"], found["personal_max"]) == (0.5, 0.0, 1.0)  # Anna right, Bert's three wrong
    assert found["personal_loss"] == pytest.approx((np.log(1 + np.exp(-1.0)) + np.log(1 + np.exp(2.0))) / 2, rel=1e-5)


def test_tuning_sees_nobodys_own_test():
    read = config.read("quick/toy-local")
    whole, tuned = (config.assemble(read, task, 0) for task in (read.task.load(), without_test(read.task.load())))
    assert set(whole.federation.pools["small"].personal) == {"held_out", "test"}
    assert set(tuned.federation.pools["small"].personal) == {"held_out"}


def test_a_run_tells_of_clients_apart_from_the_rest(tmp_path):
    recorded = []
    for method in ("local_only", "fedavg"):
        one = config.load("quick/toy-local", [f"method.kind={method}", "rounds=2", "pools.large.clients.take=12"])
        for event in session.perform(one, tmp_path):
            path = event.path
        recorded.append(runs.read(path))
    own, shared = (run.result for run in recorded)
    assert own["test"] == own["held_out"] == {} and "ensemble" not in own and set(shared["test"]) == {"small", "large"}
    for run in recorded:
        assert run.result["personal_test"]["small"]["all"]["personal_clients"] == 12
        assert set(run.rounds[-1]["personal_held_out"]["small"]["all"]) == set(run.result["personal_test"]["small"]["all"])
    rows = compare.personal(recorded)
    assert {(row["method"], row["pool"]) for row in rows} == {(m, p) for m in ("Local", "FedAvg") for p in ("small", "large")}
    assert all(row["q25"] <= row["median"] <= row["q75"] for row in rows)
    (gain,) = [row["gain"] for row in rows if row["method"] == "Local" and row["pool"] == "small"]
    both = [run.result["personal_test"]["small"]["all"]["personal_accuracy"] for run in recorded]
    assert gain == pytest.approx(both[0] - both[1])
    assert [row["method"] for row in compare.results(recorded)] == ["FedAvg"] * 6  # two pools, three domains each
    page = report.render(recorded, None)
    assert "Each client's own data" in page and "models at the clients" in page


def test_without_data_to_measure_on_it_is_refused():
    with pytest.raises(Exception, match=r"personal: got .*; allowed held_out and test above 0: models of local_only live at the clients"):
        config.read("quick/toy", ["method={ kind = 'local_only' }"])


# -- FedMD and DS-FL --


def test_fedmd_with_one_client_in_l2_is_local():
    fed, digest = scalar_federation(), Digest(epochs=3, batch=1, loss="l2")
    fed = dataclasses.replace(fed, pools={"b": dataclasses.replace(fed.pools["b"], clients={"anna": ANNA}, cohort=1)})
    alone, agreed = (last(fed, method) for method in (Local(), FedMD(rows=1, digest=digest)))
    close(models(alone, "b"), models(agreed, "b"))


def test_a_round_of_fedmd_by_hand():
    step = last(scalar_federation(work=LocalSGD(lr=1e-9, batch=3)), FedMD(rows=1, digest=Digest(lr=0.1, loss="l1")), rounds=1)
    # The public row is x = 1, so logits are (0, w): 0 twice in pool a, 2 twice in b. All meet at 1, one step of Adam towards it.
    close(models(step, "a"), {"anna": {"w": 0.1}, "bert": {"w": 0.1}}, atol=1e-4)
    close(models(step, "b"), {"anna": {"w": 1.9}, "bert": {"w": 1.9}}, atol=1e-4)
    assert step.info["a"]["client_bytes"] == 2 * 2 * 2 * 4  # two clients, two logits, up and down


def test_rows_are_drawn_evenly_of_all_labels():
    fed = scalar_federation()
    y = np.array([0] * 6 + [1] * 2, np.int32)
    public = fed.task.public._replace(x=np.arange(8, dtype=np.float32)[:, None], y=y)
    labelled = dataclasses.replace(fed, task=dataclasses.replace(fed.task, public=public))
    assert np.bincount(y[drawn(labelled, 4, 1, keys.root(0))]).tolist() == [2, 2]
    with pytest.raises(SettingError, match=r"method.rows: got 9; allowed at most the 8 public examples"):
        Experiment(labelled, FedMD(rows=9), 1)
    with pytest.raises(SettingError, match=r"method.public_epochs: got 1; allowed 0: the public data has no labels"):
        Experiment(fed, FedMD(rows=1, public_epochs=1), 1)


def test_fedmd_may_begin_with_the_labels_of_public_data():
    fed = scalar_federation(work=LocalSGD(lr=1.0, batch=1))
    public = fed.task.public._replace(y=np.array([1], np.int32))
    labelled = dataclasses.replace(fed, task=dataclasses.replace(fed.task, public=public))
    kept = FedMD(rows=1, public_epochs=1).init(labelled, keys.root(0))["a"].kept["clients"]
    close(kept["anna"], {"w": jnp.float32(0.5)})


def test_a_round_of_dsfl_by_hand():
    digest = Digest(lr=0.1, loss="kl")
    step = last(scalar_federation(work=LocalSGD(lr=1e-9, batch=3)), DSFL(rows=1, digest=digest), rounds=1)
    # Means of probabilities: 1/2 twice, sigmoid(2) = 0.88 twice: 0.69. Sharpened at 0.1: 0.98, which is more than what b says.
    close(models(step, "a"), {"anna": {"w": 0.1}, "bert": {"w": 0.1}}, atol=1e-4)
    close(models(step, "b"), {"anna": {"w": 2.1}, "bert": {"w": 2.1}}, atol=1e-4)
    close([step.state[i].params["w"] for i in "ab"], [jnp.float32(0.1), jnp.float32(2.1)], atol=1e-4)  # the server's models learn too
    plain = last(scalar_federation(work=LocalSGD(lr=1e-9, batch=3)), DSFL(rows=1, temperature=0.0, digest=digest), rounds=1)
    close(models(plain, "b"), {"anna": {"w": 1.9}, "bert": {"w": 1.9}}, atol=1e-4)
    assert set(step.models) == {"a", "b"}
    with pytest.raises(SettingError, match="method.digest.loss: got l1; allowed kl"):
        Experiment(scalar_federation(), DSFL(rows=1, digest=Digest()), 1)


# -- QuPeD --


def test_quped_without_distillation_and_quantiser_is_local():
    alone, quped = (last(gauss_federation(ONE), method) for method in (Local(), QuPeD(weight=0.0)))
    close(models(alone), models(quped))
    start = gauss_federation(ONE).init(keys.root(0))["small"].params
    close(quped.state["small"].params, start)  # nothing teaches the common model


def test_a_round_of_quped_by_hand():
    fed = scalar_federation(start_a=1.0)
    step = last(fed, QuPeD(weight=0.5), rounds=1)
    p, q = 1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(-2.0))
    # Both models are w = 1, so they agree and only the labels move: Anna's row pulls up by half of (1 - p), Bert's down by half of 2 q.
    close(models(step, "a"), {"anna": {"w": np.float32(1 + 0.5 * (1 - p))}, "bert": {"w": np.float32(1 - 0.5 * 2 * q)}})
    later = last(fed, QuPeD(weight=0.5, labels=1.0), rounds=1)
    clients = [1 + (1 - p), 1 - 2 * q, 1 - 2 * q, 1 - 2 * q]  # the common model with labels of its own, averaged by examples
    close(later.state["a"].params, {"w": np.float32(np.mean(clients))})


def test_personal_weights_end_on_their_centres():
    *_, soft, hard = train(Experiment(gauss_federation(ONE), QuPeD(bits=1, pull=1.0, freeze=2), 2))
    asked = [c for c, own in models(hard).items() if not np.array_equal(jax.tree.leaves(own)[0], jax.tree.leaves(models(soft)[c])[0])]
    kept = hard.state["small"].kept["clients"]
    assert asked and all(set(np.unique(leaf)) <= set(np.asarray(book)) for c in asked for leaf, book in pairs(*kept[c]) if book.size > 1)
    evaluated = models(soft)  # always as it would be deployed
    assert all(len(np.unique(leaf)) <= 2 for own in evaluated.values() for leaf in jax.tree.leaves(own) if leaf.ndim > 1)


def pairs(params, books):
    return list(zip(jax.tree.leaves(params), jax.tree.leaves(books), strict=True))


def test_a_centres_gradient_is_clipped_and_has_a_rate_of_its_own():
    books = {"w": jnp.array([1.0, 2.0])}
    grad = jax.grad(lambda b: jnp.sum(eased(b, jnp.float32(0.5))["w"] * jnp.array([3.0, 40.0])))(books)
    close(grad, {"w": np.array([1.5, 5.0], np.float32)})
    assert centres({"w": jnp.ones((2, 2))}, 0)["w"].size == 1


# -- HFD --


def test_hfd_without_its_weight_is_local_and_with_it_learns_on_mean_inputs():
    alone, hfd = (last(gauss_federation(ONE), method) for method in (Local(), HFD(weight=0.0)))
    close(models(alone), models(hfd))
    taught = last(gauss_federation(ONE), HFD(weight=5.0))
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(jax.tree.leaves(models(alone)), jax.tree.leaves(models(taught)), strict=True))


def test_mean_inputs_are_shared_once():
    first, second = list(train(Experiment(scalar_federation(), HFD(), 2)))
    inputs = second.state["a"].kept["inputs"]
    close(inputs, Table(np.array([[2.0], [1.0]], np.float32), np.array([1.0, 1.0], np.float32)))  # Bert's label 0, Anna's label 1
    close(mean_inputs(Classify(), data(BERT), empty(2, 1)), Table(np.array([[2.0], [0.0]], np.float32), np.array([1.0, 0.0], np.float32)))
    tables, means = 2 * 4 * (4 + 2), 2 * 4 * (2 + 2)  # a client's bytes down and up: of a table of two classes, and of means of one number
    assert [step.info["a"]["client_bytes"] for step in (first, second)] == [2 * (tables + means), 2 * tables]


# -- AKD, AvgKD and EKD --


def test_akd_with_own_labels_alone_is_fedavg():
    plain, own = (last(scalar_federation(), method) for method in (FedAvg(), AKD(own_weight=1.0, period=2)))
    close([plain.state[i].params for i in "ab"], [own.state[i].params for i in "ab"])


def test_a_fit_to_the_other_pools_labels_by_hand():
    one, two = list(train(Experiment(scalar_federation(), AKD(own_weight=0.0, period=1), 2)))

    def p(w, x):
        return 1 / (1 + np.exp(-float(w) * x))

    for i, other, start in (("a", "b", 0.0), ("b", "a", 2.0)):  # each begins again, on labels of the other's first model
        labels = one.state[other].params["w"]
        anna, bert = p(start, 1) - p(labels, 1), 2 * (p(start, 2) - p(labels, 2))
        close(two.state[i].params["w"], np.float32(start - (anna + 3 * bert) / 4))


def test_ekd_adds_models_up_with_alternating_signs():
    ekd = last(scalar_federation(), AKD(own_weight=0.0, period=1, ensemble=True))
    assert set(ekd.models) == {"a", "b", "ekd"}
    logits = alternating((SCALAR,)).apply(({"w": jnp.array([1.0, 2.0])},), np.ones((1, 1), np.float32), None)
    p, q = 1 / (1 + np.exp(-1.0)), 1 / (1 + np.exp(-2.0))
    close(logits, np.array([[q - p, p - q]], np.float32))


# -- FAug --


def test_labels_are_balanced_by_samples():
    x, y = jnp.arange(6.0)[:, None], jnp.array([0, 0, 0, 1, 2, 2])  # the last two are padding
    bank = 100.0 * jnp.arange(3)[:, None, None] + jnp.zeros((3, 2, 1))
    for added, known, want in ((9, [1, 1, 1], [3, 3, 3]), (9, [1, 1, 0], [3, 3, 0]), (2, [1, 1, 1], [3, 2, 1])):
        more = balanced(Data(x, y, jnp.int32(4)), bank, jnp.array(known, bool), added, keys.root(0))
        n = int(more.n)
        assert np.bincount(more.y[:n], minlength=3).tolist() == want
        assert np.asarray(more.x)[:4, 0].tolist() == [0, 1, 2, 3] and (np.asarray(more.x)[4:n, 0] == 100.0 * np.asarray(more.y)[4:n]).all()


def test_faug_is_fd_on_more_data_and_needs_labels_at_the_server():
    plain, more = (last(gauss_federation(ONE), method, rounds=1) for method in (FD(), FAug(samples=4, added=6)))
    assert plain.info["small"]["examples"] < more.info["small"]["examples"] <= plain.info["small"]["examples"] + 3 * 6
    with pytest.raises(SettingError, match="method: got faug; allowed public data with labels"):
        Experiment(scalar_federation(), FAug(), 1)
