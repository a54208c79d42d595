"""MergedCodist whose teachers are running means of their own past: students learn from steadier targets than the models of one round.

An idea of this package and not of the paper; mean teachers (Tarvainen and Valpola 2017) average the weights of one training likewise.
Students start from the pools' models as they are. A student's own voice, which has its self-weight, is that of its own mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedcodist import tree
from fedcodist.distill import Distiller
from fedcodist.federation import Federation
from fedcodist.methods.merged import MergedCodist
from fedcodist.schedule import Constant, as_schedule, numbers, over_rounds, read_shares
from fedcodist.settings import Problem, check, setting
from fedcodist.types import Consumed, Info, Key, Method, Params, PoolState, State, Voice

MEAN = "-mean"  # what the name of a pool's running mean ends with in the state


@dataclass(frozen=True)
class SteadyCodist(Method):
    """MergedCodist with running means of the pools' models as teachers, for any number of pools."""

    kind: ClassVar[str] = "steady"
    label: ClassVar[str] = "SteadyCodist"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data",)
    secure: ClassVar[bool] = True
    begins_plain: ClassVar[bool] = False  # the means begin with round 1
    memory: float = setting(0.9, ge=0, lt=1)  # weight of the past in each round's mean; 0 is MergedCodist
    # weight of the clients' gradient: a number, a schedule, or a table of these by pool; 1 is plain FedAvg
    alpha: Any = setting(Constant(0.5), reader=read_shares)
    distill: Distiller = Distiller(steps=32)  # the distillation of every round in which alpha is below 1

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "alpha", as_schedule(self.alpha, "SteadyCodist.alpha", most=1.0))

    @property
    def merged(self) -> MergedCodist:
        """The same with the models themselves as teachers."""
        return MergedCodist(alpha=self.alpha, distill=self.distill)

    def init(self, fed: Federation, key: Key) -> State:
        state = fed.init(key)
        return state | {name + MEAN: PoolState(state[name].params, ()) for name in fed.names}

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        mean = {i: self.renewed(state[i + MEAN].params, state[i].params) for i in fed.names}
        steady = replace(fed, voices={i: Voice(fed.pools[i].model, mean[i]) for i in fed.names})
        after, info = self.merged.round(steady, {i: state[i] for i in fed.names}, t, key)
        return after | {i + MEAN: PoolState(mean[i], ()) for i in fed.names}, info

    def renewed(self, mean: Params, params: Params) -> Params:
        """A running mean with this round's model in it: memory * mean + (1 - memory) * params."""
        return tree.add(tree.scale(mean, self.memory), tree.scale(params, 1 - self.memory))

    def students(self, pools: Sequence[str], t: int) -> list[str]:
        return self.merged.students(pools, t)

    def over(self, rounds: int) -> SteadyCodist:
        return replace(self, alpha=over_rounds(self.alpha, rounds))

    def searched(self) -> dict[str, tuple[float, float]]:
        return dict.fromkeys(numbers(self.alpha, "method.alpha"), (0.05, 0.95))

    def problems(self, pools: Sequence[str]) -> list[Problem]:
        taken = [i for i in pools if i.endswith(MEAN) and i.removesuffix(MEAN) in pools]
        allowed = "another name: a running mean is kept under this one"
        return self.merged.problems(pools) + [Problem(f"pools.{i}", "a pool of this name", allowed) for i in taken]

    def warnings(self, pools: Sequence[str], rounds: int) -> list[str]:
        return self.merged.warnings(pools, rounds)
