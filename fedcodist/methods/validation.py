"""What FedDF does with labels on the server: it keeps the best student while it learns, and leaves out the worst clients' models.

Both look at the held-out split, so they are off unless they are asked for: codistillation's server has no labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np

from fedcodist.evaluate import evaluate
from fedcodist.federation import Federation
from fedcodist.settings import checked, setting
from fedcodist.types import Each, Fold, Folded, Info, Key, Params, Reply, Voice

ABOVE_CHANCE = 1.2  # a client's model below so many times chance is left out; if none is,
DEVIATIONS = 1.5  # those so many standard deviations below the mean


@dataclass(frozen=True)
@checked
class Validation:
    """Keep the student that was best on held-out data, looking before the first step and after every `every` steps. One that has not become
    better for `patience` steps learns no more."""

    every: int = setting(100, ge=1, le=10**6)  # steps from one look to the next
    patience: int = setting(1000, ge=1, le=10**7)  # steps without a better student before it stops learning


@dataclass
class Best:
    """The best students so far, and since when."""

    fed: Federation
    how: Validation
    found: dict[str, tuple[float, int, Params]] = field(default_factory=dict)  # {student: (accuracy, steps, parameters)}

    def see(self, steps: int, students: Mapping[str, Params]) -> list[str]:
        """Look at the students after so many steps; says who stops."""
        for i, accuracy in accuracies(self.fed, {i: Voice(self.fed.pools[i].model, params) for i, params in students.items()}).items():
            if i not in self.found or accuracy > self.found[i][0]:
                self.found[i] = accuracy, steps, students[i]
        return [i for i in students if steps - self.found[i][1] >= self.how.patience]

    def info(self, student: str) -> Info:
        """What a journal says of a choice: the accuracy on held-out data, and after how many steps it was reached."""
        accuracy, steps, _ = self.found[student]
        return {"chosen": {"accuracy": accuracy, "steps": steps}}


def accuracies(fed: Federation, voices: Mapping[str, Voice]) -> dict[str, float]:
    """Of these models on the held-out split."""
    return {name: domains["all"]["accuracy"] for name, domains in evaluate(fed, voices).items()}


def good(accuracies: np.ndarray, classes: int) -> np.ndarray:
    """Which models are kept: those above 1.2 times chance; if all are, those not 1.5 standard deviations below the mean. Where none is
    above chance there is nothing to choose, and all are kept.

    >>> good(np.array([0.5, 0.6, 0.1]), classes=10).tolist()
    [True, True, False]
    >>> good(np.array([0.6, 0.6, 0.6, 0.6, 0.3]), classes=10).tolist()
    [True, True, True, True, False]
    """
    kept = accuracies >= ABOVE_CHANCE / classes
    if kept.all():
        kept = accuracies >= accuracies.mean() - DEVIATIONS * accuracies.std()
    return kept if kept.any() else np.ones_like(kept)


def refold(fold: Fold, each: Each | None, kept: np.ndarray, key: Key) -> Folded:
    """The replies of those who are kept, folded again."""
    assert each is not None
    sent = jax.device_get(each.values)
    values = [jax.tree.map(lambda leaf, k=k: leaf[k], sent) for k in range(len(kept))]
    replies = [Reply(value, np.asarray(w, np.float32), {}) for value, w, good in zip(values, each.weights, kept, strict=True) if good]
    total = fold.zero(replies[0])
    for reply in replies:
        total = fold.add(total, reply)
    names = tuple(np.array(each.clients)[kept])
    some = Each(names, jax.tree.map(lambda leaf: leaf[kept], sent), each.weights[kept]) if fold.each else None
    return fold.done(total, some, key)
