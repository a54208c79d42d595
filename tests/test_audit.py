"""`fedcodist audit`: each finding on data that was made to have it."""

import dataclasses
import json

import numpy as np
import pytest
from worlds import SHORT, TASK, gauss_federation

from fedcodist import keys
from fedcodist.audit import audit, lessons, rows
from fedcodist.audit.lessons import Probe
from fedcodist.cli import main
from fedcodist.methods import PeriodicCodist
from fedcodist.train import Experiment
from fedcodist.types import Examples

KEY = keys.root(0)
RANDOM = np.random.default_rng(0)
SHORTEST = Probe(rounds=2, after=1, sizes=(20, 0), steps=4)


def audited(task, probe=None, seeds=(0,)):
    fed = gauss_federation()
    method = PeriodicCodist(2, SHORT)
    return audit.audit([Experiment(dataclasses.replace(fed, task=task), method, 4, seed=s) for s in seeds], probe)


def test_a_picture_is_its_mean_colours_on_a_grid():
    x = np.zeros((1, 16, 16, 3), np.uint8)
    x[0, :2, :2, 0] = [[4, 8], [12, 16]]
    assert rows.vectors(x).shape == (1, 192) and rows.vectors(x)[0, 0] == 10 and rows.vectors(x)[0, 1:].max() == 0


def test_a_text_is_its_words_and_their_pairs():
    there = rows.vectors(np.array([[5, 6, 7, 0], [7, 6, 5, 0], [5, 6, 7, 0]]))
    assert there.sum(1) == pytest.approx([1, 1, 1])
    assert (there[0] == there[2]).all() and (there[0] != there[1]).any()  # the same words in another order


def test_near_duplicates_are_found_and_other_pictures_are_not():
    x = RANDOM.integers(0, 256, (50, 16, 16, 3)).astype(np.uint8)
    shifted = np.clip(x[3:4].astype(int) + 2, 0, 255).astype(np.uint8)
    found = rows.near(rows.vectors(np.concatenate([shifted, x[40:]])), rows.vectors(x[:40]))
    assert found.tolist() == [3] + [-1] * 10


def test_rows_of_one_kind_are_not_told_apart_and_others_are():
    same = rows.told_apart(RANDOM.normal(size=(400, 5)), RANDOM.normal(size=(400, 5)), KEY)
    assert same.low < 0.5 < same.high
    other = rows.told_apart(RANDOM.normal(size=(400, 5)), RANDOM.normal(size=(400, 5)) + 2, KEY)
    assert other.low > 0.9


def test_good_public_data_has_no_warning_but_its_size():
    found = audited(TASK)
    assert [row["exactly"] for row in found.repeated] == [0] * 4
    assert all("fewer than the 600" in line for line in found.warnings)


def test_public_rows_of_the_test_split_are_a_warning():
    x = np.array(TASK.public.x)
    x[:7] = TASK.test.x[:7]
    found = audited(dataclasses.replace(TASK, public=Examples(x)))
    assert any("7 rows are also in test; held-out and test accuracy are not to be trusted" in line for line in found.warnings)


def test_public_data_from_elsewhere_is_a_warning():
    found = audited(dataclasses.replace(TASK, public=Examples(np.asarray(TASK.public.x) + 9)))
    assert any("a linear classifier tells 100 % of the rows from the clients'" in line for line in found.warnings)


def test_the_probe_pairs_rounds_and_says_what_it_says_of_many_seeds():
    found = audited(TASK, SHORTEST, seeds=(0, 1))
    assert [(row["public_rows"], row["pool"]) for row in found.gains] == [
        (n, pool) for n in (20, len(TASK.public.x)) for pool in ("small", "large")
    ]
    assert all(row["low_later"] <= row["gain_later"] <= row["high_later"] for row in found.gains)
    assert {row["pool"] for row in found.teachers} == {"small", "large"}
    assert all(0 <= row["disagreement"] <= 1 and 0 < row["confidence_public"] <= 1 for row in found.teachers)


def test_a_lesson_that_changes_nothing_gives_nothing():
    fed = gauss_federation()
    still = dataclasses.replace(
        fed, pools={n: dataclasses.replace(p, learns=dataclasses.replace(p.learns, lr=1e-30)) for n, p in fed.pools.items()}
    )
    experiment = Experiment(still, PeriodicCodist(2, SHORT), 4)
    state = lessons.begun(experiment, 2, lambda done, many: None)
    found = lessons.joined([lessons.gains(experiment, state, SHORTEST, lambda done, many: None)])
    assert all(row["gain_at_once"] == row["gain_later"] == 0 for row in found)


def test_intervals_by_hand():
    made = [[{"public_rows": 5, "pool": "a", "at_once": np.array([g, g]), "later": np.array([0.0, 0.0])}] for g in (0.01, 0.02, 0.03)]
    (row,) = lessons.joined(made)
    assert row["gain_at_once"] == pytest.approx(2.0)
    assert row["low_at_once"] == pytest.approx(2 - 4.302653 * 1 / 3**0.5)  # Student's t with 2 degrees of freedom, deviation 1 point
    harmed = audit.Audit(
        [], [{"low": 0, "high": 1, "told apart": 0.5}] * 2, [], [row | {"gain_later": -2, "low_later": -3, "high_later": -1}], []
    )
    assert [*audit._warnings(harmed, 1000)] == ["pool a: the probe's lesson harmed it: -2.0 points [-3.0, -1.0] of held-out accuracy"]


def test_the_verb(capsys):
    assert main.main(["audit", "quick/toy", "--no-probe", "--format", "json", "--quiet"]) == 3  # 200 public rows are few
    assert json.loads(capsys.readouterr().out)["warnings"]
    assert main.main(["audit", "quick/toy", "--rounds", "8"]) == 2
    assert "--rounds: got 8, and 5 after them; allowed 10 in all, the config's rounds" in capsys.readouterr().err
    assert main.main(["audit", "quick/toy", "--sizes", "some"]) == 2
    assert "--sizes: got 'some'; allowed numbers of rows and `all`, such as 600,3000,all" in capsys.readouterr().err
