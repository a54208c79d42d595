"""The acceptance catalogue: what the command line does with bad input, in exit code, words, and what it leaves alone.

A row is a number of the catalogue of bad inputs. Most call `cli.main` in this process, which is the whole command line but for the start
of Python; those about signals, pipes, locales and environments start a process.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedcodist
from fedcodist import config, runs
from fedcodist.cli import main
from fedcodist.errors import ConfigError
from fedcodist.federation import Federation
from fedcodist.runs import directory
from fedcodist.storage import sealed

ROOT = Path(__file__).resolve().parent.parent
TEXT = """\
rounds = 4
seeds = [0]
checkpoint_every = 1
task = "toy"

[pools.small]
model = { kind = "mlp", hidden = [4] }
cohort = 4
work = { kind = "local_sgd", lr = 0.1, batch = 10 }
server = { kind = "adam", lr = 0.03 }

[pools.large]
model = { kind = "mlp", hidden = [8] }
clients = { take = 4 }
cohort = 4
work = { kind = "local_sgd", lr = 0.1, batch = 10 }
server = { kind = "adam", lr = 0.03 }

[method]
kind = "merged"
alpha = 0.7
distill = { steps = 4, batch = 50 }
"""
PERIODIC = 'method={ kind = "periodic", period = 2, distill = { steps = 4, batch = 50 } }'


pytestmark = pytest.mark.usefixtures("prepared")


def tree(place: Path) -> dict[str, str]:
    """{path: content digest} of all that is there. Times are no part of it, and a lock that was taken and let go is the same lock."""
    files = {
        str(p.relative_to(place)): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else "directory" for p in place.rglob("*")
    }
    return dict(sorted(files.items()))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty working directory with a good config in it."""
    monkeypatch.chdir(tmp_path)
    Path("good.toml").write_text(TEXT)
    return tmp_path


@pytest.fixture
def call(place, capsys):
    """A function that calls the command line: (exit code, stdout, lines of stderr)."""

    def call(*argv: str) -> tuple[int, str, list[str]]:
        code = main.main(list(argv))
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err.splitlines()

    return call


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A directory with the good config and a finished run of it; copy it before changing anything."""
    there = tmp_path_factory.mktemp("finished")
    (there / "good.toml").write_text(TEXT)
    assert main.main(["run", str(there / "good.toml"), "--out", str(there / "runs"), "--format", "json", "--quiet"]) == 0
    return there


@pytest.fixture
def done(place, finished) -> Path:
    """The run directory of a finished run, to be changed at will: runs/good/merged/seed-0 under the working directory."""
    shutil.copytree(finished / "runs", place / "runs")
    return place / "runs" / "good" / "merged" / "seed-0"


# -- 1 to 20, 24, 53, 73, 90: refused before anything is written, one line for each thing that is wrong --

REFUSED = {
    "1 typo": (["method.aplha=0.5"], [r"method\.aplha: got an unknown key; allowed alpha, distill .*did you mean alpha\?"]),
    "2 unknown section": (["metod.x=1"], [r"metod: got an unknown key; allowed pools, task, .*did you mean method\?"]),
    "2 nested": (["pools.small.work.momentun=0.9"], [r"pools\.small\.work\.momentun: got an unknown key; allowed lr, epochs, batch, "]),
    "6 above": (["method.alpha=1.2"], [r"method\.alpha: got 1\.2; allowed a number >= 0 and <= 1"]),
    "6 below": (["method.alpha=-0.1"], [r"method\.alpha: got -0\.1; allowed a number >= 0 and <= 1"]),
    "6 nan": (["method.alpha=nan"], [r"method\.alpha: got nan; allowed a number >= 0 and <= 1"]),
    "6 inf": (["method.alpha=inf"], [r"method\.alpha: got inf; allowed a number >= 0 and <= 1"]),
    "7 string": (['method.alpha="0.5"'], [r"method\.alpha: got '0\.5'; allowed a number"]),
    "7 boolean": (["method.alpha=true"], [r"method\.alpha: got true; allowed a number"]),
    "7 comma": (["pools.small.work.lr=0,5"], [r"pools\.small\.work\.lr: got '0,5'; allowed a number .* decimal point"]),
    "7 quotes": (['pools.small.work.lr="0.5"'], [r"pools\.small\.work\.lr: got '0\.5'; allowed a number .* without quotes"]),
    "10 zero": (["pools.small.teaches.temperature=0"], [r"pools\.small\.teaches\.temperature: got 0\.0; allowed .* >= 0\.001 and <= 1000"]),
    "10 negative": (["pools.small.teaches.temperature=-1"], [r"temperature: got -1\.0; allowed .* >= 0\.001 and <= 1000"]),
    "10 tiny": (["pools.small.teaches.temperature=1e-9"], [r"temperature: got 1e-09; allowed .* >= 0\.001 and <= 1000"]),
    "10 huge": (["pools.small.teaches.temperature=1e9"], [r"temperature: got 1000000000\.0; allowed .* >= 0\.001 and <= 1000"]),
    "11 zero": ([PERIODIC.replace("period = 2", "period = 0")], [r"method\.period: got 0; allowed an integer >= 1"]),
    "11 negative": ([PERIODIC.replace("period = 2", "period = -3")], [r"method\.period: got -3; allowed an integer >= 1"]),
    "11 fraction": ([PERIODIC.replace("period = 2", "period = 2.5")], [r"method\.period: got 2\.5; allowed an integer >= 1"]),
    "13 merged": (["method.distill.steps=0"], [r"method\.distill\.steps: got 0; allowed an integer >= 1"]),
    "13 periodic": ([PERIODIC.replace("steps = 4", "steps = 0")], [r"method\.distill\.steps: got 0; allowed an integer >= 1"]),
    "14 zero": (["rounds=0"], [r"rounds: got 0; allowed an integer >= 1 and <= 1e\+07"]),
    "14 negative": (["rounds=-1"], [r"rounds: got -1; allowed an integer >= 1 and <= 1e\+07"]),
    "14 huge": (["rounds=1000000000000"], [r"rounds: got 1000000000000; allowed an integer >= 1 and <= 1e\+07"]),
    "15 above": (["pools.small.learns.self_weight=1.1"], [r"pools\.small\.learns\.self_weight: got 1\.1; allowed .* >= 0 and <= 1"]),
    "15 below": (["pools.small.learns.self_weight=-0.1"], [r"pools\.small\.learns\.self_weight: got -0\.1; allowed .* >= 0 and <= 1"]),
    "16 client zero": (["pools.small.work.lr=0"], [r"pools\.small\.work\.lr: got 0\.0; allowed a number > 0 and <= 1000"]),
    "16 client nan": (["pools.small.work.lr=nan"], [r"pools\.small\.work\.lr: got nan; allowed a number > 0 and <= 1000"]),
    "16 server negative": (["pools.small.server.lr=-1"], [r"pools\.small\.server\.lr: got -1\.0; allowed a number > 0 and <= 1000"]),
    "16 student huge": (["pools.small.learns.lr=1e9"], [r"pools\.small\.learns\.lr: got 1000000000\.0; allowed a number > 0 and <= 1000"]),
    "17 eps": (["pools.small.server.eps=0"], [r"pools\.small\.server\.eps: got 0\.0; allowed a number > 0 and <= 1"]),
    "17 b1": (["pools.small.server.b1=1"], [r"pools\.small\.server\.b1: got 1\.0; allowed a number >= 0 and < 1"]),
    "17 b2": (["method.distill.b2=1.5"], [r"method\.distill\.b2: got 1\.5; allowed a number >= 0 and < 1"]),
    "18 negative": (["seeds=[-1]"], [r"seeds\[0\]: got -1; allowed an integer >= 0"]),
    "18 huge": ([f"seeds=[{2**63}]"], [rf"seeds\[0\]: got {2**63}; allowed an integer >= 0 and <= "]),
    "18 fraction": (["seeds=[1.5]"], [r"seeds\[0\]: got 1\.5; allowed an integer"]),
    "18 twice": (["seeds=[1, 1]"], [r"seeds: got \[1, 1\]; allowed each seed once"]),
    "19": (["pools.small.cohort=20"], [r"pools\.small\.cohort: got 20; allowed at most 12 clients \(pool small has 12\) \(or --clamp\)"]),
    "20": (["pools.small.cohort=0"], [r"pools\.small\.cohort: got 0; allowed an integer >= 1"]),
    "24 none": (["pools={}"], [r"pools: got 0 of them; allowed >= 2 non-empty pools"]),
    "24 one": (['pools={ only = { model = "mlp" } }'], [r"pools: got 1 of them; allowed >= 2 non-empty pools"]),
    "25 disjoint": (
        ["membership=disjoint"],
        [r"membership: got 4 clients of large in both \(client-\d+, client-\d+, client-\d+\); allowed disj"],
    ),
    "25 nested": (
        ["membership=nested", "pools.small.clients.take=2", "pools.large.clients.skip=6", "pools.small.cohort=2"],
        [r"membership: got 2 clients of small not in large \(client-\d+, client-\d+\); allowed nested pools"],
    ),
    "32": (["method.distill.batch=201"], [r"method\.distill\.batch: got 201; allowed at most the 200 public examples \(or --clamp\)"]),
    "36 ids": (["pools.small.model=lstm"], [r"pools\.small\.model: got lstm; allowed a model for inputs of 8 float32 and 4 classes"]),
    "36 images": (["pools.small.model=cnn"], [r"pools\.small\.model: got cnn; allowed a model for inputs of 8 float32 and 4 classes"]),
    "73": (["engine.workers=-1"], [r"engine\.workers: got -1; allowed an integer >= 0"]),
    "90 no value": (["a.b="], [r"--set: got 'a\.b='; allowed KEY=VALUE with a dotted key"]),
    "90 no key": (["=x"], [r"--set: got '=x'; allowed KEY=VALUE with a dotted key"]),
    "all at once": (["rounds=0", "method.alpha=2", "keep=0"], [r"method\.alpha: got 2", r"rounds: got 0", r"keep: got 0"]),
}


@pytest.mark.parametrize("verb", ["run", "show"])
@pytest.mark.parametrize("row", REFUSED)
def test_refused_before_anything_is_written(call, place, row, verb):
    assignments, patterns = REFUSED[row]
    before = tree(place)
    code, out, lines = call(verb, "good.toml", *(part for a in assignments for part in ("--set", a)))
    assert (code, out, len(lines)) == (2, "", len(patterns)), lines
    for line in lines:
        assert line.startswith("error: ") and line.isascii() and line.isprintable()
    for pattern in patterns:
        assert any(re.match(f"error: .*{pattern}", line) for line in lines), lines
    assert tree(place) == before


@pytest.mark.parametrize(
    "row, data, pattern",
    [
        ("3", TEXT.replace("rounds = 4", "rounds = 4\nrounds = 5").encode(), r"bad\.toml:2: not TOML: .*twice.*first in line 1"),
        ("3 table", (TEXT + '[method]\nkind = "fedavg"\n').encode(), r"bad\.toml:\d+: not TOML: .*twice"),
        ("4 empty", b"", r"bad\.toml: the config is empty"),
        ("4 not a table", b'"rounds"', r"bad\.toml.*: not TOML"),
        ("4 binary", bytes(range(256)), r"bad\.toml: got a byte that is not UTF-8 at offset 128"),
        ("4 too large", b"#" * (2**20 + 1), r"bad\.toml: got more than 1 MiB; allowed"),
        ("4 nested", b"a = " + b"[" * 300 + b"]" * 300, r"bad\.toml: nested too deeply; allowed 16 levels"),
        ("5 bad byte", b"rounds = 4\nname = '\xe4'\n", r"bad\.toml: got a byte that is not UTF-8 at offset 19; allowed UTF-8"),
    ],
)
def test_files_that_are_no_config(call, place, row, data, pattern):
    Path("bad.toml").write_bytes(data)
    before = tree(place)
    code, out, lines = call("run", "bad.toml")
    assert (code, out, len(lines)) == (2, "", 1)
    assert re.match(f"error: {pattern}", lines[0]), lines
    assert tree(place) == before


def test_paths_that_are_no_config(call, place):
    Path("pipe.toml").parent.joinpath("directory").mkdir()
    os.mkfifo("pipe.toml")
    before = tree(place)
    for path, said in (
        ("nowhere.toml", "No such file"),
        ("directory", "got a directory"),
        ("pipe.toml", "got a special file"),
        ("quick/toi", r"did you mean quick/toy\?"),
        ("x" * 5000, "too long"),
        ("a\nb", r"a\\nb: No such file"),
    ):
        code, _, lines = call("run", path)
        assert code == 2 and len(lines) == 1 and re.search(said, lines[0]), lines
    assert tree(place) == before


USAGE = {
    "unknown verb": (["rnu", "good.toml"], r"VERB: invalid choice: 'rnu' .*did you mean run\?"),
    "unknown flag": (["run", "good.toml", "--sedes", "0"], r"fedcodist run: unrecognized arguments: --sedes 0; did you mean --seeds\?"),
    "unknown flag with =": (["run", "good.toml", "--frmat=json"], r"unrecognized arguments: --frmat=json; did you mean --format\?"),
    "unknown flag before the verb": (["--verson"], r"unrecognized arguments: --verson; did you mean --version\?"),
    "nothing like it": (["run", "good.toml", "--zzz"], r"unrecognized arguments: --zzz; see fedcodist run --help"),
    "flag twice": (["run", "good.toml", "--seeds", "0", "--seeds", "1"], r"--seeds is given twice"),
    "missing value": (["run", "good.toml", "--seeds"], r"--seeds: expected one argument"),
    "missing value of set": (["run", "good.toml", "--set"], r"--set: expected one argument"),
    "missing config": (["run"], r"required: CONFIG; see fedcodist run --help"),
    "two configs": (["run", "good.toml", "good.toml"], r"unrecognized arguments: good\.toml"),
    "bad format": (["show", "good.toml", "--format", "jso"], r"--format: invalid choice: 'jso' .*did you mean json\?"),
    "bad list": (["list", "mehods"], r"list: got 'mehods'; allowed methods, .*did you mean methods\?"),
    "bad workers": (["run", "good.toml", "--workers", "two"], r"--workers: invalid int value: 'two'"),
    "73 negative workers": (["run", "good.toml", "--workers", "-1"], r"engine\.workers: got -1; allowed an integer >= 0"),
    "18 negative": (["run", "good.toml", "--seeds=-1"], r"--seeds: got '-1'; allowed integers from 0 to 2\*\*63 - 1"),
    "18 fraction": (["run", "good.toml", "--seeds", "1.5"], r"--seeds: got '1\.5'; allowed integers"),
    "18 too large": (["run", "good.toml", "--seeds", str(2**63)], r"--seeds: got '\d+'; allowed integers"),
    "18 far too large": (["run", "good.toml", "--seeds", "9" * 5000], r"--seeds: got '9+'; allowed integers"),
    "18 backwards": (["run", "good.toml", "--seeds", "4-0"], r"--seeds: got '4-0'; allowed integers"),
    "18 too many": (["run", "good.toml", "--seeds", "0-99999"], r"--seeds: got '0-99999'; allowed at most 10000"),
    "18 twice": (["run", "good.toml", "--seeds", "1,0-2"], r"--seeds: got '1,0-2'; allowed each seed once"),
    "one run to compare": (["compare", "good.toml"], r"good\.toml: not a run"),
    "12": (
        ["run", "good.toml", "--set", PERIODIC.replace("period = 2", "period = 5")],
        r"method: got no codistillation in the 4 rounds of the run; allowed at least one: a shorter period, or more rounds",
    ),
    "12 first": (
        ["show", "good.toml", "--set", PERIODIC.replace("period = 2", "period = 2, first = 6")],
        r"method: got no codistillation in the 4 rounds of the run",
    ),
    "12 takfl": (
        ["run", "good.toml", "--set", PERIODIC.replace("periodic", "takfl").replace("period = 2", "period = 5")],
        r"method: got no codistillation in the 4 rounds of the run",
    ),
    "8 strict": (["run", "good.toml", "--strict", "--set", "method.alpha=1"], r"method\.alpha: 1 is plain FedAvg.* \(--strict\)"),
}


@pytest.mark.parametrize("row", USAGE)
def test_usage(call, place, row):
    argv, pattern = USAGE[row]
    before = tree(place)
    code, out, lines = call(*argv)
    assert (code, out, len(lines)) == (4 if row == "one run to compare" else 2, "", 1), lines
    assert re.match(f"error: .*{pattern}", lines[0]), lines
    assert tree(place) == before


def test_warnings_are_shown_wherever_a_config_or_a_run_is(call):
    said = "method.alpha: 1 is plain FedAvg: distillation is skipped"
    code, out, lines = call("show", "good.toml", "--quiet", "--format", "json", "--no-timing", "--set", "method.alpha=1")
    assert (code, lines, json.loads(out)["warnings"]) == (0, [f"warning: {said}"], [said])
    assert call("run", "good.toml", "--quiet", "--set", "method.alpha=1", "--set", "rounds=1")[0] == 0
    (run,) = runs.find("runs")
    assert runs.read(run).notes == (f"warning: {said}",)  # what the report shows of a run


def test_help_version_and_completion(call):
    assert all(flag in call("help", "run")[1] for flag in ("usage: fedcodist run", "--twin"))
    assert "usage: fedcodist data prepare" in call("help", "data", "prepare")[1] and call("help")[1] == call()[1]
    assert call("help", "rnu")[0] == 2 and "did you mean run?" in call("help", "rnu")[2][0]
    assert call("-V")[1] == call("--version")[1] == f"{fedcodist.__version__}\n"
    pytest.importorskip("shtab")
    for shell in ("bash", "zsh", "tcsh"):
        assert "export-model" in call("--print-completion", shell)[1]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("how", ["closed from the start", "closed by its reader"])
def test_71_a_closed_stream_stops_no_run(place, monkeypatch, stream, how):
    file = None
    if how == "closed by its reader":
        reader, writer = os.pipe()
        os.close(reader)
        file = os.fdopen(writer, "w", buffering=1)
    monkeypatch.setattr(sys, stream, file)
    argv = ["run", "good.toml", "--twin", "--set", "rounds=1", "--set", "method.alpha=1"]  # it has a warning to tell
    assert main.main(argv) == (141 if file is not None and stream == "stdout" else 0)
    assert len([run for run in runs.find("runs") if runs.read(run).result]) == 2 and Path("runs/good/report.html").is_file()
    if file is not None:
        with contextlib.suppress(OSError):
            file.close()


def test_71_a_process_without_streams_takes_no_file_for_one(place):
    script = f"exec {sys.executable} -m fedcodist run good.toml --set rounds=1 >&- 2>&- <&-"
    assert subprocess.run(["sh", "-c", script]).returncode == 0
    (run,) = runs.find("runs")
    assert runs.read(run).result and not runs.read(run).notes


def test_python_m_fedcodist():
    done = subprocess.run([sys.executable, "-m", "fedcodist", "-V"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{fedcodist.__version__}\n", "")


def test_no_verb_is_help_and_an_error(call):
    code, out, lines = call()
    assert code == 2 and "VERB" in out and not lines


def test_errors_as_json(call):
    code, out, lines = call("run", "good.toml", "--errors", "json", "--set", "rounds=0", "--set", "keep=0")
    said = json.loads("\n".join(lines))
    assert (code, out, said["code"], len(said["errors"])) == (2, "", 2, 2)
    assert said["errors"][0].startswith("rounds: got 0; allowed ")
    code, _, lines = call("--errors=json", "nothing")
    assert code == 2 and json.loads(lines[0])["code"] == 2


NAMES = ["../../etc/x", "/abs", "CON", "nul.txt", "", "x" * 300, "<script>", "\U0001f600", "trailing.", ".hidden", "a b", "a\nb", "-x"]


@pytest.mark.parametrize("name", NAMES)
def test_53_names_that_are_no_file_names(call, place, name):
    before = tree(place)
    code, _, lines = call("run", "good.toml", f"--name={name}")
    assert code == 2 and len(lines) == 1 and re.match(r"error: name: got .*allowed .*\[A-Za-z0-9\]\[A-Za-z0-9\._-\]\{0,63\}", lines[0]), (
        lines
    )
    assert tree(place) == before


# -- 5, 7, 8, 9, 12, 18, 19, 29, 32, 72, 73, 79: allowed, and said --


def journal(run: Path) -> list[dict]:
    return runs.read(run).rounds


@pytest.mark.parametrize(
    "row, argv, said",
    [
        ("7 small", ["--set", "method.alpha=1e-1"], None),
        ("8", ["--set", "method.alpha=1"], r"warning: method\.alpha: 1 is plain FedAvg: distillation is skipped"),
        ("9", ["--set", "method.alpha=0"], r"warning: method\.alpha: 0 lets the clients' gradient set only the length"),
        ("8 quiet", ["--set", "method.alpha=1", "--quiet"], r"warning: method\.alpha: 1 is plain FedAvg: distillation is skipped"),
        ("19 clamp", ["--set", "pools.large.cohort=20", "--clamp"], None),
        ("32 clamp", ["--set", "method.distill.batch=201", "--clamp"], None),
        ("73 auto", ["--workers", "0"], None),
    ],
)
def test_allowed(call, row, argv, said):
    code, out, lines = call("run", "good.toml", "--format", "json", *argv)
    assert code == 0 and {r["pool"] for r in json.loads(out)} == {"small", "large"}
    assert len(lines) == (said is not None) and (said is None or re.match(said, lines[0])), lines
    (run,) = runs.find("runs")
    rows = journal(run)
    if row == "8":
        assert not any("codistilled" in info for r in rows for info in r["pools"].values())
    if row == "19 clamp":
        assert {r["pools"]["large"]["clients"] for r in rows} == {4}


def test_5_bom_crlf_and_tabs(call, finished):
    Path("odd").mkdir()
    Path("odd/good.toml").write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").replace(" = ", "\t=\t").encode())
    shutil.copytree(finished / "runs", "runs")
    code, _, lines = call("run", "odd/good.toml", "--format", "json")  # the same config: so the run is finished already
    assert code == 0 and lines == ["already finished: runs/good/merged/seed-0"]


def test_18_a_seed_that_is_not_given_is_drawn_said_and_kept(call):
    Path("good.toml").write_text(TEXT.replace("seeds = [0]\n", ""))
    code, _, lines = call("run", "good.toml", "--format", "json")
    drawn = re.fullmatch(r"note: no seed given: drew (\d+), kept in the run directory", lines[0])
    assert code == 0 and drawn and [p.name for p in runs.find("runs")] == [f"seed-{drawn[1]}"]
    code, _, lines = call("run", "good.toml", "--format", "json")
    assert code == 0 and lines == [f"already finished: runs/good/merged/seed-{drawn[1]}"]


def test_73_workers_change_no_byte(call, finished):
    assert call("run", "good.toml", "--format", "json", "--workers", "16")[0] == 0
    assert same_end(Path("runs/good/merged/seed-0"), finished / "runs/good/merged/seed-0")


def test_79_a_distillation_that_changes_nothing_is_counted_and_adds_nothing(call):
    """A student's step too small for a float leaves a gradient of length 0, whose direction would be 0/0."""
    code, _, lines = call("run", "good.toml", "--format", "json", "--set", "pools.small.learns.lr=1e-30")
    (run,) = runs.find("runs")
    assert code == 0 and not lines
    assert [r["pools"]["small"]["dist_norm"] for r in journal(run)] == [0.0] * 4
    assert all(r["pools"]["large"]["dist_norm"] > 0 for r in journal(run))


def test_all_arms_are_checked_before_the_first_is_trained(call, place):
    """The twin has no distillation, and would train to its end before the other arm is refused."""
    before = tree(place)
    code, _, lines = call("run", "good.toml", "--twin", "--set", "method.distill.batch=201")
    assert code == 2 and len(lines) == 1 and tree(place) == before


def test_several_runs_without_a_terminal_are_told_one_by_one(call, place):
    code, _, lines = call("run", "good.toml", "--twin", "--set", "rounds=1")
    assert code == 0 and len(lines) == 2
    for n, (method, line) in enumerate(zip(("FedAvg", "MergedCodist"), lines, strict=True), 1):
        assert re.fullmatch(rf"finished run {n} of 2: {method} seed 0: held-out accuracy small [\d.]+%, large [\d.]+%", line), line


def test_another_kind_replaces_the_table(call):
    code, out, lines = call("run", "good.toml", "--set", "method.kind=fedavg", "--set", "rounds=1", "--format", "json")
    assert code == 0 and not lines and {row["method"] for row in json.loads(out)} == {"FedAvg"}
    for pair in (("method.kind=fedavg", "method.alpha=0.5"), ("method.alpha=0.5", "method.kind=fedavg")):  # nothing that is set is lost
        code, _, lines = call("run", "good.toml", "--set", pair[0], "--set", pair[1])
        assert code == 2 and "method.alpha: got an unknown key; allowed no keys" in lines[0]


def test_the_list_of_everything_counts_the_configs(call):
    _, out, _ = call("list")
    counted = r"\d+ of paper, \d+ of quick, \d+ of rivals, \d+ of study; fedcodist list configs names them"
    assert "paper/cifar" not in out and re.search(counted, " ".join(out.split()))
    _, out, _ = call("list", "configs")
    assert "\n  paper/cifar-merged-4700\n                    Table 1, CIFAR-100" in out and "\n  quick/toy         " in out
    _, out, _ = call("list", "--format", "json")
    assert any(row["name"] == "paper/cifar-merged-4700" for row in json.loads(out))


# -- 27, 29, 31, 34, 38, 39: data --

SPLIT = {0: "test", 1: "held_out", 2: "public"}


def arrays(**other: np.ndarray) -> None:
    """data.npz of 40 rows and ten clients of four rows; the config trains on it."""
    rng = np.random.default_rng(0)
    client = np.array([f"c{i // 4}" for i in range(40)])
    split = np.array([SPLIT.get(i // 4, "train") for i in range(40)])
    columns = {"x": rng.normal(size=(40, 3)).astype(np.float32), "y": np.arange(40) % 4, "client": client, "split": split}
    np.savez("data.npz", **{k: v for k, v in {**columns, **other}.items() if v is not None})
    text = TEXT.replace('"toy"', '{ kind = "arrays", path = "data.npz", classes = 4 }').replace("batch = 50", "batch = 4")
    Path("good.toml").write_text(text)


def changed(values: np.ndarray, row: int, value: object) -> np.ndarray:
    values = values.copy()
    values[row] = value
    return values


X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = np.arange(40) % 4
TRAIN = np.array([SPLIT.get(i // 4, "train") for i in range(40)])


@pytest.mark.parametrize(
    "row, columns, pattern",
    [
        (
            "31 no training rows",
            {"split": np.where(TRAIN == "train", "public", TRAIN)},
            r"split: got no row that is train; allowed at least one",
        ),
        (
            "31 empty",
            {"split": np.where(TRAIN == "public", "train", TRAIN), "public_x": X[:0]},
            r"public_x: got nothing .*allowed at least one row",
        ),
        ("38 too large", {"y": changed(Y, 17, 4)}, r"y: got 4 in row 17; allowed whole numbers from 0 to 3 \(1 such rows\)"),
        ("38 negative", {"y": changed(Y, 17, -1)}, r"y: got -1 in row 17; allowed whole numbers from 0 to 3"),
        ("39 nan", {"x": changed(X, 21, np.nan)}, r"x: got NaN or infinity in row 21; allowed finite .*\(1 such rows\)"),
        ("39 inf", {"x": changed(X, 21, np.inf)}, r"x: got NaN or infinity in row 21; allowed finite"),
    ],
)
def test_data_that_is_refused(call, place, row, columns, pattern):
    arrays(**columns)
    before = tree(place)
    code, out, lines = call("run", "good.toml")
    assert (code, out, len(lines)) == (3, "", 1), lines
    assert re.match(f"error: data.npz: {pattern}", lines[0]), lines
    assert tree(place) == before


def test_data_that_is_missing(call, place):
    arrays()
    Path("data.npz").unlink()
    code, _, lines = call("run", "good.toml")
    assert code == 3 and re.match(r"error: data.npz: got nothing at this path; allowed a .csv, .npz or Parquet file", lines[0])


def test_27_29_34_odd_clients_and_labels_are_told_and_the_run_goes_on(call):
    """A client without a training row is left out, one with a single row trains, labels of public rows are dropped: all in one file."""
    client = np.array([f"c{i // 4}" for i in range(40)])
    client[39] = "single"
    split = np.where(client == "c8", "held_out", TRAIN)
    arrays(client=client, split=split)
    code, _, lines = call("run", "good.toml", "--format", "json", "--set", "pools.small.work.batch=20")
    assert code == 0, lines
    assert "data: the labels of 4 public rows were dropped" in lines
    assert "data: 4 clients have no training examples and are left out" in lines  # c8, and those of the public, held-out and test rows
    (run,) = runs.find("runs")
    assert len(runs.read(run).result["notes"]) == 2  # a report shows them as well


# -- 54 to 66: run directories --


def same_end(one: Path, other: Path) -> bool:
    """Whether two runs end with the same models, journal and result, to the byte."""
    names = ["rounds.jsonl", "result.json", *(str(p.relative_to(one)) for p in sorted(one.glob("checkpoints/000004/*.safetensors")))]
    assert len(names) == 4
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def unfinish(run: Path, back: int = 0) -> None:
    """Make a finished run one that was killed before its result, or some checkpoints earlier."""
    (run / "result.json").unlink()
    for checkpoint_of in sorted((run / "checkpoints").iterdir())[3 - back :]:
        shutil.rmtree(checkpoint_of)


def test_54_a_place_that_cannot_hold_runs(call, place, monkeypatch):
    Path("file").write_text("mine")
    before = tree(place)
    for out in ("file", "file/below"):
        code, _, lines = call("run", "good.toml", "--out", out)
        assert code == 6 and len(lines) == 1 and re.match(r"error: .*file.*: not a directory", lines[0], re.I), lines
    for number in (errno.EACCES, errno.EROFS):  # root may write everywhere, so the system's refusal is played

        def mkdir(*args, number=number, **kwargs):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "mkdir", mkdir)
        code, _, lines = call("run", "good.toml", "--out", "new")
        assert code == 6 and len(lines) == 1 and lines[0].endswith(f"{os.strerror(number)} ({errno.errorcode[number]})")
    monkeypatch.undo()
    assert tree(place) == before


def test_54_a_report_that_cannot_be_written(call, done):
    Path("file").write_text("mine")
    before = tree(done)
    code, _, lines = call("report", str(done), "--out", "file")
    assert code == 6 and len(lines) == 1 and re.match(r"error: file.*: File exists", lines[0]), lines
    assert tree(done) == before and Path("file").read_text() == "mine"


@pytest.mark.parametrize("out", ["new", "new/and/deeper", "töne 1"])
def test_54_a_place_that_does_not_exist_is_made(call, out, finished):
    code, _, lines = call("run", "good.toml", "--out", out, "--format", "json")
    assert code == 0 and not lines and same_end(Path(out, "good/merged/seed-0"), finished / "runs/good/merged/seed-0")


def test_55_a_directory_that_is_no_run_is_left_alone(call, place):
    Path("runs/good/merged/seed-0").mkdir(parents=True)
    Path("runs/good/merged/seed-0/mine.txt").write_text("mine")
    code, _, lines = call("run", "good.toml")
    assert code == 4 and len(lines) == 1 and re.search(r"exists, and is no run .*mine\.txt.*use another --name", lines[0])
    assert sorted(p.name for p in Path("runs/good/merged/seed-0").iterdir() if p.name != "run.lock") == ["mine.txt"]


def test_57_the_lock_of_a_dead_process_is_taken_over(call, done):
    (done / "run.lock").write_text(json.dumps({"pid": 2**22 - 1, "host": "elsewhere", "boot": "before"}))
    code, _, lines = call("run", "good.toml", "--format", "json")
    assert code == 0
    assert lines == [
        f"note: took over the lock of pid {2**22 - 1} on elsewhere, which no longer runs",
        "already finished: runs/good/merged/seed-0",
    ]


@pytest.mark.parametrize(
    "row, assignment, change",
    [
        ("58 alpha", "method.alpha=0.5", r"method\.alpha\.value: 0\.7 -> 0\.5"),
        ("58 lr", "pools.small.work.lr=0.2", r"pools\.small\.work\.lr: 0\.1 -> 0\.2"),
        ("58 pools", 'pools.third={ model = "mlp", cohort = 2 }', r"pools\.third\.[a-z.]+: nothing -> "),
        ("58 data", "task.split_seed=1", r'data: "[0-9a-f]+.*task\.split_seed: 0 -> 1'),
        ("59 rounds increased", "rounds=5", r"rounds: 4 -> 5"),
        ("59 rounds decreased", "rounds=3", r"rounds: 4 -> 3"),
    ],
)
@pytest.mark.parametrize("over", [True, False])
def test_58_59_another_config_is_refused_and_the_run_is_left_alone(call, done, row, assignment, change, over):
    if not over:
        unfinish(done, back=2)
    before = tree(done)
    code, out, lines = call("run", "good.toml", "--set", assignment)
    assert (code, out, len(lines)) == (4, "", 1), lines
    assert re.match(f"error: .*seed-0: this run has another config: .*{change}.*use another --name", lines[0]), lines
    assert tree(done) == before


def test_58_other_data_under_the_same_name_is_refused(call):
    arrays()
    assert call("run", "good.toml", "--format", "json")[0] == 0
    arrays(x=X + 1)
    code, _, lines = call("run", "good.toml", "--format", "json")
    assert code == 4 and re.search(r"another config: data: ", lines[-1])


@pytest.mark.parametrize("assignment", ["seeds=[0]", "engine.workers=2", "evaluate_every=3", "checkpoint_every=2", "keep=1"])
def test_58_keys_that_change_no_result_may_change(call, done, assignment):
    assert call("run", "good.toml", "--set", assignment, "--format", "json")[0] == 0


def test_keep_is_how_many_checkpoints_are_kept(call):
    assert call("run", "good.toml", "--format", "json", "--set", "keep=2")[0] == 0
    assert sorted(p.name for p in Path("runs/good/merged/seed-0/checkpoints").iterdir()) == ["000003", "000004"]


def test_60_another_environment_is_a_note_or_strictly_an_error(call, done, monkeypatch):
    unfinish(done, back=1)
    before = tree(done)
    other = {**runs.fingerprint(), "jax": "9.9"}
    monkeypatch.setattr(directory, "fingerprint", lambda: other)
    code, _, lines = call("run", "good.toml", "--format", "json", "--strict")
    assert code == 4 and len(lines) == 1 and re.search(r"would not be bit-identical: jax [\d.]+ -> 9\.9", lines[0])
    assert tree(done) == before
    code, _, lines = call("run", "good.toml", "--format", "json")
    assert code == 0 and len(lines) == 1 and re.match(r"note: continues, not bit-identical: jax [\d.]+ -> 9\.9", lines[0])


@pytest.mark.parametrize("verb", ["report", "compare"])
@pytest.mark.parametrize("path", ["runs/god", "elsewhere", "good.toml", "runs/good/merged/seed-7"])
def test_61_where_no_run_is_those_nearby_are_named(call, place, done, verb, path):
    before = tree(place)
    code, out, lines = call(verb, path, *(["runs"] if verb == "compare" else []))
    assert (code, out, len(lines)) == (4, "", 1), lines
    assert lines[0].startswith(f"error: {path}: not a run; nearby: ") and lines[0].endswith("runs/good/merged/seed-0")
    assert tree(place) == before


def test_62_a_finished_run_says_so_prints_its_result_and_is_not_rewritten(call, place, done, finished):
    before = tree(place)
    code, out, lines = call("run", "good.toml", "--format", "json")
    assert code == 0 and lines == ["already finished: runs/good/merged/seed-0"]
    assert {row["pool"] for row in json.loads(out)} == {"small", "large"}
    assert tree(place) == before


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "truncated": lambda at: (at / "small.safetensors").write_bytes((at / "small.safetensors").read_bytes()[:-1]),
    "flipped": lambda at: flip(at / "large.safetensors"),
    "empty": lambda at: (at / "small.safetensors").write_bytes(b""),
    "no commit": lambda at: (at / "COMMIT.json").unlink(),
    "flipped commit": lambda at: flip(at / "COMMIT.json"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_63_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(call, done, finished, how):
    unfinish(done)
    DAMAGE[how](done / "checkpoints/000004")
    code, _, lines = call("run", "good.toml", "--format", "json")
    assert code == 0 and len(lines) == 1, lines
    assert re.match(r"note: 000004 is damaged, kept as corrupt-000004: .*going on from round 3", lines[0])
    assert (done / "checkpoints/corrupt-000004").is_dir()
    assert same_end(done, finished / "runs/good/merged/seed-0")


def test_64_all_damaged_needs_restart_which_deletes_nothing(call, done, finished):
    unfinish(done)
    for at in (done / "checkpoints").iterdir():
        flip(at / "small.safetensors")
    before = tree(done)
    for _ in range(2):  # it does not begin again by itself at the second try either
        code, _, lines = call("run", "good.toml", "--format", "json")
        assert code == 4 and len(lines) == 1
        assert re.search(r"no good checkpoint: 000004 .*000003 .*000002 .*all kept; --restart begins again", lines[0]), lines
        assert tree(done) == before
    code, _, lines = call("run", "good.toml", "--format", "json", "--restart")
    assert code == 0 and lines == ["note: restarted; the previous files are in before"]
    assert same_end(done, finished / "runs/good/merged/seed-0")
    kept = {name.removeprefix("before/"): digest for name, digest in tree(done).items() if name.startswith("before/")}
    assert kept == {name: digest for name, digest in before.items() if name.startswith(("checkpoints", "rounds", "timing"))}


def test_restart_of_a_new_run_sets_nothing_aside(call):
    code, _, lines = call("run", "good.toml", "--format", "json", "--restart")
    assert code == 0 and not lines and not Path("runs/good/merged/seed-0/before").exists()


def test_65_a_checkpoint_of_another_model_names_its_tensors(call, done, place):
    """The config's digest does not cover the code of a model: a checkpoint may be whole and still not fit."""
    unfinish(done)
    path = done / "checkpoints/000004"
    commit = sealed.unseal(path / "COMMIT.json")
    for name, dim in (("small", 5), ("large", 8)):
        from safetensors.numpy import load, save

        tensors = {
            k: np.zeros((*v.shape[:-1], dim), v.dtype) if v.shape[-1:] == (4,) and dim == 5 else v
            for k, v in load((path / f"{name}.safetensors").read_bytes()).items()
        }
        data = save(dict(sorted(tensors.items())))
        (path / f"{name}.safetensors").write_bytes(data)
        commit["files"][f"{name}.safetensors"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "COMMIT.json").write_bytes(sealed.seal({k: v for k, v in commit.items() if k != "digest"}))
    before = tree(done)
    code, _, lines = call("run", "good.toml", "--format", "json")
    assert (
        code == 4
        and len(lines) == 1
        and re.search(r"000004: another model: small/\S+: float32\[.*5\] in the checkpoint, float32\[.*4\] here", lines[0])
    ), lines
    assert tree(done) == before


def test_66_a_later_format_names_both_versions(call, done, monkeypatch):
    unfinish(done)
    before = tree(done)
    monkeypatch.setattr(sealed, "FORMAT", 0)  # an older reader
    code, _, lines = call("run", "good.toml", "--format", "json")
    assert code == 4 and len(lines) == 1 and re.search(r"format 1; this version reads format 0", lines[0])
    assert tree(done) == before


# -- 77: diverged --


def test_77_a_diverged_run_names_pool_round_and_last_good_checkpoint(call):
    hot = [f"pools.{p}.{k}" for p in ("small", "large") for k in ("work.lr=1e3", "server=average")]
    argv = ["run", "good.toml", "--format", "json", *(part for a in hot for part in ("--set", a)), "--set", "rounds=50"]
    code, out, lines = call(*argv)
    assert (code, out, len(lines)) == (7, "", 1), lines
    said = re.match(r"error: .* of pool (small|large) is not finite in round (\d+) \(.*seed-0\); (.*); a smaller learning rate", lines[0])
    assert said, lines
    (run,) = runs.find("runs")
    kept = sorted(int(p.name) for p in (run / "checkpoints").iterdir())
    assert said[3] == (f"the last good checkpoint is round {kept[-1]}" if kept else "there is no checkpoint yet")
    assert int(said[2]) == (kept[-1] if kept else 0) + 1
    before = tree(run)
    assert call(*argv)[0] == 7  # and again from there, with the same words
    assert {k: v for k, v in tree(run).items() if k.startswith("checkpoints")} == {
        k: v for k, v in before.items() if k.startswith("checkpoints")
    }


# -- 89: reports --


def page() -> str:
    """The words of the written page."""
    return " ".join(re.sub(r"<[^>]*>", " ", Path("page/report.html").read_text("utf-8")).split())


def test_89_a_report_of_a_crashed_and_of_an_empty_run(call, done):
    unfinish(done, back=2)
    code, out, lines = call("report", "runs", "--out", "page")
    assert code == 0 and out.strip() == "page/report.html" and not lines
    assert "seed 0, stopped after round 4 of 4 and has no result" in page()
    for name in ("rounds.jsonl", "timing.jsonl"):
        (done / name).unlink()
    assert call("report", "runs", "--out", "page")[0] == 0
    assert "seed 0, has no recorded round and has no result" in page()


def test_89_a_damaged_run_is_reported_as_far_as_it_goes(call, done):
    flip(done / "result.json")
    flip(done / "config.json")
    code, _, lines = call("report", "runs", "--out", "page", "--format", "json")
    assert code == 0 and not lines and "Damaged files were left out" in page()


# -- what is not a user's mistake --


def test_a_bug_is_one_line_and_the_traceback_a_file(call, monkeypatch):
    inside: dict = {}  # a function of this package's, by its file: one of this file would be taken for the user's own
    exec(compile("def broken(*args, **kwargs): raise ZeroDivisionError('oh\\nno')", config.__file__, "exec"), inside)
    monkeypatch.setattr(config, "read", inside["broken"])
    code, _, lines = call("run", "good.toml")
    said = re.fullmatch(r"error: a bug of fedcodist: ZeroDivisionError: oh \(traceback in (.*)\)", lines[0])
    assert code == 70 and len(lines) == 1 and said and "ZeroDivisionError" in Path(said[1]).read_text()
    Path(said[1]).unlink()


def test_memory_is_9(call, monkeypatch):
    def hungry(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(config, "read", hungry)
    code, _, lines = call("run", "good.toml")
    assert code == 9 and len(lines) == 1 and lines[0].startswith("error: memory: ")


def test_debug_shows_the_traceback(capsys, place):
    assert main.main(["run", "good.toml", "--debug", "--set", "rounds=0"]) == 2
    assert "Traceback" in capsys.readouterr().err


# -- processes --

LONG = ["--set", "rounds=300", "--set", "checkpoint_every=1000", "--set", "name=long"]


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "fedcodist.cli.main", *argv]


def environment(**other: str | None) -> dict[str, str]:
    given = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **other}
    return {name: value for name, value in given.items() if value is not None}


@pytest.fixture(scope="session")
def long_run(tmp_path_factory) -> dict[str, str]:
    """{file: digest} of an undisturbed run that is long enough to be interrupted."""
    there = tmp_path_factory.mktemp("long")
    (there / "good.toml").write_text(TEXT)
    assert main.main(["run", str(there / "good.toml"), "--out", str(there / "runs"), "--format", "json", "--quiet", *LONG]) == 0
    return end_of(there / "runs")


def end_of(out: Path) -> dict[str, str]:
    (run,) = runs.find(out)
    last = max((run / "checkpoints").iterdir())
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in [run / "rounds.jsonl", run / "result.json", *last.glob("*.safetensors")]
    }


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)])
def test_70_71_a_signal_saves_the_last_round_and_the_same_command_goes_on(call, place, signum, long_run):
    """Checkpoints are a thousand rounds apart, so that what is saved is saved because of the signal."""
    argv = ["run", "good.toml", "--format", "json", *LONG]
    process = subprocess.Popen(command(*argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True)
    journal_file = place / "runs/long/merged/seed-0/rounds.jsonl"
    until = time.monotonic() + 60
    while not (journal_file.exists() and journal_file.stat().st_size > 2000) and time.monotonic() < until and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    said = "interrupted: every completed round is saved; the same command continues from there\n"
    *ahead, last = err.splitlines(keepends=True)  # ahead: how long it will take, where this machine knows
    assert (process.returncode, out, last, len(ahead) <= 1) == (128 + signum, "", said, True)
    (run,) = runs.find("runs")
    (saved,) = (run / "checkpoints").iterdir()
    assert 1 <= int(saved.name) == len(runs.read(run).rounds) < 300
    code, _, lines = call(*argv)
    assert code == 0 and not lines and end_of(place / "runs") == long_run


def test_a_signal_that_was_ignored_before_stays_ignored():
    """As nohup leaves SIGHUP: the run is meant to outlive its terminal."""
    from fedcodist.runs.session import Signals

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_71_a_signal_while_the_screen_is_drawn_saves_the_last_round_too(place):
    """Then the signal is not raised inside the run but in whoever listens to it."""
    from fedcodist.errors import Interrupted
    from fedcodist.reports import screen
    from fedcodist.runs import session

    class Listener(screen.Screen):
        def show(self, event):
            if event.t == 3:
                raise Interrupted(signal.SIGTERM)

    there = config.read("good.toml", ["checkpoint_every=100"])
    with pytest.raises(Interrupted):
        Listener().follow(session.perform(config.build(there, 0), place / "runs"))
    assert [p.name for p in (place / "runs/good/merged/seed-0/checkpoints").iterdir()] == ["000003"]


def test_70_a_signal_in_a_save_waits_for_its_end(place, monkeypatch):
    from fedcodist.errors import Interrupted
    from fedcodist.runs import session

    commit, seen = runs.Run.commit, []

    def interrupted(self, round, state, final=False):
        os.kill(os.getpid(), signal.SIGTERM)
        commit(self, round, state, final)
        seen.append(round)

    monkeypatch.setattr(runs.Run, "commit", interrupted)
    there = config.read("good.toml")
    with pytest.raises(Interrupted) as caught:
        list(session.perform(config.build(there, 0), place / "runs"))
    assert caught.value.code == 143 and seen == [1]
    assert [p.name for p in (place / "runs/good/merged/seed-0/checkpoints").iterdir()] == ["000001"]


def test_70_a_signal_in_a_distillation_saves_the_round_before(place, monkeypatch):
    from fedcodist.errors import Interrupted
    from fedcodist.runs import session

    codistill = Federation.codistill

    def interrupted(self, how, theta, t, *args, **kwargs):
        if t == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return codistill(self, how, theta, t, *args, **kwargs)

    monkeypatch.setattr(Federation, "codistill", interrupted)
    there = config.read("good.toml", ["checkpoint_every=100"])
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted):
        list(session.perform(config.build(there, 0), place / "runs"))
    assert [p.name for p in (place / "runs/good/merged/seed-0/checkpoints").iterdir()] == ["000002"]
    assert signal.getsignal(signal.SIGINT) is before


def test_56_a_second_writer_is_told_who_is_first(place, done):
    """The first is this process, which holds the run open."""
    there = config.read("good.toml")
    table = {**config.plain(there), "data": config.digest(there.task.load())}
    with runs.Run.open(done, table, set(config.HARMLESS)):
        before = tree(done)
        second = subprocess.run(command("run", "good.toml"), capture_output=True, text=True, env=environment(), timeout=60)
        assert (second.returncode, second.stdout) == (5, "")
        assert re.fullmatch(rf"error: .*seed-0: busy: pid {os.getpid()} on \S+ is writing this run\n", second.stderr)
        assert tree(done) == before


def test_71_a_closed_stdout_is_silent(place, done):
    for argv in (["list"], ["run", "good.toml", "--format", "csv", "--quiet"]):
        piped = subprocess.run(
            ["bash", "-c", 'set -o pipefail; "$@" | true', "bash", *command(*argv)],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=60,
        )
        assert piped.returncode in (0, 141) and piped.stderr == ""


def test_72_a_narrow_terminal_of_ascii(place, done):
    """The name of the directory cannot be printed there, and is all the same."""
    shutil.move("runs", "töne")
    poor = environment(
        LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii", COLUMNS="20", NO_COLOR="1", TERM="dumb"
    )
    ran = subprocess.run(command("run", "good.toml", "--out", "töne"), capture_output=True, env=poor, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.isascii() and re.search(rb"report: t(\\\w+)+ne/good/report.html", ran.stdout)
    assert ran.stderr.isascii() and b"already finished" in ran.stderr


def test_74_90_without_a_home_help_answers_and_runs_run(place, done):
    bare = environment(HOME=None, XDG_CACHE_HOME=None, FEDCODIST_CACHE=None, MPLCONFIGDIR=str(place))
    shown = subprocess.run(command("run", "--help"), capture_output=True, text=True, env=bare, timeout=60)
    assert (shown.returncode, shown.stderr) == (0, "") and "--restart" in shown.stdout and "example: fedcodist run" in shown.stdout
    ran = subprocess.run(command("run", "good.toml", "--format", "json"), capture_output=True, text=True, env=bare, timeout=60)
    assert ran.returncode == 0 and ran.stderr == "already finished: runs/good/merged/seed-0\n"


def test_lists_and_plans_write_nothing(call, place):
    before = tree(place)
    for argv in (
        ["list"],
        ["list", "losses", "--format", "json"],
        ["show", "good.toml", "--quiet"],
        ["show", "good.toml", "--config-only"],
        ["--version"],
    ):
        code, out, lines = call(*argv)
        assert code == 0 and out and not lines
    assert tree(place) == before


def test_config_errors_are_failures_with_code_2():
    assert ConfigError("x").code == 2 and ConfigError("a\nb").lines == ["a", "b"]


def test_76_models_larger_than_the_machine_are_refused_before_anything_is_written(call, place):
    before = tree(place)
    code, out, lines = call("run", "good.toml", "--set", "pools.small.model.hidden=[1000000, 1000000]")
    assert (code, out, len(lines)) == (9, "", 1), lines
    assert re.match(
        r"error: memory: got models of .*small 1,000,0\d\d,\d{3},\d{3} parameters, which need .* GB; allowed this machine's", lines[0]
    )
    assert tree(place) == before


def test_28_a_pool_without_examples_is_a_matter_of_the_data(call):
    code, _, lines = call("run", "good.toml", "--set", "pools.small.clients.skip=999999")
    assert (code, len(lines)) == (3, 1), lines
    assert lines[0] == "error: pools.small.clients: got no client with an example; allowed at least one"


@pytest.mark.parametrize("loss", ["math:pi", ".x:y", "no_such_module:f", "math:nope"])
def test_a_loss_that_is_no_function_is_refused(call, loss):
    code, _, lines = call("run", "good.toml", "--set", f"method.distill.loss={loss}")
    assert (code, len(lines)) == (2, 1), lines
    assert "method.distill.loss: got" in lines[0] and "kl | reverse_kl" in lines[0]


def test_7_a_decimal_comma_in_alpha_is_named(call):
    code, _, lines = call("run", "good.toml", "--set", "method.alpha='0,5'")
    assert code == 2 and "decimal point" in lines[0], lines


def test_every_verb_does_something():
    top = main.parser()
    assert set(next(action for action in top._actions if action.dest == "verb").choices) == {*main.VERBS, "help"}


# -- the user's own code, and the machine --

OWN = """
import sys
import jax.numpy as jnp

def raises(target, logits):
    raise KeyError("no such thing")

def leaves(target, logits):
    sys.exit(0)

def narrow(target):
    return jnp.sum(target, -1)
"""


@pytest.mark.parametrize(
    "name, said",
    [
        ("raises", r"own_losses\.py:6: your function raises raises: KeyError: 'no such thing'"),
        ("leaves", r"own_losses\.py:9: your function leaves ends the program: SystemExit: 0"),
        (
            "narrow",
            r"your function narrow cannot be called as it must be: TypeError: narrow\(\) takes 1 positional argument but 2 were given",
        ),
    ],
)
def test_the_users_own_code_is_told_as_theirs(call, place, monkeypatch, name, said):
    Path("own_losses.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(place))
    code, out, lines = call("run", "good.toml", "--format", "json", "--set", f"method.distill.loss=own_losses:{name}")
    assert (code, out, len(lines)) == (2, "", 1) and re.search(said, lines[0]), (code, lines)
    monkeypatch.delitem(sys.modules, "own_losses", raising=False)


@pytest.mark.parametrize(
    "error, code, said",
    [
        (RuntimeError("Unable to initialize backend 'cuda': no such thing"), 2, "JAX_PLATFORMS: got "),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"), 9, "memory: not enough"),
        (RuntimeError("can't start new thread"), 9, "memory: not enough"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 9, "memory: not enough"),
        (ValueError("x" * 10_000), 70, "a bug of fedcodist: ValueError: xxx"),
    ],
)
def test_what_the_machine_refuses_has_its_line_and_code(call, monkeypatch, error, code, said):
    fail = eval(compile("lambda args: (_ for _ in ()).throw(error)", "<nobody's code>", "eval"), {"error": error})
    monkeypatch.setitem(main.VERBS, "list", fail)
    found, out, lines = call("list", "configs")
    assert (found, out, len(lines)) == (code, "", 1) and lines[0].startswith(f"error: {said}") and len(lines[0]) < 700, lines
