"""TAKFL (Morafah et al. 2024): a student hears each teacher by itself, and what it learned is added up as task vectors.

Every `period` rounds a model is distilled from each of its teachers, always from the same start. What it learned from teacher j is the task
vector tau_j = student_j - theta; then theta <- theta + sum_j lambda_j tau_j. One teacher, weight 1: PeriodicCodist without restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from fedcodist import tree
from fedcodist.distill import Distiller
from fedcodist.federation import Federation, Hears, params_of
from fedcodist.methods.periodic import PeriodicCodist
from fedcodist.methods.task_vectors import best, merged, together
from fedcodist.settings import Problem, checked, setting
from fedcodist.topology import problems
from fedcodist.types import Consumed, Info, Key, Method, State


@dataclass(frozen=True)
@checked
class TAKFL(Method):
    """One distillation for each teacher, merged by task arithmetic. `choose` consumes labels."""

    kind: ClassVar[str] = "takfl"
    label: ClassVar[str] = "TAKFL"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data",)
    secure: ClassVar[bool] = True
    begins_plain: ClassVar[bool] = True
    leaps: ClassVar[bool] = True
    period: int = setting(200, ge=1, le=10**7)  # rounds from one codistillation to the next; 1 in the paper
    distill: Distiller = Distiller(steps=200)  # each distillation, from one teacher
    weights: dict[str, dict[str, float]] = field(
        default_factory=dict
    )  # {student: {teacher: lambda}}; the topology's for whom it leaves out
    self_temperature: float = setting(1.0, ge=1e-3, le=1e3)  # divides the student's own first logits; 20 in the paper
    choose: bool = False  # whether each student's weights are the best of some on labelled held-out data

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        state, grad, info = fed.gradients(state, t, key)
        state = fed.step(state, grad, t)
        for i in grad:
            info[i]["grad_norm"] = float(tree.norm(grad[i]))
        if not self.periodic.teaches(t):
            return state, info
        theta, lessons = params_of(state), {}
        for hears in self.each_teacher(fed):
            student, taught = fed.codistill(self.distill, theta, t, key, nth=t // self.period - 1, hears=hears)
            for i in taught:  # a lesson that a guard refused leaves its teacher no task vector
                lessons.setdefault(i, []).append((student.get(i, theta[i]), taught[i]))
        for i, found in lessons.items():
            students, told = zip(*found, strict=True)
            names, lambdas = zip(*self.lambdas(fed, i).items(), strict=True)
            lambdas = best(fed, i, theta[i], students, lambdas) if self.choose else lambdas
            state[i] = state[i]._replace(params=merged(theta[i], students, lambdas))
            info[i] |= together(told) | {"codistilled": True, "task_weights": dict(zip(names, lambdas, strict=True))}
            info[i]["dist_norm"] = float(tree.norm(tree.sub(theta[i], state[i].params)))
        return state, info

    @property
    def periodic(self) -> PeriodicCodist:
        """When there is a codistillation."""
        return PeriodicCodist(self.period, self.distill, restart=False)

    def lambdas(self, fed: Federation, student: str) -> dict[str, float]:
        """{teacher: the weight of its task vector}, in canonical order."""
        given = self.weights.get(student, fed.table[student])
        return {j: float(given[j]) for j in fed.names if given.get(j, 0) > 0}

    def each_teacher(self, fed: Federation) -> Sequence[Hears]:
        """Who hears whom in each of the distillations: the first one's teacher, the second one's, and so on."""
        found: list[dict[str, dict[str, tuple[float, float]]]] = []
        for i in fed.names:
            gamma = fed.pools[i].learns.self_weight
            for k, j in enumerate(self.lambdas(fed, i)):
                own = {i: (gamma, self.self_temperature)} if j != i else {}
                both = {j: (1 - gamma if own else 1.0, fed.pools[j].teaches.temperature)} | own
                found += [{}] if k == len(found) else []
                found[k][i] = {j: both[j] for j in fed.names if j in both and both[j][0] > 0}
        return found

    def students(self, pools: Sequence[str], t: int) -> list[str]:
        return self.periodic.students(pools, t)

    def speakers(self, fed: Federation, students: Sequence[str], info: Mapping[str, Info]) -> dict[str, int]:
        return Counter(j for hears in self.each_teacher(fed) for j in {j for i in students if i in hears for j in hears[i]})

    def lessons(self, fed: Federation, student: str) -> int:
        return len(self.lambdas(fed, student))

    def problems(self, pools: Sequence[str]) -> list[Problem]:
        wrong = [problem._replace(path=problem.path.replace("topology", "method.weights", 1)) for problem in problems(self.weights, pools)]
        return self.periodic.problems(pools) + wrong

    def warnings(self, pools: Sequence[str], rounds: int) -> list[str]:
        return self.periodic.warnings(pools, rounds)
