"""The tidy table: every recorded value in its row, the same in every format, no formula, and a line about whatever is not in it."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcodist import runs
from fedcodist.cli import main
from fedcodist.errors import ConfigError, DataError
from fedcodist.reports import export
from fedcodist.reports.tables import FORMATS
from fedcodist.runs import NotARun, Run, StorageError
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


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """A function that is `fedcodist export`: (stdout, lines of stderr)."""
    monkeypatch.chdir(tmp_path)
    parser = main.Parser()
    parser.add_argument("--format", default="table", choices=FORMATS)
    parser.add_argument("--quiet", action="store_true")
    export.add(parser, main.Once)

    def call(*argv: str) -> tuple[str, list[str]]:
        assert export.run(parser.parse_args(list(argv))) == 0
        said = capsys.readouterr()
        return said.out, said.err.splitlines()

    return call


# Rows


def test_rows_by_hand(tmp_path):
    make(tmp_path, "merged", 3, rounds=2)
    data = export.table([tmp_path])
    rows = list(data.rows())
    assert data.columns == (*export.KEYS, *export.VALUES) == tuple(rows[0]) and data.notes == ()
    keys = [tuple(row[key] for key in export.KEYS) for row in rows]
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
    values = [{name: row[name] for name in export.VALUES if row[name] is not None} for row in rows]
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
    data = export.table([tmp_path, tmp_path / "trial/merged"])  # found twice, read once
    rows = list(data.rows())
    assert len(data.found) == 4 and data.notes == ()
    keys = {tuple(row[key] for key in export.KEYS) for row in rows}
    assert len(keys) == len(rows) == 4 * (4 * 2 + 2 * 2 * 2 + 2 * 2)
    assert {row["codistilled"] for row in rows if row["method"] == "fedavg" and row["split"] == "train"} == {False}


def test_of_many_teachers_there_are_the_mean_and_each(tmp_path):
    make(tmp_path, pools=("a", "b", "c"))
    data = export.table([tmp_path])
    row = next(row for row in data.rows() if row["pool"] == "c" and row["split"] == "train")
    assert data.columns[-6:] == tuple(f"agreement_{when}_{pool}" for when in ("after", "before") for pool in "abc")
    assert (row["agreement_before"], row["agreement_before_a"], row["agreement_before_b"]) == (0.3125, 0.25, 0.375)
    assert row["agreement_before_c"] is None


def test_what_only_a_method_of_ones_own_records_follows_by_name(tmp_path):
    path = make(tmp_path, rounds=2)
    rewrite(path, encode_line({"round": 1, "pools": {"small": {"zeal": 2, "busy": True, "round": 9, "seconds": 9, "words": "no"}}}))
    data = export.table([path])
    (row,) = (row for row in data.rows() if row["split"] == "train")
    assert data.columns[len(export.KEYS) + len(export.VALUES) :] == ("busy", "metric_round", "metric_seconds", "zeal")
    assert (row["zeal"], row["busy"], row["metric_round"], row["round"], row["seconds"]) == (2.0, 1.0, 9.0, 1, 0.5)


def test_what_is_no_finite_number_is_empty(tmp_path):
    path = make(tmp_path, rounds=2)
    odd = {"train_loss": float("nan"), "grad_norm": float("inf"), "alpha": None, "clients": 10**30, "distill_loss": [1.0, float("nan")]}
    rewrite(path, encode_line({"round": 1, "pools": {"small": odd}}))
    (row,) = (row for row in export.table([path]).rows() if row["split"] == "train")
    assert {name for name in export.VALUES if row[name] is not None} == {"seconds", "dropped", "codistilled", "distill_loss_before"}


def test_seconds_stop_where_a_round_was_not_timed(tmp_path):
    path = make(tmp_path)
    lines = (path / "timing.jsonl").read_bytes().splitlines(keepends=True)
    (path / "timing.jsonl").write_bytes(lines[0] + lines[1] + lines[3] + encode_line({"round": 1, "seconds": 8.0}))
    seconds = {row["round"]: row["seconds"] for row in export.table([path]).rows()}
    assert seconds == {1: 8.0, 2: 9.0, 3: None, 4: None}


def test_scalars_are_named_for_trackers():
    found = export.scalars(line(2, domains=("all", "in/out"), taught=True))
    assert found["train/train_loss/small"] == 0.5 and found["held_out/accuracy/large/in/out"] == 0.3125
    assert found["train/agreement_after/small"] == 0.5 and all(type(value) is float for value in found.values())
    assert not any("codistilled" in tag for tag in found)


# What is not there


def test_unfinished_runs_are_exported_as_far_as_they_are(tmp_path):
    path = make(tmp_path, stop=2)
    data = export.table([tmp_path])
    assert {(row["round"], row["split"]) for row in data.rows()} == {(1, "train"), (2, "train"), (2, "held_out")}
    assert data.notes == (f"{path}: not exported: rounds 3 to 4, and the test result: the run is not finished",)


def test_a_damaged_journal_is_exported_without_its_damage(tmp_path):
    path = make(tmp_path)
    good = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    rewrite(path, good[0], good[1].replace(b"0.5", b"0.6"), good[2], b"junk\n")
    data = export.table([tmp_path])
    assert {(row["round"], row["split"]) for row in data.rows()} == {(1, "train"), (3, "train"), (4, "held_out"), (4, "test")}
    (note,) = data.notes
    assert note == (
        f"{path}: not exported: rounds 2, 4; rounds.jsonl line 2: bad checksum, left out; rounds.jsonl line 4: bad checksum, left out"
    )


def test_many_damages_are_one_line(tmp_path):
    path = make(tmp_path, rounds=40)
    good = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    rewrite(path, *(row if i % 2 else b"?\n" for i, row in enumerate(good)))
    (note,) = export.table([path]).notes
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
    data = export.table([tmp_path])
    rows = list(data.rows())
    assert {row["split"] for row in rows} == splits
    assert {(row["experiment"], row["method"], row["seed"]) for row in rows} == {("trial", "merged", 0)}  # from the directories if need be
    (note,) = data.notes
    assert re.search(said, note) and "\n" not in note


def test_no_run_is_a_failure_that_names_those_nearby(tmp_path):
    make(tmp_path)
    with pytest.raises(NotARun, match="nothing: not a run; nearby: .*seed-0"):
        export.table([tmp_path / "nothing"])


def test_of_two_runs_with_one_key_the_last_counts(tmp_path):
    first, second = make(tmp_path / "a", rounds=2), make(tmp_path / "b", rounds=4)
    data = export.table([tmp_path])
    assert max(row["round"] for row in data.rows()) == 4 and [found.path for found in data.found] == [second]
    assert data.notes == (f"{first}: not exported: {second} is of the same experiment, method and seed",)


def test_a_run_that_goes_on_is_exported_as_it_was_looked_at(tmp_path):
    path = make(tmp_path, stop=2)
    data = export.table([tmp_path])
    with Run.open(path, runs.read(path).config, environment=HERE) as run:
        run.resume(STATE)
        run.record({"round": 3, "pools": {"small": {"unheard_of": 1.0}}})
        run.finish({"rounds": 4, "test": {"small": {"all": metrics(1.0)}}})
    assert {row["round"] for row in data.rows()} == {1, 2}
    path = make(tmp_path, seed=1, stop=4)
    data = export.table([path])
    with Run.open(path, runs.read(path).config, environment=HERE) as run:
        run.finish({"rounds": 4, "test": {"small": {"all": metrics(1.0)}}})
    assert "test" not in {row["split"] for row in data.rows()} and "test" in {row["split"] for row in export.table([path]).rows()}


# Files


def read_csv(path: Path, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """As types say, without the guard."""
    whole = {"seed", "round", *export.COUNTS}
    found = []
    with open(path, encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            cells = {name.removeprefix("'"): cell.removeprefix("'") for name, cell in row.items()}
            assert tuple(cells) == columns
            for name, cell in cells.items():
                if name not in export.WORDS:
                    kind = int if name in whole else {"true": True, "false": False}.get if name == "codistilled" else float
                    cells[name] = kind(cell) if cell else None
            found.append(cells)
    return found


@pytest.fixture
def odd(tmp_path) -> Path:
    """Runs of two methods, with names that a spreadsheet would calculate."""
    domains = ("all", "=1+1", '-2 "x"\n,y', "+\u00e9\U0001f600", "\ud800")
    make(tmp_path / "runs", "fedavg", 2**62, domains=domains)
    path = make(tmp_path / "runs", "merged", 0, name="@SUM(A1)", stop=3, domains=domains)
    with open(path / "rounds.jsonl", "ab") as file:
        file.write(encode_line({"round": 4, "pools": {"=pool": {"=cmd": 0.1, "train_loss": 1e-300}}}))
    return tmp_path / "runs"


def test_all_formats_hold_the_same(tmp_path, odd, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(export, "BATCH_ROWS", 7)
    data, before = export.table([odd]), tree(odd)
    rows = list(data.rows())
    assert {export.write(data, tmp_path / f"t.{end}") for end in ("csv", "parquet", "jsonl")} == {len(rows)}
    in_parquet = pq.read_table(tmp_path / "t.parquet")
    assert tuple(in_parquet.column_names) == data.columns and pq.ParquetFile(tmp_path / "t.parquet").num_row_groups == -(-len(rows) // 7)
    assert in_parquet.to_pylist() == rows
    in_json = [json.loads(text) for text in (tmp_path / "t.jsonl").read_text("utf-8").splitlines()]
    assert in_json == rows and all(tuple(row) == data.columns for row in in_json)
    assert read_csv(tmp_path / "t.csv", data.columns) == rows
    types = {field.name: field.type for field in in_parquet.schema}
    assert types["seed"] == types["clients"] == pa.int64() and types["domain"] == pa.string() and types["codistilled"] == pa.bool_()
    assert types["accuracy"] == types["=cmd"] == pa.float64() and rows[0]["seed"] == 2**62
    assert {row["domain"] for row in rows} == {"all", "=1+1", '-2 "x"\n,y', "+\u00e9\U0001f600", "?"}
    assert tree(odd) == before and sorted(p.name for p in tmp_path.iterdir()) == ["runs", "t.csv", "t.jsonl", "t.parquet"]


def test_no_cell_of_a_csv_starts_a_formula(tmp_path, odd):
    export.write(export.table([odd]), tmp_path / "t.csv")
    with open(tmp_path / "t.csv", encoding="utf-8", newline="") as stream:
        cells = [cell for row in csv.reader(stream) for cell in row]
    assert {"'=1+1", "'@SUM(A1)", "'=pool", "'=cmd"} < set(cells) and "-0.125" in cells
    for cell in cells:
        if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
            float(cell)


def test_one_run_is_in_memory_at_a_time(tmp_path, monkeypatch):
    for seed in range(3):
        make(tmp_path, seed=seed)
    data, opened = export.table([tmp_path]), []
    read = runs.read
    monkeypatch.setattr(export.runs, "read", lambda path: opened.append(path) or read(path))
    rows = data.rows()
    assert opened == [] and next(rows)["seed"] == 0 and len(opened) == 1
    assert len(list(rows)) == 3 * 14 - 1 and len(opened) == 3


@pytest.mark.parametrize("out", ["t.xlsx", "t", "t.csv.gz", "", "."])
def test_other_files_are_refused(tmp_path, out):
    with pytest.raises(ConfigError, match=r"--out: got .*; allowed a file that ends with .csv, .parquet, .jsonl"):
        export.write(export.table([make(tmp_path)]), out)


@pytest.mark.parametrize("inside", ["rounds.jsonl", "t.csv", "checkpoints/t.csv", "checkpoints/000004/t.parquet"])
def test_nothing_is_written_into_a_run(tmp_path, inside):
    path = make(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="--out: got a file in the run .*seed-0; allowed a place outside of runs"):
        export.write(export.table([path]), path / inside)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("end", ["csv", "parquet", "jsonl"])
def test_a_file_is_there_whole_or_as_it_was(tmp_path, monkeypatch, end):
    data, out = export.table([make(tmp_path / "runs")]), tmp_path / f"t.{end}"
    out.write_text("before")

    def rows(self):
        yield dict.fromkeys(data.columns)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(export.Table, "rows", rows)
        with pytest.raises(StorageError, match=rf"t.{end}: No space left on device"):
            export.write(data, out)
    assert out.read_text() == "before" and sorted(p.name for p in tmp_path.iterdir()) == ["runs", f"t.{end}"]
    with pytest.raises(StorageError, match="No such file or directory"):
        export.write(data, tmp_path / "nowhere" / f"t.{end}")


def test_without_pyarrow_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"^--out: got a Parquet file; .*\(pip install 'fedcodist\[data\]'\)$"):
        export.write(export.table([make(tmp_path)]), tmp_path / "t.parquet")


# The verb


def test_the_verb_writes_and_tells(call, tmp_path):
    make(Path("runs"), seed=0)
    path = make(Path("runs"), seed=1, stop=3)
    before = tree(Path("runs"))
    out, notes = call("runs", "--out", "all.csv")
    assert out == "all.csv: 22 rows of 2 runs\n" and len(read_csv(Path("all.csv"), (*export.KEYS, *export.VALUES))) == 22
    assert notes == [f"note: {path}: not exported: round 4, and the test result: the run is not finished"]
    assert call("runs", "--out", "all.parquet", "--format", "json", "--quiet") == (
        '[\n  {\n    "file": "all.parquet",\n    "runs": 2,\n    "rows": 22\n  }\n]\n',
        [],
    )
    assert tree(Path("runs")) == before


def test_without_a_file_the_table_is_printed(call):
    make(Path("runs"), "fedavg", rounds=2)
    out, notes = call("runs", "--format", "csv")
    Path("printed.csv").write_text(out)
    rows = list(export.table(["runs"]).rows())
    assert read_csv(Path("printed.csv"), (*export.KEYS, *export.VALUES)) == rows and notes == []
    assert json.loads(call("runs", "--format", "json")[0]) == rows
    table = call("runs")[0].splitlines()
    assert "train_loss" in table[0] and "alpha" not in table[0] and len(table) == 2 + len(rows)
    assert "| train_loss |" in call("runs", "--format", "md")[0] and "train\\_loss &" in call("runs", "--format", "latex")[0]


def test_what_the_verb_refuses(call):
    make(Path("runs"))
    with pytest.raises(ConfigError, match="--to: invalid choice: 'tensorbord' .*did you mean tensorboard"):
        call("runs", "--to", "tensorbord")
    with pytest.raises(ConfigError, match="--out: got a file with --to tensorboard; allowed one of the two"):
        call("runs", "--to", "tensorboard", "--out", "x.csv")
    with pytest.raises(ConfigError, match="--out: got 'x.txt'"):  # before a path is looked at
        call("nowhere", "--out", "x.txt")


def test_event_files_of_runs_that_were_made_without(call):
    pytest.importorskip("tensorboardX")
    path = make(Path("runs"), seed=0)
    make(Path("runs"), seed=1, stop=3)
    before = tree(Path("runs"))
    out, notes = call("runs", "--to", "tensorboard", "--format", "json")
    assert [row["rounds"] for row in json.loads(out)] == [4, 3] and json.loads(out)[0]["events"] == str(path / "tensorboard")
    assert len(notes) == 1 and "seed-1: not exported: round 4" in notes[0]
    after = tree(Path("runs"))
    assert {name for name in after if name not in before} == {
        f"trial/merged/seed-{seed}/tensorboard{file}" for seed in (0, 1) for file in ("", "/events.out.tfevents.fedcodist")
    }
    assert {name: after[name] for name in before} == before
    call("runs", "--to", "tensorboard")
    assert tree(Path("runs")) == after
