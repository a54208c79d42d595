"""SCAFFOLD (Karimireddy et al. 2020): control variates correct the drift of clients whose data differ.

The server keeps a control c, every client its own c_k; a client descends along its gradient plus c - c_k, and afterwards
c_k <- c_k - c + (x - y) / (K lr), for K steps of rate lr from x to y. The server adds the changes of the c_k, divided by the number of all
clients of the pool, so c stays the mean of the c_k. All controls begin at zero: the first round is FedAvg's.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp

from fedcodist import clients, tree
from fedcodist.rule import summary
from fedcodist.settings import Problem, checked, setting
from fedcodist.types import Answer, Ask, Consumed, Data, Key, Model, Objective, Params, PoolState, Reply, Rule, Told, Tree
from fedcodist.work import LocalSGD, descend, steps

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@tree.node("sgd")
@dataclass(frozen=True)
class Controlled:
    """LocalSGD with control variates. It is sent (model, c), keeps c_k, and replies with its gradient and the change of c_k."""

    sgd: LocalSGD

    def __call__(self, model: Model, objective: Objective, sent: tuple[Params, Params], data: Data, key: Any) -> Reply:
        x, c = sent
        drift = tree.sub(c, data.own)
        y, loss = descend(self.sgd, model, objective, x, data, key, pull=lambda _: drift)
        grad, taken = tree.sub(x, y), jnp.maximum(steps(self.sgd, data), 1)
        own = tree.sub(tree.scale(grad, 1 / (taken * self.sgd.lr)), drift)  # c_k - c + (x - y) / (K lr)
        # The server wants the sum of the changes, not their mean by examples: divided by the weight here, times all weights there.
        change = tree.scale(tree.sub(own, data.own), 1 / jnp.maximum(data.n, 1))
        return Reply((grad, change), data.n.astype(jnp.float32), {"loss": loss}, own)


@dataclass(frozen=True)
@checked
class Scaffold(Rule):
    """SCAFFOLD. What clients keep is part of every checkpoint; more than `most_bytes` of it is refused."""

    kind: ClassVar[str] = "scaffold"
    consumes: ClassVar[tuple[Consumed, ...]] = ("client state",)
    secure: ClassVar[bool] = True
    most_bytes: float = setting(2e9, gt=0, le=1e15)  # limit on the bytes of all clients' control variates, which every checkpoint holds

    def problems(self, pool: Pool) -> list[Problem]:
        found = []
        if type(pool.work) is not LocalSGD:
            kind = getattr(type(pool.work), "kind", type(pool.work).__name__)
            found.append(Problem(f"pools.{pool.name}.work", kind, "local_sgd, which SCAFFOLD corrects"))
        if pool.fold.each or clients.grows(pool.clients):
            found.append(Problem(f"pools.{pool.name}.rule", "scaffold", "a fold of sums and a fixed population: c is the mean of all c_k"))
        needs = len(pool.clients) * tree.nbytes(pool.shapes)
        if needs > self.most_bytes:
            state = f"scaffold, which keeps {needs:.3g} bytes for {len(pool.clients)} clients"
            found.append(Problem(f"pools.{pool.name}.rule", state, f"at most {self.most_bytes:.3g} (most_bytes)"))
        return found

    def begin(self, fed: Federation, pool: Pool, params: Params) -> Tree:
        zero = tree.zeros(params)
        return {"server": zero, "clients": dict.fromkeys(pool.ids, zero)}

    def talk(self, fed: Federation, pool: Pool, state: PoolState, t: int, key: Key) -> Generator[Sequence[Ask], Sequence[Answer], Told]:
        c, own = state.kept["server"], state.kept["clients"]
        assert isinstance(pool.work, LocalSGD)
        (answer,) = yield [fed.ask(pool, (state.params, c), t, key, work=Controlled(pool.work), own=own)]
        info = summary(answer, pool, t) | {"client_bytes": answer.bytes_down + answer.bytes_up}
        grad, change = answer.value
        c = tree.add(c, tree.scale(change, answer.weight / len(own)))
        return Told(grad, {"server": c, "clients": own | answer.own}, info)
