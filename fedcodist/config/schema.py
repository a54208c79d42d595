"""A config: one frozen dataclass that says everything about an experiment except its seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fedcodist import settings
from fedcodist.engines import ENGINES
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.faults import Faults
from fedcodist.fold import Mean
from fedcodist.folds import FOLDS
from fedcodist.methods import BASELINE, METHODS
from fedcodist.models import MODELS
from fedcodist.pool import Learns, Teaches
from fedcodist.rule import Average
from fedcodist.rules import RULES
from fedcodist.servers import SERVERS, Adam
from fedcodist.settings import Problem, read_kind, setting
from fedcodist.tasks import TASKS
from fedcodist.work import WORKS, LocalSGD

HARMLESS = frozenset(  # no result depends on these
    {
        "name",
        "seeds",
        "engine.workers",
        "engine.address",
        "engine.allow_public",
        "evaluate_every",
        "evaluate_after",
        "checkpoint_every",
        "keep",
    }
)


@dataclass(frozen=True)
@settings.checked
class Choice:
    """Which clients a pool trains on: those whose attributes are `where`, in a fixed random order, without the first `skip`, then the
    first `take` (or that `share`) of them; or exactly the `ids`. Pools that only differ in `take` are nested."""

    take: int | None = setting(None, ge=1)
    share: float | None = setting(None, gt=0, le=1)
    skip: int = setting(0, ge=0)
    where: dict[str, str] = field(default_factory=dict)
    ids: tuple[str, ...] = ()


def read_fold(value: Any, path: str, problems: list[Problem]) -> Any:
    """A fold. The mean stays a name, as it was when there was no other: digests of configs depend on it."""
    made = read_kind(FOLDS, value, path, problems)
    return Mean.kind if made == Mean() else made


@dataclass(frozen=True)
@settings.checked
class PoolConfig:
    """One pool. `like = "other"` starts from another pool's keys."""

    model: Any = setting(kinds=MODELS)
    clients: Choice = Choice()
    domain: str | None = None  # train only on the clients' examples of this domain
    cohort: int = setting(20, ge=1)
    work: Any = setting(LocalSGD(), kinds=WORKS)
    fold: Any = setting(Mean.kind, reader=read_fold)
    rule: Any = setting(Average(), kinds=RULES, silent=True)
    server: Any = setting(Adam(), kinds=SERVERS)
    learns: Learns = Learns()
    teaches: Teaches = Teaches()


@dataclass(frozen=True)
@settings.checked
class Config:
    """An experiment, without its seed."""

    pools: dict[str, PoolConfig]
    task: Any = setting(kinds=TASKS)
    rounds: int = setting(ge=1, le=10**7)
    method: Any = setting(BASELINE(), kinds=METHODS)
    topology: str | dict[str, dict[str, float]] = "auto"
    membership: Literal["any", "nested", "disjoint"] = "any"  # what must be true of the pools' clients
    engine: Any = setting(Compiled(), kinds=ENGINES)
    faults: Faults = setting(Faults(), silent=True)  # simulated ones
    name: str = "run"
    seeds: tuple[int, ...] = setting((), ge=0, le=2**63 - 1)
    evaluate_every: int = setting(0, ge=0)  # rounds between evaluations on held_out; 0: twenty in a run
    evaluate_after: tuple[int, ...] = setting((), ge=1)  # also so many rounds after each periodic codistillation, and the round before it
    checkpoint_every: int = setting(10, ge=1)
    keep: int = setting(3, ge=1)  # checkpoints
