"""One training of a study: every round is reported, it can be stopped after any round, and the test split is removed first.

Deliberately absent: where it runs (workers.py), what to train, and how it is judged (study.py, tune.py).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import jax
import numpy as np

from fedcodist import keys
from fedcodist.config import Config, assemble, digest
from fedcodist.errors import ConfigError
from fedcodist.rule import Diverged
from fedcodist.runs import cost, evaluation, personal
from fedcodist.task import Task
from fedcodist.train import Experiment, train
from fedcodist.tuning import prefixes
from fedcodist.tuning.prefixes import Curve, Prefix
from fedcodist.types import Split


class Job(NamedTuple):
    """One training that is to be done."""

    number: int
    config: Config
    seed: int
    clamp: bool = False
    data: str = ""  # the content of the task
    prefixes: Path | None = None  # where the rounds before the first codistillation are kept


class Report(NamedTuple):
    """The report after a round of a training."""

    t: int
    accuracy: dict[str, float] | None = None  # {pool: on held_out}, in rounds that are evaluated


class Outcome(NamedTuple):
    """The outcome of a training."""

    curve: Curve
    rounds: int  # that it reached
    trained: int  # of these, how many were not taken from a kept prefix
    seconds: float
    server_flops: float = 0.0
    pruned: bool = False
    diverged: str = ""
    refused: str = ""  # each value is allowed, and all of them together are not

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Outcome:
        """From its `_asdict`, which may have been JSON in between."""
        return cls(**{**table, "curve": [(t, accuracy) for t, accuracy in table["curve"]]})

    @property
    def accuracy(self) -> dict[str, float]:
        """Each pool's, and that of other models a rule has, when they were last evaluated."""
        return self.curve[-1][1] if self.curve else {}

    @property
    def value(self) -> float:
        """The mean of these accuracies; 0 for a training that failed."""
        return fmean(self.accuracy.values()) if self.curve and not self.failed else 0.0

    @property
    def failed(self) -> str:
        """Why there is no model at its end; empty if there is one, or would have been."""
        return self.diverged or self.refused


def without_test(task: Task) -> Task:
    """The task without its test split, so that tuning cannot read it."""
    x, y = (np.empty((0, *rows.shape[1:]), rows.dtype) for rows in (task.held_out.x, task.held_out.y))
    return replace(task, test=Split(x, y))


def content(task: Task) -> str:
    """The digest of a task without its test split."""
    return digest(without_test(task))


def perform(job: Job, task: Task) -> Generator[Report, bool | None, Outcome]:
    """Train and yield a report after every round; `send(True)` stops the training there."""
    start = time.monotonic()
    try:
        experiment = assemble(job.config, without_test(task), job.seed, job.clamp)
    except ConfigError as error:  # an outcome like any other, or the study could never get past it
        return Outcome([], 0, 0, time.monotonic() - start, refused="; ".join(error.lines))
    fed, method = experiment.federation, experiment.method
    state, after, curve, infos = method.init(fed, keys.root(job.seed)), 0, [], []

    def over(t: int, **how: Any) -> Outcome:
        spent = cost.of_rounds(fed, method, infos)["server_flops"]  # nothing in the rounds before the first codistillation
        return Outcome(curve, t, len(infos), time.monotonic() - start, float(sum(spent.values())), **how)

    prefix = _prefix(job, experiment)
    if prefix and (kept := prefixes.recall(prefix, state)):
        after, state = prefix.rounds, kept[0]
        for t, accuracy in kept[1]:
            curve.append((t, accuracy))
            if (yield Report(t, accuracy)):
                return over(t, pruned=True)
    try:
        for step in train(experiment, jax.tree.map(jax.numpy.asarray, state), after):
            infos.append(step.info)
            accuracy = None
            if evaluation.is_regular(job.config, step.t):
                accuracy = {pool: float(domains["all"]["accuracy"]) for pool, domains in step.evaluate("held_out").items()}
                if method.personal:  # what it is for, and all that there is where no model is at the server
                    own = personal.evaluate(experiment, step.state)
                    accuracy = {pool: float(domains["all"]["personal_accuracy"]) for pool, domains in own.items()}
                curve.append((step.t, accuracy))
            if prefix and step.t == prefix.rounds:
                prefixes.keep(prefix, step.state, curve)
            if (yield Report(step.t, accuracy)) and step.t < job.config.rounds:
                return over(step.t, pruned=True)
    except Diverged as error:
        return over(error.round, diverged=str(error))
    return over(job.config.rounds)


def _prefix(job: Job, experiment: Experiment) -> Prefix | None:
    """The rounds that this training may share with others; None if it has none, or none are kept."""
    if job.prefixes is None or not (rounds := prefixes.alone(experiment)):
        return None
    return Prefix(job.prefixes, prefixes.digest(job.config, job.seed, job.clamp, job.data), rounds)
