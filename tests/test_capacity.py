"""Capacities: the default is what tasks always had, shares are exact, and an attribute counts as much as rho says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import spearmanr

from fedcodist import keys
from fedcodist.data.capacity import Capacity
from fedcodist.data.splits import shuffled
from fedcodist.errors import DataError
from fedcodist.settings import Problem, SettingError, plain, read_part

KEY = keys.root(3)
SIZES = {f"c{i}": (i * 37) % 101 for i in range(101)}  # all different
RANK = {"low": 0, "mid": 1, "high": 2}


def assign(capacity: Capacity, attributes=None, clients=SIZES, key=KEY):
    return capacity.assign(clients, key, attributes or {}, clients)


def capacities(names, key):
    """10 % high, 20 % mid, the rest low, in a keyed order."""
    order = shuffled(names, key)
    high, mid = round(0.1 * len(order)), round(0.2 * len(order))
    return {name: "high" if i < high else "mid" if i < high + mid else "low" for i, name in enumerate(order)}


@pytest.mark.parametrize("n", [*range(1, 30), 63, 101])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_default_is_70_20_and_10_percent(n, seed):
    names = [f"client-{i}" for i in range(n)]
    expected = capacities(names, keys.root(seed))
    found = Capacity().assign(names, keys.root(seed), {}, {})
    assert found == expected and list(found) == list(expected)


def test_shares_and_order():
    four = Capacity({"a": 0.25, "b": 0.25, "c": 0.4, "d": 0.1}, order=("d", "c", "b", "a"))
    assert Counter(assign(four, clients=dict.fromkeys(map(str, range(100)), 1)).values()) == {"a": 25, "b": 25, "c": 40, "d": 10}
    by_size = Capacity({"a": 0.25, "d": 0.75}, order=("d", "c", "b", "a"), attribute="examples", rho=1.0)
    found = assign(by_size)
    assert min(SIZES[c] for c in SIZES if found[c] == "d") > max(SIZES[c] for c in SIZES if found[c] == "a")
    turned = Capacity({"d": 0.75, "a": 0.25}, order=("d", "c", "b", "a"), attribute="examples", rho=1.0)
    assert assign(turned) == found  # a table has no order
    assert set(assign(Capacity({"high": 0.0, "low": 1.0})).values()) == {"low"}


def test_rho_one_is_by_the_attribute_and_rho_zero_by_chance():
    found = assign(Capacity(attribute="examples", rho=1.0))
    order = sorted(SIZES, key=lambda c: -SIZES[c])
    assert [found[c] for c in order] == ["high"] * 10 + ["mid"] * 20 + ["low"] * 71
    found = assign(Capacity(attribute="examples", rho=-1.0))
    assert [found[c] for c in order[::-1]] == ["high"] * 10 + ["mid"] * 20 + ["low"] * 71
    assert assign(Capacity(attribute="examples")) == capacities(SIZES, KEY)


@pytest.mark.parametrize("rho", [-0.9, -0.5, 0.0, 0.3, 0.6, 0.9])
def test_the_correlation_tracks_rho(rho):
    """With a level for each client the rank correlation is Spearman's of a Gaussian copula: 6 / pi * asin(rho / 2)."""
    n = 400
    clients = {f"c{i}": i for i in range(n)}
    levels = tuple(f"l{i}" for i in range(n))
    capacity = Capacity(dict.fromkeys(levels, 1 / n), attribute="examples", rho=rho, order=levels)
    found = []
    for seed in range(6):
        assigned = assign(capacity, clients=clients, key=keys.root(seed))
        assert len(set(assigned.values())) == n
        found.append(spearmanr([clients[c] for c in clients], [-int(assigned[c][1:]) for c in clients]).statistic)
    assert abs(np.mean(found) - 6 / np.pi * np.arcsin(rho / 2)) < 0.06


def test_strings_rank_by_their_order_and_ties_by_chance():
    group = {c: "b" if SIZES[c] < 30 else "a" for c in SIZES}  # 30 clients are b
    found = assign(Capacity(attribute="group", rho=1.0), {"group": group})
    assert {group[c] for c in SIZES if found[c] != "low"} == {"b"}
    other = assign(Capacity(attribute="group", rho=1.0), {"group": group}, key=keys.root(4))
    assert found != other and Counter(found.values()) == Counter(other.values())


def test_column():
    said = {c: f"tier{SIZES[c] % 2}" for c in SIZES}
    assert assign(Capacity(column="device"), {"device": said}) == said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shares": {"high": 0.5, "low": 0.4}}, "Capacity.shares: got .* allowed shares whose sum is 1 \\(their sum is 0.9\\)"),
        ({"shares": {}}, "sum is 0"),
        ({"shares": {"high": 1.5, "low": -0.5}}, "Capacity.shares.high: got 1.5; allowed 0 to 1\nCapacity.shares.low"),
        ({"shares": {"high": float("nan"), "low": 1.0}}, "Capacity.shares.high: got nan"),
        ({"shares": {"big": 1.0}}, "Capacity.shares: got 'big'; allowed levels of order: high, mid, low"),
        ({"order": ("high", "mid", "low", "low")}, "Capacity.order"),
        ({"rho": 1.5, "attribute": "examples"}, "Capacity.rho: got 1.5; allowed a number >= -1 and <= 1"),
        ({"rho": 0.5}, "Capacity.rho: got 0.5; allowed 0 without an attribute"),
        ({"column": "a", "attribute": "b"}, "Capacity.column: got 'a'; allowed column or attribute, not both"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(SettingError, match=message):
        Capacity(**settings)


@pytest.mark.parametrize(
    ("capacity", "attributes", "message"),
    [
        (
            Capacity(column="exampels"),
            {},
            "^capacity.column: got 'exampels', an unknown attribute; allowed examples .did you mean examples",
        ),
        (
            Capacity(attribute="age"),
            {"main_class": {}},
            "capacity.attribute: got 'age', an unknown attribute; allowed main_class, examples",
        ),
        (Capacity(attribute="age"), {"age": {**SIZES, "c3": "old"}}, "numbers and strings in 'age'"),
        (Capacity(attribute="age"), {"age": {**SIZES, "c3": float("nan")}}, "NaN in 'age'"),
    ],
)
def test_bad_attributes(capacity, attributes, message):
    with pytest.raises(DataError, match=message):
        assign(capacity, attributes)


def test_a_config_says_it():
    problems: list[Problem] = []
    table = {"shares": {"high": 0.5, "low": 0.5}, "attribute": "examples", "rho": -1}
    made = read_part(Capacity, table, "capacity", problems)
    assert made == Capacity({"high": 0.5, "low": 0.5}, attribute="examples", rho=-1) and not problems
    assert read_part(Capacity, plain(made), "capacity", problems) == made and not problems
    read_part(Capacity, {"shares": {"high": 0.5, "low": "0.5"}}, "capacity", problems)
    read_part(Capacity, {"shares": {"high": 0.5}}, "capacity", problems)
    assert [p.path for p in problems] == ["capacity.shares.low", "capacity.shares"]
