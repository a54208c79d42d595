"""Rounds that several trainings have in common, trained once and kept.

Rounds before the first codistillation depend on nothing that distillation has, so trials that differ only in that share them. They are kept
as a checkpoint, with the curve that was seen on the way, under the digest of all that they depend on; a trial that starts from there ends
with the same bits.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from fedcodist.config import Config, plain
from fedcodist.runs import checkpoint, environment, evaluation
from fedcodist.storage import durable, sealed
from fedcodist.storage import lock as lock_file
from fedcodist.storage.durable import Damaged
from fedcodist.train import Experiment
from fedcodist.types import State

Curve = list[tuple[int, dict[str, float]]]  # (round, {pool: held-out accuracy})


class Prefix(NamedTuple):
    """The rounds of a training before its first codistillation."""

    root: Path  # where all of them are kept
    digest: str
    rounds: int


def alone(experiment: Experiment) -> int:
    """How many rounds the pools train before anyone teaches, at most all but one. They are FedAvg's, whatever the distillation is like.

    >>> from fedcodist import config
    >>> periodic = ["method={ kind = 'periodic', period = 4, distill = { steps = 1, batch = 5 } }"]
    >>> alone(config.load("quick/toy", periodic)), alone(config.load("quick/toy"))
    (3, 0)
    """
    method, rounds = experiment.method, experiment.rounds
    if not method.begins_plain:
        return 0
    return next((t for t in range(rounds - 1) if method.students(experiment.federation.names, t + 1)), rounds - 1)


def digest(config: Config, seed: int, clamp: bool, data: str) -> str:
    """The digest of all that rounds without codistillation depend on, of when they are evaluated, and of the machine's arithmetic."""
    table = plain(config)
    pools = {name: {k: v for k, v in pool.items() if k not in ("learns", "teaches")} for name, pool in table["pools"].items()}
    engine = {k: v for k, v in table["engine"].items() if k != "workers"}  # another size of blocks, or engine, has other last bits
    facts = {key: table[key] for key in ("task", "rounds", "membership")} | {"pools": pools, "engine": engine}
    facts |= {key: table[key] for key in ("faults", "privacy", "personal") if key in table}
    facts["every"] = evaluation.interval(config)
    return sealed.digest([facts, seed, clamp, data, environment.fingerprint()])


def recall(prefix: Prefix, template: State) -> tuple[State, Curve] | None:
    """The state after these rounds, and the curve on the way; None if they are not kept, or damaged."""
    try:
        commit, files = checkpoint.verify(_place(prefix) / f"{prefix.rounds:06d}")
        curve = [(t, accuracy) for t, accuracy in commit["curve"]]
        return (checkpoint.load(template, files), curve) if commit["prefix"] == prefix.digest else None
    except (Damaged, KeyError):
        return None


def keep(prefix: Prefix, state: State, curve: Curve) -> None:
    """Keep the state after these rounds, unless it is kept already."""
    place = _place(prefix)
    durable.make_directories(place)
    try:
        lock, _ = lock_file.take(place / "lock", "prefix")
    except lock_file.Busy:
        return  # another worker keeps the same bits
    try:
        if recall(prefix, state) is None:
            for left in place.glob(".t*"):  # by a writer that was killed
                shutil.rmtree(left, ignore_errors=True)
            checkpoint.write(place, prefix.rounds, state, {"prefix": prefix.digest, "curve": curve})
    finally:
        lock_file.release(lock)


def _place(prefix: Prefix) -> Path:
    return prefix.root / prefix.digest[:32]
