"""Running cells: which runs they are, how far each is, in which order they go, and the loop over them.

Every run is a run directory of `session`, so an interrupted command goes on where it was and finished runs are skipped. A run that
diverges is noted and the others go on: a table with a hole in it says more than no table. Tasks are loaded once and let go when no run
needs them any more.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from fedcodist import config, runs
from fedcodist.config import Config
from fedcodist.reports import units
from fedcodist.reports.arms import is_finished, number, rounds_done
from fedcodist.reports.screen import Screen
from fedcodist.reproduce import spread, stores
from fedcodist.reproduce.cells import Cell
from fedcodist.rule import Diverged
from fedcodist.runs import clock, session, timing
from fedcodist.storage import durable, sealed

RUNS, FAILED = "runs", "failed.json"
TIMED = ("seconds", "evaluate_seconds", "checkpoint_seconds")  # of a row of timing
LONG = 100  # rounds from which a run is worth timing before it begins


class Job(NamedTuple):
    """One run: a cell and a seed."""

    cell: Cell  # the first that asked for it
    seed: int
    config: Config
    path: Path

    @property
    def task(self) -> str:
        """Equal for runs that can share a loaded task."""
        return sealed.canonical(config.plain(self.config)["task"])

    @property
    def title(self) -> str:
        return f"{self.cell.id}, seed {self.seed}"

    @property
    def key(self) -> str:
        """What it is noted under: the same for all tables that share the run, and another one once its settings change."""
        return run_key(self.cell, self.seed)


class State(NamedTuple):
    """How far a run is."""

    at: int  # rounds in its journal
    rounds: int
    done: bool

    def __str__(self) -> str:
        return "done" if self.done else f"at round {self.at} of {self.rounds}" if self.at else "not begun"


def jobs(chosen: Iterable[Cell], root: Path, workers: int | None = None) -> list[Job]:
    """The runs of these cells, each once, in the order that leaves the most useful table at any early stop: the central column first, and
    all methods of a seed before the next seed."""
    found: dict[Path, Job] = {}
    for cell in chosen:
        made = replace(cell.config, name=cell.name, seeds=cell.seeds)
        if workers is not None and hasattr(made.engine, "workers"):
            made = replace(made, engine=replace(made.engine, workers=workers))
        for seed in cell.seeds:
            path = run_directory(cell, seed, root)
            if path not in found or cell.rank < found[path].cell.rank:
                found[path] = Job(cell, seed, made, path)
    return sorted(found.values(), key=lambda job: (job.cell.rank, job.seed))  # stable: rows keep their order


def run_directory(cell: Cell, seed: int, root: Path) -> Path:
    """Where a cell's run of this seed is kept."""
    return runs.run_path(root / RUNS, cell.name, cell.method, seed)


def run_key(cell: Cell, seed: int) -> str:
    """The name of that place among the runs."""
    return run_directory(cell, seed, Path()).relative_to(RUNS).as_posix()


def state(job: Job) -> State:
    """How far a run is, from its directory alone."""
    try:
        recorded = runs.read(job.path)
    except runs.NotARun:
        return State(0, job.config.rounds, False)
    return State(rounds_done(recorded), job.config.rounds, is_finished(recorded))


class Pace:
    """Seconds a round: what is expected of a config, times how much longer than expected runs like it took.

    `expected` is {config name: seconds a round} of all configs; without it all rounds of a family are taken to be alike.
    """

    def __init__(self, seen: Iterable[Job] = (), expected: Mapping[str, float] | None = None) -> None:
        self._expected = expected or {}
        self._longer: dict[tuple[str, str], list[float]] = {}
        for job in seen:
            try:
                timing = runs.read(job.path).timing[1:]  # the first round compiles
            except runs.NotARun:
                continue
            seconds = [sum(number(row.get(part)) or 0.0 for part in TIMED) for row in timing if number(row.get("seconds")) is not None]
            if seconds:
                self.see(job, fmean(seconds))

    def see(self, job: Job, seconds: float) -> None:
        """One more run took so many seconds a round."""
        self._longer.setdefault((job.cell.family, job.cell.method), []).append(seconds / self._expected.get(job.config.name, 1.0))

    def left(self, waiting: Sequence[tuple[Job, State]]) -> str:
        """The time for the rounds that are left, in words: by what is expected and by the runs of the same method, or family, or by any;
        where there is neither, unknown."""
        if not self._longer and not self._expected:
            return "time left unknown until a run is over"
        total = sum(self._ratio(job) * self._expected.get(job.config.name, 1.0) * (now.rounds - now.at) for job, now in waiting)
        return f"about {units.duration(total)} left"

    def _ratio(self, job: Job) -> float:
        family, method = job.cell.family, job.cell.method
        alike = self._longer.get((family, method)) or [r for (f, _), ratios in self._longer.items() if f == family for r in ratios]
        return median(alike or [r for ratios in self._longer.values() for r in ratios] or [1.0])


def expected(wanted: Iterable[Job]) -> dict[str, float]:
    """{config name: seconds a round}, as this machine's times have it; where there are none of a config, those of the same method and
    family. Empty if a config has neither."""
    found: dict[str, float | None] = {}
    alike: dict[tuple[str, str], list[float]] = {}
    jobs = {job.config.name: job for job in wanted}
    for name, job in jobs.items():
        seconds = clock.left(job.config)
        found[name] = None if seconds is None else seconds / job.config.rounds
        if seconds is not None:
            alike.setdefault((job.cell.family, job.cell.method), []).append(seconds / job.config.rounds)
    whole = {
        name: median(alike[job.cell.family, job.cell.method]) if (known := found[name]) is None else known
        for name, job in jobs.items()
        if found[name] is not None or (job.cell.family, job.cell.method) in alike
    }
    return whole if len(whole) == len(jobs) else {}


def listing(chosen: Sequence[Cell], root: Path) -> tuple[list[dict[str, Any]], str]:
    """A row for each cell and how far it is; a sentence on the time that is left, and how to prepare what data is not there."""
    every = jobs(chosen, root)
    states = {job.path: state(job) for job in every}
    rows = []
    for cell in chosen:
        mine = [states[run_directory(cell, seed, root)] for seed in cell.seeds]
        counts = Counter(map(str, mine))
        said = ", ".join(f"{n} {what}" if len(counts) > 1 else what for what, n in counts.items())
        if not all(now.done for now in mine) and (absent := stores.absent(cell.config.task)):
            said += f", and no data {' or '.join(absent)}"
        rows.append(
            {"cell": cell.id, "seeds": ",".join(map(str, cell.seeds)), "settings": "tuned" if cell.tuned else "untuned", "state": said}
        )
    waiting = [(job, states[job.path]) for job in every if not states[job.path].done]
    done = len(every) - len(waiting)
    left = f"; {Pace(every, expected(every)).left(waiting)}" if waiting else ""
    lacking = stores.missing(job.config.task for job, _ in waiting)
    return rows, "\n".join([f"{done} of {len(every)} runs are done{left}", *lacking])


def failed(root: Path) -> dict[str, str]:
    """{run: why it could not be finished}, as noted by earlier commands."""
    try:
        table = json.loads((root / FAILED).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in table.items()} if isinstance(table, dict) else {}


def note(root: Path, run: str, why: str | None) -> None:
    """Remember that a run failed, or that it no longer does."""
    known = failed(root)
    if (why is None and run not in known) or known.get(run) == why:
        return
    known = {key: value for key, value in known.items() if key != run} | ({} if why is None else {run: why})
    root.mkdir(parents=True, exist_ok=True)
    durable.replace_file(root / FAILED, (json.dumps(known, indent=1, sort_keys=True) + "\n").encode())


def run(
    wanted: Sequence[Job],
    root: Path,
    quiet: bool = False,
    between: Callable[[], object] = lambda: None,
    cluster: str = "",
    at_once: int = 0,
) -> dict[str, str]:
    """Train what is not finished, in order; or `at_once` on a Ray cluster (host:port, or "local"). Gives back what failed in this call.
    `between` is called when all methods of a seed are over, so that whoever waits for a table finds one."""
    states = {job.path: state(job) for job in wanted}
    waiting = [job for job in wanted if not states[job.path].done]
    if not waiting:
        return {}
    ready = [job for job in waiting if not stores.absent(job.config.task)]
    if not ready:
        stores.check(job.config.task for job in waiting)
    missing = stores.missing(job.config.task for job in waiting)
    done, lacking, waiting = len(wanted) - len(waiting), len(waiting) - len(ready), ready
    tasks, wrong = _load(waiting), {}
    if cluster:
        tasks.clear()
    else:
        _time(waiting, tasks, quiet)
    pace = Pace(wanted, expected(wanted))
    with Screen(quiet) as display:
        if done:
            display.say(f"{done} of {len(wanted)} runs are finished already")
        if lacking:
            display.say(f"left out, {lacking} of {len(wanted)} runs whose data is not there:")
        for line in missing:
            display.say(f"  {line}")
    if cluster:
        return _over(cluster, at_once, waiting, root, quiet, between)
    for turn, job in enumerate(waiting):
        rest = [(other, states[other.path]) for other in waiting[turn:]]
        with Screen(quiet) as display:  # one a run: dozens of finished bars would push each other off the terminal
            display.say(f"run {turn + 1} of {len(waiting)}: {job.title} ({pace.left(rest)})")
            start = time.monotonic()
            try:
                display.follow(session.perform(config.assemble(job.config, tasks[job.task], job.seed), job.path.parents[2]))
            except session.DivergedRun as error:
                wrong[job.title] = str(error).replace(f" ({job.path})", "")
                note(root, job.key, wrong[job.title])
                display.say(f"failed: {job.title}: {wrong[job.title]}")
            except runs.Mismatch as error:
                raise runs.Mismatch(str(error).replace("--name", "--out"), error.changes) from None
            else:
                note(root, job.key, None)
                pace.see(job, (time.monotonic() - start) / max(1, job.config.rounds - states[job.path].at))
        following = [other for other, _ in rest[1:]]
        if not any(other.task == job.task for other in following):
            del tasks[job.task]
        if following and (following[0].cell.rank, following[0].seed) != (job.cell.rank, job.seed):
            between()
    return wrong


def _over(cluster: str, at_once: int, waiting: Sequence[Job], root: Path, quiet: bool, between: Callable[[], object]) -> dict[str, str]:
    """The same on a cluster: runs end in any order."""
    wrong: dict[str, str] = {}
    open_ = list(waiting)
    with Screen(quiet) as display:
        for turn, end in enumerate(spread.trained([(job.config, job.seed, job.path.parents[2]) for job in waiting], cluster, at_once), 1):
            job = waiting[end.number]
            if end.code not in (0, session.DivergedRun.code):
                raise spread.Failed(f"{job.title}: {end.why}", end.code)
            said = f"run {turn} of {len(waiting)} is over: {job.title} ({units.duration(end.seconds)})"
            if end.why:
                wrong[job.title] = end.why.replace(f" ({job.path})", "")
                said = f"failed: {job.title}: {wrong[job.title]}"
            note(root, job.key, wrong.get(job.title))
            display.say(said)
            open_.remove(job)
            if open_ and not any((other.cell.rank, other.seed) == (job.cell.rank, job.seed) for other in open_):
                between()
    return wrong


def _load(waiting: Sequence[Job]) -> dict[str, Any]:
    """Every task, once; and every config is tried on its task, or the last cell could be refused after hours of training the others."""
    tasks: dict[str, Any] = {}
    tried: set[str] = set()
    for job in waiting:
        if job.task not in tasks:
            tasks[job.task] = job.config.task.load()
        if job.config.name not in tried:
            config.assemble(job.config, tasks[job.task], job.seed)
            tried.add(job.config.name)
    return tasks


def _time(waiting: Sequence[Job], tasks: Mapping[str, Any], quiet: bool) -> None:
    """Time a few rounds of each method in each family that this machine has no times of. Short runs are sooner over than timed."""
    unknown: dict[tuple[str, str], Job] = {}
    for job in waiting:
        if job.config.rounds >= LONG:
            unknown.setdefault((job.cell.family, job.cell.method), job)
    for (family, method), job in unknown.items():
        if expected(other for other in waiting if (other.cell.family, other.cell.method) == (family, method)):
            continue
        with Screen(quiet) as display:
            display.say(f"timing a few rounds of {family}/{method}, once on this machine")
        with suppress(Diverged):  # its run will say so
            timing.measure(config.assemble(job.config, tasks[job.task], job.seed))
