"""The tidy table: every recorded value in its row, and a line about whatever is not in it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcodist import runs
from fedcodist.reports import tidy
from fedcodist.runs import NotARun, Run
from fedcodist.storage.journal import encode_line

HERE = {"jax": "0.10.2", "cores": 2}
STATE = {"small": {"w": np.zeros(2, np.float32)}}


def metrics(value: float) -> dict[str, float]:
    return {"accuracy": value, "loss": 1 - value}


def line(t: int, pools: tuple[str, ...] = ("large", "small"), domains: tuple[str, ...] = ("all",), taught: bool = False) -> dict[str, Any]:
    """A round as the journal has it; evaluated in even rounds."""
    infos = {}
    for i, pool in enumerate(pools):
        infos[pool] = {"clients": 4, "examples": 40 + i, "train_loss": 1 / t, "grad_norm": 0.5 * t}
        if taught:
            infos[pool] |= {"alpha": 0.5, "codistilled": True, "dist_norm": 0.25, "cosine": -0.125, "distill_loss": [0.75, 0.5]}
            infos[pool]["agreement"] = {other: [0.25 + 0.125 * j, 0.5] for j, other in enumerate(pools) if other != pool}
    scores = {pool: {domain: metrics(t / 8 + i / 16) for i, domain in enumerate(domains)} for pool in pools}
    return {"round": t, "pools": infos} | ({"held_out": scores} if t % 2 == 0 else {})


def make(
    root: Path, method: str = "merged", seed: int = 0, rounds: int = 4, stop: int | None = None, name: str = "trial", **how: Any
) -> Path:
    """A recorded run, finished unless it stops before."""
    path = runs.run_path(root, "trial", method, seed)
    last = line(rounds, **how)["held_out"]
    with Run.open(path, {"name": name, "rounds": rounds, "method": {"kind": method}}, environment=HERE) as run:
        run.resume(STATE)
        for t in range(1, (stop or rounds) + 1):
            run.record(line(t, taught=method == "merged", **how))
            run.time({"round": t, "seconds": 0.5 * t})
        run.commit(stop or rounds, STATE)
        if stop is None:
            run.finish({"seed": seed, "method": method, "rounds": rounds, "held_out": last, "test": last})
    return path


def tree(place: Path) -> dict[str, str]:
    return {str(p.relative_to(place)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "" for p in sorted(place.rglob("*"))}


def rewrite(path: Path, *lines: bytes) -> None:
    (path / "rounds.jsonl").write_bytes(b"".join(lines))


def test_rows_by_hand(tmp_path):
    make(tmp_path, "merged", 3, rounds=2)
    data = tidy.table([tmp_path])
    rows = list(data.rows())
    assert data.columns == (*tidy.KEYS, *tidy.VALUES) == tuple(rows[0]) and data.notes == ()
    keys = [tuple(row[key] for key in tidy.KEYS) for row in rows]
    assert keys == [
        ("trial", "merged", 3, 1, "large", "train", "all"),
        ("trial", "merged", 3, 1, "small", "train", "all"),
        ("trial", "merged", 3, 2, "large", "train", "all"),
        ("trial", "merged", 3, 2, "small", "train", "all"),
        ("trial", "merged", 3, 2, "large", "held_out", "all"),
        ("trial", "merged", 3, 2, "small", "held_out", "all"),
        ("trial", "merged", 3, 2, "large", "test", "all"),
        ("trial", "merged", 3, 2, "small", "test", "all"),
    ]
    values = [{name: row[name] for name in tidy.VALUES if row[name] is not None} for row in rows]
    assert values[3] == {
        "seconds": 1.5, "train_loss": 0.5, "grad_norm": 1.0, "clients": 4, "examples": 41, "dropped": 0, "codistilled": True, "alpha": 0.5,
        "dist_norm": 0.25, "cosine": -0.125, "distill_loss_before": 0.75, "distill_loss_after": 0.5, "agreement_before": 0.25,
        "agreement_after": 0.5,
    }  # fmt: skip
    assert values[4] == values[7] == {"seconds": 1.5, "accuracy": 0.25, "loss": 0.75}


def test_a_key_is_there_once_over_runs_methods_seeds_and_domains(tmp_path):
    for method in ("fedavg", "merged"):
        for seed in (0, 1):
            make(tmp_path, method, seed, domains=("all", "indoors"))
    data = tidy.table([tmp_path, tmp_path / "trial/merged"])  # found twice, read once
    rows = list(data.rows())
    assert len(data.found) == 4 and data.notes == ()
    keys = {tuple(row[key] for key in tidy.KEYS) for row in rows}
    assert len(keys) == len(rows) == 4 * (4 * 2 + 2 * 2 * 2 + 2 * 2)
    assert {row["codistilled"] for row in rows if row["method"] == "fedavg" and row["split"] == "train"} == {False}


def test_of_many_teachers_there_are_the_mean_and_each(tmp_path):
    make(tmp_path, pools=("a", "b", "c"))
    data = tidy.table([tmp_path])
    row = next(row for row in data.rows() if row["pool"] == "c" and row["split"] == "train")
    assert data.columns[-6:] == tuple(f"agreement_{when}_{pool}" for when in ("after", "before") for pool in "abc")
    assert (row["agreement_before"], row["agreement_before_a"], row["agreement_before_b"]) == (0.3125, 0.25, 0.375)
    assert row["agreement_before_c"] is None


def test_what_only_a_method_of_ones_own_records_follows_by_name(tmp_path):
    path = make(tmp_path, rounds=2)
    rewrite(path, encode_line({"round": 1, "pools": {"small": {"zeal": 2, "busy": True, "round": 9, "seconds": 9, "words": "no"}}}))
    data = tidy.table([path])
    (row,) = (row for row in data.rows() if row["split"] == "train")
    assert data.columns[len(tidy.KEYS) + len(tidy.VALUES) :] == ("busy", "metric_round", "metric_seconds", "zeal")
    assert (row["zeal"], row["busy"], row["metric_round"], row["round"], row["seconds"]) == (2.0, 1.0, 9.0, 1, 0.5)


def test_what_is_no_finite_number_is_empty(tmp_path):
    path = make(tmp_path, rounds=2)
    odd = {"train_loss": float("nan"), "grad_norm": float("inf"), "alpha": None, "clients": 10**30, "distill_loss": [1.0, float("nan")]}
    rewrite(path, encode_line({"round": 1, "pools": {"small": odd}}))
    (row,) = (row for row in tidy.table([path]).rows() if row["split"] == "train")
    assert {name for name in tidy.VALUES if row[name] is not None} == {"seconds", "dropped", "codistilled", "distill_loss_before"}


def test_seconds_stop_where_a_round_was_not_timed(tmp_path):
    path = make(tmp_path)
    lines = (path / "timing.jsonl").read_bytes().splitlines(keepends=True)
    (path / "timing.jsonl").write_bytes(lines[0] + lines[1] + lines[3] + encode_line({"round": 1, "seconds": 8.0}))
    seconds = {row["round"]: row["seconds"] for row in tidy.table([path]).rows()}
    assert seconds == {1: 8.0, 2: 9.0, 3: None, 4: None}


# What is not there


def test_unfinished_runs_are_exported_as_far_as_they_are(tmp_path):
    path = make(tmp_path, stop=2)
    data = tidy.table([tmp_path])
    assert {(row["round"], row["split"]) for row in data.rows()} == {(1, "train"), (2, "train"), (2, "held_out")}
    assert data.notes == (f"{path}: not exported: rounds 3 to 4, and the test result: the run is not finished",)


def test_a_damaged_journal_is_exported_without_its_damage(tmp_path):
    path = make(tmp_path)
    good = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    rewrite(path, good[0], good[1].replace(b"0.5", b"0.6"), good[2], b"junk\n")
    data = tidy.table([tmp_path])
    assert {(row["round"], row["split"]) for row in data.rows()} == {(1, "train"), (3, "train"), (4, "held_out"), (4, "test")}
    (note,) = data.notes
    assert note == (
        f"{path}: not exported: rounds 2, 4; rounds.jsonl line 2: bad checksum, left out; rounds.jsonl line 4: bad checksum, left out"
    )


def test_many_damages_are_one_line(tmp_path):
    path = make(tmp_path, rounds=40)
    good = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    rewrite(path, *(row if i % 2 else b"?\n" for i, row in enumerate(good)))
    (note,) = tidy.table([path]).notes
    assert "rounds 1, 3, 5, and 17 more" in note and "and 17 more" in note.split(";")[-1] and "\n" not in note


DAMAGES = {
    "no journal": (lambda path: (path / "rounds.jsonl").unlink(), "rounds 1 to 4", {"held_out", "test"}),
    "journal is a directory": (
        lambda path: ((path / "rounds.jsonl").unlink(), (path / "rounds.jsonl").mkdir()),
        "rounds.jsonl: Is a directory",
        {"held_out", "test"},
    ),
    "result cut": (lambda path: (path / "result.json").write_bytes(b"{"), "the test result.*result.json: not JSON", {"train", "held_out"}),
    "config cut": (lambda path: (path / "config.json").write_bytes(b"{"), "config.json: not JSON", {"train", "held_out", "test"}),
    "rows of another kind": (
        lambda path: rewrite(path, *map(encode_line, ({"round": "1"}, {"round": 2, "pools": 3, "held_out": [1]}, {"round": 3}))),
        "rounds 1, 4",
        {"held_out", "test"},
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_the_rest_exported(tmp_path, damage):
    spoil, said, splits = DAMAGES[damage]
    path = make(tmp_path)
    spoil(path)
    data = tidy.table([tmp_path])
    rows = list(data.rows())
    assert {row["split"] for row in rows} == splits
    assert {(row["experiment"], row["method"], row["seed"]) for row in rows} == {("trial", "merged", 0)}  # from the directories if need be
    (note,) = data.notes
    assert re.search(said, note) and "\n" not in note


def test_no_run_is_a_failure_that_names_those_nearby(tmp_path):
    make(tmp_path)
    with pytest.raises(NotARun, match="nothing: not a run; nearby: .*seed-0"):
        tidy.table([tmp_path / "nothing"])


def test_of_two_runs_with_one_key_the_last_counts(tmp_path):
    first, second = make(tmp_path / "a", rounds=2), make(tmp_path / "b", rounds=4)
    data = tidy.table([tmp_path])
    assert max(row["round"] for row in data.rows()) == 4 and [found.path for found in data.found] == [second]
    assert data.notes == (f"{first}: not exported: {second} is of the same experiment, method and seed",)


def test_a_run_that_goes_on_is_exported_as_it_was_looked_at(tmp_path):
    path = make(tmp_path, stop=2)
    data = tidy.table([tmp_path])
    with Run.open(path, runs.read(path).config, environment=HERE) as run:
        run.resume(STATE)
        run.record({"round": 3, "pools": {"small": {"unheard_of": 1.0}}})
        run.finish({"rounds": 4, "test": {"small": {"all": metrics(1.0)}}})
    assert {row["round"] for row in data.rows()} == {1, 2}
    path = make(tmp_path, seed=1, stop=4)
    data = tidy.table([path])
    with Run.open(path, runs.read(path).config, environment=HERE) as run:
        run.finish({"rounds": 4, "test": {"small": {"all": metrics(1.0)}}})
    assert "test" not in {row["split"] for row in data.rows()} and "test" in {row["split"] for row in tidy.table([path]).rows()}


def test_one_run_is_in_memory_at_a_time(tmp_path, monkeypatch):
    for seed in range(3):
        make(tmp_path, seed=seed)
    data, opened = tidy.table([tmp_path]), []
    read = runs.read
    monkeypatch.setattr(tidy.runs, "read", lambda path: opened.append(path) or read(path))
    rows = data.rows()
    assert opened == [] and next(rows)["seed"] == 0 and len(opened) == 1
    assert len(list(rows)) == 3 * 14 - 1 and len(opened) == 3
