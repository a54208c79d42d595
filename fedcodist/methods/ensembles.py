"""Many models that speak as one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist.types import Array, Model, Params

TINY = 1e-12  # the least sum of weights that is divided by


@lru_cache(maxsize=64)  # one model for the same architectures: its programs are compiled once
def ensemble(models: tuple[Model, ...]) -> Model:
    """The mean of their logits. Its parameters are, for each architecture, stacked ones: [models, ...]."""

    def apply(params: tuple[Params, ...], x: Array, key: Any = None) -> Array:
        total, many = jnp.zeros(()), 0
        for model, stacked in zip(models, params, strict=True):
            total = total + jnp.sum(jax.lax.map(lambda p, m=model: m.apply(p, x, None), stacked), 0)
            many += len(jax.tree.leaves(stacked)[0])
        return jnp.asarray(total) / many

    def features(params: tuple[Params, ...], x: Array, key: Any = None) -> tuple[Array, dict[str, Array]]:
        equal = [jnp.ones(len(jax.tree.leaves(stacked)[0])) for stacked in params]
        return apply(params, x), _features(models, params, equal, x)

    shown = features if all(model.features for model in models) else None
    return Model(init=lambda key: tuple(model.init(key) for model in models), apply=apply, features=shown)


@lru_cache(maxsize=64)
def weighted(models: tuple[Model, ...]) -> Model:
    """A weighted mean of their logits. Its parameters are the stacked ones of each architecture, and for each the weights of its models:
    a model of weight 0 is silent, and the program is the same for whoever is."""

    def apply(params: tuple[tuple[Params, ...], tuple[Array, ...]], x: Array, key: Any = None) -> Array:
        total = jnp.zeros(())
        for model, stacked, shares in zip(models, *params, strict=True):
            said = jax.lax.map(lambda at, m=model: jnp.where(at[1] > 0, at[1] * m.apply(at[0], x, None), 0.0), (stacked, shares))
            total = total + jnp.sum(said, 0)
        return jnp.asarray(total)

    def features(params: tuple[tuple[Params, ...], tuple[Array, ...]], x: Array, key: Any = None) -> tuple[Array, dict[str, Array]]:
        return apply(params, x), _features(models, *params, x)

    def init(key: Any) -> Any:
        return tuple(model.init(key) for model in models), tuple(jnp.ones(1) for _ in models)

    return Model(init=init, apply=apply, features=features if all(model.features for model in models) else None)


def _features(models: tuple[Model, ...], stacks: Sequence[Params], shares: Sequence[Array], x: Array) -> dict[str, Array]:
    """For each architecture the weighted mean of its models' activations, and the architectures side by side along the last axis. Layers
    are counted from the last one, and named as in the last architecture; one that some architecture does not have is left out."""
    means = []
    for model, stacked, share in zip(models, stacks, shares, strict=True):
        names: list[str] = []  # in the order of the layers, which JAX would sort

        def show(p: Params, model: Model = model, names: list[str] = names) -> list[Array]:
            names[:] = (seen := model.features(p, x, None)[1])  # type: ignore[misc]
            return list(seen.values())

        total = jnp.maximum(jnp.sum(share), TINY)
        layers = [jnp.tensordot(share / total, jnp.where(_along(share, a) > 0, a, 0.0), 1) for a in jax.lax.map(show, stacked)]
        means.append(list(zip(names, layers, strict=True))[::-1])
    found = {column[-1][0]: jnp.concatenate([layer for _, layer in column], -1) for column in zip(*means, strict=False)}
    return dict(reversed(found.items()))


def _along(share: Array, values: Array) -> Array:
    return share.reshape(-1, *[1] * (values.ndim - 1))
