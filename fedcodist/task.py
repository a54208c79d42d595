"""A task: what is learned, and from what data. It knows nothing of pools, rounds or methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from fedcodist.types import Array, Examples, Objective, Split


class Row(NamedTuple):
    """The shape and the type of one row of an array.

    >>> Row((8,), "float32").rows(2)
    ShapeDtypeStruct(shape=(2, 8), dtype=float32)
    """

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: Array) -> Row:
        """Those of an array's rows."""
        return cls(tuple(array.shape[1:]), str(array.dtype))

    def rows(self, n: int) -> jax.ShapeDtypeStruct:
        """So many rows, as shapes only."""
        return jax.ShapeDtypeStruct((n, *self.shape), self.dtype)


@dataclass(frozen=True)
class Spec:
    """What is learned, without any data: all that is needed to build a model and to train it wherever the data is."""

    objective: Objective
    x: Row
    y: Row
    classes: int

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of what a model is given for one row."""
        return jax.eval_shape(self.objective.inputs, self.x.rows(1)).shape[1:]


@dataclass(frozen=True, eq=False)
class Task:
    """Clients with their data, the server's public data, and two splits: held_out for tuning and curves, test for the very end."""

    name: str
    objective: Objective
    clients: Mapping[str, Examples]
    public: Examples
    held_out: Split
    test: Split
    classes: int
    domains: tuple[str, ...] = ("all",)
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # {attribute: {client: value}}, to choose pools by
    digest: str = ""  # of the source, where it is known without reading every row
    labels: tuple[str, ...] = ()  # the names of the classes, where they have names
    notes: tuple[str, ...] = ()  # what a user should know about this data: rows left out, labels dropped

    @property
    def spec(self) -> Spec:
        """The task without its data."""
        return Spec(self.objective, Row.of(self.held_out.x), Row.of(self.held_out.y), self.classes)

    def split(self, name: str) -> Split:
        """held_out or test."""
        return {"held_out": self.held_out, "test": self.test}[name]
