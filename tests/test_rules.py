"""Rules: SCAFFOLD's and FedMiD's identities, and what cannot go together."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import ANNA, BERT, SHORT, finish, gauss_federation, same_bits, scalar_federation

from fedcodist import config, keys, tree
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.serial import Serial
from fedcodist.errors import ConfigError
from fedcodist.folds.robust import Median
from fedcodist.methods import FedAvg, FedDF, MergedCodist, PeriodicCodist
from fedcodist.rule import Average as AverageRule
from fedcodist.rules import RULES, FedMiD, Scaffold
from fedcodist.rules.fedmid import shrink
from fedcodist.rules.scaffold import Controlled
from fedcodist.schedule import Constant
from fedcodist.servers import Average
from fedcodist.settings import SettingError
from fedcodist.train import Experiment, train
from fedcodist.types import Data
from fedcodist.work import LocalSGD, Prox

PLAIN = {"server": Average().optimizer(), "lr": Constant(1.0)}


# -- SCAFFOLD --


def test_the_first_round_of_scaffold_is_fedavg_to_the_bit():
    scaffold, plain = (finish(gauss_federation(rule=rule), FedAvg(), rounds=1) for rule in (Scaffold(), RULES["average"]()))
    for pool in plain.state:
        assert same_bits(scaffold.state[pool].params, plain.state[pool].params)
        assert scaffold.info[pool]["grad_norm"] == plain.info[pool]["grad_norm"]
    later = [finish(gauss_federation(rule=rule), FedAvg(), rounds=3) for rule in (Scaffold(), RULES["average"]())]
    assert not same_bits(later[0].state["small"].params, later[1].state["small"].params)


def test_with_one_client_scaffold_is_sgd():
    """Its own control is the server's, so nothing is corrected."""
    clients = dict([next(iter(gauss_federation().task.clients.items()))])
    given = {"clients": clients, "cohort": 1, **PLAIN}
    scaffold, plain = (
        finish(gauss_federation(("small",), rule=rule, **given), FedAvg(), rounds=4).state["small"]
        for rule in (Scaffold(), RULES["average"]())
    )
    for a, b in zip(jax.tree.leaves(scaffold.params), jax.tree.leaves(plain.params), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-5)


def test_the_servers_control_is_the_mean_of_the_clients():
    for step in train(Experiment(gauss_federation(("small",), rule=Scaffold()), FedAvg(), 4)):
        kept = step.state["small"].kept
        mean = jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), 0), *kept["clients"].values())
        for a, b in zip(jax.tree.leaves(kept["server"]), jax.tree.leaves(mean), strict=True):
            assert np.asarray(a) == pytest.approx(b, abs=1e-5)
    assert float(tree.norm(kept["server"])) > 0


def test_a_controlled_client_by_hand():
    """One step of rate 1 on Anna (x = 1, y = 1) from w = 0: the gradient is p - y = -1/2, c - c_k = 1/4 - 1/8."""
    fed = scalar_federation()
    sent = {"w": jnp.float32(0.0)}, {"w": jnp.float32(0.25)}
    data = Data(jnp.asarray(ANNA.x), jnp.asarray(ANNA.y), jnp.int32(1), {"w": jnp.float32(0.125)})
    reply = Controlled(LocalSGD(lr=1.0, batch=3))(fed.pools["a"].model, fed.task.objective, sent, data, keys.root(0))
    grad, change = reply.value
    assert float(grad["w"]) == pytest.approx(-0.375)  # 1 * (-1/2 + 1/8)
    assert float(reply.own["w"]) == pytest.approx(-0.5)  # c_k - c + (x - y) / (1 * 1) = -1/8 - 3/8: the client's own gradient
    assert float(change["w"]) == pytest.approx(-0.625)  # over one example


def test_clients_that_were_not_asked_keep_what_they_had():
    first, second = list(train(Experiment(gauss_federation(("small",), rule=Scaffold()), FedAvg(), 2)))
    before, after = (step.state["small"].kept["clients"] for step in (first, second))
    changed = [client for client in before if not same_bits(before[client], after[client])]
    assert len(changed) == second.info["small"]["clients"] == 3 and len(before) == 8
    nothing = [client for client in after if not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(after[client]))]
    assert len(nothing) >= 2  # never asked


def test_a_reply_that_is_not_finite_changes_no_control():
    bad = BERT._replace(x=BERT.x * np.float32(np.nan))
    fed = scalar_federation(rule=Scaffold())
    pools = {n: dataclasses.replace(p, clients={"anna": ANNA, "bert": bad}) for n, p in fed.pools.items()}
    step = finish(dataclasses.replace(fed, pools=pools), FedAvg(), rounds=1)
    kept = step.state["a"].kept["clients"]
    assert step.info["a"]["dropped"] == 1 and float(kept["bert"]["w"]) == 0 != float(kept["anna"]["w"])


def test_scaffold_sends_twice_as_much_and_says_so():
    from fedcodist.runs import cost

    costs = []
    for rule in (Scaffold(), RULES["average"]()):
        fed = gauss_federation(("small",), rule=rule)
        costs.append(cost.of_rounds(fed, FedAvg(), [finish(fed, FedAvg(), rounds=1).info])["client_bytes"]["small"])
    assert costs[0] == 2 * costs[1]


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "method", [pytest.param(FedAvg(), marks=LONG), pytest.param(PeriodicCodist(2, SHORT), marks=LONG), MergedCodist(Constant(0.5), SHORT)]
)
@pytest.mark.parametrize("rule", [Scaffold(), FedMiD(l1=0.01)])
def test_rules_under_every_method(method, rule):
    """Engines agree, and a resumed run is a straight one, with whatever the rule keeps."""
    step = finish(gauss_federation(rule=rule), method)
    serial = finish(gauss_federation(rule=rule, engine=Serial()), method)
    for a, b in zip(jax.tree.leaves(step.state), jax.tree.leaves(serial.state), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-3)
    steps = list(train(Experiment(gauss_federation(rule=rule), method, 4)))
    resumed = list(train(Experiment(gauss_federation(rule=rule), method, 4), steps[1].state, after=2))[-1]
    assert same_bits(resumed.state, steps[-1].state) and resumed.info == steps[-1].info


def test_workers_change_no_bit_of_what_clients_keep():
    states = [finish(gauss_federation(rule=Scaffold(), engine=Compiled(workers=n, block=2)), FedAvg()).state for n in (1, 3)]
    assert same_bits(*states)


# -- FedMiD --


def test_without_a_regulariser_fedmid_is_fedavg_to_the_bit():
    mirror, plain = (finish(gauss_federation(rule=rule), FedAvg()) for rule in (FedMiD(l1=0.0), RULES["average"]()))
    for pool in plain.state:
        assert same_bits(mirror.state[pool].params, plain.state[pool].params)


def test_shrinking_by_hand_and_on_dense_kernels_alone():
    params = {"w": jnp.array([[3.0, -0.5], [-2.0, 0.0]]), "b": jnp.array([3.0]), "conv": jnp.full((1, 1, 1, 1), 5.0)}
    shrunk = shrink(params, 1.0)
    assert shrunk["w"].tolist() == [[2, 0], [-1, 0]] and shrunk["b"].tolist() == [3] and shrunk["conv"].tolist() == [[[[5]]]]


def test_a_regulariser_gives_zeros():
    def zeros(l1: float) -> float:
        state = finish(gauss_federation(("small",), rule=FedMiD(l1=l1), **PLAIN), FedAvg(), rounds=6).state
        return float(np.mean(np.asarray(state["small"].params["dense0"]["w"]) == 0))

    assert zeros(0.5) > 0.5 > zeros(0.0) == 0


def test_the_server_shrinks_by_its_rate_times_the_clients_elapsed_rate():
    """Two steps of rate 0.1 at every client, server rate 0.5: the prox is of 0.5 * 0.2 l1."""
    fed = gauss_federation(
        ("small",), rule=FedMiD(l1=0.3), work=LocalSGD(lr=0.1, batch=100, epochs=2), server=Average().optimizer(), lr=Constant(0.5)
    )
    before = fed.init(keys.root(0))
    state, grad, _ = fed.gradients(before, 1, keys.root(0))
    assert float(state["small"].kept["elapsed"]) == pytest.approx(0.2)
    stepped = tree.sub(before["small"].params, tree.scale(grad["small"], 0.5))
    want = shrink(stepped, 0.5 * 0.2 * 0.3)
    for a, b in zip(jax.tree.leaves(fed.step(state, grad, 1)["small"].params), jax.tree.leaves(want), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-6)


# -- what cannot go together --


def test_a_rule_refuses_what_it_cannot_use():
    with pytest.raises(SettingError, match="pools.small.work: got prox; allowed local_sgd, which SCAFFOLD corrects"):
        gauss_federation(rule=Scaffold(), work=Prox())
    with pytest.raises(SettingError, match="pools.small.rule: got scaffold, which keeps .* bytes for 8 clients; allowed at most 100"):
        gauss_federation(rule=Scaffold(most_bytes=100))
    with pytest.raises(SettingError, match="pools.small.rule: got scaffold; allowed a fold of sums"):
        gauss_federation(rule=Scaffold(), fold=Median())


SCAFFOLD = "pools.small.rule=scaffold"


def test_a_config_names_rules_and_refuses_what_does_not_fit():
    made = config.read("quick/toy", [SCAFFOLD, "pools.large.rule={ kind = 'fedmid', l1 = 0.1 }", "pools.large.fold=median"])
    assert made.pools["small"].rule == Scaffold() and made.pools["large"].rule == FedMiD(0.1) and made.pools["large"].fold == Median()
    with pytest.raises(ConfigError, match="pools.small.rule: got scaffold; allowed average: feddf asks the clients itself"):
        config.read("quick/toy", [SCAFFOLD, "method={ kind = 'feddf', distill = { steps = 1, batch = 5 } }"])
    with pytest.raises(ConfigError, match="pools.small.work: got prox; allowed local_sgd"):
        config.load("quick/toy", [SCAFFOLD, "pools.small.work=prox"])
    with pytest.raises(ConfigError, match="pools.small.rule: got 'scafold'; allowed average .* did you mean scaffold"):
        config.read("quick/toy", ["pools.small.rule=scafold"])


def test_the_default_rule_and_fold_leave_a_configs_digest_alone():
    plain = config.read("quick/toy")
    said = config.read("quick/toy", ["pools.small.rule=average", "pools.small.fold=mean"])
    assert config.identity(plain) == config.identity(said) != config.identity(config.read("quick/toy", [SCAFFOLD]))
    assert "rule" not in config.plain(plain)["pools"]["small"] and config.plain(plain)["pools"]["small"]["fold"] == "mean"


# -- FedDF --


def test_feddf_without_steps_is_fedavg_to_the_bit():
    feddf, plain = (finish(gauss_federation(), method) for method in (FedDF(None), FedAvg()))
    assert same_bits(feddf.state, plain.state)


def test_an_ensemble_of_one_client_teaches_its_own_mean_nothing():
    """The averaged model is the client's model, so the loss of the first step is zero."""
    fed = gauss_federation(("small",), cohort=1, **PLAIN)
    info = finish(fed, FedDF(dataclasses.replace(SHORT, steps=1)), rounds=1).info["small"]
    assert info["distill_loss"][0] == pytest.approx(0.0, abs=1e-6) and info["agreement"]["ensemble"][0] == 1.0


def test_the_ensemble_is_the_mean_of_all_clients_logits():
    from fedcodist.methods.ensembles import ensemble

    fed = gauss_federation()
    models = [fed.pools[name].model for name in fed.names]
    members = [[model.init(keys.root(seed)) for seed in range(n)] for model, n in zip(models, (2, 3), strict=True)]
    x = jnp.asarray(fed.task.public.x[:4])
    want = np.mean([model.apply(p, x, None) for model, ps in zip(models, members, strict=True) for p in ps], 0)
    stacked = tuple(jax.tree.map(lambda *leaves: jnp.stack(leaves), *ps) for ps in members)
    assert np.asarray(ensemble(tuple(models)).apply(stacked, x, None)) == pytest.approx(want, abs=1e-5)


def test_every_client_model_speaks_and_that_is_what_feddf_costs():
    from fedcodist.runs import cost

    fed, method = gauss_federation(), FedDF(SHORT)
    found = cost.of_rounds(fed, method, [finish(fed, method, rounds=1).info])
    rows = SHORT.steps * SHORT.batch
    for pool in fed.names:
        assert found["server_flops"][pool] == rows * (cost.training_flops(fed, pool) + 3 * cost.forward_flops(fed, pool))
    assert found == cost.expected(fed, method, 1) | {"client_flops": found["client_flops"]}


class Dual(AverageRule):
    """A rule that keeps a dual model, as FedDualAvg does: whoever changes the model between two rounds would make it wrong."""

    kind = "dual"
    teachable = False


def test_a_rule_whose_model_cannot_be_taught_is_refused_under_distillation():
    made = config.read("quick/toy")
    assert made.method.distill is not None and not config.relations(made)
    dual = {name: dataclasses.replace(pool, rule=Dual()) for name, pool in made.pools.items()}
    found = config.relations(dataclasses.replace(made, pools=dual))
    assert [str(problem) for problem in found] == [
        f"pools.{name}.rule: got dual; allowed a rule whose model can be taught: merged distils" for name in ("small", "large")
    ]
    assert not config.relations(dataclasses.replace(config.twin(made), pools=dual))  # FedAvg has no lessons
