"""Tables by class, which clients of FD and its kin exchange: what models say of each label on average."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fedcodist.settings import Problem
from fedcodist.types import Array, Data, Model, Objective, Params

if TYPE_CHECKING:
    from fedcodist.federation import Federation


class Table(NamedTuple):
    """A client's mean predictions, [classes, classes], 0 for labels it has no example of, and which labels it has; or sums of these."""

    sums: Array
    counts: Array  # [classes]: how many clients have the label


def empty(classes: int, numbers: int = 0) -> Table:
    """The table of a client that was never asked: of so many numbers for each class, or one for every class."""
    return Table(jnp.zeros((classes, numbers or classes)), jnp.zeros(classes))


def unlabelled(fed: Federation, kind: str) -> list[Problem]:
    """A task whose rows have no label of their own, such as text, has no tables by class."""
    shape = fed.task.spec.y.shape
    return [Problem("task", f"labels of shape {list(shape)}", f"one label a row, of which {kind} makes tables")] if shape else []


def others(total: Table, mine: Table) -> tuple[Array, Array]:
    """The mean table of all other clients, and for which labels there is one: [classes, classes] and [classes].

    >>> a, b = Table(jnp.array([[0.75, 0.25], [0.0, 0.0]]), jnp.array([1.0, 0.0])), Table(jnp.eye(2), jnp.ones(2))
    >>> both = jax.tree.map(jnp.add, a, b)
    >>> [x.tolist() for x in others(both, b)]
    [[[0.75, 0.25], [0.0, 0.0]], [True, False]]
    """
    sums, counts = (whole - own for whole, own in zip(total, mine, strict=True))
    return sums / jnp.maximum(counts, 1.0)[:, None], counts > 0.5  # sums of floats: a count of nobody may be off by a rounding error


def class_means(model: Model, objective: Objective, params: Params, data: Data, batch: int, logits: bool = False) -> Table:
    """A model's mean probabilities (or logits) over a client's examples of each label."""
    classes = jax.eval_shape(lambda: model.apply(params, objective.inputs(data.x[:1]), None)).shape[-1]

    def said(x: Array) -> Array:
        found = model.apply(params, objective.inputs(x), None)
        return found if logits else jax.nn.softmax(found)

    return by_label(said, data, batch, empty(classes))


def by_label(of: Callable[[Array], Array], data: Data, batch: int, nothing: Table) -> Table:
    """The mean of a function of the rows, [batch, numbers], over a client's examples of each label. `n` of the rows are real."""

    def step(b: Any, total: Any) -> Any:
        places = b * batch + jnp.arange(batch)
        real, rows = (places < data.n).astype(jnp.float32), jnp.minimum(places, len(data.x) - 1)
        y = jnp.asarray(data.y)[rows]
        return total[0].at[y].add(of(jnp.asarray(data.x)[rows]) * real[:, None]), total[1].at[y].add(real)

    sums, counts = jax.lax.fori_loop(0, (data.n + batch - 1) // batch, step, tuple(nothing))
    return Table(sums / jnp.maximum(counts, 1.0)[:, None], (counts > 0).astype(jnp.float32))


@dataclass(frozen=True)
class Taught:
    """An objective whose loss has a distillation term: the cross-entropy with the target of the example's label, where one is known."""

    of: Objective
    target: Array  # [classes, classes]: probabilities, or logits
    known: Array  # [classes]
    weight: Any

    def inputs(self, x: Array, key: Any = None) -> Array:
        return self.of.inputs(x, key)

    def loss(self, logits: Array, y: Array) -> Array:
        term = -jnp.sum(self.target[y] * jax.nn.log_softmax(logits), -1)
        return self.of.loss(logits, y) + self.weight * jnp.where(self.known[y], term, 0.0)
