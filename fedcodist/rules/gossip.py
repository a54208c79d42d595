"""Meetings of nodes in pairs, on the host: each takes the mean of two models on the coordinates that both changed most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from fedcodist import keys
from fedcodist.types import Key, Params, Tree

Pairs = Sequence[tuple[str, str]]


def matched(key: Key, nodes: Sequence[str]) -> Pairs:
    """A random matching; of an odd number one node stays alone."""
    order = [nodes[int(i)] for i in keys.permutation(key, len(nodes))]
    return list(zip(order[::2], order[1::2], strict=False))


def meet(before: Mapping[str, Params], after: Mapping[str, Params], ticks: Sequence[Pairs], top: float) -> tuple[dict[str, Params], int]:
    """The nodes after these matchings, and how many numbers one of each pair sent: the values that were averaged, and the places of its top
    set if that is not everything.

    >>> start, one = {"a": np.zeros(2), "b": np.zeros(2)}, {"a": np.array([4.0, 1.0]), "b": np.array([2.0, 3.0])}
    >>> {node: x.tolist() for node, x in meet(start, one, [[("a", "b")]], top=1.0)[0].items()}
    {'a': [3.0, 2.0], 'b': [3.0, 2.0]}
    """
    nodes = {name: jax.device_get(params) for name, params in after.items()}
    often = {name: _most(jax.device_get(before[name]), params, top) for name, params in nodes.items()} if top < 1 else {}
    numbers = 0
    for pairs in ticks:
        for a, b in pairs:
            half = jax.tree.map(lambda x, y: (x + y) * np.float32(0.5), nodes[a], nodes[b])
            if not often:
                nodes[a] = nodes[b] = half
                numbers += sum(leaf.size for leaf in jax.tree.leaves(half))
                continue
            both = jax.tree.map(np.logical_and, often[a], often[b])
            nodes[a], nodes[b] = (jax.tree.map(np.where, both, half, nodes[name]) for name in (a, b))
            numbers += sum(int(leaf.sum()) for leaf in jax.tree.leaves((both, often[a])))
    return nodes, numbers


def middle(nodes: Mapping[str, Params]) -> Params:
    """The mean of all nodes, in the order of their ids."""
    first, *others = (jax.device_get(nodes[name]) for name in sorted(nodes))
    total = jax.tree.map(np.array, first)
    for params in others:
        jax.tree.map(lambda a, b: np.add(a, b, out=a), total, params)
    return jax.tree.map(lambda leaf: leaf * np.float32(1 / len(nodes)), total)


def spread(nodes: Mapping[str, Params], mean: Params) -> float:
    """How far nodes are from their mean: the root of the mean squared distance."""
    far = [sum(float(((a - b) ** 2).sum()) for a, b in _pairs(jax.device_get(params), mean)) for params in nodes.values()]
    return float(np.sqrt(np.mean(far)))


def _most(before: Params, after: Params, top: float) -> Tree:
    """Which coordinates a node changed most: this share of all, as truth values."""
    moved = jax.tree.map(lambda a, b: np.abs(b - a), before, after)
    every = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(moved)])
    many = max(1, round(top * every.size))
    least = np.partition(every, every.size - many)[every.size - many]
    return jax.tree.map(lambda leaf: leaf >= least, moved)


def _pairs(a: Tree, b: Tree) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
