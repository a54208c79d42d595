"""The default rule of a pool: one question a round, and the folded gradient of its answer. With it a pool is FedAvg's.

A rule is what a pool and its clients say to each other in a round (types.Rule). Others stand in `rules/`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedcodist.types import Answer, Ask, Consumed, Info, Key, PoolState, Rule, Told

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


class Diverged(ArithmeticError):
    """A number that must be finite is not."""

    def __init__(self, what: str, pool: str, t: int):
        self.pool, self.round = pool, t
        super().__init__(f"{what} of pool {pool} is not finite in round {t}")


@dataclass(frozen=True)
class Average(Rule):
    """FedAvg's: the clients of a cohort work from the server's model, and their gradients are folded."""

    kind: ClassVar[str] = "average"
    consumes: ClassVar[tuple[Consumed, ...]] = ()
    secure: ClassVar[bool] = True

    def talk(self, fed: Federation, pool: Pool, state: PoolState, t: int, key: Key) -> Generator[Sequence[Ask], Sequence[Answer], Told]:
        (answer,) = yield [fed.ask(pool, state.params, t, key)]
        return Told(answer.value, state.kept, summary(answer, pool, t))


def skipped() -> Info:
    """What a journal says of a pool that lost its quorum in a round."""
    return {"clients": 0, "examples": 0, "skipped": "no quorum"}


def summary(answer: Answer, pool: Pool, t: int) -> Info:
    """What a journal says of an answer. Diverged, if none of its replies could be used."""
    if int(answer.used) == 0:
        raise Diverged("every client's gradient", pool.name, t)
    info: Info = {"clients": int(answer.used), "examples": int(answer.weight), "train_loss": float(answer.info["loss"])}
    if "epsilon" in answer.info:
        info["epsilon"] = float(answer.info["epsilon"])
    if int(answer.dropped):
        info["dropped"] = int(answer.dropped)
    if set(answer.reasons) - {"not finite"}:
        info["reasons"] = dict(answer.reasons)
    return info
