"""Predicted against real time of six short runs, into docs/measured/clock.json; `make docs` then makes the table of docs/speed.md from it.

    python tools/make_clock.py [ROUNDS]

Each of FedAvg, PeriodicCodist and MergedCodist is timed by a few rounds and then trained, with a CNN and with an LSTM, in a process and
with a cache of its own: nothing is known beforehand. CPU seconds stand beside those of the wall, because they hardly depend on what else
runs on the machine; on a quiet one both ratios should lie between 1 / 1.3 and 1.3.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import make_docs

from fedcodist import config, runs
from fedcodist.reproduce.budgets import methods
from fedcodist.reproduce.results import ENVIRONMENT, dump
from fedcodist.runs import clock, session, timing

FILE = make_docs.DOCS / "measured/clock.json"
CASES = {  # {model: (config, period, steps of a periodic and of a merged distillation, batch)}
    "CNN": ("quick/demo", 20, 50, 10, 32),
    "LSTM": ("quick/text", 20, 50, 16, 32),
}
ROUNDS = 60


def one(model: str, method: str, rounds: int) -> dict[str, Any]:
    """Predict a run, then train it."""
    import jax

    name, period, steps, merged_steps, batch = CASES[model]
    how = methods(period, steps, merged_steps, batch)[method]
    made = config.read(name, [f"rounds={rounds}", "seeds=[0]", f"method={how}", "name=clock"])
    experiment = config.build(made, 0)
    times = timing.measure(experiment)
    predicted = times.total(clock.parts(made))
    jax.clear_caches()  # a run finds compiled programs on the disk, and none in memory
    began, load = clock.now(), clock.Watch()
    with tempfile.TemporaryDirectory() as place:
        for _ in session.perform(experiment, Path(place)):
            pass
    real = clock.since(began)
    told = {"predicted": predicted, "real": real}
    short = {key: [round(value, 2) for value in span] for key, span in told.items() if span}
    busy = {"measuring": round(times.busy, 3), "training": round(load.times().busy, 3)}
    return {"model": model, "config": name, "method": method, "rounds": rounds, "timed": times.rounds, **short, "others": busy}


def write(found: Sequence[dict[str, Any]]) -> None:
    """The runs so far, and on what."""
    on = {key: runs.fingerprint()[key] for key in ENVIRONMENT}
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    FILE.write_text(dump({"date": date, "on": on, "runs": found}) + "\n", "utf-8")


def main() -> int:
    """All cases, each in a process of its own."""
    from fedcodist.cli.arguments import prepare_jax

    if sys.argv[1:2] == ["--one"]:
        prepare_jax()
        print(json.dumps(one(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        return 0
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    found = []
    for model in CASES:
        for method in methods(1, 1, 1, 1):
            with tempfile.TemporaryDirectory() as place:
                env = os.environ | {"PYTHONPATH": str(make_docs.DOCS.parent), "FEDCODIST_CACHE": place}
                command = [sys.executable, __file__, "--one", model, method, str(rounds)]
                ran = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
            if ran.returncode:
                return ran.returncode
            found.append(json.loads(ran.stdout))
            print(json.dumps(found[-1]), file=sys.stderr)
            write(found)  # after each: whoever stops it keeps what was measured
    print(f"{FILE.relative_to(make_docs.DOCS.parent)}: now run make docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
