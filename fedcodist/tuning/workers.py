"""Trainings in this process, in worker processes, or over a Ray cluster: a desk, which lives in one process, hands them out and receives
their reports.

What goes between a worker and the desk is a message: a job, a report of each round, whether to stop, and an outcome.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any, Protocol

import jax

from fedcodist.config import Config
from fedcodist.engines.ray import Ray, cluster
from fedcodist.engines.threads import cores
from fedcodist.errors import Failure, data_error
from fedcodist.runs import memory
from fedcodist.task import Task
from fedcodist.tuning import trial
from fedcodist.tuning.trial import Job, Outcome, Report

LOCAL = "local"  # a cluster of this machine, bound to loopback
CACHE_FLAGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes")


class Desk(Protocol):
    """Hands out trainings and receives their outcomes."""

    def next(self) -> Job | None:
        """A training, or None if all are handed out."""
        ...

    def should_stop(self, job: Job, report: Report) -> bool:
        """Whether to stop a training after this round."""
        ...

    def record(self, job: Job, outcome: Outcome) -> None:
        """Record the outcome of a training."""
        ...


class TrialFailed(Failure):
    """A training could not be done: refused, or its process died. That is no outcome, so the study stops, and can go on later."""

    def __init__(self, message: str, code: int):
        self.code = code
        super().__init__(message)


def work(desk: Desk, jobs: int, task: Task, cluster: str = "") -> Iterator[tuple[Job, Report | Outcome]]:
    """Do all trainings that a desk hands out, one after the other or in `jobs` processes, which load the task themselves: of this machine,
    or of a Ray cluster (an address, or "local")."""
    if cluster:
        return _spread(desk, jobs, cluster) if jobs else iter(())
    return _here(desk, task) if jobs <= 1 else _apart(desk, jobs)


def share(config: Config, jobs: int) -> Config:
    """The config with one job's share of the threads; they change no result."""
    if jobs <= 1 or not hasattr(config.engine, "workers"):
        return config
    return replace(config, engine=replace(config.engine, workers=max(1, (config.engine.workers or cores()) // jobs)))


def _here(desk: Desk, task: Task) -> Iterator[tuple[Job, Report | Outcome]]:
    while (job := desk.next()) is not None:
        steps, stop = trial.perform(job, task), None
        while True:
            try:
                report = steps.send(stop)
            except StopIteration as end:
                desk.record(job, end.value)
                yield job, end.value
                break
            stop = desk.should_stop(job, report)
            yield job, report


def _apart(desk: Desk, jobs: int) -> Iterator[tuple[Job, Report | Outcome]]:
    # Spawned, since a process with JAX's threads cannot be forked. A spawned one does not inherit the settings of the compilation cache.
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
                yield busy[line], _receive(desk, line, busy, processes[line])
    finally:
        for line, process in processes.items():
            line.close()
            process.terminate()
        for process in processes.values():
            process.join(5)
            process.kill()


class Worker:
    """An actor of a cluster: a training is begun, and then goes on round by round as it is told."""

    def __init__(self, flags: dict[str, Any]) -> None:
        memory.keep()
        for name, value in flags.items():
            jax.config.update(name, value)
        self._tasks, self._steps = _Tasks(), None

    def begin(self, job: Job) -> Any:
        """The training's first message."""
        try:
            self._steps = trial.perform(job, self._tasks.of(job))
        except Exception as error:
            return _told(error)
        return self.step(None)

    def step(self, stop: bool | None) -> Any:
        """The next one: a report, an outcome, or what went wrong and its code."""
        assert self._steps is not None
        try:
            return self._steps.send(stop)
        except StopIteration as end:
            return end.value
        except Exception as error:
            return _told(error)


def _spread(desk: Desk, jobs: int, address: str) -> Iterator[tuple[Job, Report | Outcome]]:
    ray, many = cluster(Ray(address="" if address == LOCAL else address, workers=jobs))
    flags = {name: getattr(jax.config, name) for name in CACHE_FLAGS}
    made = ray.remote(num_cpus=1)(Worker)
    idle = [made.remote(flags) for _ in range(many)]
    flying: dict[Any, tuple[Any, Job]] = {}
    try:
        while True:
            while idle and (job := desk.next()) is not None:
                actor = idle.pop()
                flying[actor.begin.remote(job)] = actor, job
            if not flying:
                return
            (ref,), _ = ray.wait(list(flying), num_returns=1)
            actor, job = flying.pop(ref)
            try:
                message = ray.get(ref)
            except ray.exceptions.RayActorError:
                raise TrialFailed(f"trial {job.number}: its process died; the same command tries it again", 9) from None
            if isinstance(message, Report):
                stop = desk.should_stop(job, message)
                flying[actor.step.remote(stop if message.accuracy is not None else None)] = actor, job
            elif isinstance(message, Outcome):
                desk.record(job, message)
                idle.append(actor)
            else:
                text, code = message
                raise TrialFailed(text, code) if code else RuntimeError(text)
            yield job, message
    finally:
        for actor in [*idle, *(actor for actor, _ in flying.values())]:
            ray.kill(actor)


def _told(error: Exception) -> tuple[str, int]:
    """What went wrong, and its code; 0 for a bug."""
    return (str(error), error.code) if isinstance(error, Failure) else (traceback.format_exc(), 0)


class _Tasks:
    """The task of the last training, which is probably the next one's too."""

    def __init__(self) -> None:
        self._last: Any = None
        self._task: Task | None = None

    def of(self, job: Job) -> Task:
        """The task of a training, whose data must be the study's."""
        if self._task is None or job.config.task != self._last:
            task = trial.without_test(job.config.task.load())
            if (found := trial.content(task)) != job.data:
                raise data_error("task", f"data {found[:12]} in a worker", f"that of the study, {job.data[:12]}", "one job takes any task")
            self._last, self._task = job.config.task, task
        return self._task


def _receive(desk: Desk, line: Any, busy: dict[Any, Job], process: Any) -> Report | Outcome:
    job = busy[line]
    try:
        message = line.recv()
    except (EOFError, OSError):
        raise _died(job, process) from None
    if isinstance(message, Report):
        stop = desk.should_stop(job, message)  # this writes to disk, and its errors are not the worker's fault
        if message.accuracy is not None:
            try:
                line.send(stop)
            except OSError:
                raise _died(job, process) from None
        return message
    if isinstance(message, Outcome):
        del busy[line]
        desk.record(job, message)
        return message
    text, code = message
    raise TrialFailed(text, code) if code else RuntimeError(text)


def _died(job: Job, process: Any) -> TrialFailed:
    process.join(5)
    how = f"signal {-process.exitcode}" if (process.exitcode or 0) < 0 else f"exit code {process.exitcode}"
    code = 9 if process.exitcode == -signal.SIGKILL else 70  # usually the kernel, for lack of memory; any other death is a bug
    return TrialFailed(f"trial {job.number}: its process died ({how}); the same command tries it again", code)


def _serve(line: Any, flags: dict[str, Any]) -> None:
    """A worker process: jobs come in, reports and outcomes go out, until the other end is closed."""
    memory.keep()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to every process at the terminal; the desk decides
    for name, value in flags.items():
        jax.config.update(name, value)
    tasks = _Tasks()
    try:
        while True:
            job = line.recv()
            try:
                message: Any = _drive(line, job, tasks.of(job))
            except (EOFError, ConnectionError):
                raise
            except Exception as error:
                message = _told(error)
            line.send(message)
    except (EOFError, ConnectionError):
        return  # the desk is gone


def _drive(line: Any, job: Job, task: Task) -> Outcome:
    steps, stop = trial.perform(job, task), None
    while True:
        try:
            report = steps.send(stop)
        except StopIteration as end:
            return end.value
        line.send(report)
        stop = line.recv() if report.accuracy is not None else None
