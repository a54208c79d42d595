"""One training of a study, here or in a worker process: every round is told, anyone may stop it, and the test split is taken away first.

Rounds before the first codistillation depend on nothing that distillation has, so trials that differ only in that have them in common.
They are trained once and kept as a checkpoint, with the curve that was seen on the way, under the digest of all that they depend on;
a trial that starts from there ends with the same bits. Who hands out trainings and hears of them is a `Desk`; it is in one process, and
asks and answers are messages. Deliberately absent: what to train, and what to think of it (tune.py).
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import time
import traceback
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedcodist import cost, keys
from fedcodist.config import Config, assemble, digest, plain
from fedcodist.engines.compiled import cores
from fedcodist.errors import ConfigError, Failure, data_error
from fedcodist.federation import Diverged
from fedcodist.methods import MergedCodist, PeriodicCodist
from fedcodist.runs import checkpoint, environment, evaluation, memory
from fedcodist.storage import durable, sealed
from fedcodist.storage import lock as lock_file
from fedcodist.storage.durable import Damaged
from fedcodist.task import Task
from fedcodist.train import Experiment, train
from fedcodist.types import Split, State

Curve = list[tuple[int, dict[str, float]]]  # (round, {pool: held-out accuracy})


class Job(NamedTuple):
    """One training that somebody wants done."""

    number: int
    config: Config
    seed: int
    clamp: bool = False
    data: str = ""  # the content of the task
    prefixes: Path | None = None  # where the rounds before the first codistillation are kept


class Report(NamedTuple):
    """A round of a training is over."""

    t: int
    accuracy: dict[str, float] | None = None  # {pool: on held_out}, in rounds that are evaluated


class Outcome(NamedTuple):
    """A training is over."""

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
        """Each pool's, when it was last evaluated."""
        return self.curve[-1][1] if self.curve else {}

    @property
    def value(self) -> float:
        """The mean of the pools' accuracies; 0 for a training that failed."""
        return fmean(self.accuracy.values()) if self.curve and not self.failed else 0.0

    @property
    def failed(self) -> str:
        """Why there is no model at its end; empty if there is one, or would have been."""
        return self.diverged or self.refused


class Desk(Protocol):
    """Who hands out trainings, and hears of them."""

    def next(self) -> Job | None:
        """A training, or None if all are handed out."""
        ...

    def heard(self, job: Job, report: Report) -> bool:
        """Whether to stop it."""
        ...

    def told(self, job: Job, outcome: Outcome) -> None:
        """It is over."""
        ...


class TrialFailed(Failure):
    """A training could not be done: refused, or its process died. That is no result, so the study stops, and can go on later."""

    def __init__(self, message: str, code: int):
        self.code = code
        super().__init__(message)


def unseen(task: Task) -> Task:
    """The task without its test split: who tunes must not even be able to look."""
    x, y = (np.empty((0, *rows.shape[1:]), rows.dtype) for rows in (task.held_out.x, task.held_out.y))
    return replace(task, test=Split(x, y))


def content(task: Task) -> str:
    """The digest of a task without its test split."""
    return digest(unseen(task))


def alone(experiment: Experiment) -> int:
    """How many rounds the pools train before anyone teaches. Those are FedAvg's, whatever the distillation is like. One round is left.

    >>> from fedcodist import config
    >>> periodic = ["method={ kind = 'periodic', period = 4, distill = { steps = 1, batch = 5 } }"]
    >>> alone(config.load("quick/toy", periodic)), alone(config.load("quick/toy"))
    (3, 0)
    """
    method, rounds = experiment.method, experiment.rounds
    if isinstance(method, PeriodicCodist):
        return min(method.period, rounds) - 1
    if isinstance(method, MergedCodist):
        alphas = [method.alpha_of(name) for name in experiment.federation.names]
        return next((t for t in range(rounds - 1) if any(alpha(t + 1) != 1 for alpha in alphas)), rounds - 1)
    return 0  # FedAvg has no distillation to vary, and of other methods nothing is known


def perform(job: Job, task: Task) -> Generator[Report, bool | None, Outcome]:
    """Train, and tell of every round; `send(True)` stops it there."""
    start = time.monotonic()
    try:
        experiment = assemble(job.config, unseen(task), job.seed, job.clamp)
    except ConfigError as error:  # a result like any other: it would be refused again, and nobody could get past it
        return Outcome([], 0, 0, time.monotonic() - start, refused="; ".join(error.lines))
    fed, method = experiment.federation, experiment.method
    state, after, curve, infos = method.init(fed, keys.root(job.seed)), 0, [], []

    def over(t: int, **how: Any) -> Outcome:
        spent = cost.of_rounds(fed, method, infos)["server_flops"]  # nothing in the rounds before the first codistillation
        return Outcome(curve, t, len(infos), time.monotonic() - start, float(sum(spent.values())), **how)

    shared = alone(experiment) if job.prefixes else 0
    name = prefix(job) if shared else ""
    if shared and (kept := _recall(job, name, shared, state)):
        after, state = shared, kept[0]
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
                curve.append((step.t, accuracy))
            if shared and step.t == shared:
                _keep(job, name, shared, step.state, curve)
            if (yield Report(step.t, accuracy)) and step.t < job.config.rounds:
                return over(step.t, pruned=True)
    except Diverged as error:
        return over(error.round, diverged=str(error))
    return over(job.config.rounds)


# Rounds that trainings share


def prefix(job: Job) -> str:
    """The digest of all that rounds without codistillation depend on, of when they are evaluated, and of the machine's arithmetic."""
    table = plain(job.config)
    pools = {name: {k: v for k, v in pool.items() if k not in ("learns", "teaches")} for name, pool in table["pools"].items()}
    engine = {k: v for k, v in table["engine"].items() if k != "workers"}  # another size of blocks, or engine, has other last bits
    facts = {key: table[key] for key in ("task", "rounds", "membership")} | {"pools": pools, "engine": engine}
    facts["every"] = evaluation.interval(job.config)
    return sealed.digest([facts, job.seed, job.clamp, job.data, environment.fingerprint()])


def _recall(job: Job, name: str, t: int, template: State) -> tuple[State, Curve] | None:
    assert job.prefixes is not None
    try:
        commit, files = checkpoint.verify(job.prefixes / name[:32] / f"{t:06d}")
        curve = [(t, accuracy) for t, accuracy in commit["curve"]]
        return (checkpoint.load(template, files), curve) if commit["prefix"] == name else None
    except (Damaged, KeyError):  # damaged, or not there: trained again
        return None


def _keep(job: Job, name: str, t: int, state: State, curve: Curve) -> None:
    assert job.prefixes is not None
    place = job.prefixes / name[:32]
    durable.make_directories(place)
    try:
        lock, _ = lock_file.take(place / "lock", "prefix")
    except lock_file.Busy:
        return  # another worker keeps the same bits
    try:
        if _recall(job, name, t, state) is None:
            for left in place.glob(".t*"):  # by a writer that was killed
                shutil.rmtree(left, ignore_errors=True)
            checkpoint.write(place, t, state, {"prefix": name, "curve": curve})
    finally:
        lock_file.release(lock)


# Here, or in worker processes


def work(desk: Desk, jobs: int, task: Task) -> Iterator[tuple[Job, Report | Outcome]]:
    """Do all that a desk hands out, one after the other or in `jobs` processes, which load the task themselves."""
    return _here(desk, task) if jobs <= 1 else _apart(desk, jobs)


def share(config: Config, jobs: int) -> Config:
    """The config with one job's share of the threads; they change no result."""
    if jobs <= 1 or not hasattr(config.engine, "workers"):
        return config
    return replace(config, engine=replace(config.engine, workers=max(1, (config.engine.workers or cores()) // jobs)))


def _here(desk: Desk, task: Task) -> Iterator[tuple[Job, Report | Outcome]]:
    while (job := desk.next()) is not None:
        steps, stop = perform(job, task), None
        while True:
            try:
                report = steps.send(stop)
            except StopIteration as end:
                desk.told(job, end.value)
                yield job, end.value
                break
            stop = desk.heard(job, report)
            yield job, report


def _apart(desk: Desk, jobs: int) -> Iterator[tuple[Job, Report | Outcome]]:
    # Not forked: a process with JAX's threads cannot be. The compilation cache is the one thing that they must be told.
    context = multiprocessing.get_context("spawn")
    flags = {name: getattr(jax.config, name) for name in CACHE_FLAGS}
    processes: dict[Any, Any] = {}
    busy: dict[Any, Job] = {}
    try:
        for _ in range(jobs):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, flags), daemon=True)
            process.start()
            there.close()
            processes[here] = process
        while True:
            for line in processes:
                if line not in busy and (job := desk.next()) is not None:
                    busy[line] = job
                    line.send(job)
            if not busy:
                return
            for line in wait(list(busy)):
                yield busy[line], _hear(desk, line, busy, processes[line])
    finally:
        for line, process in processes.items():
            line.close()
            process.terminate()
        for process in processes.values():
            process.join(5)
            process.kill()


CACHE_FLAGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes")


def _hear(desk: Desk, line: Any, busy: dict[Any, Job], process: Any) -> Report | Outcome:
    job = busy[line]
    try:
        news = line.recv()
    except (EOFError, OSError):
        raise _died(job, process) from None
    if isinstance(news, Report):
        stop = desk.heard(job, news)  # which writes: what goes wrong there is not the worker's
        if news.accuracy is not None:
            try:
                line.send(stop)
            except OSError:
                raise _died(job, process) from None
        return news
    if isinstance(news, Outcome):
        del busy[line]
        desk.told(job, news)
        return news
    message, code = news
    raise TrialFailed(message, code) if code else RuntimeError(message)


def _died(job: Job, process: Any) -> TrialFailed:
    process.join(5)
    how = f"signal {-process.exitcode}" if (process.exitcode or 0) < 0 else f"exit code {process.exitcode}"
    code = 9 if process.exitcode == -signal.SIGKILL else 70  # as a rule the kernel kills for memory; anything else is ours
    return TrialFailed(f"trial {job.number}: its process died ({how}); the same command tries it again", code)


def _serve(line: Any, flags: dict[str, Any]) -> None:
    """A worker process: trainings come in, news goes out, until the other end is closed."""
    memory.keep()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C goes to everyone at the terminal; the desk decides
    for name, value in flags.items():
        jax.config.update(name, value)
    last, task = None, None
    try:
        while True:
            job = line.recv()
            try:
                if task is None or job.config.task != last:
                    last, task = job.config.task, unseen(job.config.task.load())
                    if (found := content(task)) != job.data:
                        raise data_error(
                            "task", f"data {found[:12]} in a worker", f"that of the study, {job.data[:12]}", "one job takes any task"
                        )
                news: Any = _drive(line, job, task)
            except Failure as failure:
                news = str(failure), failure.code
            except (EOFError, ConnectionError):
                raise
            except Exception:
                news = traceback.format_exc(), 0
            line.send(news)
    except (EOFError, ConnectionError):
        return  # nobody listens any more


def _drive(line: Any, job: Job, task: Task) -> Outcome:
    steps, stop = perform(job, task), None
    while True:
        try:
            report = steps.send(stop)
        except StopIteration as end:
            return end.value
        line.send(report)
        stop = line.recv() if report.accuracy is not None else None
