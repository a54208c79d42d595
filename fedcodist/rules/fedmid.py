"""FedMiD (Yuan, Zaheer and Reddi 2021): federated mirror descent for a loss with a regulariser psi that need not be smooth.

Here psi is lambda |w|_1 on the kernels of dense layers, and the mirror map the squared norm, so the proximal map shrinks towards zero.
Clients apply it after every step, prox of lr psi; the server after its own, prox of server_lr K lr psi, with K lr the clients' mean elapsed
rate. With `l1` = 0 it is FedAvg to the bit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.rule import summary
from fedcodist.settings import Problem, checked, setting
from fedcodist.types import Answer, Array, Ask, Consumed, Data, Key, Model, Objective, Params, PoolState, Reply, Rule, Told, Tree
from fedcodist.work import LocalSGD, descend, reply, steps

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


def shrink(params: Params, by: Array | float) -> Params:
    """The proximal map of by |w|_1 on the kernels of dense layers: every number of a matrix that much closer to zero, biases untouched.

    >>> import jax.numpy as jnp
    >>> shrink({"w": jnp.array([[3.0, -0.5]]), "b": jnp.array([3.0])}, 1.0)["w"].tolist()
    [[2.0, -0.0]]
    """
    return jax.tree.map(lambda w: jnp.sign(w) * jnp.maximum(jnp.abs(w) - by, 0.0) if w.ndim == 2 else w, params)


@tree.node("sgd", "l1")
@dataclass(frozen=True)
class MirrorSGD:
    """LocalSGD with the proximal map after every step."""

    sgd: LocalSGD
    l1: float

    def __call__(self, model: Model, objective: Objective, sent: Params, data: Data, key: Any) -> Reply:
        by = self.sgd.lr * self.l1
        said = reply(sent, data, *descend(self.sgd, model, objective, sent, data, key, prox=lambda params: shrink(params, by)))
        return said._replace(info={**said.info, "elapsed": self.sgd.lr * steps(self.sgd, data)})


@dataclass(frozen=True)
@checked
class FedMiD(Rule):
    """Federated mirror descent with lambda = `l1` on the dense kernels."""

    kind: ClassVar[str] = "fedmid"
    consumes: ClassVar[tuple[Consumed, ...]] = ()
    secure: ClassVar[bool] = True
    l1: float = setting(1e-4, ge=0, le=1e3)  # lambda, the weight of the L1 norm of the kernels of dense layers

    def problems(self, pool: Pool) -> list[Problem]:
        if type(pool.work) is LocalSGD:
            return []
        kind = getattr(type(pool.work), "kind", type(pool.work).__name__)
        return [Problem(f"pools.{pool.name}.work", kind, "local_sgd, whose steps this rule shrinks")]

    def begin(self, fed: Federation, pool: Pool, params: Params) -> Tree:
        return {"elapsed": jnp.zeros(())}

    def talk(self, fed: Federation, pool: Pool, state: PoolState, t: int, key: Key) -> Generator[Sequence[Ask], Sequence[Answer], Told]:
        assert isinstance(pool.work, LocalSGD)
        (answer,) = yield [fed.ask(pool, state.params, t, key, work=MirrorSGD(pool.work, self.l1))]
        return Told(answer.value, {"elapsed": jnp.asarray(answer.info["elapsed"])}, summary(answer, pool, t))

    def settle(self, fed: Federation, pool: Pool, before: PoolState, after: PoolState, grad: Tree, t: int) -> PoolState:
        return after._replace(params=shrink(after.params, pool.lr(t) * before.kept["elapsed"] * self.l1)) if self.l1 else after
