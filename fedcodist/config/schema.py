"""A config: one frozen dataclass that says everything about an experiment except its seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fedcodist import settings
from fedcodist.data.personal import Personal
from fedcodist.engines import ENGINES
from fedcodist.engines.accountant import Noise, Privacy
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.faults import Faults
from fedcodist.fold import Mean
from fedcodist.folds import FOLDS
from fedcodist.methods import BASELINE, METHODS
from fedcodist.methods.guarded import Guard
from fedcodist.models import MODELS
from fedcodist.models.own import Own, read_own
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
        "privacy.budget",
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

    take: int | None = setting(None, ge=1)  # the first so many clients, in a fixed random order
    share: float | None = setting(None, gt=0, le=1)  # the first clients in that order, as a share of all
    skip: int = setting(0, ge=0)  # how many clients of that order are left out first
    where: dict[str, str] = field(default_factory=dict)  # only clients with these attributes, such as `{ capacity = "high" }`
    ids: tuple[str, ...] = ()  # exactly these clients


def read_fold(value: Any, path: str, problems: list[Problem]) -> Any:
    """A fold. The mean stays a name, as it was when there was no other: digests of configs depend on it."""
    made = read_kind(FOLDS, value, path, problems)
    return Mean.kind if made == Mean() else made


def read_model(value: Any, path: str, problems: list[Problem]) -> Any:
    """A model by its kind, or a table that names a function of the user's."""
    if isinstance(value, dict) and "function" in value and value.get("kind", Own.kind) == Own.kind:
        return read_own(value, path, problems)
    return read_kind(MODELS, value, path, problems)


@dataclass(frozen=True)
@settings.checked
class PoolConfig:
    """One pool. `like = "other"` starts from another pool's keys."""

    model: Any = setting(kinds=MODELS, reader=read_model)  # the network
    clients: Choice = Choice()  # which clients the pool trains on; all of them if nothing is said
    domain: str | None = None  # train only on the clients' examples of this domain
    cohort: int = setting(20, ge=1)  # clients that are asked in a round
    work: Any = setting(LocalSGD(), kinds=WORKS)  # what a client does in a round
    fold: Any = setting(Mean.kind, reader=read_fold)  # how replies are combined
    rule: Any = setting(Average(), kinds=RULES, silent=True)  # what the pool asks its clients, and what it keeps
    privacy: Noise | None = setting(None, silent=True)  # how its clients' updates are clipped and noised; all pools, or none
    server: Any = setting(Adam(), kinds=SERVERS)  # the optimizer that applies the clients' gradient
    learns: Learns = Learns()  # the pool's model as a student
    teaches: Teaches = Teaches()  # the pool's model as a teacher


@dataclass(frozen=True)
@settings.checked
class Config:
    """An experiment, without its seed."""

    pools: dict[str, PoolConfig]  # the pools by name, in any order
    task: Any = setting(kinds=TASKS)  # what is learned, and from what data
    rounds: int = setting(ge=1, le=10**7)  # how many rounds to train
    method: Any = setting(BASELINE(), kinds=METHODS)  # what the server does with all pools
    # who teaches whom: a name, or a table `{ student = { teacher = weight } }`; "auto": complete up to 4 pools, else chain
    topology: str | dict[str, dict[str, float]] = "auto"
    membership: Literal["any", "nested", "disjoint"] = "any"  # what must be true of the pools' clients
    engine: Any = setting(Compiled(), kinds=ENGINES)  # how clients are run on this machine
    guard: Guard | None = setting(None, silent=True)  # the test by which lessons that harm are refused
    personal: Personal = setting(Personal(), silent=True)  # what of each client's own data is kept from training, to measure on
    faults: Faults = setting(Faults(), silent=True)  # simulated faults of the clients
    privacy: Privacy | None = setting(None, silent=True)  # what clients are promised where pools add noise
    name: str = "run"  # names the run's directory
    seeds: tuple[int, ...] = setting((), ge=0, le=2**63 - 1)  # the seeds to train, if the command names none
    evaluate_every: int = setting(0, ge=0)  # rounds between evaluations on held_out; 0: twenty in a run
    # also evaluate so many rounds after each periodic codistillation, and the round before it
    evaluate_after: tuple[int, ...] = setting((), ge=1)
    checkpoint_every: int = setting(10, ge=1)  # rounds between checkpoints; long ones are written less often
    keep: int = setting(3, ge=1)  # how many checkpoints are kept
