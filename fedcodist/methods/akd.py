"""AKD, AvgKD and EKD (Afonin and Karimireddy 2022): agents without public data, who label each other's data with their models.

The agents are the pools, in a ring; a pool's data are its clients'. After every `period` rounds each pool's model becomes the labeller of
the next pool, and each pool begins again from its initial model; its clients train on own_weight CE(y) + (1 - own_weight) CE(labeller(x)).
With own_weight 0 that is AKD, with 1/2 AvgKD. `ensemble` keeps the models of all periods and adds their predictions up with alternating
signs: EKD. A diagnostic: it shows what distillation without public data does, namely fade (AKD) or mix in (AvgKD).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.federation import Federation
from fedcodist.methods.labelled import Labelled, alternating
from fedcodist.rule import skipped, summary
from fedcodist.settings import Problem, checked, setting
from fedcodist.topology import too_few
from fedcodist.types import Array, Consumed, Info, Key, Method, Params, PoolState, State, Voice

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
@checked
class AKD(Method):
    """Pools label each other's data, without public data: alternating, averaged or ensembled knowledge distillation."""

    kind: ClassVar[str] = "akd"
    label: ClassVar[str] = "AKD"
    consumes: ClassVar[tuple[Consumed, ...]] = ()
    secure: ClassVar[bool] = True
    asks: ClassVar[bool] = True
    own_weight: float = setting(0.5, ge=0, le=1)  # weight of the clients' own labels; 0 is AKD, 1/2 AvgKD, 1 every pool alone
    period: int = setting(10, ge=1, le=10**7)  # rounds of one fit, after which models become labellers and pools begin again
    ensemble: bool = False  # EKD: the models of all periods, added up with alternating signs, are evaluated as well

    def init(self, fed: Federation, key: Key) -> State:
        state, many = fed.init(key), self._periods(fed)
        past = {i: jax.tree.map(lambda leaf: jnp.zeros((many, *leaf.shape)), s.params) if self.ensemble else () for i, s in state.items()}
        return {i: s._replace(kept={"labels": state[self._before(fed, i)].params, "past": past[i]}) for i, s in state.items()}

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        done, within = divmod(t - 1, self.period)
        if done and not within:  # each pool's model becomes the labeller of the next one, and all begin again
            start = fed.init(key)
            state = {i: PoolState(*start[i][:2], {**s.kept, "labels": state[self._before(fed, i)].params}) for i, s in state.items()}
        asks = {i: fed.ask(fed.pools[i], self._sent(state[i], done), t, key, work=self._work(fed, i)) for i in reversed(fed.names)}
        heard = {i: a for i, a in zip(asks, fed.gather(list(asks.values())), strict=True) if a is not None}
        info: Info = {i: skipped() for i in asks if i not in heard}
        for i, a in heard.items():
            info[i] = summary(a, fed.pools[i], t) | {"grad_norm": float(tree.norm(a.value)), "client_bytes": a.bytes_down + a.bytes_up}
        state = fed.step(state, {i: heard[i].value for i in fed.names if i in heard}, t)
        return {i: self._remembered(s, done) for i, s in state.items()}, info

    def models(self, fed: Federation, state: State) -> dict[str, Voice]:
        if not self.ensemble:
            return fed.models(state)
        past = Voice(alternating(tuple(fed.pools[i].model for i in fed.names)), tuple(state[i].kept["past"] for i in fed.names))
        return fed.models(state) | {"ekd": past}

    def problems(self, pools: Sequence[str]) -> list[Problem]:
        return too_few(pools)

    def _before(self, fed: Federation, i: str) -> str:
        return fed.names[fed.names.index(i) - 1]

    def _periods(self, fed: Federation) -> int:
        return -(-(fed.rounds or 1) // self.period)

    def _sent(self, s: PoolState, done: int) -> tuple[Params, Params, Array]:
        return s.params, s.kept["labels"], jnp.asarray(done > 0)

    def _work(self, fed: Federation, i: str) -> Labelled:
        return Labelled(fed.pools[i].work, self.own_weight, fed.pools[self._before(fed, i)].model)

    def _remembered(self, s: PoolState, done: int) -> PoolState:
        past = jax.tree.map(lambda kept, now: kept.at[done].set(now), s.kept["past"], s.params) if self.ensemble else ()
        return s._replace(kept={**s.kept, "past": past})
