"""What a result depends on: the digest of a config without its harmless keys, and of the data."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fedcodist import settings
from fedcodist.clients import grows, sizes
from fedcodist.config.schema import HARMLESS, Config
from fedcodist.methods import BASELINE
from fedcodist.task import Task
from fedcodist.types import Examples, Split


def twin(config: Config) -> Config:
    """The same experiment under the baseline, plain FedAvg: same seeds, clients, batches and initial parameters."""
    return replace(config, method=BASELINE())


def plain(config: Config) -> dict[str, Any]:
    """The resolved config as a plain table."""
    return settings.plain(config)


def essential(config: Config) -> dict[str, Any]:
    """The resolved config as a plain table, without the harmless keys: those that change no result."""
    table = plain(config)
    for path in HARMLESS:
        inside, _, last = path.rpartition(".")
        (table.get(inside, {}) if inside else table).pop(last, None)
    return table


def identity(config: Config, data: str = "") -> str:
    """The digest of all that a result depends on: the config without its harmless keys, and the data."""
    return hashlib.sha256(json.dumps([essential(config), data], sort_keys=True).encode()).hexdigest()


_known: WeakKeyDictionary[Task, str] = WeakKeyDictionary()  # a task never changes, and is asked for every arm and seed


def digest(task: Task) -> str:
    """The content of a task: every client's id and rows, the public data and both splits. It is read once, however often it is asked.

    A task that knows the digest of its source is not read through: the config says how clients and splits were taken from it.
    """
    if task not in _known:
        _known[task] = _digest(task)
    return _known[task]


def of_clients(task: Task) -> str:
    """The content of a task's clients alone, whatever became of its public data and its splits."""
    none = task.public.x[:0]
    return digest(replace(task, public=Examples(none), held_out=Split(none, none), test=Split(none, none)))


def _digest(task: Task) -> str:
    total = hashlib.sha256(task.name.encode())
    clients = {} if grows(task.clients) else task.clients  # whoever comes or goes, it is the same experiment
    if task.digest:
        total.update(task.digest.encode() + repr(sorted(sizes(clients).items())).encode())
        total.update(repr([np.shape(part.x) for part in (task.public, task.held_out, task.test)]).encode())
        return total.hexdigest()
    for client in sorted(clients):
        total.update(repr(client).encode())
        _hash(total, *clients[client])
    for rows in (task.public, task.held_out, task.test):
        _hash(total, *rows)
    return total.hexdigest()


def _hash(total: Any, *arrays: Any) -> None:
    for array in arrays:
        if array is not None:
            array = np.asarray(array)
            total.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
