"""A method tuned beside its FedAvg twin, which gets as many trials, and both winners trained again on the same fresh seeds.

A method that starts from its twin's rates (`fixed`) has had the trials of both, and its results must say so.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedcodist import config
from fedcodist.errors import ConfigError
from fedcodist.task import Task
from fedcodist.tuning import dotted, space, study
from fedcodist.tuning.ranking import require_winner, tried, winners
from fedcodist.tuning.study import Search, Trial
from fedcodist.tuning.trial import Outcome
from fedcodist.tuning.tune import Event, check, confirm, fresh, run, trials


class Tuned(NamedTuple):
    """A finished study."""

    search: Search
    trials: list[Trial]
    winner: Trial
    fresh: list[tuple[Trial, dict[int, Outcome]]]  # the winners, with their outcomes by fresh seed; empty if there are none


class Rates(NamedTuple):
    """Where a method's rates come from, if they are its twin's."""

    used: Trial
    best: Trial  # of the twin by now


def twin(search: Search) -> Search:
    """The search for the FedAvg twin: as many trials, over the part of the space that FedAvg has, or over its rates if there is none."""
    base = config.twin(search.config)
    return replace(search, config=base, space=space.federated(search.space) or space.preset(base, "rates"))


def fixed(search: Search, by: Search, best: Trial) -> Search:
    """The search with everything that another one searched fixed to what that found, and no longer searched."""
    base = search.config
    for key in (key for range in by.space.values() for key in range.keys):
        base = dotted.put(base, key, best.get(key))
    return replace(search, config=base, space=space.without(search.space, by.space))


def begun_with(search: Search, by: Search, found: Iterable[Trial], root: str | Path) -> Trial | None:
    """The trial of another study whose values this study was begun with, if any: it continues with them, even if another trial has won
    there since."""
    stored = study.begun(root, search.config)
    return next((t for t in found if t.state == "complete" and study.bare(fixed(search, by, t).config) == stored), None)


def takes_rates(search: Search, with_twin: bool, wanted: bool) -> bool:
    """Whether the method starts from its twin's rates: if that is wanted, or if it searches none itself, or the twin would be the only one
    with tuned rates."""
    takes = wanted or (with_twin and not space.federated(search.space))
    if takes and not space.without(search.space, twin(search).space):
        raise ConfigError("--rates-from: got a space that has nothing else; allowed distillation | all, or a file")
    return takes


def tune(
    search: Search,
    root: str | Path,
    task: Task,
    *,
    with_twin: bool = False,
    twin_rates: bool = False,
    fresh_seeds: int = 0,
    jobs: int = 1,
    restart: bool = False,
    cluster: str = "",
) -> Generator[Event, None, tuple[list[Tuned], Rates | None]]:
    """Tune a method, with its twin first if that is asked for, and train the winners on fresh seeds. Returns the studies, the twin's first,
    and where the method's rates come from if they are its twin's."""
    check(search, task)  # or the method could be refused after its twin is tuned
    yield Event("message", notes=tuple(f"data: {note}" for note in task.notes))
    other, kind = twin(search), search.config.method.kind
    studies: list[tuple[Search, list[Trial]]] = []
    rates = None
    if with_twin:
        studies.append((other, (yield from run(other, root, jobs=jobs, cluster=cluster, task=task, restart=restart))))
    if twin_rates:
        found = studies[0][1] if studies else trials(other, root, task)
        best = require_winner(other, found)
        used = best if restart else begun_with(search, other, found, root) or best
        search, rates = fixed(search, other, used), Rates(used, best)
        yield Event("message", notes=(f"rates of {kind}: those of trial {used.number} of its twin",))
    studies.append((search, (yield from run(search, root, jobs=jobs, cluster=cluster, task=task, restart=restart))))
    if with_twin and (more := tried(studies[1][1])) > tried(studies[0][1]):
        yield Event("message", notes=(f"{kind} has had {more} trials by now, and its twin gets as many",))
        studies[0] = other, (yield from run(replace(other, trials=more), root, jobs=jobs, cluster=cluster, task=task))
        rates = rates and Rates(rates.used, require_winner(*studies[0]))
    best_of = [require_winner(*one) for one in studies]
    chosen = [winners(*one) if fresh_seeds else [] for one in studies]
    outcomes: list[dict[int, Outcome]] = []
    if fresh_seeds:
        seeds = fresh(search.seed, fresh_seeds)
        yield Event("message", notes=(f"fresh seeds: {', '.join(map(str, seeds))}",))
        configs = [trial.config for trials in chosen for trial in trials]
        outcomes = yield from confirm(configs, seeds, root, jobs=jobs, cluster=cluster, task=task, clamp=search.clamp)
    each = iter(outcomes)
    confirmed = [[(trial, next(each)) for trial in trials] for trials in chosen]
    return [Tuned(*one, best, done) for one, best, done in zip(studies, best_of, confirmed, strict=True)], rates
