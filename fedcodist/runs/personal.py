"""Metrics of each client on its own data: the mean over clients, each counted equally, and how they are distributed.

A model that lives at a client is measured there; where a pool has one model for all, every client is measured with that. The names of these
metrics begin with `personal_`, so that they never stand in one column with the accuracy on the global splits. All clients of a pool are
evaluated by one compiled program, a block of them at a time, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from fedcodist.evaluate import Metrics, measure, sizes
from fedcodist.federation import Federation
from fedcodist.train import Experiment
from fedcodist.types import Examples, Model, Objective, Split, State, Tree, Voice

BLOCK = 16  # clients in one call of the program
PREFIX = "personal_"
HELD_OUT, TEST = "personal_held_out", "personal_test"  # as the journal and results call these splits


def evaluate(experiment: Experiment, state: State, split: str = "held_out") -> dict[str, Metrics]:
    """{pool: {"all": {metric: value}}} on each client's own part of a split; empty where no part was kept for it."""
    fed, method = experiment.federation, experiment.method
    owned, models = method.clients(fed, state), method.models(fed, state)
    found = {}
    for name in fed.names:
        data = fed.pools[name].personal.get(split)
        if data and (name in owned or name in models):
            each = _owned(fed, owned[name], data) if name in owned else _shared(fed, models[name], data)
            found[name] = {"all": distribution(fed.task.objective.summarise(sums) for sums in each.values())}
    return found


def of_result(experiment: Experiment, state: State) -> dict[str, dict[str, Metrics]]:
    """Both splits, for the result of a run; those that there are."""
    found = {name: evaluate(experiment, state, split) for name, split in ((HELD_OUT, "held_out"), (TEST, "test"))}
    return {name: metrics for name, metrics in found.items() if metrics}


def distribution(clients: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of the clients' accuracy and loss, and the quartiles and the ends of their accuracies.

    >>> found = distribution([{"accuracy": a, "loss": 1.0} for a in (0.0, 0.5, 0.75, 1.0, 1.0)])
    >>> found["personal_accuracy"], found["personal_q25"], found["personal_median"], found["personal_clients"]
    (0.65, 0.5, 0.75, 5)
    """
    rows = list(clients)
    accuracies = np.array([row["accuracy"] for row in rows])
    ends = zip(("min", "q25", "median", "q75", "max"), np.percentile(accuracies, (0, 25, 50, 75, 100)), strict=True)
    means = {"accuracy": accuracies.mean(), "loss": np.mean([row["loss"] for row in rows])}
    return {PREFIX + name: float(value) for name, value in (*means.items(), *ends)} | {f"{PREFIX}clients": len(rows)}


def _shared(fed: Federation, voice: Voice, data: Mapping[str, Examples]) -> dict[str, dict[str, np.ndarray]]:
    """{client: sums over its rows} of one model."""
    names = sorted(data)
    x, y = (np.concatenate(column) for column in zip(*(data[client] for client in names), strict=True))
    ends = np.cumsum([len(data[client].x) for client in names])
    sums = measure(fed, [voice], Split(x, y))
    return {client: _summed(sums, end - len(data[client].x), end) for client, end in zip(names, ends, strict=True)}


def _owned(fed: Federation, own: Voice, data: Mapping[str, Examples]) -> dict[str, dict[str, np.ndarray]]:
    """{client: sums over its rows}, each with its own model."""
    names, largest = sorted(data), max(len(rows.x) for rows in data.values())
    first = data[names[0]]
    one = Voice(own.model, own.params[names[0]])
    batch = min(sizes(fed, [one], Split(first.x, np.asarray(first.y)))[0], largest)
    batches = -(-largest // batch)

    def packed(column: int, block: list[str]) -> np.ndarray:
        rows = np.asarray(first[column])
        out = np.zeros((BLOCK, batches * batch, *rows.shape[1:]), rows.dtype)
        for place, client in enumerate(block):
            out[place, : len(data[client].x)] = data[client][column]
        return out.reshape(BLOCK, batches, batch, *rows.shape[1:])

    def run(start: int) -> dict[str, dict[str, np.ndarray]]:
        block = names[start : start + BLOCK]
        places = [*block, *block[:1] * (BLOCK - len(block))]  # one shape, one program
        params = jax.tree.map(lambda *leaves: np.stack(leaves), *[own.params[client] for client in places])
        sums = jax.device_get(_measure(own.model, fed.task.objective, params, packed(0, block), packed(1, block)))
        flat = {name: value.reshape(BLOCK, batches * batch, *value.shape[3:]) for name, value in sums.items()}
        of = {client: {name: value[place] for name, value in flat.items()} for place, client in enumerate(block)}
        return {client: _summed(rows, 0, len(data[client].x)) for client, rows in of.items()}

    return {client: sums for part in fed.engine.host.map(run, range(0, len(names), BLOCK)) for client, sums in part.items()}


def _summed(sums: Mapping[str, np.ndarray], start: int, stop: int) -> dict[str, np.ndarray]:
    return {name: value[start:stop].astype(np.float64).sum(0) for name, value in sums.items()}


@partial(jax.jit, static_argnums=(0, 1))
def _measure(model: Model, objective: Objective, params: Tree, x: Any, y: Any) -> dict[str, Any]:
    """The sums of every row: params are [clients, ...], x and y are [clients, batches, rows, ...]."""

    def client(at: Any) -> dict[str, Any]:
        of, *rows = at
        return jax.lax.map(lambda row: objective.measure(model.apply(of, objective.inputs(row[0]), None), row[1]), tuple(rows))

    return jax.lax.map(client, (params, x, y))
