"""Subclass distillation (Müller, Kornblith and Hinton 2020): the student matches what its teachers say of subclasses that they made up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp

from fedcodist import losses
from fedcodist.distill import targets
from fedcodist.federation import Federation
from fedcodist.losses import Batch
from fedcodist.settings import Problem, checked, setting
from fedcodist.techniques import activations as shown
from fedcodist.techniques.activations import Technique
from fedcodist.types import Array, Consumed, Method, Model, Params, Tree

LAYER = "subclasses"  # of the model `subclass`


@dataclass(frozen=True)
@checked
class Subclasses(Technique):
    """T^2 KL of the subclasses' probabilities at one temperature. With one subclass a class and T = 1 it is `kl`."""

    kind: ClassVar[str] = "subclass"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data",)
    secure: ClassVar[bool] = True
    needs: ClassVar[str] = 'models of kind "subclass", with as many subclasses'
    temperature: float = setting(1.0, ge=1e-3, le=1e3)  # T, which divides the logits of teachers and student

    def problems(self, method: Method, fed: Federation) -> list[Problem]:
        if found := shown.featureless(fed, self.kind):
            return found
        if method.asks and len(fed.pools) > 1:
            got = f"{self.kind} under {method.kind}, with {len(fed.pools)} pools"
            return [Problem("method.distill.loss", got, "one pool: clients of several have no subclasses in common")]
        wide, allowed = {}, f'model = {{ kind = "{self.kind}", model = ..., subclasses = ... }}, the same number in all pools'
        for name, layers in shown.pool_shapes(fed).items():
            if LAYER not in layers:
                return [Problem(f"pools.{name}.model", "a model without subclasses", allowed)]
            wide[name] = layers[LAYER][-1] // fed.task.classes
        if len(set(wide.values())) > 1:
            return [Problem("pools", ", ".join(f"{many} subclasses a class in {name}" for name, many in wide.items()), allowed)]
        return (
            [] if not method.distill.labels else [Problem("method.distill.labels", str(method.distill.labels), "0: labels say no subclass")]
        )

    def layers(self, model: Model, params: Params, inputs: Any) -> tuple[str, ...]:
        return (LAYER,)

    def __call__(self, model: Model, params: Params, own: Tree, kept: Tree, batch: Batch, key: Any) -> tuple[Array, Array, Tree]:
        logits, seen = shown.features(model, params, batch.inputs, key)
        said = [of[LAYER] for of in batch.features]
        soft = targets(said, batch.weights, jnp.full_like(batch.temperatures, self.temperature), batch.how.mix, batch.how.gate)
        return self.temperature**2 * losses.kl(soft, seen[LAYER] / self.temperature), logits, kept
