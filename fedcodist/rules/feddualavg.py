"""FedDualAvg (Yuan, Zaheer and Reddi 2021): federated dual averaging for a loss with a regulariser psi that need not be smooth.

As in FedMiD, psi is lambda |w|_1 on the kernels of dense layers. Here clients and server step on a dual model z, which is never shrunk, so
that no zeros are lost where sparse models are averaged. The model is w = prox of eta psi (z), with eta all that the rates have come to:
server_lr K lr of each round, and lr of each of the client's steps so far; clients take their gradients at w. With `l1` = 0 it is FedAvg to
the bit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp

from fedcodist import tree
from fedcodist.pool import server_step
from fedcodist.rule import Diverged, summary
from fedcodist.rules.fedmid import FedMiD, shrink
from fedcodist.types import Answer, Array, Ask, Consumed, Data, Key, Model, Objective, Params, PoolState, Reply, Told, Tree
from fedcodist.work import LocalSGD, descend, reply, steps

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@tree.node("sgd", "l1")
@dataclass(frozen=True)
class DualSGD:
    """LocalSGD on the dual model, with the gradient at the model itself. It is sent (dual model, elapsed rate)."""

    sgd: LocalSGD
    l1: float

    def __call__(self, model: Model, objective: Objective, sent: tuple[Params, Array], data: Data, key: Any) -> Reply:
        dual, elapsed = sent

        def primal(params: Params, taken: Array) -> Params:
            return shrink(params, (elapsed + self.sgd.lr * taken) * self.l1)

        said = reply(dual, data, *descend(self.sgd, model, objective, dual, data, key, primal=primal))
        return said._replace(info={**said.info, "elapsed": self.sgd.lr * steps(self.sgd, data)})


@dataclass(frozen=True)
class FedDualAvg(FedMiD):
    """Federated dual averaging with lambda = `l1` on the dense kernels: as `fedmid`, but the models that are averaged are never
    shrunk."""

    kind: ClassVar[str] = "feddualavg"
    consumes: ClassVar[tuple[Consumed, ...]] = ()
    secure: ClassVar[bool] = True
    teachable: ClassVar[bool] = False  # a distillation would change the model and not the dual one that it is made from

    def begin(self, fed: Federation, pool: Pool, params: Params) -> Tree:
        return {"dual": params, "elapsed": jnp.zeros(()), "round": jnp.zeros(())}

    def talk(self, fed: Federation, pool: Pool, state: PoolState, t: int, key: Key) -> Generator[Sequence[Ask], Sequence[Answer], Told]:
        assert isinstance(pool.work, LocalSGD)
        sent = state.kept["dual"], state.kept["elapsed"]
        (answer,) = yield [fed.ask(pool, sent, t, key, work=DualSGD(pool.work, self.l1))]
        return Told(answer.value, state.kept | {"round": jnp.asarray(answer.info["elapsed"])}, summary(answer, pool, t))

    def settle(self, fed: Federation, pool: Pool, before: PoolState, after: PoolState, grad: Tree, t: int) -> PoolState:
        """The server's step is the dual model's, whose gradient it is."""
        dual, opt, finite = server_step(pool.server, before.kept["dual"], before.opt, grad, pool.lr(t))
        if not finite:
            raise Diverged("the dual model", pool.name, t)
        elapsed = before.kept["elapsed"] + pool.lr(t) * before.kept["round"]
        kept = {"dual": dual, "elapsed": elapsed, "round": before.kept["round"]}
        return PoolState(shrink(dual, elapsed * self.l1) if self.l1 else dual, opt, kept)
