"""FAug, federated augmentation (Jeong et al. 2018), with a STAND-IN for its generator: clients of FD top their labels up with samples.

In the paper devices upload some seed samples, the server trains a conditional GAN on them and ships it, and every device generates what it
lacks until its labels are balanced. No GAN is faithful at a hundred images a client, so the generator here is a class-conditional sampler
over the server's own labelled public data: `samples` rows of each label, shipped once. That gives an upper bound of what a generator could.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedcodist import keys, tree
from fedcodist.methods.fd import FD
from fedcodist.settings import Problem, checked, setting
from fedcodist.types import Array, Consumed, Data, Info, Key, Model, Objective, Reply, State, Work

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@tree.node("work")
@dataclass(frozen=True)
class ToppedUp:
    """FD's work on data with balanced labels. It is sent (the sum of all tables, samples of each label, which labels have any)."""

    work: Work
    added: int

    def __call__(self, model: Model, objective: Objective, sent: Any, data: Data, key: Any) -> Reply:
        total, bank, known = sent
        more = balanced(data, bank, known, self.added, jax.random.fold_in(key, 2**31))
        return self.work(model, objective, total, more._replace(own=data.own), key)


def balanced(data: Data, bank: Array, known: Array, added: int, key: Any) -> Data:
    """The client's rows, and behind them as many samples as make all known labels as frequent as its most frequent one; at most `added`,
    then evenly of all that is lacking."""
    y = jnp.asarray(data.y)
    real = jnp.arange(len(y)) < data.n
    counts = jnp.zeros(len(bank), jnp.int32).at[y].add(real.astype(jnp.int32))
    until = jnp.cumsum(jnp.where(known, jnp.max(counts) - counts, 0))
    many = jnp.minimum(added, until[-1])
    labels = jnp.searchsorted(until, jnp.arange(added) * until[-1] // jnp.maximum(many, 1), side="right").clip(0, len(bank) - 1)
    rows = jax.random.randint(key, (added,), 0, bank.shape[1])
    order = jnp.argsort(~jnp.concatenate([real, jnp.arange(added) < many]), stable=True)
    x = jnp.concatenate([jnp.asarray(data.x), jnp.asarray(bank)[labels, rows]])[order]
    return Data(x, jnp.concatenate([y, labels.astype(y.dtype)])[order], data.n + many)


@dataclass(frozen=True)
@checked
class FAug(FD):
    """FD on balanced labels: what a client lacks comes from a class-conditional sampler, which stands in for the paper's GAN."""

    kind: ClassVar[str] = "faug"
    label: ClassVar[str] = "FAug (stand-in)"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data", "labels", "client state")
    secure: ClassVar[bool] = True
    samples: int = setting(20, ge=1, le=10**6)  # rows of each label in the sampler
    added: int = setting(100, ge=1, le=10**6)  # limit on the samples that a client adds to its data

    def unfit(self, fed: Federation) -> list[Problem]:
        if fed.task.public.y is None:
            return [Problem("method", self.kind, "public data with labels, of which the sampler is made")]
        return super().unfit(fed)

    def work(self, pool: Pool) -> Work:
        return ToppedUp(super().work(pool), self.added)

    def sampler(self, fed: Federation, key: Key) -> tuple[np.ndarray, np.ndarray]:
        """So many rows of each label, [classes, samples, ...], and which labels there are."""
        y = np.asarray(fed.task.public.y)
        order = keys.permutation(keys.derive(key, "sampler"), len(y))
        places = [order[y[order] == label] for label in range(fed.task.classes)]
        rows = np.stack([np.resize(some if len(some) else order[:1], self.samples) for some in places])
        return np.asarray(fed.task.public.x)[rows], np.array([len(some) > 0 for some in places])

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        bank = self.sampler(fed, key)
        state, info = self.exchange(fed, state, t, key, bank)
        for i in info:
            if t == 1 and "client_bytes" in info[i]:  # shipped once, to every client
                info[i]["client_bytes"] += len(fed.pools[i].clients) * tree.nbytes(bank)
        return state, info
