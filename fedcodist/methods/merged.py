"""MergedCodist, the paper's Algorithm 2: in every round the clients' gradient and the distillation gradient are merged into one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import tree
from fedcodist.distill import Distiller
from fedcodist.federation import Federation, params_of
from fedcodist.schedule import SCHEDULES, Constant
from fedcodist.settings import Problem, number_hint, read_kind, setting, show
from fedcodist.types import Array, Info, Key, Params, Schedule, State, Tree

TINY = 1e-12  # a distillation gradient shorter than this has no direction (A26)


def read_alpha(value: Any, path: str, problems: list[Problem]) -> Any:
    """alpha in a config: a number, a schedule (a table with `kind`), or a table of these by pool."""
    if isinstance(value, dict) and "kind" not in value:
        return {pool: read_alpha(v, f"{path}.{pool}", problems) for pool, v in value.items()}
    if isinstance(value, dict):
        schedule = read_kind(SCHEDULES, value, path, problems)
        for name in ("value", "start", "end", "otherwise"):
            _check_alpha(getattr(schedule, name, 0.0), f"{path}.{name}", problems)
        return schedule
    _check_alpha(value, path, problems)
    return Constant(float(value)) if isinstance(value, int | float) and 0 <= value <= 1 else None


def _check_alpha(value: Any, path: str, problems: list[Problem]) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        hint = number_hint(value)
        problems.append(Problem(path, show(value), "a number >= 0 and <= 1, a schedule, or a table of these by pool", hint))


@dataclass(frozen=True)
class MergedCodist:
    """MergedCodist, Algorithm 2 of the paper, for any number of pools."""

    kind: ClassVar[str] = "merged"
    alpha: Any = setting(Constant(0.5), reader=read_alpha)  # a schedule, or one for each pool; alpha = 1 is plain FedAvg
    distill: Distiller = Distiller(steps=32)  # s steps on public, unlabelled data

    def init(self, fed: Federation, key: Key) -> State:
        return fed.init(key)  # line 1

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        theta = params_of(state)
        alpha = {i: self.alpha_of(i)(t) for i in theta}
        merging = [i for i in theta if alpha[i] != 1]  # discussion: alpha = 1 skips the cost of distillation
        lessons = fed.beside(fed.codistill, self.distill, theta, t, key, nth=t - 1, students=merging)  # lines 4-6, all from theta at t
        grad, info = fed.gradients(theta, t, key)  # line 3, meanwhile: it needs theta at t alone
        for i in grad:
            info[i] |= {"grad_norm": float(tree.norm(grad[i])), "alpha": alpha[i]}
        student, taught = lessons()
        for i in student:
            dist = tree.sub(theta[i], student[i])  # line 7, eq. 1
            info[i] |= taught[i] | {"codistilled": True, "dist_norm": float(tree.norm(dist)), "cosine": _cosine(grad[i], dist)}
            grad[i] = merge(grad[i], dist, alpha[i])  # line 8, eq. 2
        return fed.step(state, grad, t), info  # line 9

    def models(self, fed: Federation, state: State) -> dict[str, Params]:
        return params_of(state)

    def alpha_of(self, pool: str) -> Schedule:
        """This pool's alpha as a function of the round. A pool that a table does not name keeps alpha = 1."""
        if isinstance(self.alpha, Mapping):
            return self.alpha.get(pool, Constant(1.0))
        return self.alpha


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
