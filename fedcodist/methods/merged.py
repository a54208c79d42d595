"""MergedCodist, the paper's Algorithm 2: in every round the clients' gradient and the distillation gradient are merged into one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.distill import Distiller
from fedcodist.federation import Federation, params_of
from fedcodist.schedule import Constant, as_schedule, by_pool, numbers, over_rounds, read_shares, unknown_pools
from fedcodist.settings import Problem, setting
from fedcodist.topology import too_few
from fedcodist.types import Array, Consumed, Info, Key, Method, Schedule, State, Tree

TINY = 1e-12  # a distillation gradient shorter than this has no direction (A26)


@dataclass(frozen=True)
class MergedCodist(Method):
    """MergedCodist, Algorithm 2 of the paper, for any number of pools."""

    kind: ClassVar[str] = "merged"
    label: ClassVar[str] = "MergedCodist"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data",)
    secure: ClassVar[bool] = True
    begins_plain: ClassVar[bool] = True
    # weight of the clients' gradient: a number, a schedule, or a table of these by pool; 1 is plain FedAvg
    alpha: Any = setting(Constant(0.5), reader=read_shares)
    distill: Distiller = Distiller(steps=32)  # the distillation of every round in which alpha is below 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", as_schedule(self.alpha, "MergedCodist.alpha", most=1.0))

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        theta = params_of(state)
        alpha = {i: self.alpha_of(i)(t) for i in theta}
        merging = [i for i in theta if alpha[i] != 1]  # discussion: alpha = 1 skips the cost of distillation
        lessons = fed.start(fed.codistill, self.distill, theta, t, key, nth=t - 1, students=merging)  # lines 4-6, all from theta at t
        state, grad, info = fed.gradients(state, t, key)  # line 3, meanwhile: it needs theta at t alone
        for i, norm in fed.norms(grad).items():
            info[i] |= {"grad_norm": norm, "alpha": alpha[i]}
        student, taught = lessons()
        for i in taught.keys() - student.keys():
            info[i] |= taught[i]  # a guard refused it
        for i in grad.keys() & student.keys():
            dist = tree.sub(theta[i], student[i])  # line 7, eq. 1
            info[i] |= taught[i] | {"codistilled": True, "dist_norm": float(tree.norm(dist)), "cosine": _cosine(grad[i], dist)}
            if taught[i].get("agreed"):
                dist = tree.zeros(dist)  # nothing to learn: what Adam made of rounding errors has no direction (A26)
            grad[i] = merge(grad[i], dist, alpha[i])  # line 8, eq. 2
        return fed.step(state, grad, t), info  # line 9

    def alpha_of(self, pool: str) -> Schedule:
        """This pool's alpha as a function of the round. A pool that a table does not name keeps alpha = 1."""
        return by_pool(self.alpha, pool, Constant(1.0))

    def students(self, pools: Sequence[str], t: int) -> list[str]:
        return [i for i in pools if self.alpha_of(i)(t) != 1]

    def over(self, rounds: int) -> MergedCodist:
        return replace(self, alpha=over_rounds(self.alpha, rounds))

    def searched(self) -> dict[str, tuple[float, float]]:
        return dict.fromkeys(numbers(self.alpha, "method.alpha"), (0.05, 0.95))

    def problems(self, pools: Sequence[str]) -> list[Problem]:
        table = self.alpha if isinstance(self.alpha, Mapping) else {}
        return too_few(pools) + unknown_pools(table, "method.alpha", pools)

    def warnings(self, pools: Sequence[str], rounds: int) -> list[str]:
        alphas = [self.alpha_of(i) for i in pools]
        plain = all(alpha == Constant(1.0) for alpha in alphas)
        found = ["method.alpha: 1 is plain FedAvg: distillation is skipped"] if plain else []
        if any(getattr(alpha, "value", None) == 0 for alpha in alphas):
            found.append("method.alpha: 0 lets the clients' gradient set only the length of a step")
        return found


@jax.jit
def merge(grad: Tree, dist: Tree, alpha: Array | float) -> Tree:
    """Equation 2: alpha g + (1 - alpha) d |g| / |d|. A distillation gradient without length adds nothing (DEVIATION D2).

    >>> import jax.numpy as jnp
    >>> g, d = {"w": jnp.array([3.0, 4.0])}, {"w": jnp.array([0.0, 2.0])}  # norms 5 and 2
    >>> [round(float(v), 4) for v in merge(g, d, 0.8)["w"]]  # 0.8 g + 0.2 * 5 * d / 2
    [2.4, 4.2]
    """
    length = tree.norm(dist)
    scale = jnp.where(length > TINY, tree.norm(grad) / jnp.where(length > TINY, length, 1.0), 0.0)
    return tree.add(tree.scale(grad, alpha), tree.scale(dist, (1 - alpha) * scale))


def _cosine(a: Tree, b: Tree) -> float:
    lengths = float(tree.norm(a)) * float(tree.norm(b))
    return float(tree.dot(a, b)) / lengths if lengths > 0 else 0.0
