"""The one loop, a generator: the body of the caller's `for` is the callback system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedcodist import keys, losses
from fedcodist.evaluate import Metrics, evaluate
from fedcodist.federation import Federation
from fedcodist.schedule import over_rounds
from fedcodist.settings import Problem, SettingError, show
from fedcodist.types import Info, Method, State, Voice


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything that determines a result: a federation, a method, the number of rounds, and a seed."""

    federation: Federation
    method: Method
    rounds: int
    seed: int = 0
    config: Any = None  # the Config it was loaded from, if it was

    def __post_init__(self) -> None:
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise SettingError([Problem("Experiment.rounds", show(self.rounds), "a whole number of at least 1")])
        if self.method.distill is not None and (fixed := [pool for pool in self.federation.pools.values() if not pool.rule.teachable]):
            allowed = f"a rule whose model can be taught: {self.method.kind} distils"
            raise SettingError([Problem(f"pools.{pool.name}.rule", pool.rule.kind, allowed) for pool in fixed])
        pools = {name: replace(pool, lr=over_rounds(pool.lr, self.rounds)) for name, pool in self.federation.pools.items()}
        engine: Any = self.federation.engine
        engine = engine.seeded(self.seed) if hasattr(engine, "seeded") else engine  # simulated faults are drawn by the seed
        fed = replace(self.federation, pools=pools, engine=engine, rounds=self.rounds)  # rates decay over the rounds
        found = self.method.unfit(fed)
        object.__setattr__(self, "federation", fed)
        object.__setattr__(self, "method", self.method.over(self.rounds))
        if found or (self.method.distill and (found := losses.technique(self.method.distill.loss).problems(self.method, fed))):
            raise SettingError(found)

    def __repr__(self) -> str:  # not its arrays
        pools = ", ".join(self.federation.names)
        return f"Experiment({self.method!r} on {self.federation.task.name}, pools {pools}, {self.rounds} rounds, seed {self.seed})"


class Step(NamedTuple):
    """The state and the information after round t."""

    t: int
    state: State
    info: Info  # {pool: {what: value}}
    experiment: Experiment

    def __repr__(self) -> str:  # not its arrays
        return f"Step(t={self.t}, info={self.info})"

    @property
    def models(self) -> dict[str, Voice]:
        """The models of this round by name, each pool's and whatever else the method has: (model, params)."""
        return self.experiment.method.models(self.experiment.federation, self.state)

    def evaluate(self, split: str = "held_out") -> dict[str, Metrics]:
        """{pool: {domain: {metric: value}}}. Use held_out for everything but the final result."""
        return evaluate(self.experiment.federation, self.models, split)


def train(experiment: Experiment, state: State | None = None, after: int = 0) -> Iterator[Step]:
    """Train round by round from the beginning, or from `state` after round `after`; a round depends on nothing else, so both agree."""
    fed, method = experiment.federation, experiment.method
    key = keys.root(experiment.seed)
    if state is None:
        state = method.init(fed, key)
    for t in range(after + 1, experiment.rounds + 1):
        state, info = method.round(fed, state, t, key)
        yield Step(t, state, info, experiment)
