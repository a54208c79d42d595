"""A study on disk: what it is, what was tried, and what Optuna suggests next.

`study.json` says what is searched, `study.journal` is Optuna's, and a lock that dies with its process makes this process the only writer,
so that nothing waits for a dead one. A trial that ran when its process was killed is lost, and tried again with the same values; what is
suggested is a function of the seed, the place in the study and the trials that are over, so such a study ends as if nothing had happened.
Deliberately absent: several machines on one study.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from fedcodist import keys, runs
from fedcodist.config import Config, essential
from fedcodist.errors import ConfigError
from fedcodist.runs import environment, evaluation
from fedcodist.runs.session import Signals
from fedcodist.settings import leaves
from fedcodist.storage import durable, sealed
from fedcodist.storage import lock as lock_file
from fedcodist.storage.durable import Damaged
from fedcodist.storage.journal import Lines
from fedcodist.storage.sealed import canonical
from fedcodist.tuning import space
from fedcodist.tuning.space import Space
from fedcodist.tuning.trial import Job, Outcome, Report, share

FACTS, JOURNAL, LOCK = "study.json", "study.journal", "study.lock"
TRIALS, BEST, CONFIRMED = "trials.jsonl", "best.toml", "confirmed.jsonl"
STARTUP = 5  # complete trials before any other is stopped early
RANDOM = 10  # trials before TPE learns from them: the config's own, and draws from the ranges


@dataclass(frozen=True)
class Search:
    """What a study is: a config, the space around it, how many trials, and how they are judged."""

    config: Config
    space: Space
    trials: int = 30
    seed: int = 0  # of every trial's training, and of what is suggested
    objective: Literal["mean", "pareto"] = "mean"
    prune: bool = True
    clamp: bool = False


class Trial(NamedTuple):
    """A trial of a study that is over."""

    number: int
    state: str  # complete, pruned, diverged, refused or lost
    search: Search
    values: dict[str, Any]  # {parameter: value}
    outcome: Outcome
    own: bool = False  # it was the config as it is, whether or not the space can say its values

    @property
    def value(self) -> float:
        """What it is ranked by."""
        return self.outcome.value

    @property
    def config(self) -> Config:
        """What was trained."""
        return self.search.config if self.own else space.apply(self.search.config, self.search.space, self.values)

    @property
    def sayable(self) -> bool:
        """Whether the space can say its values, as it can unless it was the config's own."""
        return not self.own or all(self.values[name] == self.get(key) for name, range in self.search.space.items() for key in range.keys)

    def get(self, key: str) -> Any:
        """The value of a searched key."""
        if self.own:
            return space.get(self.search.config, key)
        return next(self.values[name] for name, range in self.search.space.items() if key in range.keys)


def begun(root: str | Path, config: Config) -> dict[str, Any] | None:
    """The config of a study that is there already, as it was written down; None if there is none."""
    try:
        return sealed.unseal(place(root, config) / FACTS)["study"]["config"]
    except (Damaged, KeyError, TypeError):
        return None


def place(root: str | Path, config: Config) -> Path:
    """Where the study of this config lives."""
    return runs.run_path(root, config.name, config.method.kind, 0).parent


class Desk:
    """Asks Optuna what to try, and tells it what came of it (trial.Desk)."""

    def __init__(self, search: Search, opened: Any, data: str, jobs: int, signals: Signals, prefixes: Path):
        self._search, self._opened, self._signals, self._data = search, opened, signals, data
        self._flying: dict[int, Any] = {}
        self._config = share(search.config, jobs)
        # A rate from a range is never drawn twice: to keep what no other trial can use would only fill the disk.
        finite = all(range.choices for range in space.federated(search.space).values())
        self._prefixes = prefixes if finite else None
        # Where the space cannot say the config's own values, Optuna must not learn from trial 0: it would from values that it had not.
        self._odd = bool(space.own(search.config, search.space)[1])
        self._apart = any(trial.user_attrs.get("apart") for trial in opened.get_trials(deepcopy=False))
        over = [trial for trial in trials(search, opened) if trial.state != "lost"]
        complete = [trial for trial in over if trial.state == "complete"]
        self.done = len(over)
        self.best = max(((t.value, t.number) for t in complete), default=None, key=lambda best: best[0])

    def next(self) -> Job | None:
        last = self.done + len(self._flying) == self._search.trials - 1
        if self.done + len(self._flying) >= self._search.trials or (last and self._flying and _parts(self._search)):
            return None  # the last trial of FedAvg joins what was best, so it waits for all others
        with self._signals.shield():
            # A sampler for each suggestion, seeded by its place: the same whether or not the study was ever interrupted.
            place = self.done + len(self._flying)
            seed = int(keys.derive(keys.root(self._search.seed), "suggest", place)[0])
            self._opened.sampler = _optuna().samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=RANDOM - self._apart)
            if last:
                self._join()
            trial = self._opened.ask(_distributions(self._search.space))
        self._flying[trial.number] = trial
        config = self._config
        if not trial.user_attrs.get("own"):
            config = space.apply(config, self._search.space, _decoded(self._search.space, trial.params))
        return Job(trial.number, config, self._search.seed, self._search.clamp, self._data, self._prefixes)

    def _join(self) -> None:
        """Put in the queue what `joined` finds, unless a trial that was lost waits there."""
        values = joined(self._search, trials(self._search, self._opened))
        if values and not self._opened.get_trials(deepcopy=False, states=(_optuna().trial.TrialState.WAITING,)):
            self._opened.enqueue_trial(_encoded(self._search.space, values))

    def heard(self, job: Job, report: Report) -> bool:
        if report.accuracy is None or self._search.objective == "pareto":
            return False
        trial = self._flying[job.number]
        with self._signals.shield():
            trial.report(fmean(report.accuracy.values()), report.t)
            return trial.should_prune() and not trial.user_attrs.get("own")  # or the winner could be worse than the start

    def told(self, job: Job, outcome: Outcome) -> None:
        states = _optuna().trial.TrialState
        trial = self._flying.pop(job.number)
        with self._signals.shield():
            trial.set_user_attr("outcome", outcome._asdict())
            if trial.user_attrs.get("own") and self._odd:
                trial.set_user_attr("apart", True)
                self._opened.tell(trial, state=states.FAIL)
                self._apart = True
            elif self._search.objective == "pareto":
                self._opened.tell(trial, self._goods(outcome))
            elif outcome.failed or outcome.pruned:
                if outcome.failed:
                    trial.report(0.0, outcome.rounds)  # what TPE is to think of it
                self._opened.tell(trial, state=states.PRUNED)
            else:
                self._opened.tell(trial, outcome.value)
        self.done += 1
        if not outcome.pruned and not outcome.failed and (self.best is None or outcome.value > self.best[0]):
            self.best = outcome.value, job.number

    def _goods(self, outcome: Outcome) -> list[float]:
        """What a trial is judged by if it is not by one number. One that failed has saved its server nothing: it is as dear as any."""
        if not outcome.failed:
            return [*(outcome.accuracy[pool] for pool in sorted(self._search.config.pools)), outcome.server_flops]
        seen = [trial.values[-1] for trial in self._opened.get_trials(deepcopy=False) if trial.values]
        return [*[0.0] * len(self._search.config.pools), max([outcome.server_flops, *seen])]


def trials(search: Search, opened: Any) -> list[Trial]:
    """The trials that are over, and those that were lost."""
    found = []
    for trial in opened.get_trials(deepcopy=False):
        if not trial.state.is_finished() or set(trial.params) != set(search.space):
            continue
        own, told = bool(trial.user_attrs.get("own")), trial.user_attrs.get("outcome")
        if told is None or (trial.state.name == "FAIL" and not trial.user_attrs.get("apart")):
            state, outcome = "lost", Outcome([], 0, 0, 0.0)
        else:
            outcome = Outcome.read(told)
            state = "diverged" if outcome.diverged else "refused" if outcome.refused else "pruned" if outcome.pruned else "complete"
        found.append(Trial(trial.number, state, search, _decoded(search.space, trial.params), outcome, own))
    return found


def joined(search: Search, found: Sequence[Trial]) -> dict[str, Any] | None:
    """Each pool's values from the trial that was best for that pool. Under FedAvg pools never hear each other, so the values together give
    each of them what they gave it apart. None where pools teach or share a parameter, or where a trial has had these values."""
    complete = [trial for trial in found if trial.state == "complete" and trial.sayable]
    parts = _parts(search)
    if parts is None or not complete:
        return None
    best = {pool: max(complete, key=lambda trial: trial.outcome.accuracy[pool]) for pool in parts}
    values = {name: best[pool].values[name] for pool, names in parts.items() for name in names}
    return None if any(trial.values == values for trial in found if trial.state != "lost") else values


def _parts(search: Search) -> dict[str, list[str]] | None:
    """The parameters of each pool, if what is best for each can be joined."""
    alone = search.config.method.kind == "fedavg" and search.objective == "mean"
    return space.by_pool(search.space, search.config) if alone else None


@contextmanager
def opened(search: Search, path: Path, data: str, first: int = 1, restart: bool = False) -> Iterator[tuple[Any, list[str]]]:
    """Optuna's study under our lock, brought to where it can go on, and notes about what was found. `first`: the first codistillation."""
    optuna = _optuna()
    with locked([path]):
        notes = _set_aside(path) if restart else []
        notes += _check(search, path, data)
        journal = Lines(path / JOURNAL)
        journal.cut(journal.whole_bytes())  # half a line, which a killed process left, would swallow the next one
        journal.close()
        try:
            backend = optuna.storages.journal.JournalFileBackend(str(path / JOURNAL), lock_obj=_Held())
            study = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name="study",
                directions=[*["maximize"] * len(search.config.pools), "minimize"] if search.objective == "pareto" else ["maximize"],
                pruner=_pruner(search, first),
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError) as error:  # lines that are no JSON, or not Optuna's
            raise durable.CheckpointError(f"{durable.printable(path / JOURNAL)}: damaged ({error}); --restart begins again") from None
        values, odd = space.own(search.config, search.space)
        if not study.get_trials(deepcopy=False):
            study.enqueue_trial(_encoded(search.space, values), user_attrs={"own": True})
        yield study, notes + odd + _retry(study)


def _retry(study: Any) -> list[str]:
    """Trials that ran when their process ended are lost, and tried again with the same values."""
    states = _optuna().trial.TrialState
    queued = {trial.user_attrs.get("again") for trial in study.get_trials(deepcopy=False, states=(states.WAITING,))}
    running = study.get_trials(deepcopy=False, states=(states.RUNNING,))
    lost = [trial for trial in running if not trial.user_attrs.get("apart")]  # the others were over
    for trial in running:
        if trial in lost and trial.number not in queued:  # queued before it is given up: a kill between the two loses nothing
            marks = {"again": trial.number} | ({"own": True} if trial.user_attrs.get("own") else {})
            study.enqueue_trial(trial.system_attrs.get("fixed_params", {}) | trial.params, user_attrs=marks)
        study.tell(trial.number, state=states.FAIL)
    return [f"trial {', '.join(str(trial.number) for trial in lost)} was interrupted, and is tried again"] if lost else []


# Optuna


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("tune: got no optuna; allowed an installation with it (pip install 'fedcodist[tune]')") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class _Held:
    """The journal's own lock, which would outlive a killed process by half a minute: the study is locked as a whole already."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _pruner(search: Search, first: int) -> Any:
    """The median rule: a trial is stopped whose best so far is below the median of complete trials at the same round. It is mild, and has
    no budget of rounds to choose. Successive halving would judge most trials by their first rounds, where rates have not decayed and
    nobody has taught anybody. For the same reason nothing is stopped in the first third of a run, or before a quarter of the rounds from
    the first codistillation on: what a model does right after a lesson passes."""
    pruners = _optuna().pruners
    if not search.prune or search.objective == "pareto":
        return pruners.NopPruner()
    rounds = search.config.rounds
    taught = first - 1 + math.ceil((rounds - first + 1) / 4)
    return pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=max(taught, math.ceil(rounds / 3)))


def _distributions(searched: Space) -> dict[str, Any]:
    kinds = _optuna().distributions
    found = {}
    for name, range in searched.items():
        if range.choices:
            found[name] = kinds.CategoricalDistribution([_coded(choice) for choice in range.choices])
        else:
            kind = kinds.IntDistribution if range.whole else kinds.FloatDistribution
            found[name] = kind(range.low, range.high, log=range.log)
    return found


def _coded(choice: Any) -> Any:
    """A choice as Optuna can keep it: tables and lists as their JSON."""
    return canonical(choice) if isinstance(choice, dict | list | tuple) else choice


def _encoded(searched: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _coded(value) if searched[name].choices else value for name, value in values.items()}


def _decoded(searched: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    def value(name: str) -> Any:
        choices = searched[name].choices
        return next(c for c in choices if canonical(_coded(c)) == canonical(params[name])) if choices else params[name]

    return {name: value(name) for name in searched}


# What it is


@contextmanager
def locked(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """These studies, for this process alone."""
    locks: list[int] = []
    try:
        for path in dict.fromkeys(paths):
            durable.make_directories(path)
            locks.append(lock_file.take(path / LOCK, "study")[0])
        yield paths
    finally:
        for lock in locks:
            lock_file.release(lock)


def bare(config: Config) -> dict[str, Any]:
    """A config as a study keeps it: without what changes no result."""
    return json.loads(canonical(essential(config)))


def _facts(search: Search, data: str) -> dict[str, Any]:
    """What a study is, besides how many trials it has."""
    facts = {
        "config": bare(search.config),
        "space": space.plain(search.space),
        "data": data,
        "seed": search.seed,
        "objective": search.objective,
    }
    facts |= {"prune": search.prune, "clamp": search.clamp, "evaluate_every": evaluation.interval(search.config)}
    return json.loads(canonical(facts))


def _check(search: Search, path: Path, data: str) -> list[str]:
    """Write down what the study is, or compare: a study of something else is refused with what differs."""
    facts, found = _facts(search, data), json.loads(canonical(environment.fingerprint()))
    try:
        stored = sealed.unseal(path / FACTS)
    except Damaged as error:
        if (path / FACTS).exists() or (path / JOURNAL).exists():
            raise durable.CheckpointError(f"{durable.printable(path)}: {error}; nothing was changed; --restart begins again") from None
        durable.replace_file(path / FACTS, sealed.seal({"study": facts, "environment": found}))
        return []
    old, new = (dict(leaves(table)) for table in (stored["study"], facts))
    changes = [f"{key}: {_said(old, key)} -> {_said(new, key)}" for key in sorted(old | new) if _said(old, key) != _said(new, key)]
    if changes:
        more = f", and {len(changes) - 5} more" if len(changes) > 5 else ""
        message = f"{durable.printable(path)}: this study is another one: {', '.join(changes[:5])}{more}; use another --name, or --restart"
        raise runs.Mismatch(message, changes)
    other = environment.differences(stored["environment"], found)
    return [f"goes on, but not as it was begun: {', '.join(other)}"] if other else []


def _said(table: Mapping[str, Any], key: str) -> str:
    return canonical(table[key]) if key in table else "nothing"


def _set_aside(path: Path) -> list[str]:
    fronts = sorted(old.name for old in path.glob("front-*.toml"))
    there = [name for name in (FACTS, JOURNAL, CONFIRMED, TRIALS, BEST, *fronts) if (path / name).exists()]
    if not there:
        return []
    aside = next(path / f"before-{n}" for n in count(1) if not (path / f"before-{n}").exists())
    durable.make_directory(aside)
    for name in reversed(there):  # what it is goes last: without it the rest is refused, not mistaken for something else
        durable.rename(path / name, aside / name)
    return [f"began again; what was there is in {aside.name}"]
