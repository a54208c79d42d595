"""Client-level differential privacy, around any engine: clip, add up, noise, and an account that is written before anything is released.

It stands where every release passes, between a federation and its engine, so a simulation and real devices share it. What the server makes
of the noised sums (its optimizer, distillation on public data) costs nothing more. The noise is a function of a key, the pool and the
round, so a round that is replayed after a crash releases the same numbers again, and nothing new. Real devices may answer otherwise the
second time, and the difference of two sums under one noise would be bare; so where the key is secret, the noise depends on the sum as well.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri

from fedcodist import keys, settings
from fedcodist.clients import grows
from fedcodist.engines.accountant import ASSUMED, Account, Charge, Noise, Privacy
from fedcodist.engines.clipped import Clipped
from fedcodist.errors import Failure
from fedcodist.fold import Mean
from fedcodist.rule import Average
from fedcodist.settings import Problem
from fedcodist.types import Answer, Ask, Engine, Examples, Host, Tree

SHARED = {"public data", "labels"}  # what a method may use beside the noised sums; labels are those of public data


class BudgetSpent(Failure):
    """Another round would cost more privacy than was promised."""

    code = 8


@dataclass(frozen=True, eq=False)
class Private:
    """An engine whose answers are noised sums. `pools` are in their canonical order, with what each adds and its cohort; an experiment sets
    the key by its seed, a deployment by a secret."""

    engine: Engine
    how: Privacy
    pools: Mapping[str, tuple[Noise, int]]
    key: bytes = field(default=b"", repr=False)
    secret: bool = False
    account: Account | None = None

    def __post_init__(self) -> None:
        if self.account is None:
            object.__setattr__(self, "account", Account(self.how, {name: noise.noise for name, (noise, _) in self.pools.items()}))

    @property
    def host(self) -> Host:
        return self.engine.host

    @property
    def workers(self) -> int:
        """The engine's own."""
        return getattr(self.engine, "workers", 0)

    def seeded(self, seed: int) -> Private:
        """The same for a run of this seed, with an account of its own."""
        inner: Any = self.engine
        key = self.key if self.secret else keys.derive(keys.root(seed), "noise").tobytes()
        return replace(self, engine=inner.seeded(seed) if hasattr(inner, "seeded") else inner, key=key, account=None)

    def hidden(self, key: bytes) -> Private:
        """The same with noise that only who has this key can know."""
        return replace(self, key=key, secret=True)

    def opened(self, rows: Iterable[Mapping[str, Any]], keep: Callable[[Mapping[str, Any]], None]) -> None:
        """Go on with the account in these rows."""
        assert self.account is not None
        self.account.open(rows, keep)

    def told(self) -> dict[str, Any]:
        """What the clients have paid so far, and under which assumption."""
        assert self.account is not None
        how = self.how
        return {
            "epsilon": round(self.account.epsilon(), 4),
            "delta": how.delta,
            "sampling": how.sampling,
            "assumption": ASSUMED[how.sampling],
        }

    def gather(self, population: Mapping[str, Mapping[str, Examples]], asks: Sequence[Ask]) -> list[Answer | None]:
        assert self.account is not None
        self.account.meet(population)
        charges = [Charge(ask.pool, ask.t, (*ask.clients, *ask.spare), len(population[ask.pool])) for ask in asks]
        # With a secret key it is only known when the replies are there whether a replayed round is the same release again.
        self._afford([charge for charge in charges if not self.account.knows(charge, any_tag=self.secret)], charges)
        answers = self.engine.gather(population, [self._clipped(ask) for ask in asks])
        noised, paid = [], []
        for ask, answer, charge in zip(asks, answers, charges, strict=True):
            if answer is None:
                noised.append(None)
                continue
            value, tag = self._noised(ask, jax.device_get(answer.value))
            noised.append(answer._replace(value=value))
            paid.append(charge._replace(tag=tag))
        self._afford([charge for charge in paid if not self.account.knows(charge)], charges)
        self.account.pay(paid)
        told = np.float64(round(self.account.epsilon(), 4))
        return [answer and answer._replace(info={**answer.info, "epsilon": told}) for answer in noised]

    def _afford(self, new: Sequence[Charge], asked: Sequence[Charge]) -> None:
        assert self.account is not None
        if new and (epsilon := self.account.epsilon(new)) > self.how.budget:
            t = asked[0].round
            self.account.stop(t, epsilon)
            said = f"round {t} would make epsilon {epsilon:.4g} at delta {self.how.delta:g}"
            spent = f"so far it is {self.account.epsilon():.4g}; {ASSUMED[self.how.sampling]}"
            raise BudgetSpent(settings.one_line(str(Problem("privacy.budget", said, f"at most {self.how.budget:g}", spent))))

    def _clipped(self, ask: Ask) -> Ask:
        if type(ask.fold) is not Mean or ask.each or ask.own is not None:
            raise TypeError(f"pool {ask.pool}: only the mean of updates can be released with noise")
        noise, cohort = self.pools[ask.pool]
        return ask._replace(fold=Clipped(noise.clip, cohort))

    def _noised(self, ask: Ask, value: Tree) -> tuple[Tree, str]:
        """The value with its noise, and what tells this release from another one of the round."""
        noise, cohort = self.pools[ask.pool]
        name = f"{list(self.pools).index(ask.pool)}:{ask.t}:".encode()
        if self.secret:
            for leaf in jax.tree.leaves(value):
                name += hashlib.sha256(np.ascontiguousarray(leaf).tobytes()).digest()
        seed = hmac.digest(self.key, b"noise:" + name, "sha256")
        tag = hmac.digest(self.key, b"tag:" + name, "sha256").hex()[:16] if self.secret else ""
        return gaussian(seed, value, noise.noise * noise.clip / cohort), tag


def gaussian(seed: bytes, value: Tree, size: float) -> Tree:
    """The tree plus noise of this standard deviation, leaf by leaf, from the bits of SHAKE-256.

    >>> noised = gaussian(b"1", {"w": np.zeros(20_000, np.float32)}, 2.0)["w"]
    >>> bool(abs(noised.mean()) < 0.05), bool(abs(noised.std() - 2) < 0.05), str(noised.dtype)
    (True, True, 'float32')
    """
    leaves, structure = jax.tree.flatten(value)
    many = sum(np.size(leaf) for leaf in leaves)
    words = np.frombuffer(hashlib.shake_256(seed).digest(8 * many), "<u8")
    noise = size * ndtri(((words >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
    parts = np.split(noise, ends)
    return jax.tree.unflatten(
        structure,
        [(np.asarray(leaf, np.float64) + part.reshape(np.shape(leaf))).astype(np.asarray(leaf).dtype) for leaf, part in zip(leaves, parts)],
    )


def problems(how: Privacy | None, pools: Mapping[str, Any], method: Any) -> list[Problem]:
    """What in a config's pools and method does not fit its privacy."""
    private = [name for name, pool in pools.items() if pool.privacy is not None]
    if how is None:
        return [Problem(f"pools.{name}.privacy", "a table", "a table privacy with the budget of all pools too") for name in private]
    found = [
        Problem(f"pools.{name}.privacy", "nothing", "a table for every pool, or for none: what one pool says in the clear is out")
        for name in pools
        if name not in private
    ]
    if method.asks or not SHARED.issuperset(method.consumes):
        found.append(Problem("method", method.kind, "a method that needs only sums over clients, to which noise can be added"))
    for name in private:
        pool = pools[name]
        if pool.rule != Average():
            found.append(Problem(f"pools.{name}.rule", type(pool.rule).kind, "average: privacy is for one sum of updates a round"))
        if pool.fold not in (Mean.kind, Mean()):
            found.append(Problem(f"pools.{name}.fold", type(pool.fold).kind, "mean: privacy clips the updates and adds them up"))
    return found


def misfits(how: Privacy, population: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """What only the clients can show."""
    found = []
    for name, clients in population.items():
        if grows(clients) and how.sampling != "none":
            said = "none: who is asked and answers is no secret draw, so a deployment has no amplification"
            return [Problem("privacy.sampling", how.sampling, said)]
        if not grows(clients) and how.delta * len(clients) >= 1:
            found.append(Problem("privacy.delta", f"{how.delta:g}", f"less than 1 over the {len(clients)} clients of pool {name}"))
    return found
