"""Trainings in worker processes, killed and interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tuned import PERIODIC, ROOT, Guarded, end_of, finish, searched, values

from fedcodist.errors import DataError
from fedcodist.tasks import Toy
from fedcodist.tuning import study, suggestions, trial, tune, workers

pytestmark = pytest.mark.usefixtures("prepared")


@dataclass(frozen=True)
class Deadly(Toy):
    """A task that kills the process that loads it, unless that is `spared`."""

    spared: int = 0

    def load(self) -> Any:
        if os.getpid() != self.spared:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().load()


def test_two_workers_make_exactly_as_many_trials_with_the_same_results(read, tmp_path):
    base = replace(read(PERIODIC), task=Guarded())  # which the workers load themselves
    events = list(tune.run(searched(base, trials=5), tmp_path, jobs=2))
    found = tune.trials(searched(base), tmp_path)
    assert (
        len(found) == 5
        and {t.state for t in found} <= {"complete", "pruned"}
        and [e.done for e in events if e.kind == "over"] == [1, 2, 3, 4, 5]
    )
    running = [{e.job.number for e in events[i : i + 2] if e.job} for i in range(len(events) - 1)]
    assert any(len(pair) == 2 for pair in running), "side by side"
    assert {e.job.config.engine.workers for e in events if e.job} == {max(1, workers.cores() // 2)}
    task = base.task.load()
    for t in found:
        alone = end_of(trial.perform(trial.Job(0, t.config, 7), task))
        assert alone.curve[: len(t.outcome.curve)] == t.outcome.curve
    assert len(finish(searched(base, trials=6), tmp_path)) == 6, "one process goes on with what two began"


@pytest.mark.long
def test_a_worker_that_dies_is_no_result(read, tmp_path):
    base = replace(read(), task=Deadly(spared=os.getpid()))
    with pytest.raises(workers.TrialFailed, match=r"trial \d: its process died \(signal 9\); the same command tries it again") as died:
        finish(searched(base), tmp_path, jobs=2)
    assert died.value.code == 9
    found = finish(searched(base), tmp_path)
    assert [t.state for t in found].count("complete") == 3 and sum(t.own and t.state == "complete" for t in found) == 1


def test_workers_train_on_the_data_of_the_study_or_not_at_all(read, tmp_path):
    base, other = read("rounds=1"), Toy(held_out=50).load()
    with pytest.raises(
        workers.TrialFailed, match="task: got data [0-9a-f]{12} in a worker; allowed that of the study, [0-9a-f]{12}"
    ) as refused:
        finish(searched(base), tmp_path, jobs=2, task=other)
    assert refused.value.code == DataError.code
    assert len(finish(searched(base), tmp_path, task=other)) >= 3, "one process takes it"


def test_what_the_desk_cannot_write_is_not_the_workers_death(read, tmp_path, monkeypatch):
    def full(*_: Any) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(suggestions.Desk, "should_stop", full)
    with pytest.raises(OSError, match="No space left on device"):
        finish(searched(read("rounds=1")), tmp_path, jobs=2)


SCRIPT = """
import sys
from fedcodist import config
from fedcodist.tuning import space, tune
from fedcodist.tuning.study import Search
base = config.read(sys.argv[1])
if __name__ == "__main__":
    search = Search(base, space.preset(base, "distillation"), trials=6, seed=7)
    for event in tune.run(search, sys.argv[2], jobs=int(sys.argv[3])):
        print(event.kind, event.done, event.t, flush=True)
"""


def start(tmp_path: Path, file: Path, jobs: int = 1) -> subprocess.Popen:
    (tmp_path / "script.py").write_text(SCRIPT)
    cache = {"JAX_COMPILATION_CACHE_DIR": os.environ["FEDCODIST_CACHE"], "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment = {**os.environ, **cache, "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0", "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, str(tmp_path / "script.py"), str(file), str(tmp_path / "out"), str(jobs)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def until(process: subprocess.Popen, line: str) -> None:
    for said in process.stdout:
        if said.strip() == line:
            return
    raise AssertionError("it ended before")


def test_killed_in_the_middle_of_a_trial(base, file, tmp_path):
    process = start(tmp_path, file)
    until(process, "round 2 2")  # the third trial is in its third round
    process.kill()
    process.wait()
    journal = study.place(tmp_path / "out", base) / "study.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":6,"worker_id":"x')  # as if it had died in a write
    search = searched(base, trials=6)
    events = list(tune.run(search, tmp_path / "out"))
    assert events[0].done == 2 and "was interrupted and is repeated" in events[0].notes[0]
    found = tune.trials(search, tmp_path / "out")
    assert [t.state for t in found if t.state != "lost"] == ["complete"] * 5 + [found[-1].state] and len(found) == 7
    assert values(found) == values(finish(search, tmp_path / "straight")), "as if nothing had happened"
    for t in (found[2], found[3]):
        assert t.values == found[2].values, "what was lost is what is tried again"


@pytest.mark.long
def test_interrupted_with_workers(base, file, tmp_path):
    process = start(tmp_path, file, jobs=2)
    until(process, "over 1 4")
    workers = _children(process.pid)
    assert len(workers) >= 2
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    for pid in workers:
        _gone(pid)
    found = finish(searched(base, trials=6), tmp_path / "out")
    assert sum(t.state != "lost" for t in found) == 6 and sum(t.own for t in found if t.state != "lost") == 1


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _gone(pid: int) -> None:
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.05)
    raise AssertionError(f"a worker is left: {Path(f'/proc/{pid}/cmdline').read_text()}")
