"""One label a row: images or plain vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from fedcodist.objectives.calibration import calibration
from fedcodist.objectives.images import Images
from fedcodist.scores import argmax, cross_entropy
from fedcodist.types import Array


@dataclass(frozen=True)
class Classify:
    """One label a row. `images` says how images become inputs; without it rows are plain vectors."""

    kind: ClassVar[str] = "classify"
    images: Images | None = None

    def inputs(self, x: Array, key: Any = None) -> Array:
        return self.images.inputs(x, key) if self.images else x.astype(jnp.float32)

    def public_inputs(self, x: Array, key: Any = None) -> Array:
        return self.images.public_inputs(x, key) if self.images else x.astype(jnp.float32)

    def loss(self, logits: Array, y: Array) -> Array:
        return cross_entropy(logits, y)

    def mask(self, inputs: Array) -> Array:
        return jnp.ones(inputs.shape[0])

    def measure(self, logits: Array, y: Array) -> dict[str, Array]:
        right = (argmax(logits) == y).astype(jnp.float32)
        ones = jnp.ones(len(y))
        return {"count": ones, "loss": cross_entropy(logits, y), "correct": right, **calibration(logits, right, ones)}

    def summarise(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        count = max(float(sums["count"]), 1.0)
        return {
            "accuracy": float(sums["correct"]) / count,
            "loss": float(sums["loss"]) / count,
            "calibration": float(np.abs(sums["confidence_bins"] - sums["correct_bins"]).sum()) / count,
        }
