"""What FedFTG hears of single clients: label counts beside whatever their work replies."""

from __future__ import annotations

from collections.abc import Generator as Talk
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.types import Answer, Array, Ask, Data, Each, Model, Objective, Params, Reply, Told, Tree, Work


@tree.node("of")
@dataclass(frozen=True)
class Counted:
    """A work whose reply has the client's label counts beside it."""

    of: Work
    classes: int

    def __call__(self, model: Model, objective: Objective, sent: Tree, data: Data, key: Any) -> Reply:
        said = self.of(model, objective, sent, data, key)
        real = jnp.arange(len(data.y)) < data.n
        counts = jnp.zeros(self.classes).at[data.y].add(real.astype(jnp.float32))
        return said._replace(value=(said.value, counts))


def overheard(talk: Talk[Sequence[Ask], Sequence[Answer], Told], classes: int) -> Talk[Sequence[Ask], Sequence[Answer], tuple[Told, Each]]:
    """A rule's conversation, its clients' replies and label counts kept one by one: how it ended, and those of the last exchange."""
    asks = next(talk)
    while True:
        answers = yield [ask._replace(work=Counted(ask.work, classes), each=True) for ask in asks]
        try:
            asks = talk.send([answer._replace(value=answer.value[0]) for answer in answers])
        except StopIteration as end:
            assert answers[-1].each is not None
            return end.value, answers[-1].each


def model_of(values: Tree, params: Params) -> Params:
    """The models' gradients among what clients replied: all of it, or the first part, as with SCAFFOLD, whose second is the controls'."""
    return values if jax.tree.structure(values) == jax.tree.structure(params) else values[0]


def seed_of(params: Params) -> Array:
    """A key from the bits of parameters: what begins with a model differs from seed to seed as the model does."""
    bits = [jax.lax.bitcast_convert_type(leaf, jnp.uint32).ravel() for leaf in jax.tree.leaves(params)]
    return jnp.stack(
        [sum((b.sum(dtype=jnp.uint32) for b in bits), jnp.uint32(0)), sum(((b >> 7).sum(dtype=jnp.uint32) for b in bits), jnp.uint32(0))]
    )
