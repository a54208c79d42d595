"""Sub-models: the same architecture with a share of every hidden width, as a prefix of the wide model's parameters (HeteroFL's slices).

A model says for each of its parameters which places of the wide one it takes, axis by axis: a prefix as a rule, but the units of a flat
image lie channel by channel, and those of an LSTM gate by gate. Without normalisation layers a sub-model is exactly the wide model with
all other numbers at zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedcodist.types import Array, Model, Narrow, Params

Places = tuple[np.ndarray, ...]  # of one parameter: the wide model's indices along each axis


def width(wide: int, rate: float) -> int:
    """The share of a hidden width, rounded up.

    >>> width(32, 0.25), width(3, 0.5)
    (8, 2)
    """
    if not 0 < rate <= 1:
        raise ValueError(f"narrow: got rate {rate}; allowed a number > 0 and <= 1")
    return math.ceil(rate * wide)


def prefix(*widths: int) -> Places:
    """The first indices along each axis, as many as are given."""
    return tuple(np.arange(n) for n in widths)


def blocks(many: int, wide: int, narrow: int) -> np.ndarray:
    """The first `narrow` of each of `many` blocks of `wide`.

    >>> blocks(2, 3, 2).tolist()
    [0, 1, 3, 4]
    """
    return (np.arange(many)[:, None] * wide + np.arange(narrow)).ravel()


def dense_places(inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Places]:
    """The places of a dense layer that has these inputs and outputs of the wide one."""
    return {"w": (inputs, outputs), "b": (outputs,)}


def narrowed(model: Model, places: Mapping[str, Any]) -> Narrow:
    """The sub-model with these places in the wide one's parameters."""

    def cut(wide: Params) -> Params:
        return _map(lambda leaf, at: leaf[np.ix_(*at)], wide, places)

    def paste(wide: Params, sub: Params) -> Params:
        return _map(_pasted, wide, places, sub)

    return Narrow(model, cut, paste)


def _pasted(leaf: Array, at: Places, new: Array) -> Array:
    if not isinstance(leaf, np.ndarray):
        return leaf.at[np.ix_(*at)].set(new)
    leaf = leaf.copy()  # on the host, where it takes a hundredth of the time
    leaf[np.ix_(*at)] = new
    return leaf


def _map(function: Any, params: Params, *others: Any) -> Params:
    """jax.tree.map over parameters, where a tuple of the others is a leaf."""
    leaves, structure = jax.tree.flatten(params)
    rest = [jax.tree.leaves(other, is_leaf=lambda node: isinstance(node, tuple)) for other in others]
    return jax.tree.unflatten(structure, [function(*column) for column in zip(leaves, *rest, strict=True)])


def scaled(widths: Sequence[int], rate: float) -> tuple[int, ...]:
    """Several hidden widths."""
    return tuple(width(wide, rate) for wide in widths)
