"""Tuning: repeated training of a config with different values of some of its keys, judged on held-out data, and winners trained again on
seeds that no trial has used.

`run` searches, `confirm` trains winners again; both are generators of events, and the caller draws the screen. Deliberately
absent: the test split (trial.py takes it away; the last word is `fedcodist run best.toml`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from fedcodist import config
from fedcodist.config import Config, toml
from fedcodist.errors import ConfigError
from fedcodist.runs.session import Signals
from fedcodist.storage import durable, journal, sealed
from fedcodist.storage.durable import Damaged
from fedcodist.storage.sealed import canonical
from fedcodist.task import Task
from fedcodist.tuning import dotted, ranking, space, study, suggestions
from fedcodist.tuning.prefixes import alone
from fedcodist.tuning.study import BEST, CONFIRMED, JOURNAL, TRIALS, Search, Trial, locked, place
from fedcodist.tuning.trial import Job, Outcome, Report, content, without_test
from fedcodist.tuning.workers import share, work

PREFIXES = "prefixes"  # beside the methods of a config, which share them
FRESH = 3  # seeds of a winner's own run, at least


class Event(NamedTuple):
    """What just happened in a study or a confirmation."""

    kind: str  # opened, round, over; or message, which has only notes
    done: int = 0  # finished trainings
    of: int = 0
    job: Job | None = None
    t: int = 0
    best: tuple[float, int] | None = None  # value and number
    outcome: Outcome | None = None
    notes: tuple[str, ...] = ()
    title: str = ""  # of the study or confirmation
    name: str = ""  # of the training in it


def run(
    search: Search, root: str | Path, *, jobs: int = 1, task: Task | None = None, restart: bool = False, cluster: str = ""
) -> Generator[Event, None, list[Trial]]:
    """Search until the requested number of trials is reached, resuming the study if there is one; returns all finished trials.

    `jobs` worker processes share the threads: they change no trial's result, only which trials a suggestion can learn from. With `cluster`
    (host:port, or "local") they are those of a Ray cluster. `restart` sets the study aside, deleting nothing, and begins again.
    """
    task = without_test(task if task is not None else search.config.task.load())
    first, data, path = 1 + check(search, task), content(task), place(root, search.config)
    with Signals() as signals, suggestions.opened(search, path, data, first, restart) as (opened, notes):
        study.ask(search, path)
        desk = suggestions.Desk(search, opened, data, jobs, signals, path.parent / PREFIXES)
        try:
            opening = Event("opened", of=search.trials, notes=tuple(notes), title=f"tune {search.config.method.kind}")
            yield from _follow(desk, min(jobs, search.trials - desk.done), task, opening, lambda job: f"trial {job.number}", cluster)
        finally:
            found = suggestions.trials(search, opened)
            with signals.shield():
                write(search, path, found)
        return found


def trials(search: Search, root: str | Path, task: Task | None = None) -> list[Trial]:
    """The finished trials of a study, without continuing it."""
    path = place(root, search.config)
    if not (path / JOURNAL).is_file():
        raise ConfigError(f"{durable.printable(path)}: there is no study here; fedcodist tune with --twin makes one")
    with suggestions.opened(search, path, content(task if task is not None else search.config.task.load())) as (opened, _):
        return suggestions.trials(search, opened)


def confirm(
    configs: Sequence[Config],
    seeds: Sequence[int],
    root: str | Path,
    *,
    jobs: int = 1,
    task: Task | None = None,
    clamp: bool = False,
    cluster: str = "",
) -> Generator[Event, None, list[dict[int, Outcome]]]:
    """Train these configs on these seeds and evaluate them on held-out data; finished trainings are read back. Returns {seed: outcome} for
    each config."""
    task = without_test(task if task is not None else configs[0].task.load())
    data = content(task)
    with Signals() as signals, locked([place(root, one) for one in configs]) as paths:
        desk = _Confirm(configs, seeds, paths, data, jobs, signals, clamp)
        opening = Event("opened", of=len(configs) * len(seeds), title="fresh seeds")
        yield from _follow(desk, min(jobs, desk.left), task, opening, lambda job: f"{job.config.method.kind} seed {job.seed}", cluster)
        return desk.found


def fresh(seed: int, many: int) -> list[int]:
    """Seeds that no trial of a study has used.

    >>> fresh(1, 3)
    [0, 2, 3]
    """
    return list(islice((n for n in count() if n != seed), many))


def check(search: Search, task: Task) -> int:
    """Check the config against the data before the study begins. Returns the rounds before the first codistillation."""
    for name, range in search.space.items():
        for value in range.choices or ((range.low, range.high) if range.whole else ()):
            config.assemble(space.apply(search.config, {name: range}, {name: value}), task, search.seed, search.clamp)
    return alone(config.assemble(search.config, task, search.seed, search.clamp))


def write(search: Search, path: Path, trials: Sequence[Trial]) -> None:
    """All trials as JSON lines, and the best as a config that can be run; of a front every member."""
    lines = [json.dumps(row | {"curve": trial.outcome.curve}) for row, trial in zip(ranking.rows(search, trials), trials, strict=True)]
    durable.replace_file(path / TRIALS, "".join(f"{line}\n" for line in lines).encode())
    best = ranking.winner(trials)
    if best is None:
        return
    many = ranking.tried(trials)
    wanted = {BEST: best}
    if search.objective == "pareto":
        wanted |= {f"front-{trial.number}.toml": trial for trial in ranking.front(trials)}
        for old in path.glob("front-*.toml"):
            if old.name not in wanted:
                old.unlink()
    for name, trial in wanted.items():
        durable.replace_file(path / name, _runnable(search, trial, many, path / name).encode())


def tuned_name(trial: Trial) -> str:
    """The name of a winner's runs, which differs from that of the config's own runs and of another winner's."""
    return f"{trial.search.config.name[:52]}-tuned-{trial.number}"


def _runnable(search: Search, trial: Trial, many: int, path: Path) -> str:
    """A trial as a config, on seeds that no trial has used, with a head that says where it comes from."""
    pools = ", ".join(f"{pool} {value:.4f}" for pool, value in trial.outcome.accuracy.items())
    what = "The best" if path.name == BEST else "One of the front"
    how = "TPE" if many > suggestions.RANDOM else "random draws"
    head = [
        f"{what} of {many} trials by {how} over {len(search.space)} parameters, trained on seed {search.seed} and judged on held-out data:",
        f"trial {trial.number}, mean accuracy {trial.value:.4f} ({pools}). The best of many looks better than it is.",
        f"Run it: fedcodist run {durable.printable(path)}" + (" --clamp" if search.clamp else ""),
    ]
    for key in (key for range in search.space.values() for key in range.keys):
        head.append(f"tuned: {key} = {canonical(trial.get(key))}, was {canonical(dotted.get(search.config, key))}")
    seeds = tuple(fresh(search.seed, max(FRESH, len(search.config.seeds))))
    tuned = replace(trial.config, name=tuned_name(trial), seeds=seeds)
    return "".join(f"# {line}\n" for line in head) + toml.text(config.plain(tuned)) + "\n"


def _follow(
    desk: suggestions.Desk | _Confirm, jobs: int, task: Task, first: Event, name: Callable[[Job], str], cluster: str
) -> Generator[Event, None, None]:
    """The first event, and one for each round and each end of the trainings that a desk hands out."""
    yield first._replace(done=desk.done, best=desk.best)
    for job, message in work(desk, jobs, task, cluster):
        event = Event("round", desk.done, first.of, job, best=desk.best, title=first.title, name=name(job))
        if isinstance(message, Outcome):
            yield event._replace(kind="over", t=message.rounds, outcome=message)
        else:
            yield event._replace(t=message.t)


class _Confirm:
    """The desk of a confirmation: configs times seeds, each recorded when it is finished."""

    best = None

    def __init__(
        self, configs: Sequence[Config], seeds: Sequence[int], paths: Sequence[Path], data: str, jobs: int, signals: Signals, clamp: bool
    ):
        self._paths, self._signals, self.done = paths, signals, 0
        self._names = [sealed.digest([config.identity(one, data), clamp]) for one in configs]
        self.found: list[dict[int, Outcome]] = [{} for _ in configs]
        for nth, path in enumerate(paths):
            for row in _lines(path / CONFIRMED):
                if row["config"] == self._names[nth] and row["seed"] in seeds:
                    self.found[nth][row["seed"]] = Outcome.read(row["outcome"])
        shared = [share(one, jobs) for one in configs]
        todo = [(nth, seed) for seed in seeds for nth in range(len(configs)) if seed not in self.found[nth]]
        self.done, self.left = len(configs) * len(seeds) - len(todo), len(todo)
        self._jobs = (Job(nth, shared[nth], seed, clamp, data) for nth, seed in todo)

    def next(self) -> Job | None:
        return next(self._jobs, None)

    def should_stop(self, job: Job, report: Report) -> bool:
        return False

    def record(self, job: Job, outcome: Outcome) -> None:
        with self._signals.shield():
            lines = journal.Lines(self._paths[job.number] / CONFIRMED)
            lines.cut(lines.whole_bytes())
            lines.append({"config": self._names[job.number], "seed": job.seed, "outcome": outcome._asdict()})
            lines.sync()
            lines.close()
        self.found[job.number][job.seed] = outcome
        self.done += 1


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return journal.decode_lines(durable.read_file(path), path.name)[0]
    except Damaged:
        return []  # none yet
