"""FitNets (Romero et al. 2015): a layer of the student, seen through a learned linear map, is to be a layer of its teacher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import losses
from fedcodist.federation import Federation
from fedcodist.losses import Batch, Lesson
from fedcodist.settings import Problem, checked, setting
from fedcodist.techniques import activations as shown
from fedcodist.techniques.activations import Technique
from fedcodist.types import Array, Consumed, Method, Model, Params, Tree


@dataclass(frozen=True)
@checked
class FitNets(Technique):
    """KL plus `weight` times the mean squared difference of a layer, through a learned linear map, and the teacher's hint layer.

    A teacher's hint counts as much as its word does in the target; a student gives itself none. The maps (of a convolution one for all
    pixels) begin anew in every lesson.
    """

    kind: ClassVar[str] = "fitnets"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data",)
    secure: ClassVar[bool] = True
    needs: ClassVar[str] = "models with features"
    weight: float = setting(100.0, ge=0, le=1e6)  # weight of the hint beside the KL divergence; 0 is `kl`
    first: float = setting(0.0, ge=0, lt=1)  # share of the steps that learn the hint alone, and the others KL alone; 0: both in all steps
    layer: str = ""  # the student's layer, by its name in `features`; the middle one, if it is not given
    hint: str = ""  # the teachers' layer; the middle one, if it is not given

    def problems(self, method: Method, fed: Federation) -> list[Problem]:
        if self.weight == 0:
            return []
        if found := shown.featureless(fed, self.kind):
            return found
        shapes = shown.pool_shapes(fed)
        if found := shown.unseen_layers(shapes, "layer", self.layer) + shown.unseen_layers(shapes, "hint", self.hint):
            return found
        for i, j in shown.who_hears_whom(method, fed):
            mine, theirs = _middle(shapes[i], self.layer), _middle(shapes[j], self.hint)
            if shapes[i][mine][1:-1] != shapes[j][theirs][1:-1]:
                got = f"{mine} of pool {i}, {_size(shapes[i][mine])}, for {theirs} of pool {j}, {_size(shapes[j][theirs])}"
                found.append(Problem("method.distill.loss.layer", got, "layers that differ in their last axis alone"))
        return found

    def layers(self, model: Model, params: Params, inputs: Any) -> tuple[str, ...]:
        return (_middle(shown.shapes_of(model, params, inputs), self.hint),) if self.weight else ()

    def begin(self, lesson: Lesson) -> tuple[Tree, Tree]:
        if not self.weight:
            return (), ()
        rows = jax.eval_shape(lesson.objective.public_inputs, lesson.public[:2])
        model, params = lesson.student
        shapes = shown.shapes_of(model, params, rows)
        wide = shapes[_middle(shapes, self.layer)][-1]
        maps: list[Tree] = []
        for k, voice in enumerate(lesson.teachers):
            if voice is None:
                maps.append({})
                continue
            hints = shown.shapes_of(*voice, rows)
            size = (wide, hints[_middle(hints, self.hint)][-1])
            maps.append({"w": jax.random.normal(jax.random.fold_in(lesson.key, k), size) * wide**-0.5, "b": jnp.zeros(size[1])})
        return maps, ()

    def __call__(self, model: Model, params: Params, own: Tree, kept: Tree, batch: Batch, key: Any) -> tuple[Array, Array, Tree]:
        if not self.weight:
            logits = model.apply(params, batch.inputs, key)
            return losses.kl(batch.target, logits), logits, kept
        logits, seen = shown.features(model, params, batch.inputs, key)
        mine, values = seen[_middle(seen, self.layer)], losses.kl(batch.target, logits)
        hint = jnp.zeros_like(values)
        for k, (of, theirs) in enumerate(zip(own, batch.features, strict=True)):
            if of:
                (wanted,) = theirs.values()
                hint += batch.weights[k] * shown.per_prediction((mine @ of["w"] + of["b"] - wanted) ** 2, values)
        if not self.first:
            return values + self.weight * hint, logits, kept
        return jnp.where(batch.step < self.first * batch.how.steps, self.weight * hint, values), logits, kept


def _middle(layers: Mapping[str, Any], name: str) -> str:
    """The layer of this name; without one, that in the middle, or the later of two."""
    return name or list(layers)[len(layers) // 2]


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape[1:]))
