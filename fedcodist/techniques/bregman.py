"""Layerwise Bregman representation learning (Amid et al. 2022): the teachers' layer is compressed to a mean and k directions, which become
a fixed layer; the student gives the k coefficients, and is compared through that layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedcodist import distill, keys, losses
from fedcodist.federation import Federation
from fedcodist.losses import Batch, Lesson
from fedcodist.settings import Problem, checked, setting
from fedcodist.techniques import activations as shown
from fedcodist.techniques.activations import Technique
from fedcodist.types import Array, Consumed, Method, Model, Params, Tree

MOST_CLASSES = 2_000  # whose eigenvectors are found in a second or so
FLAT = 1e-6  # directions in which the local geometry is flatter than this share of its steepest are left out
FITTED = 1_000  # rows of public data that the directions are found on


@dataclass(frozen=True)
@checked
class Bregman(Technique):
    """KL through the `k` directions in which the teachers' target varies most, in the geometry of the softmax; and with `layer` the same of
    a hidden layer with leaky ReLU. With k = classes - 1 it is `kl`.
    """

    kind: ClassVar[str] = "bregman"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data",)
    secure: ClassVar[bool] = True
    needs: ClassVar[str] = "for `layer`: models with features and `leak` > 0"
    k: int = setting(10, ge=1, le=10**5)  # directions of the logits, at most classes - 1
    layer: str = ""  # a hidden layer that is matched too; none, if it is not given
    hidden: int = setting(8, ge=1, le=10**5)  # directions of that layer
    weight: float = setting(1.0, ge=0, le=1e6)  # weight of the hidden layer's divergence

    def problems(self, method: Method, fed: Federation) -> list[Problem]:
        classes, found = fed.task.classes, []
        if self.k > classes - 1 or classes > MOST_CLASSES:
            allowed = f"at most classes - 1, of {MOST_CLASSES:,} classes"
            found.append(Problem("method.distill.loss.k", f"{self.k} of {classes} classes", allowed))
        if not self.layer:
            return found
        if hidden := shown.featureless(fed, self.kind):
            return found + hidden
        for name, pool in fed.pools.items():
            if not leak_of(pool.model):
                found.append(Problem(f"pools.{name}.model.leak", "0", "> 0: a layer with ReLU cannot be turned back into what went in"))
        shapes = shown.pool_shapes(fed)
        found += shown.unseen_layers(shapes, "layer", self.layer)
        if method.asks:
            got = f"{self.layer} under {method.kind}"
            found.append(Problem("method.distill.loss.layer", got, "none: a mean of several models' activations is of no model"))
        if found:
            return found
        for i, j in shown.who_hears_whom(method, fed):
            mine, theirs = shapes[i][self.layer], shapes[j][self.layer]
            if mine[1:-1] != theirs[1:-1]:
                got = f"{self.layer} of other sizes in {i} and {j}"
                found.append(Problem("method.distill.loss.layer", got, "layers that differ in their width alone"))
            if self.hidden > theirs[-1]:
                allowed = f"at most {theirs[-1]}, the width of {self.layer} in {j}"
                found.append(Problem("method.distill.loss.hidden", str(self.hidden), allowed))
        return found

    def layers(self, model: Model, params: Params, inputs: Any) -> tuple[str, ...]:
        return (self.layer,) if self.layer else ()

    def begin(self, lesson: Lesson) -> tuple[Tree, Tree]:
        rows = keys.permutation(keys.derive(lesson.key, "fitted"), len(lesson.public))[:FITTED]
        inputs = lesson.objective.public_inputs(lesson.public[np.sort(rows)])
        voices = [lesson.student if voice is None else voice for voice in lesson.teachers]
        said = [distill.teacher_logits(*voice, inputs[None])[0] for voice in voices]
        target = np.asarray(jax.nn.log_softmax(distill.targets(said, lesson.weights, lesson.temperatures)), np.float64)
        counts = np.asarray(lesson.objective.mask(inputs)).reshape(-1) > 0
        kept: dict[str, Any] = {"logits": of_softmax(target.reshape(-1, target.shape[-1])[counts], self.k)}
        own = []
        for number, voice in enumerate(lesson.teachers):
            if voice is None or not self.layer or not self.weight:
                own.append({})
                continue
            leak = leak_of(voice.model)
            _, seen = distill.teacher_features(voice.model, (self.layer,), voice.params, inputs[None])
            values = np.asarray(seen[self.layer][0], np.float64)
            kept[str(number)] = of_leaky(unleak(values.reshape(-1, values.shape[-1]), leak), self.hidden, leak)
            wide = shown.shapes_of(*lesson.student, jax.eval_shape(lambda: inputs[:2]))[self.layer][-1]
            drawn = jax.random.normal(jax.random.fold_in(lesson.key, number), (wide, self.hidden)) * wide**-0.5
            own.append({"w": drawn, "b": jnp.zeros(self.hidden)})
        return own, kept

    def __call__(self, model: Model, params: Params, own: Tree, kept: Tree, batch: Batch, key: Any) -> tuple[Array, Array, Tree]:
        if any(own):
            logits, seen = shown.features(model, params, batch.inputs, key)
        else:
            logits, seen = model.apply(params, batch.inputs, key), {}
        through = logits  # all directions are those of the softmax itself
        if self.k < logits.shape[-1] - 1:
            mean, down, up = kept["logits"]
            through = mean + ((logits - mean) @ down) @ up
        values = losses.kl(batch.target, through)
        for number, of in enumerate(own):
            if of:
                mean, _, up, leak = kept[str(number)]
                here = mean + (seen[self.layer] @ of["w"] + of["b"]) @ up
                there = unleak(batch.features[number][self.layer], leak)
                values += self.weight * batch.weights[number] * shown.per_prediction(divergence(here, there, leak), values)
        return values, logits, kept


def leak_of(model: Model) -> float:
    """The slope of its leaky ReLU below zero; 0 if that is not known."""
    return getattr(model.spec.part, "leak", 0.0) if model.spec else 0.0


def unleak(values: Any, leak: Any) -> Any:
    """What went into a leaky ReLU."""
    return jnp.where(values > 0, values, values / leak) if isinstance(values, jax.Array) else np.where(values > 0, values, values / leak)


def divergence(here: Array, there: Array, leak: Any) -> Array:
    """D_F(here, there) of each number, where F' is the leaky ReLU f: F(here) - F(there) - f(there) (here - there)."""

    def f(a: Array) -> Array:
        return jnp.where(a > 0, a, leak * a)

    return 0.5 * here * f(here) - 0.5 * there * f(there) - f(there) * (here - there)


def of_softmax(target: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean and the directions of log-probabilities, [rows, classes]: see `directions`. The mean is that of the probabilities."""
    share = np.exp(target).mean(0)
    share = share / share.sum()
    return directions(target, np.log(np.maximum(share, 1e-30)), np.diag(share) - np.outer(share, share), k)


def of_leaky(inputs: np.ndarray, k: int, leak: float) -> tuple[Any, ...]:
    """The same of what goes into a leaky ReLU, [rows, units], with the slope. The mean is that of what comes out."""
    mean = unleak(np.where(inputs > 0, inputs, leak * inputs).mean(0), leak)
    return *directions(inputs, mean, np.diag(np.where(mean > 0, 1.0, leak)), k), np.float32(leak)


def directions(rows: np.ndarray, mean: np.ndarray, metric: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, down, up): the k directions V in which the rows vary most around the mean, in the local geometry H of the divergence at the
    mean, in which they are orthonormal: V^T H V = 1. Coefficients are (a - mean) @ down, and mean + c @ up leads back."""
    values, vectors = np.linalg.eigh(metric)
    steep = values > FLAT * values.max()
    root = vectors[:, steep] * np.sqrt(values[steep])  # H = root root^T
    back = vectors[:, steep] / np.sqrt(values[steep])
    turned = (rows - mean) @ root
    _, found = np.linalg.eigh(turned.T @ turned)
    chosen = found[:, ::-1][:, :k]
    return mean.astype(np.float32), (root @ chosen).astype(np.float32), (back @ chosen).T.astype(np.float32)
