"""The calibration of a model's confidence, as sums from which the expected calibration error is made."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedcodist.types import Array

BINS = 15  # of the calibration error


def calibration(logits: Array, right: Array, counts: Array) -> dict[str, Array]:
    """For each row: confidence and correctness summed in bins of confidence; their distance is the expected calibration error."""
    confidence = jnp.exp(jnp.max(logits, -1) - jax.nn.logsumexp(logits, -1))
    bins = jax.nn.one_hot(jnp.clip((confidence * BINS).astype(jnp.int32), 0, BINS - 1), BINS) * counts[..., None]
    rows = (len(logits), -1, BINS)
    return {
        "confidence_bins": jnp.sum((bins * confidence[..., None]).reshape(rows), 1),
        "correct_bins": jnp.sum((bins * right[..., None]).reshape(rows), 1),
    }
