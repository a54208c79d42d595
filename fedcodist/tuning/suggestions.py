"""The suggestions of Optuna, and the outcomes of finished trials that it learns from.

A trial that ran when its process was killed is lost, and tried again with the same values. What is suggested is a function of the seed, the
place in the study and the finished trials, so an interrupted study ends as an uninterrupted one would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from fedcodist import keys
from fedcodist.errors import ConfigError
from fedcodist.methods import BASELINE
from fedcodist.runs.session import Signals
from fedcodist.storage import durable
from fedcodist.storage.journal import Lines
from fedcodist.storage.sealed import canonical
from fedcodist.tuning import space, study
from fedcodist.tuning.space import Space
from fedcodist.tuning.study import JOURNAL, Search, Trial
from fedcodist.tuning.trial import Job, Outcome, Report
from fedcodist.tuning.workers import share

STARTUP = 5  # complete trials before any other is stopped early
RANDOM = 10  # trials before TPE learns from them: the config's own, and draws from the ranges


@contextmanager
def opened(search: Search, path: Path, data: str, first: int = 1, restart: bool = False) -> Iterator[tuple[Any, list[str]]]:
    """Optuna's study under our lock, brought to where it can go on, and notes on what was found. `first`: the first codistillation."""
    optuna = _optuna()
    with study.locked([path]):
        notes = study.set_aside(path) if restart else []
        notes += study.check(search, path, data)
        journal = Lines(path / JOURNAL)
        journal.cut(journal.whole_bytes())  # half a line, which a killed process left, would swallow the next one
        journal.close()
        try:
            backend = optuna.storages.journal.JournalFileBackend(str(path / JOURNAL), lock_obj=_Held())
            found = optuna.create_study(
                storage=optuna.storages.JournalStorage(backend),
                study_name="study",
                directions=[*["maximize"] * len(search.config.pools), "minimize"] if search.objective == "pareto" else ["maximize"],
                pruner=_pruner(search, first),
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError) as error:  # lines that are no JSON, or not Optuna's
            raise durable.CheckpointError(f"{durable.printable(path / JOURNAL)}: damaged ({error}); --restart begins again") from None
        values, odd = space.own(search.config, search.space)
        if not found.get_trials(deepcopy=False):
            found.enqueue_trial(_encoded(search.space, values), user_attrs={"own": True})
        yield found, notes + odd + _retry(found)


class Desk:
    """Requests suggestions from Optuna and reports the outcomes to it (workers.Desk)."""

    def __init__(self, search: Search, opened: Any, data: str, jobs: int, signals: Signals, prefixes: Path):
        self._search, self._opened, self._signals, self._data = search, opened, signals, data
        self._flying: dict[int, Any] = {}
        self._config = share(search.config, jobs)
        # A rate from a range is never drawn twice: to keep what no other trial can use would only fill the disk.
        finite = all(range.choices for range in space.federated(search.space).values())
        self._prefixes = prefixes if finite else None
        # Where the config's own values are not in the space, Optuna must not learn from trial 0: it would take it to have other values.
        self._odd = bool(space.own(search.config, search.space)[1])
        self._apart = any(trial.user_attrs.get("apart") for trial in opened.get_trials(deepcopy=False))
        over = [trial for trial in trials(search, opened) if trial.state != "lost"]
        complete = [trial for trial in over if trial.state == "complete"]
        self.done = len(over)
        self.best = max(((t.value, t.number) for t in complete), default=None, key=lambda best: best[0])

    def next(self) -> Job | None:
        """The next trial; None if all are handed out, or if the last has to wait for the others."""
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
        """Queue the values that `joined` finds, unless a trial that was lost waits there."""
        values = joined(self._search, trials(self._search, self._opened))
        if values and not self._opened.get_trials(deepcopy=False, states=(_optuna().trial.TrialState.WAITING,)):
            self._opened.enqueue_trial(_encoded(self._search.space, values))

    def should_stop(self, job: Job, report: Report) -> bool:
        """Whether the pruner stops the trial. The config's own trial is never stopped."""
        if report.accuracy is None or self._search.objective == "pareto":
            return False
        trial = self._flying[job.number]
        with self._signals.shield():
            trial.report(fmean(report.accuracy.values()), report.t)
            return trial.should_prune() and not trial.user_attrs.get("own")  # or the winner could be worse than the start

    def record(self, job: Job, outcome: Outcome) -> None:
        """Keep the outcome of a trial in the journal."""
        states = _optuna().trial.TrialState
        trial = self._flying.pop(job.number)
        with self._signals.shield():
            trial.set_user_attr("outcome", outcome._asdict())
            if trial.user_attrs.get("own") and self._odd:
                trial.set_user_attr("apart", True)
                self._opened.tell(trial, state=states.FAIL)
                self._apart = True
            elif self._search.objective == "pareto":
                self._opened.tell(trial, self._objectives(outcome))
            elif outcome.failed or outcome.pruned:
                if outcome.failed:
                    trial.report(0.0, outcome.rounds)  # the value that TPE learns from
                self._opened.tell(trial, state=states.PRUNED)
            else:
                self._opened.tell(trial, outcome.value)
        self.done += 1
        if not outcome.pruned and not outcome.failed and (self.best is None or outcome.value > self.best[0]):
            self.best = outcome.value, job.number

    def _objectives(self, outcome: Outcome) -> list[float]:
        """The objectives of a trial on the front. One that failed has saved its server nothing, and counts as the most expensive seen."""
        if not outcome.failed:
            return [*(outcome.accuracy[pool] for pool in sorted(self._search.config.pools)), outcome.server_flops]
        seen = [trial.values[-1] for trial in self._opened.get_trials(deepcopy=False) if trial.values]
        return [*[0.0] * len(self._search.config.pools), max([outcome.server_flops, *seen])]


def trials(search: Search, opened: Any) -> list[Trial]:
    """The finished trials, and those that were lost."""
    found = []
    for trial in opened.get_trials(deepcopy=False):
        if not trial.state.is_finished() or set(trial.params) != set(search.space):
            continue
        own, kept = bool(trial.user_attrs.get("own")), trial.user_attrs.get("outcome")
        if kept is None or (trial.state.name == "FAIL" and not trial.user_attrs.get("apart")):
            state, outcome = "lost", Outcome([], 0, 0, 0.0)
        else:
            outcome = Outcome.read(kept)
            state = "diverged" if outcome.diverged else "refused" if outcome.refused else "pruned" if outcome.pruned else "complete"
        found.append(Trial(trial.number, state, search, _decoded(search.space, trial.params), outcome, own))
    return found


def joined(search: Search, found: Sequence[Trial]) -> dict[str, Any] | None:
    """Each pool's values from the trial that was best for that pool. Under FedAvg pools do not influence each other, so the values together
    give each of them what they gave it apart. None where pools teach or share a parameter, or where a trial has had these values."""
    complete = [trial for trial in found if trial.state == "complete" and trial.in_space]
    parts = _parts(search)
    if parts is None or not complete:
        return None
    best = {pool: max(complete, key=lambda trial: trial.outcome.accuracy[pool]) for pool in parts}
    values = {name: best[pool].values[name] for pool, names in parts.items() for name in names}
    return None if any(trial.values == values for trial in found if trial.state != "lost") else values


def _parts(search: Search) -> dict[str, list[str]] | None:
    """The parameters of each pool, if what is best for each can be joined."""
    alone = search.config.method == BASELINE() and search.objective == "mean"
    return space.by_pool(search.space, search.config) if alone else None


def _retry(opened: Any) -> list[str]:
    """Trials that ran when their process ended are lost, and tried again with the same values."""
    states = _optuna().trial.TrialState
    queued = {trial.user_attrs.get("again") for trial in opened.get_trials(deepcopy=False, states=(states.WAITING,))}
    running = opened.get_trials(deepcopy=False, states=(states.RUNNING,))
    lost = [trial for trial in running if not trial.user_attrs.get("apart")]  # the others were over
    for trial in running:
        if trial in lost and trial.number not in queued:  # queued before it is given up: a kill between the two loses nothing
            marks = {"again": trial.number} | ({"own": True} if trial.user_attrs.get("own") else {})
            opened.enqueue_trial(trial.system_attrs.get("fixed_params", {}) | trial.params, user_attrs=marks)
        opened.tell(trial.number, state=states.FAIL)
    return [f"trial {', '.join(str(trial.number) for trial in lost)} was interrupted and is repeated"] if lost else []


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("tune needs the package optuna, which is not installed: pip install 'fedcodist[tune]'") from None
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
    no budget of rounds to choose. Successive halving would judge most trials by their first rounds, where rates have not decayed and no
    pool has taught another. For the same reason nothing is stopped in the first third of a run, or before a quarter of the rounds from
    the first codistillation on: what a model does right after a codistillation passes."""
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
