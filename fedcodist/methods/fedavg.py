"""FedAvg (McMahan et al. 2017), every pool on its own: the baseline, and the twin that codistillation is measured against.

With a server optimizer it is FedOpt (Reddi et al. 2021); with `average` at learning rate 1 it is the plain weighted mean of models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedcodist.federation import Federation
from fedcodist.types import Consumed, Info, Key, Method, State


@dataclass(frozen=True)
class FedAvg(Method):
    """Federated averaging in every pool, nothing shared."""

    kind: ClassVar[str] = "fedavg"
    label: ClassVar[str] = "FedAvg"
    consumes: ClassVar[tuple[Consumed, ...]] = ()
    secure: ClassVar[bool] = True

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        state, grad, info = fed.gradients(state, t, key)
        for i, norm in fed.norms(grad).items():
            info[i]["grad_norm"] = norm
        return fed.step(state, grad, t), info
