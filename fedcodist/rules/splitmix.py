"""Split-Mix (Hong et al. 2022): narrow base networks that are trained apart, as many by each client as it can carry, and speak together.

A wide model becomes 1/rate bases of that rate. Every client trains one base by turns, over an order that all clients share, and as many
more at random as it carries. Each base is the mean of its clients; the pool's model is the ensemble, the mean of all bases' logits, and
narrower ensembles are the models of narrower clients. With one base it is FedAvg to the bit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import clients, tree
from fedcodist.rules.heterofl import OwnClasses
from fedcodist.rules.mix import Mix, drawn, mix_of
from fedcodist.rules.submodels import still, told
from fedcodist.rules.widths import Widths
from fedcodist.settings import Problem, checked, setting
from fedcodist.types import Answer, Ask, Consumed, Info, Key, Model, Params, PoolState, Told, Tree, Voice, Work

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@dataclass(frozen=True)
@checked
class SplitMix(Widths):
    """Clients train as many narrow base networks as they carry; the model is their ensemble. `rate` is a base's share of the width, `bases`
    how many there are (0: 1/rate)."""

    kind: ClassVar[str] = "splitmix"
    consumes: ClassVar[tuple[Consumed, ...]] = ()
    secure: ClassVar[bool] = True
    rate: float = setting(0.5, gt=0, le=1)  # the width of each base network, as a share of the model's
    bases: int = setting(0, ge=0, le=10_000)  # how many base networks there are; 0: 1 / rate
    scaler: bool = False  # whether a layer's outputs are divided by the width's rate
    mask_labels: bool = False  # whether logits of classes that a client does not have are 0 in its loss

    def problems(self, pool: Pool) -> list[Problem]:
        if not pool.model.spec or not isinstance(pool.model.spec.part, Mix):
            return [Problem(f"pools.{pool.name}.model", "a model without sub-models", "one with `narrow` and `spec`: cnn, lstm, mlp")]
        if narrow := [width.label for width in self.widths if self.many(width.rate) < 1]:
            return [Problem(f"pools.{pool.name}.rule.widths", f"a rate of {narrow[0]}", f"at least that of a base, {self.rate:g}")]
        return super().problems(pool)

    def many(self, rate: float) -> int:
        """How many bases a client carries."""
        return min(int(rate / self.rate + 1e-6), self.bases or round(1 / self.rate))

    def model(self, model: Model) -> Model:
        if not model.spec or not model.narrow:
            return model
        return Mix(model.spec.part, self.rate, self.bases or round(1 / self.rate), self.scaler).build(*model.spec[1:])

    def begin(self, fed: Federation, pool: Pool, params: Params) -> Tree:
        return {"held": jnp.zeros(len(jax.tree.leaves(params)[0]), bool)}

    def talk(self, fed: Federation, pool: Pool, state: PoolState, t: int, key: Key) -> Generator[Sequence[Ask], Sequence[Answer], Told]:
        ask, bases, ((model, work),) = fed.ask(pool, state.params, t, key), mix_of(pool).bases, self.trains(pool).values()
        places = self.places(fed, pool, (*ask.clients, *ask.spare), t, key)
        carried = {client: self.many(self.widths[k].rate) for client, k in places.items()}
        chosen = drawn(key, fed.names.index(pool.name), t, pool.cohort, bases, carried)
        asks = {}
        for b in range(bases):  # with one key: a client's bases see the same batches
            some, spare = (tuple(c for c in ids if b in chosen[c]) for ids in (ask.clients, ask.spare))
            if some:
                sent = jax.tree.map(lambda leaf, b=b: leaf[b], state.params)
                asks[b] = ask._replace(clients=some, spare=spare, model=model, work=work, sent=sent)
        heard = dict(zip(asks, (yield list(asks.values())), strict=True))
        info = told({str(b): answer for b, answer in heard.items()}, pool, t)
        grads = [heard[b].value if b in heard else jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:]), state.params) for b in range(bases)]
        held = jnp.array([b in heard and int(heard[b].used) > 0 for b in range(bases)])
        info["trained"] = {"base": sum(info["trained"].values())}
        return Told(jax.tree.map(lambda *leaves: jnp.stack(leaves), *grads), {"held": held}, info)

    def settle(self, fed: Federation, pool: Pool, before: PoolState, after: PoolState, grad: Tree, t: int) -> PoolState:
        held = before.kept["held"]
        return still(before, after, jax.tree.map(lambda leaf: held.reshape(-1, *[1] * (leaf.ndim - 1)) | (leaf != 0), grad))

    def models(self, fed: Federation, pool: Pool, state: PoolState) -> dict[str, Voice]:
        found, mix = super().models(fed, pool, state), mix_of(pool)
        for many in sorted({self.many(width.rate) for width in self.widths} - {mix.bases}):
            model = replace(mix, bases=many).build(*pool.model.spec[1:])  # type: ignore[index]
            found[f"{pool.name}@{many * self.rate:g}"] = Voice(model, jax.tree.map(lambda leaf, n=many: leaf[:n], state.params))
        return found

    def trains(self, pool: Pool) -> dict[str, tuple[Model, Work]]:
        assert pool.model.spec is not None
        work = OwnClasses(pool.work, mask=True, skip=False) if self.mask_labels else pool.work
        return {"base": (mix_of(pool).base(*pool.model.spec[1:]), work)}

    def expects(self, fed: Federation, pool: Pool) -> Info:
        asked = pool.cohort * sum(share * self.many(width.rate) for width, share in zip(self.widths, self.shares(pool), strict=True))
        sizes, size = clients.sizes(pool.clients).values(), tree.nbytes(pool.shapes) / mix_of(pool).bases
        return {"client_bytes": 2 * size * asked, "trained": {"base": asked * sum(sizes) / len(sizes)}}
