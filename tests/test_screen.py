"""The screen while runs are trained: what it says, and that no line is broken inside a number."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedcodist import config
from fedcodist.reports.screen import Screen, wrapped
from fedcodist.runs import clock
from fedcodist.runs.clock import EVALUATE, RESULT, ROUND, START, Times
from fedcodist.runs.session import Event

WIDTHS = (30, 80, 120)


def event(kind: str, t: int, base: config.Config, held_out: float | None = None, codistilled: tuple[str, ...] = ()) -> Event:
    pools = {f"pool-{n}": {"all": {"accuracy": held_out}} for n in range(9)} if held_out else None
    return Event(kind, Path("runs/x") / base.method.kind, base, 7, t, pools, codistilled)


def test_lines_fit_and_no_number_is_cut():
    base = config.read("quick/toy", ["rounds=20"])
    shown = Screen(quiet=True)
    shown._runs, shown._later = 9, [base] * 8
    assert shown.lines(80) == ["starting: reading data, compiling (once)"]
    shown.show(event("started", 0, base))
    assert shown.lines(80)[0].startswith("MergedCodist seed 7  compiling (once: programs are kept)  0:00:0")
    assert shown.lines(80)[1] == "[                    ]  run 1 of 9"
    shown.show(event("round", 10, base, 0.7125, ("pool-1",)))
    for width in WIDTHS:
        lines = shown.lines(width)
        assert max(map(len, lines)) <= width
        assert all(re.fullmatch(r"pool-\d 71\.2%", part) for part in re.findall(r"pool-[^,]*?(?=,| \.\.\.|$)", "\n".join(lines)))
    assert shown.lines(80)[0] == "MergedCodist seed 7  [==========          ]  round 10 of 20"
    assert shown.lines(80)[1] == "  held-out accuracy: pool-0 71.2%, pool-1 71.2%, pool-2 71.2%, pool-3 71.2% ..."
    assert shown.lines(80)[2] == "  lessons: ..........*.............  (*: the models taught each other)"
    assert shown.lines(80)[3].startswith("[=                   ]  run 1 of 9")


def test_the_time_left_in_all_is_the_sum_of_what_is_known(monkeypatch):
    base = config.read("quick/toy", ["rounds=4", "evaluate_every=4", "checkpoint_every=100"])
    parts = {
        START: (5.0, 5.0),
        ROUND: (10.0, 10.0),
        "round that teaches small, large": (10.0, 10.0),
        EVALUATE: (0.0, 0.0),
        RESULT: (1.0, 1.0),
    }
    monkeypatch.setattr(clock, "recall", lambda config: Times(parts, 4))
    shown = Screen(quiet=True)
    shown._runs, shown._later = 3, [base] * 2
    shown.show(event("started", 0, base))
    assert "starting" in shown.lines(80)[0]  # such programs were timed here, so they are compiled already
    shown.show(event("round", 1, base))
    assert shown.lines(80)[0].endswith("0:00:31 left")  # three rounds and the result
    assert shown.lines(80)[-1].endswith("run 1 of 3  0:02:03 left in all")  # and two runs of 46 seconds


@pytest.mark.parametrize("width", WIDTHS)
def test_a_wrapped_sentence_breaks_no_number(width):
    text = (
        "PeriodicCodist: small +0.9 points [-3.4, 5.3], large +12.7 [11.5, 13.8]; 72.0 +- 1.2 %, 1,280 server steps, 3 min 40 s, 1.64 GB."
    )
    lines = wrapped(text, width).split("\n")
    assert " ".join(lines) == text and (width < 40 or max(map(len, lines)) <= width)
    for whole in ("small +0.9 points", "[-3.4, 5.3]", "large +12.7", "[11.5, 13.8]", "72.0 +- 1.2", "3 min", "40 s", "1.64 GB"):
        assert any(whole in line for line in lines), (whole, lines)
    assert wrapped(text) == text  # stdout is no terminal here


def test_a_terminal_of_80_columns(tmp_path):
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "fedcodist", "run", "quick/toy", "--twin", "--seeds", "0", "--set", "rounds=3", "--out", str(tmp_path)]
    process = subprocess.Popen(argv, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "80", "TERM": "xterm"})
    os.close(theirs)
    said = b""
    try:
        while data := os.read(ours, 2**16):
            said += data
    except OSError:
        pass  # so ends a terminal on Linux
    assert process.wait() == 0
    lines = [line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())) if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for wanted in (
        "compiling (once",
        "run 1 of 2",
        "finished run 2 of 2: MergedCodist seed 0: held-out accuracy small ",
        "against its FedAvg twin",
    ):
        assert wanted in text, wanted
    assert not re.search(r"\[[-\d. ]*,?\n", text), "an interval is broken"
