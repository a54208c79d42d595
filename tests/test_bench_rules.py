"""The bench of rules: the same clients under each, and a table that says whether goals are met."""

import pytest

from benches import ours, report, rules
from fedcodist import clients, tree


def test_clients_that_are_made_when_they_are_asked_for_have_ids():
    assert clients.ids(ours.Lazy(2, first=3)) == ("client-0003", "client-0004")


@pytest.mark.parametrize("name", rules.rules(2))
def test_every_rule_has_as_many_clients_of_each_width(name):
    fed = rules.federation(name, 2, lazy=True)
    assert sum(pool.cohort for pool in fed.pools.values()) == 4
    if name in ("fedavg", "scaffold"):
        assert [tree.size(fed.pools[size].shapes) for size in ("small", "large")] == [109_348, 410_084]
    else:
        pool = fed.pools["large"]
        assert pool.rule.shares(pool) == [0.5, 0.5]


def test_the_table_says_what_is_met():
    def found(cpu):
        ratio = {"wall": report.spread([2.0]), "cpu": report.spread([cpu])}
        memory = {name: {str(n): 10.0 * n for n in rules.COHORTS} for name in ("fedavg", *rules.GOALS)}
        state = {"mb": 215.0, "seconds": report.spread([0.5]), "cpu_seconds": report.spread([0.25])}
        return {"turns": 1, "others": 0.5, "ratios": dict.fromkeys(rules.GOALS, ratio), "memory": memory, "checkpoint": state}

    good, bad = rules.table(found(0.9)), rules.table(found(1.28))
    assert good.count("met") == 4 and "MISSED" not in good and "215 MB and takes 0.50 s" in good
    assert bad.count("MISSED") == 3 and "| `flanc` | 1.28 (1.28-1.28) | 2.00 (2.00-2.00) | 1.30, met | 400 and 1200 |" in bad
