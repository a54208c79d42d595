"""What a distillation technique is: a loss that may ask for activations, train parameters of its own, and remember things between steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedcodist.federation import Federation
from fedcodist.losses import Batch, Lesson
from fedcodist.settings import Problem, SettingError, nearest, show
from fedcodist.techniques.functions import Loss
from fedcodist.types import Array, Consumed, Method, Model, Params, Tree


class Technique:
    """A frozen dataclass. `own` are parameters that are trained with the student and dropped after the lesson, so that they are no part of
    the distillation gradient; `kept` is what the technique remembers from one step to the next."""

    kind: ClassVar[str]
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data",)
    secure: ClassVar[bool] = True
    needs: ClassVar[str] = ""  # what of models, data and methods, as `fedcodist list losses` says it
    rows: ClassVar[bool] = False  # whether it needs the places of a batch in the public data

    def problems(self, method: Method, fed: Federation) -> list[Problem]:
        """What of a method or a federation does not fit."""
        return []

    def layers(self, model: Model, params: Params, inputs: Any) -> tuple[str, ...]:
        """The layers of a teacher whose activations are needed."""
        return ()

    def begin(self, lesson: Lesson) -> tuple[Tree, Tree]:
        """`own` and `kept` before the first step."""
        return (), ()

    def __call__(self, model: Model, params: Params, own: Tree, kept: Tree, batch: Batch, key: Any) -> tuple[Array, Array, Tree]:
        """The loss of each prediction, the student's logits, and what is kept for the next step."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plain(Technique):
    """A function of the target and the logits."""

    loss: Loss

    def __call__(self, model: Model, params: Params, own: Tree, kept: Tree, batch: Batch, key: Any) -> tuple[Array, Array, Tree]:
        logits = model.apply(params, batch.inputs, key)
        return self.loss(batch.target, logits), logits, kept


class Features(NamedTuple):
    """What a function with a parameter `features` gets: activations by layer."""

    student: dict[str, Array]
    teachers: tuple[dict[str, Array], ...]  # in the order of `Federation.teachers`; an empty one stands for the student itself


@dataclass(frozen=True)
class Seeing(Plain):
    """A function of the target, the logits and the features."""

    def problems(self, method: Method, fed: Federation) -> list[Problem]:
        return featureless(fed, getattr(self.loss, "__name__", "loss"))

    def layers(self, model: Model, params: Params, inputs: Any) -> tuple[str, ...]:
        return layers_of(model, params, inputs)

    def begin(self, lesson: Lesson) -> tuple[Tree, Tree]:
        return (), [None if voice is None else jnp.zeros(0) for voice in lesson.teachers]  # who is the student itself, as a structure

    def __call__(self, model: Model, params: Params, own: Tree, kept: Tree, batch: Batch, key: Any) -> tuple[Array, Array, Tree]:
        logits, seen = features(model, params, batch.inputs, key)
        others = tuple({} if mark is None else of for mark, of in zip(kept, batch.features, strict=True))
        return self.loss(batch.target, logits, features=Features(seen, others)), logits, kept


def features(model: Model, params: Params, inputs: Array, key: Any) -> tuple[Array, dict[str, Array]]:
    """A model's logits and its activations by layer; SettingError, if it does not show any."""
    if model.features is None:
        raise SettingError([Problem("model", "a model without `features`", "one that shows its layers, for this distillation loss")])
    return model.features(params, inputs, key)


def layers_of(model: Model, params: Params, inputs: Any) -> tuple[str, ...]:
    """The layers that a model shows, from the inputs to the logits."""
    return tuple(shapes_of(model, params, inputs))


def shapes_of(model: Model, params: Params, inputs: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of its activations, layer by layer; the first axis are the rows."""
    seen: dict[str, tuple[int, ...]] = {}  # JAX would sort the names

    def look(params: Params, inputs: Array) -> Array:
        logits, found = features(model, params, inputs, None)
        seen.update({layer: values.shape for layer, values in found.items()})
        return logits

    jax.eval_shape(look, params, inputs)
    return seen


def featureless(fed: Federation, kind: str) -> list[Problem]:
    """A problem for each pool whose model does not show its layers."""
    return [
        Problem(f"pools.{name}.model", "a model without `features`", f"one that shows its layers, which the loss {kind} compares")
        for name, pool in fed.pools.items()
        if pool.model.features is None
    ]


def pool_shapes(fed: Federation) -> dict[str, dict[str, tuple[int, ...]]]:
    """{pool: the shapes of its model's activations in a lesson}."""
    rows = jax.eval_shape(fed.task.objective.public_inputs, fed.task.spec.x.rows(2))
    return {name: shapes_of(pool.model, pool.shapes, rows) for name, pool in fed.pools.items()}


def who_hears_whom(method: Method, fed: Federation) -> list[tuple[str, str]]:
    """(student, teacher) of all lessons. Where the clients' models are the teachers, every pool hears those of all."""
    if method.asks:
        return [(i, j) for i in fed.names for j in fed.names]
    return [(i, j) for i in fed.names for j in fed.table[i] if j != i]


def per_prediction(values: Array, like: Array) -> Array:
    """The mean over all axes that a prediction does not have."""
    return jnp.mean(values, tuple(range(like.ndim, values.ndim)))


def unseen_layers(found: dict[str, dict[str, tuple[int, ...]]], key: str, layer: str) -> list[Problem]:
    """A problem for each pool that has no layer of this name."""
    return [
        Problem(f"method.distill.loss.{key}", show(layer), f"a layer of pool {name}: {', '.join(layers)}", nearest(layer, layers))
        for name, layers in found.items()
        if layer and layer not in layers
    ]
