"""The files of the tidy table: the same in every format, no formula, whole or not at all."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from test_tidy import make, tree

from fedcodist.errors import ConfigError, DataError
from fedcodist.reports import export, tidy
from fedcodist.runs import StorageError
from fedcodist.storage.journal import encode_line


def read_csv(path: Path, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """As types say, without the guard."""
    whole = {"seed", "round", *tidy.COUNTS}
    found = []
    with open(path, encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            cells = {name.removeprefix("'"): cell.removeprefix("'") for name, cell in row.items()}
            assert tuple(cells) == columns
            for name, cell in cells.items():
                if name not in tidy.WORDS:
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
    data, before = tidy.table([odd]), tree(odd)
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
    export.write(tidy.table([odd]), tmp_path / "t.csv")
    with open(tmp_path / "t.csv", encoding="utf-8", newline="") as stream:
        cells = [cell for row in csv.reader(stream) for cell in row]
    assert {"'=1+1", "'@SUM(A1)", "'=pool", "'=cmd"} < set(cells) and "-0.125" in cells
    for cell in cells:
        if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
            float(cell)


@pytest.mark.parametrize("out", ["t.xlsx", "t", "t.csv.gz", "", "."])
def test_other_files_are_refused(tmp_path, out):
    with pytest.raises(ConfigError, match=r"--out: got .*; allowed a file that ends with .csv, .parquet, .jsonl"):
        export.write(tidy.table([make(tmp_path)]), out)


@pytest.mark.parametrize("inside", ["rounds.jsonl", "t.csv", "checkpoints/t.csv", "checkpoints/000004/t.parquet"])
def test_nothing_is_written_into_a_run(tmp_path, inside):
    path = make(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="--out: got a file in the run .*seed-0; allowed a place outside of runs"):
        export.write(tidy.table([path]), path / inside)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("end", ["csv", "parquet", "jsonl"])
def test_a_file_is_there_whole_or_as_it_was(tmp_path, monkeypatch, end):
    data, out = tidy.table([make(tmp_path / "runs")]), tmp_path / f"t.{end}"
    out.write_text("before")

    def rows(self):
        yield dict.fromkeys(data.columns)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(tidy.Table, "rows", rows)
        with pytest.raises(StorageError, match=rf"t.{end}: No space left on device"):
            export.write(data, out)
    assert out.read_text() == "before" and sorted(p.name for p in tmp_path.iterdir()) == ["runs", f"t.{end}"]
    with pytest.raises(StorageError, match="No such file or directory"):
        export.write(data, tmp_path / "nowhere" / f"t.{end}")


def test_without_pyarrow_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"^--out: got a Parquet file; .*\(pip install 'fedcodist\[data\]'\)$"):
        export.write(tidy.table([make(tmp_path)]), tmp_path / "t.parquet")
