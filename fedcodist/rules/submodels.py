"""Sub-models in a round: the mean over the clients that hold a number, and the server's step on no other numbers.

What is divided by what follows from `Held`: how much weight the clients of a sub-model have together, and, if rows of the output layer are
left out of the mean at clients without the class, those of each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from fedcodist.rule import summary
from fedcodist.types import Answer, Array, Info, Narrow, Params, PoolState, Tree

if TYPE_CHECKING:
    from fedcodist.pool import Pool

Held = tuple[Array, Array]  # the weight of the clients that hold a sub-model, []; and those of each class, [classes], or [] for all


def weights(wide: Params, held: Sequence[tuple[Narrow, Held]], head: str) -> Tree:
    """How much weight the clients have that hold each number of the wide model. On the host, as `overlap`: scattering numbers there takes
    a hundredth of the time."""
    total = _zeros(wide)
    for sub, (every, rows) in held:
        shapes = sub.cut(total)
        own = _filled(shapes, every) if not np.ndim(rows) else {**_filled(shapes, every), head: _filled(shapes[head], rows)}
        total = jax.tree.map(np.add, total, sub.paste(_zeros(wide), own))
    return total


def overlap(wide: Params, sums: Sequence[tuple[Narrow, Params]], share: Tree) -> Tree:
    """Each number's mean over the clients that hold it: the weighted sums of each sub-model's clients over the weight of all who hold the
    number; zero where nobody does."""
    total, one = _zeros(wide), np.float32(1)
    for sub, some in sums:
        total = jax.tree.map(np.add, total, sub.paste(_zeros(wide), jax.device_get(some)))
    return jax.tree.map(lambda a, w: jnp.asarray(a * (one / np.where(w > 0, w, one))), total, share)


def still(before: PoolState, after: PoolState, touched: Tree) -> PoolState:
    """The pool after the server's step on the touched numbers alone; the others, and what the optimizer keeps of them, stay."""

    def alike(node: Tree) -> bool:
        same = jax.tree.structure(node) == jax.tree.structure(touched)
        return same and all(jnp.shape(a) == jnp.shape(b) for a, b in zip(jax.tree.leaves(node), jax.tree.leaves(touched), strict=True))

    def chosen(new: Tree, old: Tree) -> Tree:
        return _where(touched, new, old) if alike(new) else new

    if all(np.all(leaf) for leaf in jax.tree.leaves(touched)):  # as in most rounds: then nothing is to be copied
        return after
    opt = jax.tree.map(chosen, after.opt, before.opt, is_leaf=alike)
    return after._replace(params=chosen(after.params, before.params), opt=opt)


def told(answers: Mapping[str, Answer], pool: Pool, t: int) -> Info:
    """What a journal says of the answers of several sub-models, by their names: together, their bytes, and on how many examples each was
    trained."""
    heard = list(answers.values())
    weight = sum(float(answer.weight) for answer in heard)
    loss = sum(float(answer.weight) * float(answer.info["loss"]) for answer in heard) / max(weight, 1.0)
    counts = {"used": sum(int(answer.used) for answer in heard), "dropped": sum(int(answer.dropped) for answer in heard)}
    whole = heard[0]._replace(weight=jnp.float32(weight), info={"loss": jnp.float32(loss)}, **counts) if len(heard) > 1 else heard[0]
    return summary(whole, pool, t) | {
        "client_bytes": sum(answer.bytes_down + answer.bytes_up for answer in heard),
        "trained": {name: int(answer.weight) for name, answer in answers.items()},
    }


@jax.jit
def _where(touched: Tree, new: Tree, old: Tree) -> Tree:
    return jax.tree.map(jnp.where, touched, new, old)


def _zeros(shapes: Tree) -> Tree:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes)


def _filled(shapes: Tree, value: Array) -> Tree:
    return jax.tree.map(lambda leaf: np.broadcast_to(np.asarray(value, np.float32), leaf.shape), shapes)
