"""QuPeD (Ozkara et al. 2021): a personal model at every client, perhaps quantised, that learns with the client's copy of a common model.

A client descends along the gradient of one loss of its personal model x, its centres c and its copy w of the common model,

    (1 - weight) [CE(x) + CE(Q_c(x))] + weight [KD(x, w) + KD(Q_c(x), w)],    KD(x, w) = T^2 KL(softmax(w / T) || softmax(x)),

and after each step x is drawn towards its centres (the proximal map of pull R(x, c)). Only w travels, and is averaged within the pool. With
`bits` = 0 the terms of Q_c are left out: that is mutual learning in full precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp

from fedcodist import tree
from fedcodist.methods.mutual import Mutual
from fedcodist.methods.owners import Owners
from fedcodist.methods.quantise import centres, quantised
from fedcodist.settings import Problem, checked, setting
from fedcodist.types import Consumed, Info, Key, Params, State, Tree, Voice
from fedcodist.work import LocalSGD

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@dataclass(frozen=True)
@checked
class QuPeD(Owners):
    """Quantised personalisation by distillation: personal models learn with copies of a common one, which alone is averaged."""

    kind: ClassVar[str] = "quped"
    label: ClassVar[str] = "QuPeD"
    consumes: ClassVar[tuple[Consumed, ...]] = ("client state",)
    secure: ClassVar[bool] = True
    weight: float = setting(0.5, ge=0, le=1)  # lambda_p, the weight of distillation between personal and common model
    labels: float = setting(0.0, ge=0, le=1e3)  # weight of the labels in the common model's loss; 0 in the paper
    temperature: float = setting(1.0, ge=1e-3, le=1e3)  # divides the common model's logits
    bits: int = setting(0, ge=0, le=8)  # of a quantised weight, 2^bits centres for each kernel; 0: full precision
    pull: float = setting(1e-4, ge=0, le=1e3)  # lambda, the weight of the distance from the centres; it grows with the round
    centre_lr: float = setting(1e-4, ge=0, le=1e3)  # learning rate of the centres
    freeze: int = setting(0, ge=0, le=10**7)  # round from which weights stay on their centres while biases are tuned; 0: never

    def begins(self, fed: Federation, pool: Pool, params: Params) -> Tree:
        return params, centres(params, self.bits)

    def model_of(self, own: Tree) -> Params:
        return quantised(*own) if self.bits else own[0]

    def init(self, fed: Federation, key: Key) -> State:
        begun = fed.init(key)
        return {i: s._replace(opt=begun[i].opt) for i, s in super().init(fed, key).items()}

    def models(self, fed: Federation, state: State) -> dict[str, Voice]:
        return fed.models(state)

    def unfit(self, fed: Federation) -> list[Problem]:
        odd = [name for name, pool in fed.pools.items() if type(pool.work) is not LocalSGD]
        return [Problem(f"pools.{i}.work", "another work", "local_sgd, whose steps both models take") for i in odd] or super().unfit(fed)

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        rates = self.weight, self.labels, self.temperature, self.pull, self.centre_lr
        frozen, asks = jnp.asarray(0 < self.freeze <= t), {}
        for i in fed.names:
            work: Any = Mutual(fed.pools[i].work, *rates, self.bits)  # type: ignore[arg-type]
            asks[i] = self.ask(fed, state, i, t, key, (state[i].params, jnp.float32(t), frozen), work)
        state, heard, info = self.gather(fed, state, asks, t)
        for i, answer in heard.items():
            info[i] |= {"grad_norm": float(tree.norm(answer.value)), "digested": (1 + bool(self.bits)) * info[i]["examples"]}
        return fed.step(state, {i: heard[i].value for i in fed.names if i in heard}, t), info
