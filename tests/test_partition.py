"""Partitions: every row at most once, the sizes and the skew that each promises, and the same hands for the same key for ever."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from fedcodist import keys
from fedcodist.data.partition import PARTITIONS, Dirichlet, Iid, Pachinko, Quantity, Shards, read_partition, skew
from fedcodist.errors import DataError
from fedcodist.settings import Problem, SettingError, plain, read_kind

FINE = np.repeat(np.arange(20), 30)  # 600 rows, 20 labels
COARSE = FINE // 5
KEY = keys.root(7)
ALL = [Iid(12), Dirichlet(12, 0.3), Shards(12, 2), Quantity(12, 0.5), Pachinko(12, examples=40)]


def digest(hands) -> str:
    total = hashlib.sha256()
    for hand in hands:
        total.update(f"{len(hand)}:".encode() + hand.astype("<i8").tobytes())
    return total.hexdigest()[:12]


@pytest.mark.parametrize("part", ALL, ids=lambda part: part.kind)
def test_every_row_at_most_once_and_by_the_key(part):
    hands = part.deal(FINE, KEY, COARSE)
    rows = np.concatenate(hands)
    assert len(hands) == 12 and min(map(len, hands)) >= 1 and len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0 and rows.max() < len(FINE) and all((np.diff(hand) > 0).all() for hand in hands)
    assert digest(hands) == digest(part.deal(FINE, KEY, COARSE)) != digest(part.deal(FINE, keys.root(8), COARSE))


@pytest.mark.parametrize(
    ("part", "pinned"),
    list(zip(ALL, ["d67f7be4b76c", "f6a96d07d173", "9774bda498a8", "eef89e61949c", "2990adceca25"], strict=True)),
    ids=lambda value: getattr(value, "kind", ""),
)
def test_pinned(part, pinned):
    assert digest(part.deal(FINE, KEY, COARSE)) == pinned


@pytest.mark.parametrize("part", ALL, ids=lambda part: part.kind)
def test_global_random_state_is_neither_used_nor_changed(part):
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    part.deal(FINE, KEY, COARSE)
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize("part", [Iid(7), Shards(7, 3), Quantity(7)], ids=lambda part: part.kind)
def test_nothing_is_left_over(part):
    assert sorted(np.concatenate(part.deal(FINE, KEY)).tolist()) == list(range(600))


def test_iid_is_of_equal_sizes_and_all_labels():
    hands = Iid(4).deal(FINE, KEY)
    assert [len(hand) for hand in hands] == [150] * 4 and skew(hands, FINE)["labels"] == 20


def test_dirichlet_needs_no_labels_in_a_row():
    hands = Dirichlet(10, 0.3).deal(FINE, KEY)
    assert digest(Dirichlet(10, 0.3).deal(FINE * 50_000, KEY)) == digest(hands)  # and does not take a million piles
    assert skew(hands, FINE)["labels"] < skew(Dirichlet(10, 1e6).deal(FINE, KEY), FINE)["labels"]


def test_shards_bound_the_labels():
    hands = Shards(10, 2).deal(FINE, KEY)  # 20 shards of 30 rows: one label each
    assert [len(hand) for hand in hands] == [60] * 10 and {len(np.unique(FINE[hand])) for hand in hands} == {2}
    mixed = np.random.Generator(np.random.PCG64(0)).permutation(FINE)
    assert {len(np.unique(mixed[hand])) for hand in Shards(10, 2).deal(mixed, KEY)} == {2}


def test_quantity_skews_sizes_only():
    sizes = sorted(len(hand) for hand in Quantity(10, 0.2, smallest=5).deal(FINE, KEY))
    assert sizes[0] >= 5 and sizes[-1] > 5 * sizes[len(sizes) // 2] and sum(sizes) == 600
    assert np.std([len(hand) for hand in Quantity(10, 1e6).deal(FINE, KEY)]) < 2
    assert {len(hand) for hand in Quantity(10, 0.5, smallest=60).deal(FINE, KEY)} == {60}


@pytest.mark.parametrize("seed", range(5))
def test_pachinko_deals_to_the_last_row(seed):
    hands = Pachinko(20, examples=30).deal(FINE, keys.root(seed), COARSE)
    assert [len(hand) for hand in hands] == [30] * 20 and len(np.unique(np.concatenate(hands))) == 600


def test_pachinko_concentrations_say_how_skewed():
    def look(coarse, fine):
        hands = Pachinko(10, coarse, fine, 20).deal(FINE, KEY, COARSE)
        return skew(hands, COARSE)["labels"], skew(hands, FINE)["labels"] / skew(hands, COARSE)["labels"]

    few, many = look(0.01, 10.0), look(1e6, 10.0)
    assert few[0] < 1.6 and many[0] == 4
    assert look(1e6, 0.01)[1] < 1.6 < 2.5 < many[1]  # fine labels within a coarse one


def test_pachinko_shares_are_those_of_the_dirichlet():
    """With plenty of rows nothing runs out, and the mean of a coarse share's square is that of Dirichlet(a): (a + 1) / (k a + 1) / k."""
    y = np.repeat(np.arange(8), 20_000)
    hands = Pachinko(300, 0.5, 10.0, 200).deal(y, KEY, y // 2)
    squares = np.mean([(np.bincount(y[hand] // 2, minlength=4) / 200) ** 2 for hand in hands])
    expected = 1.5 / 3 / 4
    assert abs(squares - (expected + (0.25 - expected) / 200)) < 0.012  # the second term: 200 examples are a sample


def test_pachinko_needs_one_coarse_label_for_each_label():
    wrong = COARSE.copy()
    wrong[31] = 3
    with pytest.raises(DataError, match="^partition: got label 1 under the coarse labels 0 and 3; allowed one coarse label for each"):
        Pachinko(2, examples=5).deal(FINE, KEY, wrong)
    with pytest.raises(DataError, match="no coarse labels; allowed a column coarse_label"):
        Pachinko(2, examples=5).deal(FINE, KEY)
    with pytest.raises(DataError, match="3 coarse labels for 600 rows"):
        Pachinko(2, examples=5).deal(FINE, KEY, COARSE[:3])


def test_pachinko_takes_names_for_labels():
    names = np.array([f"coarse {c}" for c in COARSE])
    part = Pachinko(5, examples=20)
    assert digest(part.deal(FINE, KEY, names)) == digest(part.deal(FINE, KEY, COARSE))


def test_pachinko_deals_all_of_cifar_100():
    y = np.repeat(np.arange(100), 500)
    hands = Pachinko().deal(y, KEY, y // 5)
    assert skew(hands, y)["examples"] == 100 and len(np.concatenate(hands)) == 50_000


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Iid(601), "600 rows; allowed at least 601 \\(for its clients\\)"),
        (Dirichlet(601, 1.0), "at least 601"),
        (Shards(301, 2), "at least 602 \\(for its shards\\)"),
        (Quantity(200, 1.0, smallest=4), "at least 800 \\(for its clients x 4 examples\\)"),
        (Pachinko(7, examples=100), "at least 700 \\(for its clients x 100 examples\\)"),
    ],
)
def test_too_few_rows(part, message):
    with pytest.raises(DataError, match=f"^partition: got .*{message}"):
        part.deal(FINE, KEY, COARSE)


def test_settings():
    assert list(PARTITIONS) == ["iid", "dirichlet", "shards", "quantity", "pachinko"]
    for part in ALL:
        problems: list[Problem] = []
        assert read_kind(PARTITIONS, plain(part), "p", problems) == part and not problems
    problems = []
    assert read_partition(None, "p", problems) is None and not problems
    read_partition({"kind": "pachinko", "coarse": 0, "clients": 0}, "p", problems)
    read_partition("shard", "p", problems)
    assert [p.path for p in problems] == ["p.clients", "p.coarse", "p"] and problems[2].hint == "did you mean shards?"
    with pytest.raises(SettingError, match="Quantity.smallest: got 0"):
        Quantity(3, 0.5, 0)
