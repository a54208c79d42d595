"""A commented config to start from: for a file of the user's own, which is looked at, or for data that comes with fedcodist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedcodist import settings
from fedcodist.config import toml
from fedcodist.config.builder import assemble
from fedcodist.config.reader import read
from fedcodist.data.table import read_table
from fedcodist.errors import ConfigError, data_error
from fedcodist.objectives.classify import Classify
from fedcodist.settings import Problem, nearest, show
from fedcodist.storage import durable
from fedcodist.task import Task
from fedcodist.tasks import Arrays

USUAL = {  # {role: names that columns usually have}
    "x": ("x", "image", "images", "img", "features", "data"),
    "y": ("y", "label", "labels", "class", "target", "fine_label", "category"),
    "client": ("client", "client_id", "user", "user_id", "author", "writer", "device", "site"),
    "domain": ("domain",),
    "split": ("split",),
}
SMALLEST = 8  # pixels of an image's side that a CNN's pools leave something of
DEALT, EACH = 20, 10  # clients that rows without clients are dealt to, at most, and rows of each at least


def write(out: str | Path, data: str | None = None, **given: str | None) -> list[str]:
    """Write the config, and return what was found, a line each. `given` names columns by role. A config that would not run is not left."""
    place = Path(out)
    if place.exists():
        raise ConfigError(str(Problem("--out", show(str(place)), "a file that does not exist yet")))
    if place.suffix != ".toml":
        raise ConfigError(str(Problem("--out", show(str(place)), "a name that ends in .toml")))
    task, table = (None, {}) if data is None else _looked_at(data, {role: name for role, name in given.items() if name})
    durable.replace_file(place, (STARTER if task is None else _text(task, table)).encode())
    try:
        config = read(place)
        assemble(config, task or config.task.load(), 0)
    except BaseException:
        place.unlink()
        raise
    return [] if task is None else [_facts(task), *task.notes]


def _looked_at(path: str, given: Mapping[str, str]) -> tuple[Task, dict[str, Any]]:
    """The task of a file, and its table in a config."""
    found = read_table(path, set(), "split")
    there = [*found.columns, *found.others]
    named = dict(given)
    for role, names in USUAL.items():
        if role not in named and (known := [name for name in there if name.lower() in names]):
            named[role] = min(known, key=lambda name: names.index(name.lower()))
    for name in given.values():
        if name not in there:
            raise data_error(path, f"no column {show(name)}", ", ".join(there), nearest(name, there))
    if "y" not in named:
        raise data_error(
            path, "no column of labels", f"one called {', '.join(USUAL['y'])}, or --y NAME", f"found: {show(', '.join(there))}"
        )
    table: dict[str, Any] = {"kind": "arrays", "path": path} | {role: name for role, name in named.items() if name != role}
    if "client" not in named:
        rows = len(next(iter(read_table(path, {named["y"]}, "split").columns.values())))
        dealt = max(5, min(DEALT, rows // EACH))
        table |= {"client": "", "partition": {"kind": "dirichlet", "clients": dealt}}
    problems: list[Problem] = []
    task = settings.read_part(Arrays, {key: value for key, value in table.items() if key != "kind"}, "task", problems)
    if problems:
        raise ConfigError("\n".join(map(str, problems)))
    assert task is not None
    loaded = task.load()
    if loaded.objective == Classify() and loaded.public.x.dtype != np.uint8 and not _is_scaled(loaded.public.x):
        table["standardise"] = True
        loaded = replace(task, standardise=True).load()
    return loaded, table


def _is_scaled(x: Any) -> bool:
    """Whether numbers are already between 0 and 1, as bytes are after they were divided by 255."""
    return bool(np.min(x) >= 0 and np.max(x) <= 1)


def _facts(task: Task) -> str:
    row = " x ".join(map(str, task.spec.inputs))
    parts = f"{len(task.public.x):,} public rows, {len(task.held_out.x):,} held-out rows and {len(task.test.x):,} test rows"
    return f"{len(task.clients):,} clients to train on, {parts}; {row} numbers in a row, {task.classes} classes"


def _text(task: Task, table: Mapping[str, Any]) -> str:
    shape, clients = task.spec.inputs, len(task.clients)
    pictures = len(shape) == 3 and min(shape[:2]) >= SMALLEST
    small, large = (
        ('{ kind = "cnn", filters = [16, 32, 32], dense = [64, 128] }', '{ kind = "cnn", filters = [32, 64, 64], dense = [128, 256] }')
        if pictures
        else ('{ kind = "mlp", hidden = [16] }', '{ kind = "mlp", hidden = [128] }')
    )
    some = max(1, clients // 3)
    settings_of = "\n".join(f"{key:<9} = {toml.inline(value)}" for key, value in table.items())
    return f"""# {_facts(task)}.
# fedcodist run THIS --twin --seeds 0,1,2     train it, and plain FedAvg for comparison
rounds    = 50
seeds     = [0]

[task]
{settings_of}
# public   = 0.3      # shares of the clients whose rows become public, held-out and test data
# held_out = 0.1
# test     = 0.1
# flip     = true     # for images: augmentation is off unless it is asked for; also mixup_beta = 2.0, public_flips = true, size = 24

[pools.small]         # the small model, trained on every client
model     = {small}
cohort    = {min(10, clients)}          # clients in a round
work      = {{ kind = "local_sgd", lr = 0.05, epochs = 1, batch = 20 }}
server    = {{ kind = "adam", lr = 0.01 }}

[pools.large]         # the large model, trained on the few clients that can carry it
like      = "small"
model     = {large}   # or your own: {{ function = "nets:build", width = 64 }}
clients   = {{ take = {some} }}
cohort    = {min(10, some)}

[method]              # merged | periodic | fedavg | feddf: fedcodist list methods
kind      = "merged"
alpha     = 0.7       # the clients' share of each step; the rest comes from the other model
distill   = {{ steps = 16, batch = {max(1, min(64, len(task.public.x)))} }}
"""


STARTER = """# A config to start from, with generated data of four classes. For a file of your own: fedcodist init --data FILE
# fedcodist run THIS --twin --seeds 0,1,2     train it, and plain FedAvg for comparison
rounds    = 20
seeds     = [0]
task      = { kind = "toy" }    # fedcodist list tasks shows all tasks

[pools.small]         # the small model, trained on every client
model     = { kind = "mlp", hidden = [8] }
cohort    = 5         # clients in a round
work      = { kind = "local_sgd", lr = 0.05, epochs = 1, batch = 20 }
server    = { kind = "adam", lr = 0.02 }

[pools.large]         # the large model, trained on the few clients that can carry it
like      = "small"
model     = { kind = "mlp", hidden = [64] }   # or your own: { function = "nets:build", width = 64 }
clients   = { take = 5 }

[method]              # merged | periodic | fedavg | feddf: fedcodist list methods
kind      = "merged"
alpha     = 0.7       # the clients' share of each step; the rest comes from the other model
distill   = { steps = 8, batch = 32 }
"""
