"""A few random kills of a small run in every test run; `make kills` makes fifty."""

import os
from pathlib import Path

import pytest
from faults import kills, marked


def test_a_run_killed_at_random_times_ends_with_the_bytes_of_an_undisturbed_one(tmp_path):
    tally = kills.Tally()
    for tally in kills.storm(3, 1, tmp_path, Path(os.environ["FEDCODIST_CACHE"]), ("scaffold-merged",), rounds=30):
        assert not tally.wrong, tally.wrong[-1]
    assert tally.kills == 3 and tally.runs >= 1
    assert tally.phases["start-up"] < 3, "no kill met a run that had begun"


def test_a_run_that_differs_is_noticed(tmp_path):
    """The comparison itself: a changed byte, a leftover file, another output and an exit code are all differences."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "rounds.jsonl").write_text("1\n")
    want = kills.Reference(tmp_path, kills.digests(out), b"said", 1.0, 0.5)
    good = kills.Ended(False, 0, b"said", "", "save")
    assert kills.differences(want, out, good) == []
    assert kills.differences(want, out, kills.Ended(False, 0, b"other", "", "save")) == ["stdout"]
    assert kills.differences(want, out, kills.Ended(False, 4, b"said", "error: x\n", "save")) == ["exit code 4: error: x"]
    (out / "timing.jsonl").write_text("any time\n")
    assert kills.differences(want, out, good) == []
    (out / ".tmp-7").write_text("")
    (out / "rounds.jsonl").write_text("2\n")
    assert kills.differences(want, out, good) == [".tmp-7", "rounds.jsonl"]


@pytest.mark.parametrize("failing", [False, True])
def test_marks_are_written_before_and_after(failing):
    class Thing:
        def save(self):
            os.write(writer, b"!")
            if failing:
                raise OSError

    reader, writer = os.pipe()
    marked.mark(writer, Thing, "save", marked.SAVE)
    if failing:
        with pytest.raises(OSError):
            Thing().save()
    else:
        Thing().save()
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"s!."


def test_too_few_kills_where_they_hurt_is_a_failure(monkeypatch, capsys):
    def in_start_up(*args, **kwargs):
        tally = kills.Tally(runs=1)
        tally.phases["start-up"] = 9
        tally.phases["save"] = 1
        yield tally

    monkeypatch.setattr(kills, "storm", in_start_up)
    assert kills.main(["--kills", "10"]) == 1
    said = capsys.readouterr()
    assert said.out == "10 kills: 1 runs, 1 byte-identical; 1 kills inside a save, 0 inside a distillation, 9 elsewhere (start-up 9)\n"
    assert "only 1 of 10" in said.err
