"""FedResCuE (Zhu et al. 2022): every prefix of a client's model learns to be a model, and to say what the client's whole one says.

HeteroFL's widths and mean, with the loss CE(whole) + CE(p) + KL(whole || p) over narrower prefixes p, some of which are drawn in every
step; the whole does not learn from the KL. The weights of the three terms could not be read in the paper; here they are one. If the
transmission of a gradient breaks, the blocks of columns that arrived before count. With one width it is FedAvg to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import keys
from fedcodist.rules.progressive import Progressive
from fedcodist.rules.slices import Slices
from fedcodist.rules.submodels import Held
from fedcodist.settings import Problem, checked, setting
from fedcodist.types import Answer, Consumed, Params, Work

if TYPE_CHECKING:
    from fedcodist.pool import Pool


@dataclass(frozen=True)
@checked
class FedResCuE(Slices):
    """Clients train nested sub-models that distil themselves; `samples` prefixes in each step, `loss` of a block of columns on its way."""

    kind: ClassVar[str] = "fedrescue"
    consumes: ClassVar[tuple[Consumed, ...]] = ()
    secure: ClassVar[bool] = True
    samples: int = setting(2, ge=1, le=1000)  # how many narrower networks are drawn in each step, beside the client's own
    loss: float = setting(0.0, ge=0, lt=1)  # the share of blocks of columns that a link loses

    def problems(self, pool: Pool) -> list[Problem]:
        found = super().problems(pool)
        for k in range(len(self.widths)) if not found else ():
            for j in self._inside(k)[:-1]:
                assert pool.model.narrow is not None
                whole, part = (pool.model.narrow(self.widths[at].rate).model for at in (k, j))
                assert whole.narrow is not None
                one, other = (jax.eval_shape(m.init, keys.root(0)) for m in (whole.narrow(self._rate(j, k)).model, part))
                if jax.tree.map(jnp.shape, one) != jax.tree.map(jnp.shape, other):
                    rates = f"{self.widths[j].label} inside {self.widths[k].label}"
                    found.append(Problem(f"pools.{pool.name}.rule.widths", rates, "rates whose widths, rounded up, lie in each other"))
        return found

    def work(self, pool: Pool, k: int) -> Work:
        places = self._inside(k)
        rates = tuple(self._rate(j, k) for j in places[:-1])
        return Progressive(pool.work, self.loss, rates, self.samples, tuple(places), len(self.widths), self.loss > 0)

    def held(self, pool: Pool, k: int, answer: Answer) -> tuple[Params, dict[int, Held]]:
        if not self.loss:
            return super().held(pool, k, answer)
        sums, arrived = answer.value
        return sums, {j: (arrived[j], arrived[j]) for j in self._inside(k)}

    def _inside(self, k: int) -> list[int]:
        """The places of the widths that lie in the kth, the narrowest first and itself last."""
        rates = [width.rate for width in self.widths]
        return sorted((j for j in range(len(rates)) if rates[j] <= rates[k]), key=lambda j: rates[j])

    def _rate(self, j: int, k: int) -> float:
        return self.widths[j].rate / self.widths[k].rate
