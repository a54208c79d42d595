"""Any rule in any pool under any method, from a config: a round of it, or a sentence that says why not."""

import dataclasses
import itertools

import numpy as np
import pytest

from fedcodist import config
from fedcodist.errors import ConfigError
from fedcodist.methods import METHODS
from fedcodist.rules import RULES
from fedcodist.train import train

BETWEEN = {  # methods that leave the pools to their rules
    "fedavg": '{ kind = "fedavg" }',
    "periodic": '{ kind = "periodic", period = 1, distill = { steps = 2, batch = 20 } }',
    "merged": '{ kind = "merged", distill = { steps = 2, batch = 20 } }',
}
KEYS = {"flanc": ", weight = 0.01"}
MODEL = '{ kind = "mlp", hidden = [8, 8] }'  # which every rule can take apart
PAIRS = list(itertools.product(RULES, RULES))
FEW = {("scaffold", "heterofl"), ("splitmix", "fedmid")}  # that every run of the tests tries


def build(method, small, large, *more):
    rules = {"small": small, "large": large}
    given = [f'pools.{pool}.rule={{ kind = "{rule}"{KEYS.get(rule, "")} }}' for pool, rule in rules.items()]
    given += [f"pools.{pool}.model={MODEL}" for pool in rules] + [f"method={method}", "pools.small.work.batch=20", *more]
    return config.build(config.read("quick/toy", given), 0)


def tried(method, small, large):
    """The info of one round, or why there is none."""
    try:
        experiment = build(BETWEEN[method], small, large)
    except ConfigError as error:
        return error
    return next(iter(train(dataclasses.replace(experiment, rounds=2)))).info


def refused(method, *rules):
    """The rules that may not stand under this method."""
    return [rule for rule in rules if method != "fedavg" and not RULES[rule].teachable]


def check(method, small, large):
    told = tried(method, small, large)
    if wrong := refused(method, small, large):
        assert isinstance(told, ConfigError), f"{small} and {large} under {method} are not refused"
        for rule in wrong:
            assert f"rule: got {rule}; allowed a rule whose model can be taught: {method} distils" in str(told).replace("'", "")
        return
    assert not isinstance(told, ConfigError), f"{small} and {large} under {method}: {told}"
    for pool in ("small", "large"):
        assert np.isfinite(told[pool]["train_loss"]) and told[pool]["clients"] > 0
        assert ("codistilled" in told[pool]) == (method != "fedavg"), f"{small} and {large} under {method}"


@pytest.mark.parametrize(("small", "large"), sorted(FEW))
def test_two_rules_between_which_models_are_merged(small, large):
    check("merged", small, large)


@pytest.mark.parametrize("method", ["periodic", "merged"])
def test_a_rule_whose_model_cannot_be_taught_is_refused(method):
    kinds = [rule for rule in RULES if not RULES[rule].teachable]
    assert kinds  # FedDualAvg and gossip, whose models are not the server's to move
    for rule in kinds:
        check(method, rule, "average")


@pytest.mark.long
@pytest.mark.parametrize("method", BETWEEN)
@pytest.mark.parametrize(("small", "large"), PAIRS)
def test_every_pair_of_rules(method, small, large):
    check(method, small, large)


def test_methods_that_ask_the_clients_themselves_take_no_rule():
    for kind, method in METHODS.items():
        if not method.asks:
            continue
        rule = next(rule for rule in RULES if rule != "average")
        with pytest.raises(ConfigError, match=f"pools.small.rule: got '?{rule}'?; allowed average: {kind} asks the clients itself"):
            config.read(
                "quick/toy", [f"method={kind}", f'pools.small.rule={{ kind = "{rule}" }}', "personal={ held_out = 0.2, test = 0.2 }"]
            )
