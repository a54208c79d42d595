"""Rules whose clients train prefixes of the pool's model: asked width by width, and put together number by number (HeteroFL, FedResCuE)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.fold import Mean, Sum
from fedcodist.rules.submodels import Held, overlap, still, told, weights
from fedcodist.rules.widths import Widths
from fedcodist.settings import Problem, checked
from fedcodist.types import Answer, Ask, Key, Model, Narrow, Params, PoolState, Told, Tree, Voice, Work

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@dataclass(frozen=True)
@checked
class Slices(Widths):
    """Each width is a sub-model of the pool's model; a number's gradient is the mean of those who hold it."""

    def network(self, sub: Narrow, rate: float) -> Model:
        """The model that clients of a width train, and that is evaluated under its name."""
        return sub.model

    def work(self, pool: Pool, k: int) -> Work:
        """What clients of the kth width do."""
        return pool.work

    def held(self, pool: Pool, k: int, answer: Answer) -> tuple[Params, dict[int, Held]]:
        """The summed gradients in an answer of the kth width's clients, and {width: the weight of clients that hold it}."""
        return answer.value, {k: (answer.weight, answer.weight)}

    def nobody(self, pool: Pool) -> Held:
        """What `held` has of a width that no client holds."""
        return jnp.zeros(()), jnp.zeros(())

    def problems(self, pool: Pool) -> list[Problem]:
        kind, path = type(self).kind, f"pools.{pool.name}"
        if pool.model.narrow is None or not pool.model.head:
            said = getattr(type(pool.model.spec.part), "kind", "") if pool.model.spec else ""
            return [
                Problem(f"{path}.model", said or "a model without sub-models", f"one with `narrow` and `head` for {kind}: cnn, lstm, mlp")
            ]
        if type(pool.fold) is not Mean:
            return [Problem(f"{path}.fold", type(pool.fold).__name__, f"mean, which {kind} takes number by number")]
        return super().problems(pool)

    def begin(self, fed: Federation, pool: Pool, params: Params) -> Tree:
        return {"held": tuple(self.nobody(pool) for _ in self.widths)}

    def talk(self, fed: Federation, pool: Pool, state: PoolState, t: int, key: Key) -> Generator[Sequence[Ask], Sequence[Answer], Told]:
        subs, trained, wide = _subs(pool, self), list(self.trains(pool).values()), jax.device_get(state.params)
        asks = self.questions(fed, pool, fed.ask(pool, state.params, t, key), t, key)
        for k, ask in asks.items():
            asks[k] = ask._replace(model=trained[k][0], work=trained[k][1], sent=subs[k].cut(wide), fold=Sum())
        heard = dict(zip(asks, (yield list(asks.values())), strict=True))
        info = told({self.widths[k].label: answer for k, answer in heard.items()}, pool, t)
        held, sums = [self.nobody(pool) for _ in subs], []
        for k, answer in heard.items():
            some, parts = self.held(pool, k, answer)
            sums.append((subs[k], some))
            for j, part in parts.items():
                held[j] = tree.add(held[j], part)
        share = weights(wide, list(zip(subs, held, strict=True)), pool.model.head)
        return Told(overlap(wide, sums, share), {"held": tuple(held)}, info)

    def settle(self, fed: Federation, pool: Pool, before: PoolState, after: PoolState, grad: Tree, t: int) -> PoolState:
        # A distillation's gradient is merged into numbers that no client held, too: they then make their step.
        share = weights(before.params, list(zip(_subs(pool, self), before.kept["held"], strict=True)), pool.model.head)
        return still(before, after, jax.tree.map(lambda w, g: (w > 0) | (g != 0), share, jax.device_get(grad)))

    def models(self, fed: Federation, pool: Pool, state: PoolState) -> dict[str, Voice]:
        found, wide = super().models(fed, pool, state), jax.device_get(state.params)
        for width, sub in zip(self.widths, _subs(pool, self), strict=True):
            if width.rate < 1:
                found[f"{pool.name}@{width.label}"] = Voice(self.network(sub, width.rate), sub.cut(wide))
        return found

    def trains(self, pool: Pool) -> dict[str, tuple[Model, Work]]:
        subs = zip(self.widths, _subs(pool, self), strict=True)
        return {width.label: (self.network(sub, width.rate), self.work(pool, k)) for k, (width, sub) in enumerate(subs)}


def _subs(pool: Pool, rule: Widths) -> list[Narrow]:
    assert pool.model.narrow is not None
    return [pool.model.narrow(width.rate) for width in rule.widths]
