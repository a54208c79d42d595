"""Metrics for each pool, split and domain, over examples and over clients.

A compiled program gives sums for each row; all grouping is arithmetic on these sums, so a domain or a client costs no extra pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedcodist.errors import DataError
from fedcodist.federation import Federation
from fedcodist.types import Model, Objective, Params, Split, Voice

LOGIT_BYTES = 8 * 2**20  # of one evaluation batch: larger ones exceed the cache, and their memory may be cleared anew every time
ROWS, BATCHES = 100, 5  # at most so many rows in a batch, so that activations stay in the cache, and so many batches in a program
QUANTILES = np.linspace(0, 1, 21)  # of the accuracies of single clients, from the lowest to the highest
Metrics = dict[str, dict[str, Any]]  # {domain: {metric: value}}, with "all" for every row


def evaluate(fed: Federation, models: Mapping[str, Voice | Params], split: str = "held_out", quantiles: bool = False) -> dict[str, Metrics]:
    """{model: {domain: {metric: value}}} on held_out or test. `accuracy_clients` is the mean over clients of each one's accuracy; with
    `quantiles` there is also its distribution, `client_quantiles`: the QUANTILES of the clients' accuracies.

    A model given by its parameters alone has the architecture of the pool of that name.
    """
    data = fed.task.split(split)
    return {name: summarise(fed, data, measure(fed, [voice_of(fed, name, model)], data), quantiles) for name, model in models.items()}


def ensemble(fed: Federation, models: Mapping[str, Voice | Params], split: str = "held_out") -> Metrics:
    """{domain: {metric: value}} of all pools' models as an ensemble: the mean of their probabilities."""
    data = fed.task.split(split)
    return summarise(fed, data, measure(fed, [voice_of(fed, name, models[name]) for name in fed.names], data))


def voice_of(fed: Federation, name: str, model: Voice | Params) -> Voice:
    return model if isinstance(model, Voice) else Voice(fed.pools[name].model, model)


def measure(fed: Federation, voices: Sequence[Voice], data: Split) -> dict[str, np.ndarray]:
    """The sums of every row of a split, under one model or under an ensemble of several."""
    models, params = tuple(voice.model for voice in voices), tuple(voice.params for voice in voices)
    objective = fed.task.objective
    if not len(data.x):
        raise DataError(f"task {fed.task.name}: got a split without rows; allowed at least one to evaluate on")
    batch, rows = sizes(fed, voices, data)

    def run(start: int) -> Any:
        x, y = data.x[start : start + rows], data.y[start : start + rows]
        short = rows - len(x)
        if short:  # one shape, one program: padded rows are cut off again below
            x, y = (np.concatenate([a, np.repeat(a[:1], short, 0)]) for a in (x, y))
        x, y = (a.reshape(-1, batch, *a.shape[1:]) for a in (x, y))
        sums = jax.device_get(row_sums(models, objective, params, x, y))
        return {name: value.reshape(rows, *value.shape[2:])[: rows - short] for name, value in sums.items()}

    parts = [*fed.engine.host.map(run, range(0, len(data.x), rows))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def summarise(fed: Federation, data: Split, sums: Mapping[str, np.ndarray], quantiles: bool = False) -> Metrics:
    """Metrics of all rows and of each domain."""
    rows = {"all": np.ones(len(data.x), bool)}
    if data.domain is not None and len(fed.task.domains) > 1:
        rows |= {name: data.domain == i for i, name in enumerate(fed.task.domains)}
    return {name: _metrics(fed.task.objective, data, sums, chosen, quantiles) for name, chosen in rows.items() if chosen.any()}


def _metrics(objective: Objective, data: Split, sums: Mapping[str, np.ndarray], chosen: np.ndarray, quantiles: bool) -> dict[str, Any]:
    picked = {name: value[chosen].astype(np.float64) for name, value in sums.items()}
    metrics: dict[str, Any] = objective.summarise({name: value.sum(0) for name, value in picked.items()})
    if data.client is not None:
        order = np.argsort(data.client[chosen], kind="stable")
        starts = np.unique(data.client[chosen][order], return_index=True)[1]
        by_client = {name: np.add.reduceat(value[order], starts) for name, value in picked.items()}
        accuracies = [objective.summarise({n: v[k] for n, v in by_client.items()})["accuracy"] for k in range(len(starts))]
        metrics["accuracy_clients"] = float(np.mean(accuracies))
        if quantiles:
            metrics["client_quantiles"] = np.quantile(accuracies, QUANTILES).round(6).tolist()
    return metrics


@partial(jax.jit, static_argnums=(0, 1))
def row_sums(models: tuple[Model, ...], objective: Objective, params: tuple[Params, ...], x: Any, y: Any) -> dict[str, Any]:
    """The sums of every row: x and y are [batches, rows, ...]. The prediction of several models is the mean of their probabilities."""

    def batch(at: Any) -> dict[str, Any]:
        seen = objective.inputs(at[0])
        said = [model.apply(p, seen, None) for model, p in zip(models, params, strict=True)]
        voice = said[0] if len(said) == 1 else reduce(jnp.logaddexp, map(jax.nn.log_softmax, said)) - jnp.log(float(len(said)))
        return objective.measure(voice, at[1])

    return jax.lax.map(batch, (x, y))


def sizes(fed: Federation, voices: Sequence[Voice], data: Split) -> tuple[int, int]:
    """Rows of a batch, and of a program."""
    (model, params), objective = voices[0], fed.task.objective
    one = jax.ShapeDtypeStruct((1, *data.x.shape[1:]), data.x.dtype)
    logits = jax.eval_shape(lambda x: model.apply(params, objective.inputs(x), None), one)
    batch = int(np.clip(LOGIT_BYTES // (4 * logits.size * len(voices)), 1, min(ROWS, len(data.x))))
    return batch, batch * min(BATCHES, -(-len(data.x) // batch))
