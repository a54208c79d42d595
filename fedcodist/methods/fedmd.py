"""FedMD (Li and Wang 2019): clients of any architecture agree on the logits of public rows.

In a round every client says what its model makes of some public rows, the server averages the logits, and each client digests the consensus
(regresses its own logits to it, by default in L1) and then revisits its own data. Clients of all pools make one consensus. The paper first
trains on the public data's labels; `public_epochs` does that once for each pool, where the public data has labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp

from fedcodist import keys, tree
from fedcodist.fold import Sum
from fedcodist.methods.digests import Digest, drawn, said
from fedcodist.methods.owners import Owners, scarce
from fedcodist.settings import Problem, checked, setting
from fedcodist.types import Array, Consumed, Data, Info, Key, Model, Objective, Params, Reply, State, Tree, Work

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@tree.node()
@dataclass(frozen=True)
class Speak:
    """The logits of public rows by the client's own model, over its number of examples: the fold multiplies by that again."""

    batch: int

    def __call__(self, model: Model, objective: Objective, sent: Array, data: Data, key: Any) -> Reply:
        logits = said(model, objective, data.own, sent, self.batch) / jnp.maximum(data.n, 1)
        return Reply(logits * (data.n > 0), data.n.astype(jnp.float32), {"loss": jnp.zeros(())})


@tree.node("work", "digest")
@dataclass(frozen=True)
class Revisit:
    """Digest the consensus, then do the pool's work on the client's own data."""

    work: Work
    digest: Digest

    def __call__(self, model: Model, objective: Objective, sent: tuple[Array, Array], data: Data, key: Any) -> Reply:
        params = self.digest(model, objective, data.own, *sent, key)
        reply = self.work(model, objective, params, data._replace(own=()), key)
        return Reply((), reply.weight, reply.info, tree.sub(params, reply.value))


@dataclass(frozen=True)
@checked
class FedMD(Owners):
    """Consensus of logits on public rows, which clients of any architecture digest before they go on with their own data."""

    kind: ClassVar[str] = "fedmd"
    label: ClassVar[str] = "FedMD"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data", "client state")
    secure: ClassVar[bool] = True
    rows: int = setting(5000, ge=1, le=10**7)  # public rows that a round is about
    digest: Digest = Digest()  # how a client learns from the consensus
    public_epochs: int = setting(0, ge=0, le=10_000)  # passes over the labelled public data before round 1; 0: without its labels

    def begins(self, fed: Federation, pool: Pool, params: Params) -> Tree:
        if not self.public_epochs:
            return params
        x, y = (jnp.asarray(a) for a in fed.task.public)
        work: Any = replace(pool.work, epochs=self.public_epochs)  # type: ignore[type-var]
        key = keys.derive(keys.root(0), "public labels", fed.names.index(pool.name))
        return tree.sub(params, work(pool.model, fed.task.objective, params, Data(x, y, jnp.int32(len(x))), key).value)

    def unfit(self, fed: Federation) -> list[Problem]:
        if self.public_epochs and fed.task.public.y is None:
            return [Problem("method.public_epochs", str(self.public_epochs), "0: the public data has no labels")]
        return scarce(fed, self.rows) or super().unfit(fed)

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        x = fed.task.public.x[drawn(fed, self.rows, t, key)]
        asks = {i: self.ask(fed, state, i, t, key, x, Speak(self.digest.batch))._replace(fold=Sum()) for i in fed.names}
        _, heard, info = self.gather(fed, state, asks, t)
        if not heard:
            return state, info
        consensus = sum(a.value for a in heard.values()) / sum(int(a.used) for a in heard.values())
        asks = {i: self.ask(fed, state, i, t, key, (x, consensus), Revisit(fed.pools[i].work, self.digest)) for i in heard}
        state, after, told = self.gather(fed, state, asks, t)
        for i, answer in after.items():  # whoever takes part has the public data already: only logits travel
            told[i]["client_bytes"] = heard[i].bytes_up + len(asks[i].clients) * tree.nbytes(consensus)
            told[i] |= {"predicted": self.rows * int(answer.used), "digested": self.rows * self.digest.epochs * int(answer.used)}
        return state, info | told

    def expects(self, fed: Federation, pool: Pool) -> Info:
        rows = self.rows * pool.cohort
        return {"client_bytes": 2 * 4 * rows * fed.task.classes, "predicted": rows, "digested": rows * self.digest.epochs}
