"""Knowledge distillation with one temperature for teachers and student, and T squared (Hinton et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp

from fedcodist import losses
from fedcodist.distill import targets
from fedcodist.losses import Batch
from fedcodist.scores import cross_entropy
from fedcodist.settings import checked, setting
from fedcodist.techniques.activations import Technique
from fedcodist.types import Array, Consumed, Model, Params, Tree


@dataclass(frozen=True)
@checked
class Hinton(Technique):
    """T^2 KL(softmax(teacher / T) || softmax(student / T)): the student's logits are divided too. With T = 1 it is `kl`.

    T takes the place of the teachers' own temperatures. With `labels` the true labels stand beside it, at temperature 1.
    """

    kind: ClassVar[str] = "hinton"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data",)
    secure: ClassVar[bool] = True
    temperature: float = setting(4.0, ge=1e-3, le=1e3)  # T, which divides the logits of teachers and student

    def __call__(self, model: Model, params: Params, own: Tree, kept: Tree, batch: Batch, key: Any) -> tuple[Array, Array, Tree]:
        how, logits = batch.how, model.apply(params, batch.inputs, key)
        soft = targets(batch.logits, batch.weights, jnp.full_like(batch.temperatures, self.temperature), how.mix, how.gate)
        values = self.temperature**2 * losses.kl(soft, logits / self.temperature)
        if batch.labels is not None:
            values = (1 - how.labels) * values + how.labels * cross_entropy(logits, batch.labels)
        return values, logits, kept
