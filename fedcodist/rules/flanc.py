"""FLANC (Mei et al. 2022): clients of all widths share a basis of filters, and those of one width the coefficients that mix them.

A client is sent the basis and its width's coefficients, and descends along its loss plus lambda times the distance of the basis from an
orthonormal one. The basis is averaged over all clients, coefficients over those of their width. With one width and lambda 0 it is FedAvg on
factored weights, to the bit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.fold import Mean, Sum
from fedcodist.rules.factored import Factored
from fedcodist.rules.orthogonal import Orthogonal
from fedcodist.rules.submodels import still, told
from fedcodist.rules.widths import Widths
from fedcodist.settings import Problem, checked, setting
from fedcodist.types import Answer, Ask, Consumed, Key, Model, Params, PoolState, Told, Tree, Voice, Work
from fedcodist.work import LocalSGD

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@dataclass(frozen=True)
@checked
class FLANC(Widths):
    """All widths share a basis of filters and have coefficients of their own. A basis has `channels` of a layer's inputs and `filters` of
    its outputs; `weight` (lambda) keeps it near an orthonormal one."""

    kind: ClassVar[str] = "flanc"
    consumes: ClassVar[tuple[Consumed, ...]] = ()
    secure: ClassVar[bool] = True
    weight: float = setting(10.0, ge=0, le=1e6)  # lambda, the weight of the penalty that keeps the shared basis orthogonal
    channels: float = setting(0.125, gt=0, le=1)  # the basis's input channels, as a share of a layer's
    filters: float = setting(0.25, gt=0, le=1)  # the number of the basis's filters, as a share of a layer's

    def problems(self, pool: Pool) -> list[Problem]:
        path = f"pools.{pool.name}"
        if not pool.model.spec or not isinstance(pool.model.spec.part, Factored):
            return [Problem(f"{path}.model", "a model without sub-models", "one with `narrow`, `head` and `spec`: cnn, lstm, mlp")]
        if type(pool.work) is not LocalSGD or type(pool.fold) is not Mean:
            got = f"{type(pool.work).__name__} with fold {type(pool.fold).__name__}"
            return [Problem(f"{path}.work", got, "local_sgd with fold mean, to which FLANC adds its term")]
        return super().problems(pool)

    def model(self, model: Model) -> Model:
        if not model.spec or not model.narrow or not model.head or not self.widths:
            return model
        rates = tuple(sorted({width.rate for width in self.widths}))
        return Factored(model.spec.part, rates, self.channels, self.filters).build(*model.spec[1:])

    def begin(self, fed: Federation, pool: Pool, params: Params) -> Tree:
        return {"held": jnp.zeros(len(self.widths), bool)}

    def talk(self, fed: Federation, pool: Pool, state: PoolState, t: int, key: Key) -> Generator[Sequence[Ask], Sequence[Answer], Told]:
        basis, own, trained = state.params["basis"], state.params["own"], self.trains(pool)
        asks = {self.widths[k].label: ask for k, ask in self.questions(fed, pool, fed.ask(pool, (), t, key), t, key).items()}
        for label, ask in asks.items():
            model, work = trained[label]
            asks[label] = ask._replace(model=model, work=work, sent={"basis": basis, "own": own[label]}, fold=Sum())
        heard = dict(zip(asks, (yield list(asks.values())), strict=True))
        info = told(heard, pool, t)
        shared, weight = tree.zeros(basis), jnp.zeros(())
        grads = {label: tree.zeros(of) for label, of in own.items()}
        for label, answer in heard.items():
            shared, weight = tree.add(shared, answer.value["basis"]), weight + answer.weight
            grads[label] = tree.scale(answer.value["own"], 1.0 / jnp.maximum(answer.weight, 1.0))
        held = jnp.array([width.label in heard and int(heard[width.label].used) > 0 for width in self.widths])
        return Told({"basis": tree.scale(shared, 1.0 / weight), "own": grads}, {"held": held}, info)

    def settle(self, fed: Federation, pool: Pool, before: PoolState, after: PoolState, grad: Tree, t: int) -> PoolState:
        held = {width.label: before.kept["held"][k] for k, width in enumerate(self.widths)}
        touched = jax.tree.map(lambda leaf: leaf != 0, grad)
        own = {label: jax.tree.map(lambda leaf, on=held[label]: leaf | on, of) for label, of in touched["own"].items()}
        basis = jax.tree.map(lambda leaf: leaf | jnp.any(before.kept["held"]), touched["basis"])
        return still(before, after, {"basis": basis, "own": own})

    def models(self, fed: Federation, pool: Pool, state: PoolState) -> dict[str, Voice]:
        found, widest = super().models(fed, pool, state), max(width.rate for width in self.widths)
        for width in (width for width in self.widths if width.rate < widest):
            params = {"basis": state.params["basis"], "own": state.params["own"][width.label]}
            found[f"{pool.name}@{width.label}"] = Voice(self.trains(pool)[width.label][0], params)
        return found

    def trains(self, pool: Pool) -> dict[str, tuple[Model, Work]]:
        assert isinstance(pool.work, LocalSGD) and pool.model.spec is not None
        part, where = pool.model.spec.part, pool.model.spec[1:]
        work = Orthogonal(pool.work, self.weight, self.weight > 0)
        return {width.label: (part.at(width.rate).build(*where), work) for width in self.widths}
