"""`fedcodist export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_export import read_csv
from test_tidy import make, tree

from fedcodist.cli import export
from fedcodist.cli.arguments import Parser
from fedcodist.errors import ConfigError
from fedcodist.reports import tidy
from fedcodist.reports.tables import FORMATS


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """A function that is `fedcodist export`: (stdout, lines of stderr)."""
    monkeypatch.chdir(tmp_path)
    parser = Parser()
    parser.add_argument("--format", default="table", choices=FORMATS)
    parser.add_argument("--quiet", action="store_true")
    export.add(parser)

    def call(*argv: str) -> tuple[str, list[str]]:
        assert export.run(parser.parse_args(list(argv))) == 0
        said = capsys.readouterr()
        return said.out, said.err.splitlines()

    return call


def test_the_verb_writes_and_tells(call, tmp_path):
    make(Path("runs"), seed=0)
    path = make(Path("runs"), seed=1, stop=3)
    before = tree(Path("runs"))
    out, notes = call("runs", "--out", "all.csv")
    assert out == "all.csv: 22 rows of 2 runs\n" and len(read_csv(Path("all.csv"), (*tidy.KEYS, *tidy.VALUES))) == 22
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
    rows = list(tidy.table(["runs"]).rows())
    assert read_csv(Path("printed.csv"), (*tidy.KEYS, *tidy.VALUES)) == rows and notes == []
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
