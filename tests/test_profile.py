"""Where the time of a round goes: nothing unless asked, everything that is named, and the same models either way."""

import json
import threading
from pathlib import Path

import pytest

from fedcodist import profile
from fedcodist.cli import main
from fedcodist.runs import session

ALWAYS = {"sample", "gather (threads)", "clients", "clients (threads)", "fold", "server step", "journal", "rest"}
DISTIL = {"distil", *(f"distil: {what} (threads)" for what in ("public data", "teachers", "students"))}


def run(out: Path, *more: str) -> list[dict]:
    assert main.main(["run", "quick/toy", "--out", str(out), "--seeds", "0", "--set", "rounds=4", "--quiet", *more]) == 0
    place = out / "toy" / "merged" / "seed-0"
    return [json.loads(line) for line in (place / "timing.jsonl").read_text().splitlines()]


def test_nothing_is_measured_unless_asked(tmp_path):
    assert all("spent" not in row for row in run(tmp_path))
    with profile.timed("nobody watches"):
        assert profile.ready("as it is") == "as it is"


def test_a_profiled_run_says_where_its_rounds_went_and_learns_the_same(tmp_path):
    rows = run(tmp_path / "with", "--profile", "--set", "evaluate_every=2", "--set", "checkpoint_every=2")
    run(tmp_path / "without", "--set", "evaluate_every=2", "--set", "checkpoint_every=2")
    assert len(rows) == 4 and all(set(row["spent"]) >= ALWAYS | DISTIL for row in rows)
    assert ["checkpoint" in row["spent"] for row in rows] == [False, True, False, True]
    for row in rows:
        inside = sum(seconds for name, seconds in row["spent"].items() if not name.endswith(profile.THREADS))
        around = sum(row["spent"].get(name, 0) for name in session.AFTER)
        assert inside - around == pytest.approx(row["seconds"], abs=1e-3)  # the spans of the round itself do not overlap, and rest is rest
    one, other = (sorted((tmp_path / side / "toy/merged/seed-0").rglob("*.safetensors")) for side in ("with", "without"))
    assert one and [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


@pytest.mark.long
def test_the_parts_of_a_round_add_up_where_nothing_runs_beside(tmp_path):
    for row in run(tmp_path, "--profile", "--set", "engine={ kind = 'serial' }", "--set", "rounds=1"):
        assert not any(name.endswith(profile.THREADS) for name in row["spent"]) and {"clients", "distil: students"} <= set(row["spent"])
        around = sum(row["spent"].get(name, 0) for name in session.AFTER)
        assert sum(row["spent"].values()) - around == pytest.approx(row["seconds"], abs=1e-3)


def test_of_spans_within_each_other_the_outermost_counts_and_waiting_only_in_the_first_thread():
    def elsewhere() -> None:
        with profile.timed_wait("wait"), profile.timed("work"):
            pass

    with profile.watch() as watched:
        with profile.timed("a"), profile.timed("b"), profile.timed_wait("c"):
            pass
        thread = threading.Thread(target=elsewhere)
        with profile.timed_wait("for it"), profile.timed("d"):
            thread.start()
            thread.join()
        assert set(watched.take()) == {"a", "for it", "work (threads)"}


def test_the_report_shows_it(tmp_path):
    run(tmp_path, "--profile")
    assert main.main(["report", str(tmp_path / "toy"), "--quiet"]) == 0
    page = (tmp_path / "toy" / "report.html").read_text()
    assert "Where the time went" in page and "server step" in page and "clients (threads)" in page


def test_the_report_of_other_runs_does_not(tmp_path):
    run(tmp_path)
    assert main.main(["report", str(tmp_path / "toy"), "--quiet"]) == 0
    assert "Where the time went" not in (tmp_path / "toy" / "report.html").read_text()


def test_spans_add_up_and_are_taken_once():
    with profile.watch() as watched:
        for _ in range(2):
            with profile.timed("a"):
                pass
        with pytest.raises(ValueError, match="inside"), profile.timed("b"):
            raise ValueError("inside")
        assert set(watched.take()) == {"a", "b"} and watched.take() == {}
    with profile.timed("after"):
        pass
    assert watched.take() == {}
