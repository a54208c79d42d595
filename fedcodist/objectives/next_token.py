"""Text: the next token at every position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from fedcodist.objectives.calibration import calibration
from fedcodist.scores import argmax, cross_entropy
from fedcodist.types import Array

PAD, BOS, EOS, FIRST = 0, 1, 2, 3  # FIRST is the first word


@dataclass(frozen=True)
class NextToken:
    """The next token at every position. Ids: PAD 0, BOS 1, EOS 2, words from 3, and `oov` the last (A6).

    Three accuracies (A7): `accuracy` ignores PAD and EOS targets and never guesses a special token, so an out-of-vocabulary target is
    always an error; `accuracy_no_eos` lets any token be guessed; `accuracy_nonpad` counts EOS as well.
    """

    kind: ClassVar[str] = "next_token"
    oov: int
    scale: float = 13.3  # a row's loss is its sum over tokens divided by this expected length (A8)

    def inputs(self, x: Array, key: Any = None) -> Array:
        return x.astype(jnp.int32)  # kept in 16 bits where the vocabulary fits

    def public_inputs(self, x: Array, key: Any = None) -> Array:
        return x.astype(jnp.int32)

    def loss(self, logits: Array, y: Array) -> Array:
        return jnp.sum(cross_entropy(logits, y) * (y != PAD), -1) / self.scale

    def mask(self, inputs: Array) -> Array:
        return (inputs != PAD).astype(jnp.float32)

    def measure(self, logits: Array, y: Array) -> dict[str, Array]:
        guess = argmax(logits)
        word = FIRST + argmax(logits[..., FIRST : self.oov])  # without the special tokens, which are the first three and the last
        token, no_eos = (y != PAD).astype(jnp.float32), ((y != PAD) & (y != EOS)).astype(jnp.float32)
        return {
            "count": jnp.sum(token, -1),
            "count_no_eos": jnp.sum(no_eos, -1),
            "loss": jnp.sum(cross_entropy(logits, y) * token, -1),
            "correct": jnp.sum((word == y) * no_eos, -1),
            "correct_no_eos": jnp.sum((guess == y) * no_eos, -1),
            "correct_nonpad": jnp.sum((guess == y) * token, -1),
            **calibration(logits, (guess == y).astype(jnp.float32), token),
        }

    def summarise(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        tokens, words = max(float(sums["count"]), 1.0), max(float(sums["count_no_eos"]), 1.0)
        return {
            "accuracy": float(sums["correct"]) / words,
            "accuracy_no_eos": float(sums["correct_no_eos"]) / words,
            "accuracy_nonpad": float(sums["correct_nonpad"]) / tokens,
            "loss": float(sums["loss"]) / tokens,
            "calibration": float(np.abs(sums["confidence_bins"] - sums["correct_bins"]).sum()) / tokens,
        }
