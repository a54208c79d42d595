"""A study on disk: what is searched, where it is stored, and how it is recognised when it is resumed.

`study.json` says what is searched, `study.journal` is Optuna's (suggestions.py), and a lock that dies with its process makes this process
the only writer, so that nothing waits for a dead one. Deliberately absent: several machines on one study.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedcodist import runs
from fedcodist.config import Config, essential
from fedcodist.runs import environment, evaluation
from fedcodist.settings import leaves
from fedcodist.storage import durable, sealed
from fedcodist.storage import lock as lock_file
from fedcodist.storage.durable import Damaged
from fedcodist.storage.sealed import canonical
from fedcodist.tuning import dotted, space
from fedcodist.tuning.space import Space
from fedcodist.tuning.trial import Outcome

FACTS, JOURNAL, LOCK = "study.json", "study.journal", "study.lock"
TRIALS, BEST, CONFIRMED = "trials.jsonl", "best.toml", "confirmed.jsonl"


@dataclass(frozen=True)
class Search:
    """The definition of a study: a config, the space around it, the number of trials, and how they are judged."""

    config: Config
    space: Space
    trials: int = 30
    seed: int = 0  # of every trial's training, and of what is suggested
    objective: Literal["mean", "pareto"] = "mean"
    prune: bool = True
    clamp: bool = False


class Trial(NamedTuple):
    """A finished trial of a study."""

    number: int
    state: str  # complete, pruned, diverged, refused or lost
    search: Search
    values: dict[str, Any]  # {parameter: value}
    outcome: Outcome
    own: bool = False  # it was the config as it is, whether or not its values are in the space

    @property
    def value(self) -> float:
        """The value by which it is ranked."""
        return self.outcome.value

    @property
    def config(self) -> Config:
        """The config that was trained."""
        return self.search.config if self.own else space.apply(self.search.config, self.search.space, self.values)

    @property
    def in_space(self) -> bool:
        """Whether its values are in the space, as they are unless they were the config's own."""
        return not self.own or all(self.values[name] == self.get(key) for name, range in self.search.space.items() for key in range.keys)

    def get(self, key: str) -> Any:
        """The value of a searched key."""
        if self.own:
            return dotted.get(self.search.config, key)
        return next(self.values[name] for name, range in self.search.space.items() if key in range.keys)


def place(root: str | Path, config: Config) -> Path:
    """The directory of the study of this config."""
    return runs.run_path(root, config.name, config.method.kind, 0).parent


def begun(root: str | Path, config: Config) -> dict[str, Any] | None:
    """The config that an existing study was begun with, as `bare` gives it; None if there is no study."""
    try:
        return sealed.unseal(place(root, config) / FACTS)["study"]["config"]
    except (Damaged, KeyError, TypeError):
        return None


def bare(config: Config) -> dict[str, Any]:
    """A config as a study keeps it: without what changes no result."""
    return json.loads(canonical(essential(config)))


@contextmanager
def locked(paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
    """These studies, for this process alone."""
    locks: list[int] = []
    try:
        for path in dict.fromkeys(paths):
            durable.make_directories(path)
            locks.append(lock_file.take(path / LOCK, "study")[0])
        yield paths
    finally:
        for lock in locks:
            lock_file.release(lock)


def check(search: Search, path: Path, data: str) -> list[str]:
    """Write the definition of the study, or compare it with the one on disk: a different study is refused with its differences. Returns
    notes."""
    facts, found = _facts(search, data), json.loads(canonical(environment.fingerprint()))
    try:
        stored = sealed.unseal(path / FACTS)
    except Damaged as error:
        if (path / FACTS).exists() or (path / JOURNAL).exists():
            raise durable.CheckpointError(f"{durable.printable(path)}: {error}; nothing was changed; --restart begins again") from None
        durable.replace_file(path / FACTS, sealed.seal({"study": facts, "environment": found}))
        return []
    old, new = (dict(leaves(table)) for table in (stored["study"], facts))
    changes = [f"{key}: {_shown(old, key)} -> {_shown(new, key)}" for key in sorted(old | new) if _shown(old, key) != _shown(new, key)]
    if changes:
        more = f", and {len(changes) - 5} more" if len(changes) > 5 else ""
        message = f"{durable.printable(path)}: this study is another one: {', '.join(changes[:5])}{more}; use another --name, or --restart"
        raise runs.Mismatch(message, changes)
    other = environment.differences(stored["environment"], found)
    return [f"continues in another environment than before: {', '.join(other)}"] if other else []


def ask(search: Search, path: Path) -> None:
    """Write into the study the number of trials that was requested last, so that a reader can tell whether it is complete."""
    stored = sealed.unseal(path / FACTS)
    if stored.get("trials") != search.trials:
        kept = {key: value for key, value in stored.items() if key not in ("digest", "format")}
        durable.replace_file(path / FACTS, sealed.seal({**kept, "trials": search.trials}))


def set_aside(path: Path) -> list[str]:
    """Move all files of a study into a new directory beside them, deleting nothing. Returns notes."""
    fronts = sorted(old.name for old in path.glob("front-*.toml"))
    there = [name for name in (FACTS, JOURNAL, CONFIRMED, TRIALS, BEST, *fronts) if (path / name).exists()]
    if not there:
        return []
    aside = next(path / f"before-{n}" for n in count(1) if not (path / f"before-{n}").exists())
    durable.make_directory(aside)
    for name in reversed(there):  # what it is goes last: without it the rest is refused, not mistaken for something else
        durable.rename(path / name, aside / name)
    return [f"restarted; the previous files are in {aside.name}"]


def _facts(search: Search, data: str) -> dict[str, Any]:
    """The definition of a study without the number of trials."""
    facts = {
        "config": bare(search.config),
        "space": space.plain(search.space),
        "data": data,
        "seed": search.seed,
        "objective": search.objective,
        "prune": search.prune,
        "clamp": search.clamp,
        "evaluate_every": evaluation.interval(search.config),
    }
    return json.loads(canonical(facts))


def _shown(table: Mapping[str, Any], key: str) -> str:
    return canonical(table[key]) if key in table else "nothing"
