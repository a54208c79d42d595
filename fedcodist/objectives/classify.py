"""One label a row: images or plain vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np

from fedcodist.objectives.calibration import calibration
from fedcodist.objectives.images import Images
from fedcodist.scores import argmax, cross_entropy
from fedcodist.settings import setting
from fedcodist.types import Array


@dataclass(frozen=True)
class Standard:
    """The mean and the standard deviation of each feature, the last axis of rows: inputs are standardised with them.

    >>> Standard((1.0, 10.0), (2.0, 5.0)).inputs(np.array([[3.0, 5.0]])).tolist()
    [[1.0, -1.0]]
    """

    means: tuple[float, ...]
    deviations: tuple[float, ...]

    @classmethod
    def of(cls, x: Array) -> Self:
        """Those of the features of these rows; a constant feature is only centred."""
        rows = np.asarray(x, np.float64).reshape(-1, np.shape(x)[-1])
        deviations = np.where((found := rows.std(0)) > 0, found, 1.0)
        return cls(*(tuple(map(float, values.astype(np.float32))) for values in (rows.mean(0), deviations)))

    def inputs(self, x: Array) -> Array:
        """The standardised rows, as float32."""
        return (x.astype(jnp.float32) - jnp.array(self.means, jnp.float32)) / jnp.array(self.deviations, jnp.float32)


@dataclass(frozen=True)
class Classify:
    """One label a row. `images` says how images become inputs, `standard` how numbers do; without them the rows are the inputs."""

    kind: ClassVar[str] = "classify"
    images: Images | None = None
    standard: Standard | None = setting(None, silent=True)

    def inputs(self, x: Array, key: Any = None) -> Array:
        return self.images.inputs(x, key) if self.images else self.standard.inputs(x) if self.standard else x.astype(jnp.float32)

    def public_inputs(self, x: Array, key: Any = None) -> Array:
        return self.images.public_inputs(x, key) if self.images else self.inputs(x)

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
