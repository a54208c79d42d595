"""The sum of clipped replies over a fixed number: what client-level differential privacy adds its noise to (`private`).

Every client counts alike, and by at most `bound / cohort` in the L2 norm of the whole value, whoever else replies: neither its number of
examples nor how many others there are changes that. It is no fold that a config names; a pool's `privacy` puts it in the place of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.fold import Total, Weighted, usable
from fedcodist.settings import checked, setting
from fedcodist.types import Array, Each, Folded, Key, Reply, Tree

TINY = 1e-30  # a shorter reply is as good as none


@tree.node("bound")
@dataclass(frozen=True)
@checked
class Clipped(Weighted):
    """The sum of replies whose norm is cut down to `bound`, over `cohort`. Weights count only for what the journal says."""

    kind: ClassVar[str] = "clipped"
    bound: float = setting(1.0, gt=0)
    cohort: int = setting(1, ge=1)

    def summed(self, reply: Reply) -> Tree:
        # Behind a barrier the norm is summed alike, whether the client's own program is around it or the reply came from elsewhere.
        value = jax.lax.optimization_barrier(reply.value)
        return tree.scale(value, jnp.minimum(1.0, self.bound / jnp.maximum(tree.norm(value), TINY)))

    def add(self, total: Total, reply: Reply) -> Total:
        good = usable(reply)

        def plainly(a: Array, b: Array) -> Array:
            return a + jnp.where(good, b, 0.0)

        return super().add(total, reply)._replace(value=jax.tree.map(plainly, total.value, self.summed(reply)))

    def done(self, total: Total, each: Each | None, key: Key) -> Folded:
        return super().done(total, each, key)._replace(value=tree.scale(total.value, 1.0 / self.cohort))
