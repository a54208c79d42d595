"""FedAdam, FedYogi and FedAdagrad as Reddi et al. 2021 have them (Algorithm 2): no bias correction, v starts at tau^2, and tau stands
outside the root."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedcodist.servers.optimizers import Decay
from fedcodist.settings import checked, setting
from fedcodist.types import Tree


@dataclass(frozen=True)
@checked
class FedAdam:
    """Reddi's FedAdam: v <- b2 v + (1 - b2) g^2."""

    kind: ClassVar[str] = "fedadam"
    lr: float = setting(0.01, gt=0, le=1e3)  # server learning rate
    b1: float = setting(0.9, ge=0, lt=1)  # decay of the mean of gradients
    b2: float = setting(0.99, ge=0, lt=1)  # decay of the mean of squared gradients
    tau: float = setting(1e-3, gt=0, le=1)  # added to the root of v, which begins at tau squared
    decay: Decay = "none"  # whether the rate falls linearly to zero over the run

    @lru_cache
    def optimizer(self) -> optax.GradientTransformation:
        return reddi(lambda v, g2: self.b2 * v + (1 - self.b2) * g2, self.b1, self.tau)


@dataclass(frozen=True)
@checked
class FedYogi:
    """Reddi's FedYogi: v <- v - (1 - b2) g^2 sign(v - g^2)."""

    kind: ClassVar[str] = "fedyogi"
    lr: float = setting(0.01, gt=0, le=1e3)  # server learning rate
    b1: float = setting(0.9, ge=0, lt=1)  # decay of the mean of gradients
    b2: float = setting(0.99, ge=0, lt=1)  # decay of the mean of squared gradients
    tau: float = setting(1e-3, gt=0, le=1)  # added to the root of v, which begins at tau squared
    decay: Decay = "none"  # whether the rate falls linearly to zero over the run

    @lru_cache
    def optimizer(self) -> optax.GradientTransformation:
        return reddi(lambda v, g2: v - (1 - self.b2) * g2 * jnp.sign(v - g2), self.b1, self.tau)


@dataclass(frozen=True)
@checked
class FedAdagrad:
    """Reddi's FedAdagrad: v <- v + g^2, without momentum by default."""

    kind: ClassVar[str] = "fedadagrad"
    lr: float = setting(0.01, gt=0, le=1e3)  # server learning rate
    b1: float = setting(0.0, ge=0, lt=1)  # decay of the mean of gradients
    tau: float = setting(1e-3, gt=0, le=1)  # added to the root of v, which begins at tau squared
    decay: Decay = "none"  # whether the rate falls linearly to zero over the run

    @lru_cache
    def optimizer(self) -> optax.GradientTransformation:
        return reddi(lambda v, g2: v + g2, self.b1, self.tau)


class _Moments(NamedTuple):
    m: Tree
    v: Tree


def reddi(second: Any, b1: float, tau: float) -> optax.GradientTransformation:
    """Reddi et al. 2021, Algorithm 2: m and v without bias correction, update m / (sqrt v + tau), v from tau^2."""

    def init(params: Tree) -> _Moments:
        return _Moments(jax.tree.map(jnp.zeros_like, params), jax.tree.map(lambda p: jnp.full_like(p, tau**2), params))

    def update(updates: Tree, state: Any, params: Tree = None) -> tuple[Tree, Any]:
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.m, updates)
        v = jax.tree.map(lambda v, g: second(v, g * g), state.v, updates)
        return jax.tree.map(lambda m, v: -m / (jnp.sqrt(v) + tau), m, v), _Moments(m, v)

    return optax.GradientTransformation(init, update)
