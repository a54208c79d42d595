"""Contrastive representation distillation (Tian et al. 2020): of all rows, a student's last hidden layer is to be nearest to its teacher's
of the same row."""

from __future__ import annotations

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

SMALL = 1e-7  # as in the authors' code, beside a density


@dataclass(frozen=True)
@checked
class CRD(Technique):
    """KL plus `weight` times a contrast of projected, normalised activations, with both the student's and the teacher's as anchors.

    Negatives are the other rows of the batch, or with `bank` all public rows as they were last seen in this lesson.
    """

    kind: ClassVar[str] = "crd"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data",)
    secure: ClassVar[bool] = True
    needs: ClassVar[str] = "models with features, rare lessons (PeriodicCodist), no mixup"
    weight: float = setting(0.8, ge=0, le=1e6)  # weight of the contrast beside the KL divergence; 0 is `kl`
    size: int = setting(128, ge=1, le=10**5)  # numbers that both layers are projected to
    temperature: float = setting(0.07, ge=1e-3, le=1e3)  # divides the inner products
    bank: bool = False  # whether all public rows are negatives, from a memory, and not those of the batch alone
    momentum: float = setting(0.5, ge=0, lt=1)  # how much of a row's old place in the memory is kept

    @property
    def rows(self) -> bool:  # type: ignore[override]
        return self.bank

    def problems(self, method: Method, fed: Federation) -> list[Problem]:
        found = []
        if not method.leaps:
            allowed = "a method whose lessons are rare, such as periodic: its maps and its memory begin anew in every lesson"
            found.append(Problem("method.distill.loss", f"{self.kind} under {method.kind}", allowed))
        if method.distill.augment and getattr(getattr(fed.task.objective, "images", None), "mixup_beta", 0):
            found.append(
                Problem("method.distill.loss", f"{self.kind} with mixup", "task.mixup_beta = 0: a mixed image has no row of its own")
            )
        if hidden := shown.featureless(fed, self.kind):
            return found + hidden
        for name, layers in shown.pool_shapes(fed).items():
            last = list(layers.values())[-1] if layers else ()
            if len(last) != 2:
                got = f"a last hidden layer of {'x'.join(map(str, last[1:]))}" if last else "no hidden layer"
                found.append(Problem(f"pools.{name}.model", got, f"one vector a row, which the loss {self.kind} compares"))
        return found

    def layers(self, model: Model, params: Params, inputs: Any) -> tuple[str, ...]:
        return shown.layers_of(model, params, inputs)[-1:] if self.weight else ()

    def begin(self, lesson: Lesson) -> tuple[Tree, Tree]:
        rows = jax.eval_shape(lesson.objective.public_inputs, lesson.public[:2])
        own, kept, places = [], [], len(lesson.public) if self.bank else 0
        mine = list(shown.shapes_of(*lesson.student, rows).values())[-1][-1]
        for k, voice in enumerate(lesson.teachers):
            if voice is None or not self.weight:
                own, kept = [*own, {}], [*kept, {}]
                continue
            keys = jax.random.split(jax.random.fold_in(lesson.key, k), 4)
            theirs = list(shown.shapes_of(*voice, rows).values())[-1][-1]
            own.append({"student": _linear(keys[0], mine, self.size), "teacher": _linear(keys[1], theirs, self.size)})
            bank = {side: _unit(jax.random.normal(key, (places, self.size))) for side, key in zip(own[-1], keys[2:], strict=True)}
            kept.append({**bank, "scale": jnp.zeros(2)} if places else {})
        return own, kept

    def __call__(self, model: Model, params: Params, own: Tree, kept: Tree, batch: Batch, key: Any) -> tuple[Array, Array, Tree]:
        if not self.weight:
            logits = model.apply(params, batch.inputs, key)
            return losses.kl(batch.target, logits), logits, kept
        logits, seen = shown.features(model, params, batch.inputs, key)
        values, last, after = losses.kl(batch.target, logits), list(seen.values())[-1], []
        for k, (of, memory) in enumerate(zip(own, kept, strict=True)):
            if of:
                (theirs,) = batch.features[k].values()
                student, teacher = (_unit(x @ of[side]["w"] + of[side]["b"]) for x, side in ((last, "student"), (theirs, "teacher")))
                apart, memory = self._remembered(student, teacher, memory, batch.rows) if memory else (self._within(student, teacher), {})
                values += self.weight * batch.weights[k] * apart
            after.append(memory)
        return values, logits, after

    def _within(self, student: Array, teacher: Array) -> Array:
        """Of each row, -log of the share of its own pair among those with all rows of the batch; once for each anchor."""
        near = student @ teacher.T / self.temperature
        return -jnp.diag(jax.nn.log_softmax(near, 1)) - jnp.diag(jax.nn.log_softmax(near, 0))

    def _remembered(self, student: Array, teacher: Array, memory: Tree, rows: Any) -> tuple[Array, Tree]:
        """Noise-contrastive estimation against all rows of the memory of the other side; and the memory after it."""
        total, scales = jnp.zeros(len(student)), []
        for side, (anchor, other) in enumerate(((student, "teacher"), (teacher, "student"))):
            near = jnp.exp(anchor @ jax.lax.stop_gradient(memory[other]).T / self.temperature)
            many = near.shape[1]
            mean = jax.lax.stop_gradient(jnp.mean(near)) * many  # of the first step, for all that come after
            scale = jnp.where(memory["scale"][side] > 0, memory["scale"][side], mean)
            density = near / scale
            noise = (many - 1) / many
            mine = density[jnp.arange(len(rows)), rows]
            others = jnp.log(noise / (density + noise + SMALL))
            total -= jnp.log(mine / (mine + noise + SMALL)) + jnp.sum(others, 1) - others[jnp.arange(len(rows)), rows]
            scales.append(scale)
        after = {}
        for side, now in (("student", student), ("teacher", teacher)):
            moved = self.momentum * memory[side][rows] + (1 - self.momentum) * jax.lax.stop_gradient(now)
            after[side] = memory[side].at[rows].set(_unit(moved))
        return total, {**after, "scale": jnp.stack(scales)}


def _linear(key: Any, wide: int, size: int) -> Tree:
    return {"w": jax.random.normal(key, (wide, size)) * wide**-0.5, "b": jnp.zeros(size)}


def _unit(x: Array) -> Array:
    """Rows of length 1; a row of zeros stays one, with a gradient."""
    return x / jnp.sqrt(jnp.sum(x**2, -1, keepdims=True) + 1e-12)
