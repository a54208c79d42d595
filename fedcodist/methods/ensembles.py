"""Many models that speak as one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist.types import Array, Model, Params


@lru_cache(maxsize=64)  # one model for the same architectures: its programs are compiled once
def ensemble(models: tuple[Model, ...]) -> Model:
    """The mean of their logits. Its parameters are, for each architecture, stacked ones: [models, ...]."""

    def apply(params: tuple[Params, ...], x: Array, key: Any = None) -> Array:
        total, many = jnp.zeros(()), 0
        for model, stacked in zip(models, params, strict=True):
            total = total + jnp.sum(jax.lax.map(lambda p, m=model: m.apply(p, x, None), stacked), 0)
            many += len(jax.tree.leaves(stacked)[0])
        return jnp.asarray(total) / many

    return Model(init=lambda key: tuple(model.init(key) for model in models), apply=apply)


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

    return Model(init=lambda key: (tuple(model.init(key) for model in models), tuple(jnp.ones(1) for _ in models)), apply=apply)
