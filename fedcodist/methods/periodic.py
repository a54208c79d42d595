"""PeriodicCodist, the paper's Algorithm 1: FedAvg in every pool, and every `period` rounds a codistillation that replaces the models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedcodist import tree
from fedcodist.distill import Distiller
from fedcodist.federation import Federation, params_of
from fedcodist.settings import Problem, checked, setting
from fedcodist.topology import too_few
from fedcodist.types import Consumed, Info, Key, Method, State


@dataclass(frozen=True)
@checked
class PeriodicCodist(Method):
    """PeriodicCodist, Algorithm 1 of the paper, for any number of pools."""

    kind: ClassVar[str] = "periodic"
    label: ClassVar[str] = "PeriodicCodist"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data",)
    secure: ClassVar[bool] = True
    begins_plain: ClassVar[bool] = True
    leaps: ClassVar[bool] = True
    period: int = setting(200, ge=1, le=10**7)  # rounds from one codistillation to the next; the paper's p
    distill: Distiller = Distiller(steps=200)  # each of these codistillations
    restart: bool = True  # whether the server optimizer's moments begin again after a codistillation (A29)
    first: int = setting(0, ge=0, le=10**7, silent=True)  # round of the first codistillation; 0: after one period, as in the paper

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        state, grad, info = fed.gradients(state, t, key)
        state = fed.step(state, grad, t)  # line 3
        for i, norm in fed.norms(grad).items():
            info[i]["grad_norm"] = norm
        if self.teaches(t):  # line 4
            theta = params_of(state)
            student, taught = fed.codistill(self.distill, theta, t, key, nth=(t - self.begins) // self.period)  # lines 5-7
            for i in taught:
                info[i] |= taught[i]  # whether or not a guard refused it
            for i in student:
                info[i] |= {"codistilled": True, "dist_norm": float(tree.norm(tree.sub(theta[i], student[i])))}
            if self.restart:
                state = fed.restart(state, student)  # line 8, and the momentum is stale
            else:
                state = {i: s._replace(params=student.get(i, s.params)) for i, s in state.items()}
        return state, info

    @property
    def begins(self) -> int:
        """The round of the first codistillation."""
        return self.first or self.period

    def teaches(self, t: int) -> bool:
        """Whether there is a codistillation in round t."""
        return t >= self.begins and (t - self.begins) % self.period == 0

    def students(self, pools: Sequence[str], t: int) -> list[str]:
        return list(pools) if self.teaches(t) else []

    def problems(self, pools: Sequence[str]) -> list[Problem]:
        return too_few(pools)

    def warnings(self, pools: Sequence[str], rounds: int) -> list[str]:
        if self.begins <= rounds:
            return []
        name = "first" if self.first else "period"
        return [f"method.{name}: {self.begins} is more than the {rounds} rounds: codistillation never happens"]
