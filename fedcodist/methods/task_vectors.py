"""Task arithmetic: what a model learned from several teachers, each by itself, put together."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from fedcodist import tree
from fedcodist.federation import Federation
from fedcodist.methods.validation import accuracies
from fedcodist.types import Info, Params, Voice


@jax.jit
def merged(theta: Params, students: Sequence[Params], lambdas: Sequence[float]) -> Params:
    """theta + sum_j lambda_j (student_j - theta), written so that one student with weight 1 is that student to the bit.

    >>> float(merged({"w": np.float32(1)}, [{"w": np.float32(3)}, {"w": np.float32(0)}], [0.5, 0.25])["w"])  # 1 + 0.5 * 2 - 0.25 * 1
    1.75
    """
    total = tree.scale(theta, 1 - sum(lambdas))
    for student, weight in zip(students, lambdas, strict=True):
        total = tree.add(total, tree.scale(student, weight))
    return total


def candidates(given: Sequence[float]) -> list[list[float]]:
    """Weights that are worth a try: those given, all alike, each teacher alone, halfway from those given to each alone, and half of those
    given.

    >>> candidates([0.75, 0.25])
    [[0.75, 0.25], [0.5, 0.5], [1.0, 0.0], [0.0, 1.0], [0.875, 0.125], [0.375, 0.625], [0.375, 0.125]]
    """
    first = np.array(given)
    alone = first.sum() * np.eye(len(first))
    tried = [first, np.full_like(first, first.mean()), *alone, *(first + alone) / 2, first / 2]
    return [[float(weight) for weight in weights] for weights in tried]


def best(fed: Federation, pool: str, theta: Params, students: Sequence[Params], given: Sequence[float]) -> list[float]:
    """The candidate that is best on labelled held-out data; the first of several."""
    tried = candidates(given)
    voices = {str(k): Voice(fed.pools[pool].model, merged(theta, students, lambdas)) for k, lambdas in enumerate(tried)}
    return tried[int(np.argmax(list(accuracies(fed, voices).values())))]


def together(taught: Sequence[Info]) -> Info:
    """What a journal says of several lessons of one student: the means of their losses, and its agreement with each teacher."""
    losses = np.mean([told["distill_loss"] for told in taught], 0)
    agreed: Info = {"agreed": True} if all(told.get("agreed") for told in taught) else {}
    agreement = {teacher: pair for told in taught for teacher, pair in told["agreement"].items()}
    judged = [told["guard"] for told in taught if "guard" in told]
    agreed |= {"guard": judged} if judged else {}
    return agreed | {"distill_loss": [float(loss) for loss in losses], "agreement": agreement}
