"""Knowledge distillation on the server (spec 1.1, A14-A24; N teachers: 2.2): a student's targets, and the steps that it takes.

Teachers are frozen, so the logits of each are computed once a batch and serve every student. The student's own start is a teacher too: the
self-weight gamma regularises towards it. Public data comes as one endless reshuffled stream; a position in it is a function of how many
distillations came before, so there is no iterator to save.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedcodist import keys, losses, tree
from fedcodist.scores import argmax
from fedcodist.settings import check, setting
from fedcodist.types import Array, Key, Model, Objective, Params, Tree

CHUNK_BYTES = 32 * 2**20  # of teacher logits in one piece of the steps; there are at most two at a time
ROUNDING = 1e-6  # nats: a smaller loss before the first step is a rounding error, where teachers and student agree
TINY = 1e-30  # the smallest gate that float32 can divide by
GOOD_LENGTH = 16  # minimum steps per piece, to amortise the start of each


@dataclass(frozen=True)
class Distiller:
    """One distillation: `steps` Adam steps with fresh state (A15), on batches of public data.

    `labels` is the weight of the true labels in the target, for public data that has them; the paper uses none. `gate` weighs each teacher
    by its confidence: for each example its weight is multiplied by exp(-entropy / gate), so that with a small gate only the most
    confident teacher counts; 0 is off, as in the paper.
    """

    steps: int = setting(32, ge=1, le=10**6)  # Adam steps of one distillation
    batch: int = setting(128, ge=1, le=10**6)  # rows of public data in one step (DEVIATION D5: the paper does not say)
    # a loss by its name, a table of one with keys, or your own as "module:function"
    loss: Any = setting("kl", reader=losses.read)
    mix: Literal["probs", "logits"] = "probs"  # what is averaged over the teachers
    labels: float = setting(0.0, ge=0, le=1)  # weight of the true labels in the target; 0 in the paper
    gate: float = setting(0.0, ge=0, le=1e6)  # entropy, in nats, at which a teacher counts 1/e as much; 0 is off
    augment: bool = True  # whether public images are cropped, flipped and mixed at random
    shuffle: bool = True  # whether public data is read in a random order
    b1: float = setting(0.9, ge=0, lt=1)  # Adam's decay of the mean of gradients
    b2: float = setting(0.999, ge=0, lt=1)  # Adam's decay of the mean of squared gradients
    eps: float = setting(1e-5, gt=0, le=1)  # Adam's epsilon, added to the root

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "loss", losses.named(self.loss))

    def rows(self, key: Key, nth: int, n: int) -> np.ndarray:
        """[steps, batch] rows of n public examples for the nth distillation (from 0): the next piece of the endless stream (A17)."""
        count = self.steps * self.batch
        first, last = nth * count, (nth + 1) * count
        epochs = [
            _reshuffled(tuple(keys.derive(key, "public", epoch).tolist()), n) if self.shuffle else np.arange(n)
            for epoch in range(first // n, (last - 1) // n + 1)
        ]
        start = first - first // n * n
        return np.concatenate(epochs)[start : start + count].reshape(self.steps, self.batch)

    def optimizer(self) -> optax.GradientTransformation:
        """Adam for learning rate 1; the student's schedule multiplies its update."""
        return optax.adam(1.0, b1=self.b1, b2=self.b2, eps=self.eps)


@lru_cache(maxsize=2)
def _reshuffled(key: tuple[int, int], n: int) -> np.ndarray:
    """The order of an epoch, cached for the next rounds: with millions of public examples it takes a second to draw."""
    return keys.permutation(np.array(key, np.uint32), n)


def targets(logits: Sequence[Array], weights: Array, temperatures: Array, mix: str = "probs", gate: float = 0.0) -> Array:
    """The student's targets as logits: q = sum_j w_j softmax(z_j / T_j), or the softmax of the mixed logits.

    >>> import jax.numpy as jnp
    >>> z = [jnp.log(jnp.array([0.2, 0.8])), jnp.log(jnp.array([0.6, 0.4]))]
    >>> [round(float(q), 3) for q in jnp.exp(targets(z, jnp.array([0.75, 0.25]), jnp.ones(2)))]
    [0.3, 0.7]
    >>> [round(float(q), 3) for q in jnp.exp(targets(z, jnp.array([0.75, 0.25]), jnp.ones(2), gate=0.01))]  # the first is surer
    [0.2, 0.8]
    """
    tempered = [z / temperatures[j] for j, z in enumerate(logits)]
    shares = [jnp.log(weights[j]) for j in range(len(tempered))]
    if gate > 0:
        shares = gated(tempered, shares, gate)
    if mix == "logits":
        loud = [jnp.exp(share) for share in shares] if gate > 0 else weights
        return sum(loud[j] * jnp.where(weights[j] > 0, z, 0.0) for j, z in enumerate(tempered))  # type: ignore[return-value]
    said = [jnp.where(weights[j] > 0, jax.nn.log_softmax(z) + shares[j], -jnp.inf) for j, z in enumerate(tempered)]
    return reduce(jnp.logaddexp, said)  # pairwise: on a CPU a sum over stacked teachers takes many times as long


def gated(logits: Sequence[Array], shares: Sequence[Array], gate: float) -> list[Array]:
    """Each teacher's log-weight for each example, [..., 1]: reduced by its entropy there over `gate`, then normalised.

    A teacher without weight does not count, even if its logits are not finite.
    """
    unsure = [jnp.where(jnp.isneginf(share), jnp.inf, _entropy(z)) for z, share in zip(logits, shares, strict=True)]
    least = reduce(jnp.minimum, unsure)  # so that the most confident teacher counts however small the gate is
    heard = [share - (entropy - least) / max(gate, TINY) for share, entropy in zip(shares, unsure, strict=True)]
    total = reduce(jnp.logaddexp, heard)
    return [h - total for h in heard]


def _entropy(logits: Array) -> Array:
    """The entropy of a teacher's prediction for each example, in nats: [..., 1]. A class of probability zero adds nothing."""
    said = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.where(jnp.isneginf(said), 0.0, jnp.exp(said) * said), -1, keepdims=True)


def with_labels(target: Array, y: Array, weight: float) -> Array:
    """The target with a share of the true label in it: (1 - weight) q + weight onehot(y), as logits."""
    truth = jax.nn.one_hot(y, target.shape[-1])
    return jnp.log((1 - weight) * jax.nn.softmax(target) + weight * truth)


class Watch(NamedTuple):
    """Who looks at the students while they learn: after every `every` steps, and after the last,
    `see` is given {student: parameters}, and says who stops."""

    every: int
    see: Callable[[int, dict[str, Params]], Collection[str]]  # (steps so far, students)


class TeacherBatch(NamedTuple):
    """The teachers' logits on the batches of some steps."""

    first: int  # the number of the first of these steps
    inputs: Array  # [steps, batch, ...]
    labels: Array | None  # [steps, batch, ...]
    logits: dict[str, Array]  # {teacher: [steps, batch, ..., classes]}
    features: dict[str, dict[str, Array]]  # {teacher: {layer that the loss asked for: [steps, batch, ...]}}
    rows: Array | None  # [steps, batch] places in the public data, if the loss asked for them


@partial(jax.jit, static_argnums=0)
def inputs(objective: Objective, x: Array, key: Any, first: int) -> Array:
    """[steps, batch, ...] rows as inputs, each step augmented by its own key (or not at all, for key None)."""
    if key is None:
        return jax.lax.map(objective.public_inputs, x)
    steps = first + jnp.arange(len(x))
    return jax.lax.map(lambda at: objective.public_inputs(at[0], jax.random.fold_in(key, at[1])), (x, steps))


@partial(jax.jit, static_argnums=0)
def teacher_logits(model: Model, params: Params, inputs: Array) -> Array:
    """A frozen teacher's logits for every step: [steps, batch, ..., classes]."""
    return jax.lax.map(lambda x: model.apply(params, x, None), inputs)


@partial(jax.jit, static_argnums=(0, 1))
def teacher_features(model: Model, layers: tuple[str, ...], params: Params, inputs: Array) -> tuple[Array, dict[str, Array]]:
    """Its logits, and its activations in these layers: {layer: [steps, batch, ...]}."""

    def say(x: Array) -> tuple[Array, dict[str, Array]]:
        assert model.features is not None
        logits, seen = model.features(params, x, None)
        return logits, {layer: seen[layer] for layer in layers}

    return jax.lax.map(say, inputs)


def begin(distill: Distiller, lesson: losses.Lesson) -> tuple[tuple[Params, Tree], Tree, Tree]:
    """A student before its first step: what is trained (its parameters, and those of the loss itself), the optimizer's state, and what the
    loss keeps."""
    own, kept = losses.technique(distill.loss).begin(lesson)
    trained = (lesson.student.params, own)
    return trained, distill.optimizer().init(trained), kept


@partial(jax.jit, static_argnums=(0, 1, 2))
def learn(
    model: Model,
    objective: Objective,
    distill: Distiller,
    student: tuple[tuple[Params, Tree], Tree, Tree],
    steps: Array,
    inputs: Array,
    labels: Array | None,
    rows: Array | None,
    logits: tuple[Array, ...],
    features: tuple[dict[str, Array], ...],
    weights: Array,
    temperatures: Array,
    lr: float,
    key: Any,
) -> tuple[tuple[tuple[Params, Tree], Tree, Tree], Array, Array]:
    """The student after these steps; the loss of each step; and how often it agreed with each teacher, [steps, teachers], in the first and
    the last few of all steps and 0 in the others: to find the likeliest of ten thousand words is a good part of a step."""
    optimizer, loss = distill.optimizer(), losses.technique(distill.loss)

    def step(student: tuple[tuple[Params, Tree], Tree, Tree], at: Any) -> Any:
        trained, opt, kept = student
        x, y, places, spoken, seen, k = at
        target = targets(spoken, weights, temperatures, distill.mix, distill.gate)
        if y is not None:
            target = with_labels(target, y, distill.labels)
        counts = objective.mask(x)
        total = jnp.maximum(jnp.sum(counts), 1)

        batch = losses.Batch(x, y, places, target, spoken, seen, weights, temperatures, distill, k)

        def objective_of(trained: tuple[Params, Tree]) -> tuple[Array, tuple[Array, Tree]]:
            values, z, after = loss(model, *trained, kept, batch, jax.random.fold_in(key, k))
            return jnp.sum(values * counts) / total, (z, after)

        def agree(z: Array) -> Array:
            guess = argmax(z)
            return jnp.stack([jnp.sum((guess == argmax(s)) * counts) / total for s in spoken])

        (value, (z, after)), grad = jax.value_and_grad(objective_of, has_aux=True)(trained)
        update, opt = optimizer.update(grad, opt, trained)
        asked = (k < edge_steps(distill.steps)) | (k >= distill.steps - edge_steps(distill.steps))
        agreed = jax.lax.cond(asked, agree, lambda z: jnp.zeros(len(spoken)), z)
        return (tree.add(trained, tree.scale(update, lr)), opt, after), (value, agreed)

    student, (values, agreed) = jax.lax.scan(step, student, (inputs, labels, rows, logits, features, steps))
    return student, values, agreed


def edge_steps(steps: int) -> int:
    """How many steps at the beginning, and at the end, of a distillation tell how it began and ended."""
    return max(1, steps // 8)


def pieces(distill: Distiller, objective: Objective, model: Model, params: Params, x: Array, teachers: int, every: int) -> int:
    """How many equal pieces the steps are taken in: so that the teachers' logits stay within CHUNK_BYTES, and so that the teachers can
    speak of the next piece while the students learn from the last, if that leaves pieces of a good length. A piece ends after every `every`
    steps."""
    rows = jax.ShapeDtypeStruct((distill.batch, *x.shape[1:]), x.dtype)
    seen = jax.eval_shape(objective.public_inputs, rows)
    layers = losses.technique(distill.loss).layers(model, params, seen)
    said = jax.eval_shape(lambda x: teacher_features(model, layers, params, x[None]) if layers else model.apply(params, x, None), seen)
    fit = max(1, CHUNK_BYTES // (4 * tree.size(said) * teachers))
    lengths = {n: distill.steps // n for n in range(1, distill.steps + 1) if distill.steps % n == 0}
    possible = [n for n, length in lengths.items() if length <= fit and every % length == 0]
    return max((n for n in possible if distill.steps // n >= GOOD_LENGTH), default=possible[0])
