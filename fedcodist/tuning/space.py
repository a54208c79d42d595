"""A search space: which keys of a config are searched, each over which range. A pure description; nothing here draws or trains.

`preset` derives the paper's own ranges from a config, for any number of pools: one client learning rate for all of them, one server rate
a pool, and for the codistillation methods each pool's rates as a student, temperature, self-weight, and alpha. `read` takes a TOML file of
the user's. Deliberately absent: conditional spaces, and keys that would change the problem instead of its solution (task, rounds, seeds).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcodist import settings
from fedcodist.config import Config, toml
from fedcodist.errors import ConfigError
from fedcodist.settings import Problem, nearest, show
from fedcodist.storage.sealed import canonical
from fedcodist.tuning import dotted

PRESETS = ("rates", "distillation", "all")
FIELDS = ("keys", "low", "high", "log", "choices")
RATE = (1e-4, 0.1)
DECAY = (1e-3, 1.0)  # the paper's (0, 1), which a logarithm needs to end somewhere
TEMPERATURE = (0.1, 10.0)
SELF_WEIGHT = (1e-3, 0.5)


@dataclass(frozen=True)
class Range:
    """The values that a parameter may have, and the keys that it sets: from `low` to `high`, or one of the `choices`."""

    keys: tuple[str, ...]
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers."""
        return isinstance(self.low, int)

    def __str__(self) -> str:
        if self.choices:
            return " | ".join(show(choice).strip("'") for choice in self.choices)
        return f"{self.low:g} to {self.high:g}" + (", log" if self.log else "")


Space = dict[str, Range]  # {parameter: range}; a parameter that sets one key has that key's name


def preset(config: Config, which: str = "all") -> Space:
    """The paper's space for this config: its `rates`, its `distillation` settings, or `all` of them.

    >>> from fedcodist import config
    >>> for name, range in preset(config.read("quick/toy"), "rates").items():
    ...     print(f"{name}: {range}")
    pools.*.work.lr: 0.0001 to 0.1, log
    pools.small.server.lr: 0.0001 to 0.1, log
    pools.large.server.lr: 0.0001 to 0.1, log
    """
    rates, distillation = _rates(config), _distillation(config)
    if which == "distillation" and not distillation:
        raise ConfigError(f"--space: got distillation for {config.method.kind}, which has none; allowed rates | all")
    return {"rates": rates, "distillation": distillation, "all": rates | distillation}[which]


def choose(which: str, config: Config, patterns: Sequence[str] = ()) -> Space:
    """A preset by its name, or the space in a TOML file; of it only the parameters that match."""
    if which in PRESETS:
        found = preset(config, which)
    elif Path(which).suffix == ".toml" or Path(which).exists():
        found = read(which, config)
    else:
        allowed = f"{' | '.join(PRESETS)}, or a TOML file"
        raise ConfigError(str(Problem("--space", show(which), allowed, nearest(which, PRESETS))))
    return only(found, patterns)


def _rates(config: Config) -> Space:
    work = [f"pools.{name}.work.lr" for name, pool in config.pools.items() if hasattr(pool.work, "lr")]
    server = [f"pools.{name}.server.lr" for name, pool in config.pools.items() if hasattr(pool.server, "lr")]
    shared = {"pools.*.work.lr" if len(work) > 1 else work[0]: Range(tuple(work), *RATE, log=True)} if work else {}
    return shared | {key: Range((key,), *RATE, log=True) for key in server}


def _distillation(config: Config) -> Space:
    if config.method.distill is None:
        return {}
    found: dict[str, tuple[float, float]] = {}
    table = config.topology if isinstance(config.topology, dict) else None
    for name in config.pools:
        if table is None or table.get(name):  # else it has no teacher, and learns nothing
            found |= {f"pools.{name}.learns.lr": RATE, f"pools.{name}.learns.decay": DECAY}
            found |= {} if config.method.asks else {f"pools.{name}.learns.self_weight": SELF_WEIGHT}
        if not config.method.asks and (table is None or any(name in teachers for teachers in table.values())):
            found |= {f"pools.{name}.teaches.temperature": TEMPERATURE}
    own = {key: Range((key,), *ends) for key, ends in config.method.searched().items()}
    return {key: Range((key,), *ends, log=True) for key, ends in found.items()} | own


def read(path: str | Path, config: Config) -> Space:
    """The space in a TOML file: `"dotted.key" = { low, high, log }` or `{ choices }`; `keys = [...]` where one name sets several."""
    source = toml.read(Path(path))
    problems: list[Problem] = []
    space: Space = {}
    taken: dict[str, str] = {}
    for name, table in _tables(source.table, "", problems):
        if (found := _range(name, table, config, problems)) is None:
            continue
        for key in found.keys:
            if key in taken:
                problems.append(Problem(name, f"{key}, which {taken[key]} sets too", "each key once"))
            taken[key] = name
        space[name] = found
    if problems:
        raise ConfigError(
            "\n".join(
                settings.one_line(f"{p.path}: got {p.got}; allowed {p.allowed} ({source.where(p.path)})" + (f" {p.hint}" if p.hint else ""))
                for p in dict.fromkeys(problems)  # both ends may be wrong in the same way
            )
        )
    return space


def _tables(table: Mapping[str, Any], path: str, problems: list[Problem]) -> list[tuple[str, Mapping[str, Any]]]:
    """The ranges of a file, whether their dotted keys are quoted or are tables in tables."""
    found = []
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        if not isinstance(value, dict) or not value:
            problems.append(Problem(name, show(value), "a table with low and high, or with choices"))
        elif any(isinstance(inner, dict) for inner in value.values()):
            found += _tables(value, name, problems)
        else:
            found.append((name, value))
    return found


def _range(name: str, table: Mapping[str, Any], config: Config, problems: list[Problem]) -> Range | None:
    before = len(problems)
    for key in table:
        if key not in FIELDS:
            problems.append(Problem(f"{name}.{key}", "an unknown key", ", ".join(FIELDS), nearest(key, FIELDS)))
    given = table.get("keys", [name])
    if not isinstance(given, list) or not given or not all(isinstance(key, str) for key in given):
        problems.append(Problem(f"{name}.keys", show(given), "a list of dotted keys"))
        return None
    keys = tuple(key for pattern in given for key in expand(config, pattern))
    log, choices = table.get("log", False), table.get("choices")
    if not isinstance(log, bool):
        problems.append(Problem(f"{name}.log", show(log), "true or false"))
    if choices is not None:
        if not isinstance(choices, list) or not choices or len({canonical(choice) for choice in choices}) < len(choices):
            problems.append(Problem(f"{name}.choices", show(choices), "a list of one or more values, each once"))
        for other in {"low", "high", "log"} & table.keys():
            problems.append(Problem(f"{name}.{other}", "it beside choices", "either choices, or low and high"))
    else:
        for end in ("low", "high"):
            value = table.get(end)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                problems.append(Problem(f"{name}.{end}", "nothing" if value is None else show(value), "a number"))
    if len(problems) > before:
        return None
    values = choices if choices is not None else [table["low"], table["high"]]
    if choices is None and table["low"] > table["high"]:
        problems.append(Problem(f"{name}.low", show(table["low"]), f"at most high, which is {table['high']:g}"))
    if choices is None and log and table["low"] <= 0:
        problems.append(Problem(f"{name}.low", show(table["low"]), "a number > 0 for a logarithmic range"))
    whole = False
    for key in keys:
        if not key.startswith(("pools.", "method.", "topology")):
            allowed = "a key under pools, method or topology: others change the problem, not its solution"
            problems.append(Problem(name, show(key), allowed))
            continue
        for value in values:
            changed = dotted.change(config, key, value, problems, name)
            whole |= changed is not None and type(dotted.get(changed, key)) is int
    if len(problems) > before:
        return None
    if choices is not None:
        return Range(keys, choices=tuple(choices))
    return Range(keys, *(int(end) if whole else float(end) for end in values), log=log)


def expand(config: Config, pattern: str) -> list[str]:
    """The keys that a name stands for: `pools.*.` is every pool.

    >>> from fedcodist import config
    >>> expand(config.read("quick/toy"), "pools.*.cohort")
    ['pools.small.cohort', 'pools.large.cohort']
    """
    every = "pools.*."
    return [f"pools.{name}.{pattern[len(every) :]}" for name in config.pools] if pattern.startswith(every) else [pattern]


def only(space: Space, patterns: Sequence[str]) -> Space:
    """The parameters whose name, or one of whose keys, matches one of these patterns; all of them where there is no pattern."""
    if not patterns:
        return space
    for pattern in patterns:
        if not any(_matches(name, range, pattern) for name, range in space.items()):
            hint = nearest(pattern, space)
            raise ConfigError(str(Problem("--only", show(pattern), f"a pattern that matches one of {', '.join(space)}", hint)))
    return {name: range for name, range in space.items() if any(_matches(name, range, pattern) for pattern in patterns)}


def _matches(name: str, range: Range, pattern: str) -> bool:
    return name == pattern or any(fnmatch.fnmatchcase(key, pattern) for key in (name, *range.keys))


def federated(space: Space) -> Space:
    """The parameters that plain FedAvg has too: these are tuned for a twin."""
    return {name: range for name, range in space.items() if all(map(is_federated, range.keys))}


def by_pool(space: Space, config: Config) -> dict[str, list[str]] | None:
    """{pool: its parameters}, where every parameter is of one pool and every pool has some; None elsewhere.

    >>> from fedcodist import config
    >>> base = config.read("quick/toy")
    >>> by_pool(preset(base, "rates"), base)  # its client rate is of both pools
    >>> by_pool(only(preset(base, "rates"), ["*.server.lr"]), base)
    {'small': ['pools.small.server.lr'], 'large': ['pools.large.server.lr']}
    """
    found: dict[str, list[str]] = {pool: [] for pool in config.pools}
    for name, range in space.items():
        pools = {pool for pool in found for key in range.keys if key.startswith(f"pools.{pool}.")}
        if len(pools) != 1:
            return None
        found[pools.pop()].append(name)
    return found if all(found.values()) else None


def without(space: Space, other: Space) -> Space:
    """The parameters that set no key of another space."""
    taken = {key for range in other.values() for key in range.keys}
    return {name: range for name, range in space.items() if not taken & set(range.keys)}


def is_federated(key: str) -> bool:
    """Whether rounds without codistillation depend on this key.

    >>> is_federated("pools.learns.work.lr"), is_federated("pools.small.learns.lr"), is_federated("method.alpha")
    (True, False, False)
    """
    return key.startswith("pools.") and not re.search(r"\.(learns|teaches)(\.\w+)?$", key)


def own(config: Config, space: Space) -> tuple[dict[str, Any], list[str]]:
    """The config's own values, each as the nearest value in the space, and a note for each that is not in the space itself: it is outside
    its range, or not the same for all keys."""
    values, notes = {}, []
    for name, range in space.items():
        found = [dotted.get(config, key) for key in range.keys]
        value = found[0]
        if range.choices:
            fits = canonical(value) in map(canonical, range.choices)
            values[name] = value if fits else range.choices[0]
        else:
            numeric = isinstance(value, int | float) and not isinstance(value, bool)
            values[name] = min(max(value, range.low), range.high) if numeric else range.low
            fits = numeric and values[name] == value
        if not fits or any(other != value for other in found):
            has = ", ".join(dict.fromkeys(f"{v:g}" if isinstance(v, float) else show(v) for v in found))
            notes.append(f"{name}: the config has {has}, which the space ({range}) cannot say; trial 0 is the config as it is")
    return values, notes


def apply(config: Config, space: Space, values: Mapping[str, Any]) -> Config:
    """The config with these values of the parameters."""
    for name, value in values.items():
        for key in space[name].keys:
            config = dotted.put(config, key, value)
    return config


def plain(space: Space) -> dict[str, Any]:
    """The space as a plain table."""
    return {name: dataclasses.asdict(range) for name, range in space.items()}
