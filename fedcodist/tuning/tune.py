"""Tuning: many trainings of a config with other values of some of its keys, judged on held-out data, and the winner put to the test of
seeds that no trial has seen, beside a FedAvg twin that had as many trials.

`run` searches, `confirm` trains winners again; both are generators, and whoever consumes them draws the screen. A method that stands on its
twin's rates (`rated`) has had the trials of both, and whoever quotes it says so. Deliberately absent: the test split (trial.py takes it
away; the last word is `fedcodist run best.toml`).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
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
from fedcodist.tuning import space, study
from fedcodist.tuning.study import BEST, CONFIRMED, JOURNAL, TRIALS, Search, Trial, locked, place
from fedcodist.tuning.trial import Job, Outcome, Report, alone, content, share, unseen, work

PREFIXES = "prefixes"  # beside the methods of a config, which share them
FRESH = 3  # seeds of a winner's own run, at least


class Event(NamedTuple):
    """What just happened in a study."""

    kind: str  # opened, round, over
    done: int  # trainings that are over
    of: int
    job: Job | None = None
    t: int = 0
    best: tuple[float, int] | None = None  # value and number
    outcome: Outcome | None = None
    notes: tuple[str, ...] = ()


def run(
    search: Search, root: str | Path, *, jobs: int = 1, task: Task | None = None, restart: bool = False
) -> Generator[Event, None, list[Trial]]:
    """Search until there are as many trials as asked for, from wherever the study stands; returns all that are over.

    `jobs` worker processes share the threads: they change no trial's result, only which trials a suggestion can learn from. `restart`
    sets the study aside, deleting nothing, and begins again.
    """
    task = unseen(task if task is not None else search.config.task.load())
    first, data, path = 1 + check(search, task), content(task), place(root, search.config)
    with Signals() as signals, study.opened(search, path, data, first, restart) as (opened, notes):
        desk = study.Desk(search, opened, data, jobs, signals, path.parent / PREFIXES)
        try:
            yield from _follow(desk, min(jobs, search.trials - desk.done), task, search.trials, notes)
        finally:
            found = study.trials(search, opened)
            with signals.shield():
                write(search, path, found)
        return found


def trials(search: Search, root: str | Path, task: Task | None = None) -> list[Trial]:
    """The trials of a study that are over, without going on with it."""
    path = place(root, search.config)
    if not (path / JOURNAL).is_file():
        raise ConfigError(f"{durable.printable(path)}: got no study; allowed one (fedcodist tune with --twin makes it)")
    with study.opened(search, path, content(task if task is not None else search.config.task.load())) as (opened, _):
        return study.trials(search, opened)


def confirm(
    configs: Sequence[Config], seeds: Sequence[int], root: str | Path, *, jobs: int = 1, task: Task | None = None, clamp: bool = False
) -> Generator[Event, None, list[dict[int, Outcome]]]:
    """Train these configs on these seeds, on held-out data; what is done already is read back. Returns {seed: outcome} for each config."""
    task = unseen(task if task is not None else configs[0].task.load())
    data = content(task)
    with Signals() as signals, locked([place(root, one) for one in configs]) as paths:
        desk = _Confirm(configs, seeds, paths, data, jobs, signals, clamp)
        yield from _follow(desk, min(jobs, desk.left), task, len(configs) * len(seeds), [])
        return desk.found


def _follow(desk: study.Desk | _Confirm, jobs: int, task: Task, of: int, notes: list[str]) -> Iterator[Event]:
    yield Event("opened", desk.done, of, best=desk.best, notes=tuple(notes))
    for job, news in work(desk, jobs, task):
        if isinstance(news, Outcome):
            yield Event("over", desk.done, of, job, news.rounds, desk.best, news)
        else:
            yield Event("round", desk.done, of, job, news.t, desk.best)


def twin(search: Search) -> Search:
    """The search for the FedAvg twin: as many trials, over the part of the space that FedAvg has, or over its rates if there is none."""
    base = config.twin(search.config)
    return replace(search, config=base, space=space.federated(search.space) or space.preset(base, "rates"))


def rated(search: Search, by: Search, best: Trial) -> Search:
    """The search with all that another one found fixed, and no longer searched."""
    base = search.config
    for key in (key for range in by.space.values() for key in range.keys):
        base = space.put(base, key, best.get(key))
    return replace(search, config=base, space=space.without(search.space, by.space))


def stands_on(search: Search, by: Search, found: Iterable[Trial], root: str | Path) -> Trial | None:
    """The trial of another study whose values this one was begun with, if it was: it goes on with them, whoever has won there since."""
    stored = study.begun(root, search.config)
    return next((t for t in found if t.state == "complete" and study.bare(rated(search, by, t).config) == stored), None)


def fresh(seed: int, many: int) -> list[int]:
    """Seeds that no trial of a study has used.

    >>> fresh(1, 3)
    [0, 2, 3]
    """
    return list(islice((n for n in count() if n != seed), many))


def ranked(found: Iterable[Trial]) -> list[Trial]:
    """The best first: by value, complete trials before those that were stopped, and those that failed last."""
    order = ("complete", "pruned", "diverged", "refused")
    return sorted((t for t in found if t.state in order), key=lambda t: (order.index(t.state), -t.value, t.number))


def tried(found: Iterable[Trial]) -> int:
    """How many trials a study has had."""
    return sum(trial.state != "lost" for trial in found)


def winners(search: Search, found: Sequence[Trial]) -> list[Trial]:
    """Who is put to the test of fresh seeds: the winner, and with it the rest of the front if that is searched."""
    best = winner(found)
    rest = front(found) if search.objective == "pareto" else []
    return [] if best is None else [best, *(trial for trial in rest if trial.number != best.number)]


def winner(found: Iterable[Trial]) -> Trial | None:
    """The complete trial with the highest mean accuracy; of equals the first."""
    return next((trial for trial in ranked(found) if trial.state == "complete"), None)


def front(found: Iterable[Trial]) -> list[Trial]:
    """The complete trials that no other matches in every pool's accuracy and in server cost and beats in one; the cheapest first."""

    def goods(trial: Trial) -> tuple[float, ...]:
        return *(trial.outcome.accuracy[pool] for pool in sorted(trial.outcome.accuracy)), -trial.outcome.server_flops

    def beats(a: Trial, b: Trial) -> bool:
        return goods(a) != goods(b) and all(x >= y for x, y in zip(goods(a), goods(b), strict=True))

    complete = [trial for trial in found if trial.state == "complete"]
    return sorted((t for t in complete if not any(beats(o, t) for o in complete)), key=lambda t: (t.outcome.server_flops, -t.value))


class _Confirm:
    """The desk of a confirmation: configs times seeds, each written down when it is over."""

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

    def heard(self, job: Job, report: Report) -> bool:
        return False

    def told(self, job: Job, outcome: Outcome) -> None:
        with self._signals.shield():
            lines = journal.Lines(self._paths[job.number] / CONFIRMED)
            lines.cut(lines.whole_bytes())
            lines.append({"config": self._names[job.number], "seed": job.seed, "outcome": outcome._asdict()})
            lines.sync()
            lines.close()
        self.found[job.number][job.seed] = outcome
        self.done += 1


def check(search: Search, task: Task) -> int:
    """Rounds before the first codistillation. What only the data can refuse is refused here, not in the middle of a study."""
    for name, range in search.space.items():
        for value in range.choices or ((range.low, range.high) if range.whole else ()):
            config.assemble(space.apply(search.config, {name: range}, {name: value}), task, search.seed, search.clamp)
    return alone(config.assemble(search.config, task, search.seed, search.clamp))


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return journal.decode_lines(durable.read_file(path), path.name)[0]
    except Damaged:
        return []  # none yet


def rows(search: Search, found: Iterable[Trial]) -> list[dict[str, Any]]:
    """Trials as flat rows: how each ended, each pool's accuracy, and every searched key."""
    keys = [key for range in search.space.values() for key in range.keys]
    told = []
    for trial in found:
        outcome = trial.outcome
        row = {"method": search.config.method.kind, "trial": trial.number, "state": trial.state, "value": trial.value}
        row |= {f"accuracy {pool}": outcome.accuracy.get(pool) for pool in search.config.pools}
        row |= {"server_flops": outcome.server_flops, "rounds": outcome.rounds, "trained": outcome.trained}
        told.append(row | {"seconds": round(outcome.seconds, 3)} | {key: trial.get(key) for key in keys})
    return told


def write(search: Search, path: Path, found: Sequence[Trial]) -> None:
    """All trials as JSON lines, and the best as a config that can be run; of a front every member."""
    lines = [json.dumps(row | {"curve": trial.outcome.curve}) for row, trial in zip(rows(search, found), found, strict=True)]
    durable.replace_file(path / TRIALS, "".join(f"{line}\n" for line in lines).encode())
    best = winner(found)
    if best is None:
        return
    many = tried(found)
    wanted = {BEST: best}
    if search.objective == "pareto":
        wanted |= {f"front-{trial.number}.toml": trial for trial in front(found)}
        for old in path.glob("front-*.toml"):
            if old.name not in wanted:
                old.unlink()
    for name, trial in wanted.items():
        durable.replace_file(path / name, _runnable(search, trial, many, path / name).encode())


def _runnable(search: Search, trial: Trial, many: int, path: Path) -> str:
    """A trial as a config, on seeds that no trial has used, with a head that says where it comes from."""
    pools = ", ".join(f"{pool} {value:.4f}" for pool, value in trial.outcome.accuracy.items())
    what = "The best" if path.name == BEST else "One of the front"
    how = "TPE" if many > study.RANDOM else "random draws"
    head = [
        f"{what} of {many} trials by {how} over {len(search.space)} parameters, trained on seed {search.seed} and judged on held-out data:",
        f"trial {trial.number}, mean accuracy {trial.value:.4f} ({pools}). The best of many looks better than it is.",
        f"Run it: fedcodist run {durable.printable(path)}" + (" --clamp" if search.clamp else ""),
    ]
    for key in (key for range in search.space.values() for key in range.keys):
        head.append(f"tuned: {key} = {canonical(trial.get(key))}, was {canonical(space.get(search.config, key))}")
    seeds = tuple(fresh(search.seed, max(FRESH, len(search.config.seeds))))
    tuned = replace(trial.config, name=tuned_name(trial), seeds=seeds)
    return "".join(f"# {line}\n" for line in head) + toml.text(config.plain(tuned)) + "\n"


def tuned_name(trial: Trial) -> str:
    """The name of a winner's runs: not in the way of runs of the config as it was, or of another winner."""
    return f"{trial.search.config.name[:52]}-tuned-{trial.number}"
