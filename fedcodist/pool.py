"""A pool: one population of clients, one architecture, one server model, and how it trains, learns and teaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from fedcodist import clients, keys, tree
from fedcodist.fold import Mean
from fedcodist.rule import Average
from fedcodist.schedule import Constant, Linear, as_schedule
from fedcodist.settings import Problem, SettingError, checked, setting
from fedcodist.types import Array, Examples, Fold, Key, Model, Params, PoolState, Rule, Tree, Work
from fedcodist.work import LocalSGD

BUILT = "a Model: MLP((32,)).build(shape, classes), fedcodist.models.from_flax(...), or Model(init, apply)"


@dataclass(frozen=True)
@checked
class Learns:
    """The pool's model as a student: Adam's learning rate in round 1, the fraction of it left after the last round (A14), and the
    weight gamma of its own soft labels from the start of the distillation (A23)."""

    lr: float = setting(1e-3, gt=0, le=1e3)  # Adam's learning rate in round 1
    decay: float = setting(0.1, ge=0, le=1)  # the fraction of `lr` that is left after the last round (A14)
    self_weight: float = setting(0.05, ge=0, le=1)  # weight of its own first soft labels in the target (A23)


@dataclass(frozen=True)
@checked
class Teaches:
    """The pool's model as a teacher: the temperature that divides its logits (A21)."""

    temperature: float = setting(1.0, ge=1e-3, le=1e3)  # divides its logits; above 1 its soft labels are flatter (A21)


@dataclass(frozen=True, eq=False)
class Pool:
    """One population, one architecture. `server` is an optax optimizer built for learning rate 1; `lr(t)` multiplies its update.

    A number stands for a constant `lr`, and a server of `fedcodist.servers`, such as `Adam(lr=0.02)`, for its optimizer and its rate.
    """

    name: str
    model: Model
    clients: Mapping[str, Examples]
    cohort: int
    work: Work = LocalSGD()
    server: Any = field(default_factory=lambda: optax.sgd(1.0))
    lr: Any = Constant(1.0)  # a schedule
    learns: Learns = Learns()
    teaches: Teaches = Teaches()
    fold: Fold = Mean()
    rule: Rule = Average()
    start: Params = None  # given initial parameters, instead of model.init
    spare: int = 0  # clients that a question names beyond the cohort, for engines that over-select
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # {attribute: {client: value}}, as a task has them
    personal: Mapping[str, Mapping[str, Examples]] = field(default_factory=dict)  # {split: {client: its own examples to measure on}}

    def __post_init__(self) -> None:
        found = [] if isinstance(self.model, Model) else [Problem("Pool.model", type(self.model).__name__, BUILT)]
        if hasattr(self.server, "optimizer"):  # a part of a config: its optimizer for learning rate 1, and its rate
            server: Any = self.server
            if self.lr != Constant(1.0):
                found.append(Problem("Pool.lr", "a rate, and a server with its own", "one of the two"))
            object.__setattr__(self, "lr", (Linear(server.lr, 0.0) if server.decay == "linear" else Constant(server.lr)))
            object.__setattr__(self, "server", replace(server, lr=1.0, decay="none").optimizer())
        elif not isinstance(self.server, optax.GradientTransformation):
            allowed = "an optax optimizer for learning rate 1, or such as Adam(lr=0.01)"
            found.append(Problem("Pool.server", type(self.server).__name__, allowed))
        try:
            object.__setattr__(self, "lr", as_schedule(self.lr, "Pool.lr"))
        except SettingError as error:
            found += error.problems
        if found:
            raise SettingError(found)
        object.__setattr__(self, "model", self.rule.model(self.model))

    @property
    def ids(self) -> tuple[str, ...]:
        """The clients in the order of their ids."""
        return clients.ids(self.clients)

    @property
    def shapes(self) -> Params:
        """The shapes of the model's parameters."""
        return jax.eval_shape(self.model.init, keys.root(0)) if self.start is None else self.start

    def sample(self, key: Key) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The clients of a round: uniform, without replacement, in the order of their ids; and the next ones, in the order of the draw."""
        ids = self.ids
        drawn = keys.permutation(key, len(ids))[: self.cohort + self.spare]
        return tuple(ids[i] for i in np.sort(drawn[: self.cohort])), tuple(ids[i] for i in drawn[self.cohort :])

    def fresh(self, params: Params, kept: Tree = ()) -> PoolState:
        """These parameters with a new state of the server optimizer."""
        return PoolState(params, jax.jit(self.server.init)(params), kept)  # not a program for each array


@partial(jax.jit, static_argnums=0)
def server_step(server: optax.GradientTransformation, params: Params, opt: Tree, grad: Tree, lr: float) -> tuple[Params, Tree, Array]:
    """theta <- theta + lr * update; the optimizer's state; and whether the result is finite."""
    update, opt = server.update(grad, opt, params)
    params = tree.add(params, tree.scale(update, lr))
    return params, opt, tree.finite(params)
