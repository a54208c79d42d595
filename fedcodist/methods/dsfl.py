"""DS-FL (Itahara et al. 2020): clients and server learn from sharpened mean predictions on public rows.

In a round every client trains its own model and says its probabilities on some public rows; the server averages them over the clients of
all pools and sharpens the mean (entropy reduction aggregation, ERA: softmax(mean / temperature)); clients and a server model of every pool
are distilled on that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import keys, tree
from fedcodist.fold import Sum
from fedcodist.methods.digests import Digest, drawn, era, said, taught
from fedcodist.methods.owners import Owners, scarce
from fedcodist.settings import Problem, checked, setting
from fedcodist.types import Array, Consumed, Data, Info, Key, Model, Objective, Reply, State, Voice, Work

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@tree.node("work")
@dataclass(frozen=True)
class TrainAndSpeak:
    """The pool's work on the client's own model, which stays there, and its probabilities on public rows, over its number of examples."""

    work: Work
    batch: int

    def __call__(self, model: Model, objective: Objective, sent: Array, data: Data, key: Any) -> Reply:
        reply = self.work(model, objective, data.own, data._replace(own=()), key)
        params = tree.sub(data.own, reply.value)
        probabilities = jax.nn.softmax(said(model, objective, params, sent, self.batch)) / jnp.maximum(data.n, 1)
        return Reply(probabilities * (data.n > 0), reply.weight, reply.info, params)


@tree.node("digest")
@dataclass(frozen=True)
class Learn:
    """Distil the client's own model on public rows."""

    digest: Digest

    def __call__(self, model: Model, objective: Objective, sent: tuple[Array, Array], data: Data, key: Any) -> Reply:
        own = self.digest(model, objective, data.own, *sent, key)
        return Reply((), data.n.astype(jnp.float32), {"loss": jnp.zeros(())}, own)


@dataclass(frozen=True)
@checked
class DSFL(Owners):
    """Distillation-based semi-supervised federated learning: the sharpened mean of all clients' predictions teaches them and the server."""

    kind: ClassVar[str] = "dsfl"
    label: ClassVar[str] = "DS-FL"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data", "client state")
    secure: ClassVar[bool] = True
    rows: int = setting(1000, ge=1, le=10**7)  # public rows that a round is about
    temperature: float = setting(0.1, ge=0, le=1e3)  # of ERA, which sharpens below 1; 0: the plain mean (SA)
    digest: Digest = Digest(batch=128, loss="kl")  # how a client, and the server, learns from the target

    def unfit(self, fed: Federation) -> list[Problem]:
        if self.digest.loss != "kl":
            return [Problem("method.digest.loss", self.digest.loss, "kl: the target is a distribution")]
        return scarce(fed, self.rows) or super().unfit(fed)

    def models(self, fed: Federation, state: State) -> dict[str, Voice]:
        return fed.models(state)

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        x = fed.task.public.x[drawn(fed, self.rows, t, key)]
        works = {i: TrainAndSpeak(fed.pools[i].work, self.digest.batch) for i in fed.names}
        asks = {i: self.ask(fed, state, i, t, key, x, work)._replace(fold=Sum()) for i, work in works.items()}
        state, heard, info = self.gather(fed, state, asks, t)
        if not heard:
            return state, info
        target = era(jnp.asarray(sum(a.value for a in heard.values())) / sum(int(a.used) for a in heard.values()), self.temperature)
        state, _, _ = self.gather(fed, state, {i: self.ask(fed, state, i, t, key, (x, target), Learn(self.digest)) for i in heard}, t)
        for i, answer in heard.items():
            salt, pool = keys.derive(key, "server", t, fed.names.index(i)), fed.pools[i]
            params = taught(pool.model, fed.task.objective, self.digest, state[i].params, x, target, salt)
            state[i] = state[i]._replace(params=params)
            info[i] |= self._spent(int(answer.used))
            info[i]["client_bytes"] = answer.bytes_up + len(asks[i].clients) * tree.nbytes(target)
        return state, info

    def _spent(self, clients: int) -> Info:
        rows, epochs = self.rows * clients, self.digest.epochs
        return {"predicted": rows, "digested": rows * epochs, "server_digested": self.rows * epochs}

    def expects(self, fed: Federation, pool: Pool) -> Info:
        return {"client_bytes": 2 * 4 * self.rows * pool.cohort * fed.task.classes, **self._spent(pool.cohort)}
