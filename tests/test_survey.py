"""What a task's data look like: every number is counted by hand on data that is small enough for it."""

from __future__ import annotations

import numpy as np
import pytest
from test_prepare import home, make, text_store, write_rows  # noqa: F401  # home is a fixture

from fedcodist import testing
from fedcodist.data import survey
from fedcodist.objectives.classify import Classify
from fedcodist.reports.plots import draw_bars
from fedcodist.task import Task
from fedcodist.tasks import Text
from fedcodist.types import Examples, Split


def rows(*numbers: int) -> np.ndarray:
    return np.array([[n, 0.0] for n in numbers], np.float32)


def small() -> Task:
    """Three clients; the public data has a row of theirs, the test two of theirs and, twice, one that is public."""
    return Task(
        name="small",
        objective=Classify(),
        clients={
            "a": Examples(rows(1, 2, 3), np.array([0, 0, 1])),
            "b": Examples(rows(4), np.array([2])),
            "c": Examples(rows(5, 6), np.array([1, 1])),
        },
        public=Examples(rows(1, 7, 8)),
        held_out=Split(rows(9, 10), np.array([0, 3]), np.array([0, 0])),
        test=Split(rows(1, 6, 11, 8, 8), np.array([1, 1, 1, 2, 2]), np.array([0, 1, 1, 2, 2])),
        classes=4,
        notes=("a note",),
    )


def test_the_counts():
    found = survey.survey(small())
    assert found.rows == [
        {"part": "clients", "clients": 3, "examples": 6, "labels": 3, "also in an earlier part": 0},
        {"part": "public", "clients": "-", "examples": 3, "labels": "-", "also in an earlier part": 1},
        {"part": "held_out", "clients": 1, "examples": 2, "labels": 2, "also in an earlier part": 0},
        {"part": "test", "clients": 3, "examples": 5, "labels": 2, "also in an earlier part": 4},
    ]
    assert found.overlaps == [("public", "clients", 1), ("test", "clients", 2), ("test", "public", 3)]
    assert found.skew == {"examples": 2.0, "labels": pytest.approx(4 / 3)}
    assert found.histograms == {
        "examples of a client": [("1", 1), ("2", 1), ("3", 1)],
        "labels, clients": [("0", 2), ("1", 3), ("2", 1), ("3", 0)],
        "labels, held_out": [("0", 1), ("1", 0), ("2", 0), ("3", 1)],
        "labels, test": [("0", 0), ("1", 3), ("2", 2), ("3", 0)],
    }


def test_the_words():
    said = survey.as_text(survey.survey(small()))
    assert "2.0 examples, 1.3 labels of a client, on average" in said
    assert "overlap: 2 rows of test are also in clients" in said and "note: a note" in said
    longest = next(line for line in said.splitlines() if line.endswith(" 3") and "#" in line)
    assert longest.count("#") == survey.BAR and longest.split()[0] == "1"
    assert "overlap: none" in survey.as_text(survey.survey(testing.task()))


def test_blocks_do_not_change_the_counts(monkeypatch):
    whole = survey.survey(small())
    monkeypatch.setattr(survey, "BLOCK", 1)
    assert survey.survey(small()) == whole


def test_many_labels_are_counted_by_their_sizes():
    y = np.repeat(np.arange(30), [1] * 20 + [4] * 10)
    assert survey._labels(y, 31) == [("0 examples", 1), ("1 examples", 20), ("2 examples", 0), ("3 examples", 0), ("4 examples", 10)]
    assert survey._bins(np.array([], int)) == []
    wide = survey._bins(np.arange(1000))
    assert len(wide) <= survey.BINS and sum(count for _, count in wide) == 1000 and wide[0][0] == "0-83"


def test_sentences_are_counted_by_their_words(tmp_path):
    lengths = {"a": [1, 2, 2], "b": [4], "c": [5, 7]}
    table = [
        (client, split, " ".join(f"{client}{n}{i}" if client == "b" else "w" for i in range(n)))
        for client, split in (("a", "train"), ("b", "held_out"), ("c", "test"))
        for n in lengths[client]
    ] + [("p", "public", "w w w"), ("p", "public", "w w w w w w w w w")]
    make("text", write_rows(tmp_path / "t.tsv", table, ("client", "split", "tokens")), length=5, overlap="allow")
    found = survey.survey(Text(data="text", public_labels=True).load())
    assert found.histograms["words of a sentence, as far as a model reads, clients"] == [("1", 1), ("2", 2)]
    assert found.histograms["words of a sentence, as far as a model reads, test"] == [("5", 2)], "a model sees five words"
    assert found.histograms["words of a sentence, as far as a model reads, public"] == [("3", 1), ("4", 0), ("5", 1)]
    assert [row["examples"] for row in found.rows] == [3, 2, 1, 2] and all(row["labels"] == "-" for row in found.rows)
    assert "labels" not in found.skew


def test_the_picture(tmp_path):
    text_store(tmp_path)
    for task, name in ((small(), "small"), (Text(data="mine").load(), "text")):
        draw_bars(survey.survey(task).histograms, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        drawn = (tmp_path / f"{name}.svg").read_text()
        assert drawn.startswith("<?xml") and ("labels, held_out" in drawn) == (name == "small")
