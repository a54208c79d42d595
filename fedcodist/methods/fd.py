"""FD, federated distillation (Jeong et al. 2018): clients exchange what their models say of each class, on average, and no model.

A client k keeps its model and a table F_k: the mean of its model's probabilities over its examples of each label. The server adds the
tables up. Client k gets the sums and takes its own share out of them, which gives G_k, the mean over the others; its loss on an example of
label y is CE(y) + weight CE(G_k[y], .), the second where another client knows the label. With weight 0 it is Local.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp

from fedcodist import tree
from fedcodist.fold import Sum
from fedcodist.methods.owners import Owners
from fedcodist.methods.tables import Table, Taught, class_means, empty, others, unlabelled
from fedcodist.settings import Problem, checked, setting
from fedcodist.types import Consumed, Data, Info, Key, Model, Objective, Params, Reply, State, Tree, Work

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@tree.node("work", "weight")
@dataclass(frozen=True)
class Distilled:
    """A work on the loss with the others' table in it. It is sent the sum of all tables, keeps (model, its table), and replies with the
    change of its table, over its number of examples: the fold multiplies by that again."""

    work: Work
    weight: float
    htfl: bool = False

    def __call__(self, model: Model, objective: Objective, sent: Table, data: Data, key: Any) -> Reply:
        params, table = data.own
        mean, known = others(sent, Table(jnp.zeros_like(table.sums), jnp.zeros_like(table.counts)) if self.htfl else table)
        taught: Any = Taught(objective, mean, known, self.weight)
        reply = self.work(model, taught, params, data._replace(own=()), key)
        params = tree.sub(params, reply.value)
        now = class_means(model, objective, params, data, getattr(self.work, "batch", 20), logits=self.htfl)
        change = tree.scale(tree.sub(now, table), 1 / jnp.maximum(data.n, 1))
        return Reply(change, reply.weight, reply.info, (params, now))


@dataclass(frozen=True)
@checked
class FD(Owners):
    """Federated distillation: a table of mean predictions by class instead of models. `htfl` is HtFLlib's reading: logits in the place of
    probabilities, and the mean over all clients, oneself too."""

    kind: ClassVar[str] = "fd"
    label: ClassVar[str] = "FD"
    consumes: ClassVar[tuple[Consumed, ...]] = ("client state",)
    secure: ClassVar[bool] = True
    weight: float = setting(1.0, ge=0, le=1e3)  # lambda, the weight of the distillation term; 0 is `local_only`
    htfl: bool = False  # as in HtFLlib: mean logits as targets, over all clients and not only the others

    def begins(self, fed: Federation, pool: Pool, params: Params) -> Tree:
        return params, empty(fed.task.classes)

    def model_of(self, own: Tree) -> Params:
        return own[0]

    def init(self, fed: Federation, key: Key) -> State:
        state = super().init(fed, key)
        return {i: s._replace(kept={**s.kept, "sum": empty(fed.task.classes)}) for i, s in state.items()}

    def unfit(self, fed: Federation) -> list[Problem]:
        return unlabelled(fed, self.kind) or super().unfit(fed)

    def work(self, pool: Pool) -> Work:
        """What the clients of a pool do."""
        return Distilled(pool.work, self.weight, self.htfl)

    def sent(self, state: State, total: Table) -> Tree:
        """What clients are sent, given the sum of all tables."""
        return total

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        return self.exchange(fed, state, t, key)

    def exchange(self, fed: Federation, state: State, t: int, key: Key, more: tuple[Any, ...] = ()) -> tuple[State, Info]:
        """A round in which clients are sent `more` than the sum of all tables."""
        total = reduce(tree.add, [state[i].kept["sum"] for i in fed.names])  # tables fit together, whatever the models
        sent = (total, *more) if more else self.sent(state, total)
        asks = {i: self.ask(fed, state, i, t, key, sent, self.work(fed.pools[i]))._replace(fold=Sum()) for i in fed.names}
        state, heard, info = self.gather(fed, state, asks, t)
        for i, answer in heard.items():
            info[i] |= {"predicted": info[i]["examples"], "client_bytes": answer.bytes_up + len(asks[i].clients) * tree.nbytes(total)}
            kept = state[i].kept
            state[i] = state[i]._replace(kept={**kept, "sum": tree.add(kept["sum"], answer.value)})
        return state, info

    def expects(self, fed: Federation, pool: Pool) -> Info:
        return {"client_bytes": 2 * pool.cohort * tree.nbytes(empty(fed.task.classes))}
