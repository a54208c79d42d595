"""Strict reading of a config from TOML: `read` collects all that is wrong, each with its file and line.

A file may be `like` another one, and a pool like another pool; what is inherited is resolved before anything is checked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedcodist import settings, topology
from fedcodist.config import toml
from fedcodist.config.schema import Config
from fedcodist.engines import private
from fedcodist.errors import ConfigError
from fedcodist.rule import Average
from fedcodist.settings import Problem
from fedcodist.storage.durable import NAME

MAX_PROBLEMS = 20


def read(path: str | Path, assignments: Sequence[str] = ()) -> Config:
    """The config in a file, or a shipped one by its name such as quick/images. Raises ConfigError with everything that is wrong."""
    source = toml.override(_source(path), list(assignments))
    problems: list[Problem] = []
    inherited: set[str] = set()
    table = dict(source.table)
    table.setdefault("name", Path(source.name).stem)
    if isinstance(table.get("pools"), dict):
        table["pools"], inherited = _inherit(table["pools"], problems)
    config = settings.read_part(Config, table, "", problems)
    problems = [
        p for p in problems if not any(p.path == key or p.path.startswith(f"{key}.") for key in inherited)
    ]  # told once, at its source
    problems = [_meant(p, table.get("pools")) for p in problems]
    if config is not None:
        problems += relations(config)
    if problems or config is None:
        raise ConfigError("\n".join(_say(problems, source)))
    return config


def shipped() -> dict[str, Path]:
    """The configs that come with the package: {name: path}. Those under `tuned` are only parts, which `reproduce` lays over others."""
    root = Path(str(resources.files("fedcodist") / "configs"))
    whole = [path for path in sorted(root.rglob("*.toml")) if path.parent.name != "tuned"]
    return {str(path.relative_to(root).with_suffix("")): path for path in whole}


def _source(path: str | Path, seen: tuple[str, ...] = ()) -> toml.Source:
    """A file or a shipped config, on top of the config that it is `like`, key by key; pools go by name."""
    known = shipped()
    if str(path) in known and not Path(path).is_file():
        source = toml.parse(known[str(path)].read_bytes(), str(path))
    else:
        try:
            source = toml.read(Path(path))
        except ConfigError as error:
            hint = settings.nearest(path, known)
            raise ConfigError(f"{error}{f' ({hint})' if hint else ''}") from None
    if "like" not in source.table:
        return source
    other = source.table.pop("like")
    where = source.where("like")
    if not isinstance(other, str) or len(seen) >= 8:
        raise ConfigError(f"like: got {settings.show(other)}; allowed a shipped config or a path beside this one, no cycle ({where})")
    base = _source(other if other in known else Path(path).parent / other, (*seen, str(path))).table
    table = {**base, **{key: _over(base.get(key), value) for key, value in source.table.items()}}
    if isinstance(pools := source.table.get("pools"), dict) and isinstance(known_pools := base.get("pools"), dict):
        table["pools"] = {**known_pools, **{name: _over(known_pools.get(name), pool) for name, pool in pools.items()}}
    return source._replace(table=table)


def _over(base: Any, given: Any) -> Any:
    """A table on top of another, key by key; one that says its own `kind`, or whom it is `like`, replaces the other whole."""
    both = isinstance(base, dict) and isinstance(given, dict)
    return {**base, **given} if both and not {"kind", "like"} & given.keys() else given


def _meant(problem: Problem, pools: Any) -> Problem:
    """A pool without a model is most often another one's name, misspelt: then that is said too."""
    name = problem.path.removeprefix("pools.").removesuffix(".model")
    if problem.path != f"pools.{name}.model" or problem.got != "nothing" or not isinstance(pools, dict):
        return problem
    return problem._replace(
        hint=problem.hint
        or settings.nearest(name, [other for other, given in pools.items() if isinstance(given, dict) and "model" in given])
    )


def _say(problems: list[Problem], source: toml.Source) -> list[str]:
    lines = [
        settings.one_line(
            f"{p.path or 'config'}: got {p.got}; allowed {p.allowed} ({source.where(p.path)})" + (f" {p.hint}" if p.hint else "")
        )
        for p in problems
    ]
    if len(lines) > MAX_PROBLEMS:
        lines[MAX_PROBLEMS:] = [f"config: got {len(lines) - MAX_PROBLEMS} more problems; allowed none ({source.name})"]
    return lines


def _inherit(pools: dict[str, Any], problems: list[Problem]) -> tuple[dict[str, Any], set[str]]:
    """Each pool with the keys of the pool that it is `like`, and the dotted keys that it only has from there."""
    inherited: set[str] = set()

    def resolve(name: str, seen: tuple[str, ...]) -> dict[str, Any]:
        given = pools[name]
        if not isinstance(given, dict) or "like" not in given:
            return given
        other = given["like"]
        rest = {k: v for k, v in given.items() if k != "like"}
        if other in (*seen, name) or not isinstance(other, str) or other not in pools:
            allowed = [p for p in pools if p not in (*seen, name)]
            problems.append(Problem(f"pools.{name}.like", settings.show(other), " | ".join(allowed) or "nothing"))
            return rest
        base = resolve(other, (*seen, name))
        if not isinstance(base, dict):
            return rest
        inherited.update(settings.join(settings.join("pools", name), key) for key in base if key not in rest)
        return {**base, **rest}

    return {name: resolve(name, ()) for name in pools}, inherited


def relations(config: Config) -> list[Problem]:
    """What single fields cannot know."""
    found = []
    names = list(config.pools)
    if not re.fullmatch(NAME, config.name):
        found.append(Problem("name", settings.show(config.name), f"a name that matches {NAME}"))
    if len(set(config.seeds)) < len(config.seeds):
        found.append(Problem("seeds", settings.show(list(config.seeds)), "each seed once"))
    for name in names:
        if not re.fullmatch(NAME, name):
            found.append(Problem(settings.join("pools", name), "a pool of this name", f"a name that matches {NAME}"))
    found += config.method.problems(names) or ([] if names else [Problem("pools", "0 of them", "at least one pool")])
    if not found and config.method.leaps and not any(config.method.students(names, t) for t in range(1, config.rounds + 1)):
        got, allowed = f"no codistillation in the {config.rounds} rounds of the run", "at least one: a shorter period, or more rounds"
        found.append(Problem("method", got, allowed))
    if isinstance(config.topology, dict):
        found += topology.problems(config.topology, names)
    elif config.topology not in ("auto", *topology.TOPOLOGIES):
        allowed = ("auto", *topology.TOPOLOGIES)
        hint = settings.nearest(config.topology, allowed)
        found.append(Problem("topology", settings.show(config.topology), f"{' | '.join(allowed)}, or a table", hint))
    found += config.faults.problems(names)
    found += private.problems(config.privacy, config.pools, config.method)
    if config.method.personal and not (config.personal.held_out and config.personal.test):
        allowed = f"held_out and test above 0: models of {config.method.kind} live at the clients, and are measured on their own data"
        found.append(Problem("personal", settings.show(settings.plain(config.personal)), allowed))
    for name, pool in config.pools.items():
        choice = pool.clients
        if sum(bool(c) for c in (choice.take, choice.share, choice.ids)) > 1:
            found.append(Problem(f"pools.{name}.clients", "more than one of them", "one of take, share, ids"))
        if config.method.asks and pool.rule != Average():
            allowed = f"average: {config.method.kind} asks the clients itself"
            found.append(Problem(f"pools.{name}.rule", type(pool.rule).kind, allowed))
        if config.method.distill is not None and not pool.rule.teachable:
            allowed = f"a rule whose model can be taught: {config.method.kind} distils"
            found.append(Problem(f"pools.{name}.rule", type(pool.rule).kind, allowed))
    return found
