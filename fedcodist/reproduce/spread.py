"""Cells over a Ray cluster: each run is a task of it, which loads the data where it is and writes the run's directory.

So every machine needs the data and the output directory at the same paths. A run whose machine is lost is begun again by Ray, and goes on
from its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedcodist import config
from fedcodist.config import Config
from fedcodist.engines.ray import FLAGS, Ray, cluster
from fedcodist.errors import Failure
from fedcodist.runs import memory, session

LOCAL = "local"
RETRIES = 3  # of a run whose process died


class Failed(Failure):
    """A run could not be done where it was sent."""

    def __init__(self, message: str, code: int):
        self.code = code
        super().__init__(message)


class Ended(NamedTuple):
    """How a run ended: after how many seconds, and why, if it was not at its end."""

    number: int
    seconds: float
    why: str = ""
    code: int = 0


def trained(configs: Sequence[tuple[Config, int, Path]], address: str, jobs: int) -> Iterator[Ended]:
    """Train all of these (config, seed, where) on the cluster, `jobs` at a time (0: one on each of its CPUs); as they end."""
    ray, many = cluster(Ray(address="" if address == LOCAL else address, workers=jobs))
    train = ray.remote(num_cpus=1, max_retries=RETRIES)(_train)
    flags = {name: getattr(jax.config, name) for name in FLAGS}
    todo, flying = list(enumerate(configs))[::-1], {}
    try:
        while todo or flying:
            while todo and len(flying) < many:
                number, (one, seed, root) = todo.pop()
                flying[train.remote(_on_one_core(one), seed, str(root.absolute()), flags)] = number
            (ref,), _ = ray.wait(list(flying), num_returns=1)
            number = flying.pop(ref)
            yield Ended(number, *ray.get(ref))
    finally:
        for ref in flying:
            ray.cancel(ref)


def _on_one_core(one: Config) -> Config:
    return replace(one, engine=replace(one.engine, workers=1)) if hasattr(one.engine, "workers") else one


_tasks: dict[str, Any] = {}  # of this process: the last one, which is probably the next run's too


def _train(one: Config, seed: int, root: str, flags: dict[str, Any]) -> tuple[float, str, int]:
    """One run to its end, in a process of the cluster."""
    memory.keep()
    for name, value in flags.items():
        jax.config.update(name, value)
    start = time.monotonic()
    try:
        if (text := repr(one.task)) not in _tasks:
            _tasks.clear()
            _tasks[text] = one.task.load()
        for _ in session.perform(config.assemble(one, _tasks[text], seed), Path(root)):
            pass
    except Failure as failure:
        return time.monotonic() - start, str(failure), failure.code
    return time.monotonic() - start, "", 0
