"""Local: every client trains its own model on its own data, and nothing is exchanged. What collaboration must beat.

Clients begin with their pool's initial model and are asked in the cohorts of every other method, so that each trains as often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedcodist import tree
from fedcodist.methods.owners import Owners
from fedcodist.types import Consumed, Data, Info, Key, Model, Objective, Reply, State, Work

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@tree.node("work")
@dataclass(frozen=True)
class Alone:
    """A work that goes on from the client's own model, which stays there. Nothing is sent."""

    work: Work

    def __call__(self, model: Model, objective: Objective, sent: tuple[()], data: Data, key: Any) -> Reply:
        reply = self.work(model, objective, data.own, data._replace(own=()), key)
        return Reply((), reply.weight, reply.info, tree.sub(data.own, reply.value))


@dataclass(frozen=True)
class Local(Owners):
    """No collaboration: every client trains alone."""

    kind: ClassVar[str] = "local_only"
    label: ClassVar[str] = "Local"
    consumes: ClassVar[tuple[Consumed, ...]] = ("client state",)
    secure: ClassVar[bool] = True

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        asks = {i: self.ask(fed, state, i, t, key, (), Alone(fed.pools[i].work)) for i in fed.names}
        state, _, info = self.gather(fed, state, asks, t)
        return state, info

    def expects(self, fed: Federation, pool: Pool) -> Info:
        return {"client_bytes": 0}
