"""PeriodicCodist, the paper's Algorithm 1: FedAvg in every pool, and every `period` rounds a codistillation that replaces the models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedcodist import tree
from fedcodist.distill import Distiller
from fedcodist.federation import Federation, params_of
from fedcodist.settings import checked, setting
from fedcodist.types import Info, Key, Params, State


@dataclass(frozen=True)
@checked
class PeriodicCodist:
    """PeriodicCodist, Algorithm 1 of the paper, for any number of pools."""

    kind: ClassVar[str] = "periodic"
    period: int = setting(200, ge=1, le=10**7)  # p
    distill: Distiller = Distiller(steps=200)  # s steps on public, unlabelled data
    restart: bool = True  # the server momentum after a codistillation (A29)

    def init(self, fed: Federation, key: Key) -> State:
        return fed.init(key)  # line 1

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        grad, info = fed.gradients(params_of(state), t, key)
        state = fed.step(state, grad, t)  # line 3
        for i in grad:
            info[i]["grad_norm"] = float(tree.norm(grad[i]))
        if t % self.period == 0:  # line 4
            theta = params_of(state)
            student, taught = fed.codistill(self.distill, theta, t, key, nth=t // self.period - 1)  # lines 5-7
            for i in student:
                info[i] |= taught[i] | {"codistilled": True, "dist_norm": float(tree.norm(tree.sub(theta[i], student[i])))}
            if self.restart:
                state = fed.restart(state, student)  # line 8, and the momentum is stale
            else:
                state = {i: s._replace(params=student.get(i, s.params)) for i, s in state.items()}
        return state, info

    def models(self, fed: Federation, state: State) -> dict[str, Params]:
        return params_of(state)
