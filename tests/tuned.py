"""Small studies for tests. Most have a training that is made up (`pretend`), so that the numbers can be foreseen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedcodist import config
from fedcodist.tasks import Toy
from fedcodist.tuning import dotted, space, tune
from fedcodist.tuning.study import Search, Trial

ROOT = Path(__file__).resolve().parent.parent
TEXT = """\
rounds = 4
seeds = [7]
task = "toy"

[pools.small]
model = { kind = "mlp", hidden = [4] }
cohort = 4
work = { kind = "local_sgd", lr = 0.1, batch = 10 }
server = { kind = "adam", lr = 0.03 }

[pools.large]
like = "small"
model = { kind = "mlp", hidden = [8] }
clients = { take = 4 }

[method]
kind = "merged"
alpha = 0.7
distill = { steps = 2, batch = 20 }
"""
PERIODIC = "method={ kind = 'periodic', period = 3, distill = { steps = 2, batch = 20 } }"
EVERY = "method.alpha={ kind = 'every', k = 3, value = 0.5 }"


def finish(search: Search, root: Path, **how: Any) -> list[Trial]:
    """All trials of a study, at its end."""
    return end_of(tune.run(search, root, **how))


def end_of(events: Any) -> Any:
    while True:
        try:
            next(events)
        except StopIteration as end:
            return end.value


def searched(base: config.Config, which: str = "distillation", **how: Any) -> Search:
    return Search(base, space.preset(base, which), **{"trials": 3, "seed": 7} | how)


def values(found: list[Trial]) -> list[tuple]:
    """What was tried and what came of it, in order, without those that were lost."""
    return [(t.values, t.state, t.outcome.curve) for t in found if t.state != "lost"]


def by_alpha(one: config.Config, t: int) -> float:
    """The nearer to 0.4, the better."""
    return 1 - abs(dotted.get(one, "method.alpha") - 0.4)


def by_alpha_or(other: float) -> Any:
    return lambda one, t: by_alpha(one, t) if one.method.kind == "merged" else other


class Sealed:
    """A test split that must not be touched."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"somebody looked at the test split: {name}")

    def __iter__(self) -> Any:
        raise AssertionError("somebody looked at the test split")


@dataclass(frozen=True)
class Guarded(Toy):
    """A toy task whose test split must not be touched."""

    def load(self) -> Any:
        return replace(super().load(), test=Sealed())
