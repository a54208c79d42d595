"""FedDF (Lin et al. 2020): the clients' single models are an ensemble that teaches every pool's averaged model.

After each round's averaging, every server model is distilled on public data from the mean of the logits of all client models of the round,
whatever their architecture. Deliberately absent: the paper's early stopping and choice of clients on labelled validation data, which the
server has none of here; so the number of steps is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.distill import Distiller
from fedcodist.federation import Federation, params_of
from fedcodist.rule import skipped, summary
from fedcodist.types import Answer, Array, Consumed, Info, Key, Method, Model, Params, State, Voice

ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class FedDF(Method):
    """Ensemble distillation of the clients' models into each pool's mean. Its own server optimizer is `average`."""

    kind: ClassVar[str] = "feddf"
    label: ClassVar[str] = "FedDF"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data", "single models")
    secure: ClassVar[bool] = False
    asks: ClassVar[bool] = True
    singly: ClassVar[bool] = True
    distill: Distiller | None = Distiller(steps=32)  # the distillation of every round; `None` (in Python only) is FedAvg

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        sent = params_of(state)
        asked = tuple(reversed(fed.names))
        answers = fed.gather([fed.ask(fed.pools[i], sent[i], t, key, each=True) for i in asked])
        heard = {i: answer for i, answer in zip(asked, answers, strict=True) if answer is not None}
        info: Info = {i: skipped() for i in asked if i not in heard}
        info |= {i: summary(answer, fed.pools[i], t) for i, answer in heard.items()}
        grad = {i: heard[i].value for i in fed.names if i in heard}
        for i in grad:
            info[i]["grad_norm"] = float(tree.norm(grad[i]))
        state = fed.step(state, grad, t)
        if self.distill is None:
            return state, info
        members = {i: _members(sent[i], heard[i]) for i in grad}
        voice = Voice(ensemble(tuple(fed.pools[i].model for i in members)), tuple(members.values()))
        theta, hears = params_of(state), {i: {ENSEMBLE: (1.0, 1.0)} for i in grad}
        student, taught = fed.codistill(self.distill, theta, t, key, nth=t - 1, hears=hears, voices={ENSEMBLE: voice})
        for i in student:
            info[i] |= taught[i] | {"codistilled": True, "dist_norm": float(tree.norm(tree.sub(theta[i], student[i])))}
        return {i: s._replace(params=student.get(i, s.params)) for i, s in state.items()}, info

    def students(self, pools: Sequence[str], t: int) -> list[str]:
        return list(pools) if self.distill else []

    def speakers(self, fed: Federation, students: Sequence[str], info: Mapping[str, Info]) -> dict[str, int]:
        return {i: info[i]["clients"] for i in info}


def _members(sent: Params, answer: Answer) -> Params:
    """Each client's model, stacked: [clients, ...]."""
    assert answer.each is not None
    return jax.tree.map(jnp.subtract, sent, answer.each.values)


@lru_cache(maxsize=64)  # one model for the same architectures: its programs are compiled once
def ensemble(models: tuple[Model, ...]) -> Model:
    """Many models as one: the mean of their logits. Its parameters are, for each architecture, stacked ones: [models, ...]."""

    def apply(params: tuple[Params, ...], x: Array, key: Any = None) -> Array:
        total, many = jnp.zeros(()), 0
        for model, stacked in zip(models, params, strict=True):
            total = total + jnp.sum(jax.lax.map(lambda p, m=model: m.apply(p, x, None), stacked), 0)
            many += len(jax.tree.leaves(stacked)[0])
        return jnp.asarray(total) / many

    return Model(init=lambda key: tuple(model.init(key) for model in models), apply=apply)
