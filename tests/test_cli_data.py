"""`fedcodist data`: what is printed, the exit codes, and what lies on the disk afterwards."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from test_prepare import dealt, files_under, home, sentences, tff_hdf5, write_rows  # noqa: F401  # home is a fixture
from test_store import write

from fedcodist.cli import main
from fedcodist.data import store
from fedcodist.reports import progress


@pytest.fixture
def call(capsys):
    """A function that calls the command line: (exit code, stdout, lines of stderr)."""

    def call(*argv: object) -> tuple[int, str, list[str]]:
        code = main.main(["data", *map(str, argv)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err.splitlines()

    return call


@pytest.fixture
def table(tmp_path) -> Path:
    return write_rows(tmp_path / "t.tsv", sentences())


@pytest.fixture
def own(tmp_path) -> Path:
    """Forty rows of ten clients, all different."""
    x = np.arange(120, dtype=np.float32).reshape(40, 3)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(40) % 3, client=np.array([f"c{i % 10}" for i in range(40)]))
    return tmp_path / "own.npz"


# -- list and prepare --


def test_list(call, table, home):  # noqa: F811
    code, said, errors = call("list")
    assert code == 0 and errors == [] and re.findall(r"^(\w+) +\S", said, re.M)[:6] == [
        "c4", "cifar10", "cifar100", "own", "stackoverflow", "text",
    ]  # fmt: skip
    assert said.count("prepared: -") == 6 and f"stores are kept in {home} (FEDCODIST_DATA)" in said and not home.exists()
    call("prepare", "text", "--from", table)
    call("prepare", "text", "--from", table, "--name", "two")
    rows = {row["dataset"]: row for row in json.loads(call("list", "--format", "json")[1])}
    assert rows["text"]["prepared"] == "text, two" and rows["own"] | {"is": 0, "from": 0} == {
        "dataset": "own", "prepared": "-", "bytes": 0, "is": 0, "from": 0,
    }  # fmt: skip
    columns = [path for name in ("text", "two") for path in (home / name).iterdir() if path.name != "store.json"]
    assert rows["text"]["bytes"] == sum(path.stat().st_size for path in columns)
    (home / "two" / "store.json").write_text("hello")
    assert "prepared: text (0 MB)" in call("list")[1], "a damaged store is no reason to fail"


def test_prepare_once_and_again(call, table, home):  # noqa: F811
    code, said, errors = call("prepare", "text", "--from", table)
    assert code == 0 and errors == []
    assert said.startswith(f"prepared: {home / 'text'} (0.0 MB)\n") and "vocabulary: 15 ids; domains: answer, question" in said
    assert "  federated: 40 sentences of 8 clients, " in said
    before = files_under(home)
    assert call("prepare", "text", "--from", table) == (0, f"already prepared: {home / 'text'}\n", [])
    assert files_under(home) == before
    code, said, _ = call("prepare", "text", "--from", table, "--again")
    after = files_under(home)
    assert code == 0 and said.startswith("prepared: ")
    assert {path: digest for path, (digest, _) in after.items()} == {path: digest for path, (digest, _) in before.items()}
    assert after != before, "the files are new"
    assert call("prepare", "text", "--from", table, "--set", "vocab=5", "--set", "domains=['answer']")[0] == 0
    assert store.open_store("text").options | {"vocab": 5, "domains": ["answer"]} == store.open_store("text").options
    assert store.open_store("text").facts["vocabulary"]["size"] == 9


def test_prepare_under_another_name_and_from_home(call, table, home, monkeypatch):  # noqa: F811
    monkeypatch.setenv("HOME", str(table.parent))
    assert call("prepare", "text", "--from", "~/t.tsv", "--name", "my.text-2")[0] == 0
    assert list(store.stores()) == ["my.text-2"]


@pytest.mark.parametrize(
    "code, argv, says",
    [
        (2, ["txt"], r"data: got 'txt'; allowed c4, .*, text \(did you mean text\?\)"),
        (2, ["text", "--set", "vocb=3"], r"vocb: got an unknown key; allowed client, .*did you mean vocab\?"),
        (2, ["text", "--set", "vocab=0"], r"vocab: got 0; allowed an integer >= 1"),
        (2, ["text", "--set", "public=0.9"], r"public: got 0\.9; allowed public \+ held_out \+ test < 1 .*sum is 1\.1"),
        (2, ["text", "--set", "overlap=keep"], r"overlap: got 'keep'; allowed .*error.*drop.*allow"),
        (2, ["text", "--set", "vocab"], r"--set: got 'vocab'; allowed KEY=VALUE"),
        (2, ["text", "--name", "../x"], r"--name: got '\.\./x'; allowed \^\[A-Za-z0-9\]"),
        (2, ["text", "--name", "/etc/x"], r"--name: got '/etc/x'; allowed"),
        (2, ["text", "--name", "con"], r"--name: got 'con'; allowed"),
        (2, ["text", "--name", "x.partial"], r"--name: got x\.partial; allowed another name"),
        (2, ["text", "--name", "x.old"], r"--name: got x\.old; allowed another name"),
        (2, ["text", "--name", "downloads"], r"--name: got downloads; allowed another name"),
        (2, ["text", "--form", "x"], r"unrecognized arguments: --form"),
        (2, ["text", "--name", "a", "--name", "b"], r"--name is given twice"),
        (3, ["text", "--from", "nowhere.tsv"], r"nowhere\.tsv: got nothing at this path; allowed a file or a directory"),
        (3, ["text", "--from", "{table}.gone"], r"t\.tsv\.gone: got nothing at this path"),
        (3, ["text"], r"data prepare text: got no --from; allowed --from PATH, with a \.tsv, "),
        (3, ["stackoverflow", "--fetch"], r"data prepare stackoverflow: got no --from; .*it is to be had at https://storage\.googleapis"),
        (3, ["text", "--set", "vocabulary=nowhere"], r"data nowhere: got nothing at this path; allowed a prepared store"),
    ],
)
def test_prepare_refuses(call, table, home, tmp_path, code, argv, says):  # noqa: F811
    argv = [arg.replace("{table}", str(table)) for arg in argv]
    if ("--from" not in argv and code == 2) or any("vocabulary" in arg for arg in argv):
        argv += ["--from", str(table)]
    before = files_under(tmp_path)
    found = call("prepare", *argv)
    assert found[0] == code and found[1] == "" and len(found[2]) == 1
    assert found[2][0].startswith("error: ") and re.search(says, found[2][0])
    assert files_under(tmp_path) == before and store.stores() == {}


def test_all_that_is_wrong_with_the_settings_is_said_at_once(call):
    code, _, errors = call("prepare", "text", "--set", "vocab=0", "--set", "length=1")
    assert code == 2 and len(errors) == 2
    code, _, errors = call("prepare", "txt", "--errors", "json")
    assert code == 2 and json.loads(errors[0])["code"] == 2


def test_progress(call, table, monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0)
    code, _, errors = call("prepare", "text", "--from", table)
    assert code == 0 and errors[-1] == "60 of 60 sentences"
    assert call("prepare", "text", "--from", table, "--again", "--quiet")[2] == []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert call("prepare", "text", "--from", table, "--again")[0] == 0


# -- verify --


def test_verify(call, table, own, home):  # noqa: F811
    assert call("verify")[0] == 0
    call("prepare", "text", "--from", table)
    call("prepare", "own", "--from", own)
    code, said, errors = call("verify", "--format", "json")
    assert code == 0 and errors == []
    assert [(row["store"], row["columns"], row["verified"]) for row in json.loads(said)] == [("own", 3, "yes"), ("text", 17, "yes")]
    raw = bytearray((home / "text" / "public_line.npy").read_bytes())
    raw[-1] ^= 1
    (home / "text" / "public_line.npy").write_bytes(raw)
    (home / "own" / "x.npy").unlink()
    code, said, errors = call("verify", "--format", "json")
    assert code == 3 and [row["verified"] for row in json.loads(said)] == ["no", "no"], "one bad store does not hide another"
    assert len(errors) == 2 and "x.npy: missing" in errors[0] and "public_line.npy: SHA-256 differs from store.json" in errors[1]
    assert all(line.startswith("error: ") and "prepare it again" in line for line in errors)
    assert call("verify", home / "text")[0] == 3 and call("verify", "nowhere")[0] == 3
    assert call("prepare", "own", "--from", own)[0] == 0 and call("verify", "own")[0] == 0


# -- show --


def test_show_text(call, table):
    call("prepare", "text", "--from", table)
    code, said, errors = call("show", "text")
    assert code == 0 and errors == []
    lines = [line.split() for line in said.splitlines()]
    for row in (
        ["clients", "8", "40", "-", "0"],
        ["public", "-", "10", "-", "0"],
        ["held_out", "1", "5", "-", "0"],
        ["test", "1", "5", "-", "0"],
    ):
        assert row in lines
    assert "5.0 examples of a client, on average" in said and "overlap: none" in said
    assert ["10", "#" * 40, "40"] in lines, "all sentences have ten words"
    assert "note: 8 clients, 40 sentences; 5 held out, 5 test sentences" in said


def test_show_own_with_pictures(call, own, tmp_path):
    call("prepare", "own", "--from", own)
    code, said, errors = call("show", "own", "--format", "json", "--out", tmp_path / "pictures" / "here")
    found = json.loads(said)
    assert code == 0 and [row["examples"] for row in found["rows"]] == [20, 12, 4, 4] and found["overlaps"] == []
    assert sum(count for _, count in found["histograms"]["labels, clients"]) == 20
    assert errors == [f"picture: {tmp_path / 'pictures' / 'here' / 'data.png'}"]
    assert sorted(path.name for path in (tmp_path / "pictures" / "here").iterdir()) == ["data.png", "data.svg"]
    assert call("show", "own", "--out", tmp_path / "pictures")[1].endswith(f"picture: {tmp_path / 'pictures' / 'data.png'}\n")
    assert call("show", "own", "--format", "csv")[1].splitlines()[0] == "part,clients,examples,labels,also in an earlier part"
    (tmp_path / "file").write_text("")
    code, _, errors = call("show", "own", "--out", tmp_path / "file")
    assert code == 6 and len(errors) == 1


def test_show_takes_settings_of_the_task(call, own):
    call("prepare", "own", "--from", own)
    assert json.loads(call("show", "own", "--set", "public=0.1", "--format", "json")[1])["rows"][1]["examples"] == 4
    code, _, errors = call("show", "own", "--set", "pubic=0.1")
    assert code == 2 and len(errors) == 1 and "did you mean public?" in errors[0]


def test_show_images_with_the_publishers_clients(call, tmp_path):
    for split, clients in dealt().items():
        tff_hdf5(tmp_path / f"fed_cifar100_{split}.h5", clients)
    call("prepare", "cifar100", "--from", tmp_path)
    code, said, _ = call("show", "cifar100", "--set", "public_clients=1", "--set", "held_out_clients=1", "--format", "json")
    rows = {row["part"]: row for row in json.loads(said)["rows"]}
    assert code == 0 and rows["clients"]["clients"] == 3 and rows["test"]["examples"] == 5
    assert sum(rows[part]["examples"] for part in ("clients", "public", "held_out")) == 20


def test_overlap_is_a_failure_unless_it_is_allowed(call, tmp_path):
    x = np.arange(120, dtype=np.float32).reshape(40, 3)
    x[4:8] = x[0]
    split = np.array((["train"] * 5 + ["public"] + ["held_out"] + ["test"]) * 5)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(40) % 3, client=np.array([f"c{i % 10}" for i in range(40)]), split=split)
    call("prepare", "own", "--from", tmp_path / "own.npz")
    code, said, errors = call("show", "own")
    assert code == 3 and len(errors) == 1
    assert errors[0].startswith("error: own: got 1 rows of public that are also in clients, ") and errors[0].endswith("(--allow-overlap)")
    assert "overlap: 1 rows of test are also in public" in said
    assert re.search(r"^test +\d+ +5 +\d+ +1$", said, re.M), "a row that is in two earlier parts is one row"
    assert call("show", "own", "--allow-overlap") == (0, said, [])


def test_show_a_config(call):
    code, said, _ = call("show", "quick/images", "--set", "rounds=3", "--format", "json")
    assert code == 0 and json.loads(said)["task"] == "fashion" and json.loads(said)["rows"][0]["clients"] == 63
    code, _, errors = call("show", "nowhere")
    assert code == 2 and len(errors) == 1 and "data show: got 'nowhere'; allowed a prepared store, or a config" in errors[0]


def test_show_a_store_of_no_known_kind(call, home):  # noqa: F811
    write(home / "mine", x=np.arange(3))
    code, _, errors = call("show", "mine")
    assert code == 3 and errors == ["error: data mine: got a store of example; allowed one of labelled_images, text, own"]
