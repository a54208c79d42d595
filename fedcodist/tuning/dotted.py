"""One dotted key of a frozen config, such as `pools.small.work.lr`: its value, and the config with another one, checked as strictly as a
file."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable
from typing import Any

from fedcodist import settings
from fedcodist.config import Config, relations
from fedcodist.errors import ConfigError
from fedcodist.settings import Problem, SettingError, nearest


def put(config: Config, key: str, value: Any) -> Config:
    """The config with one dotted key set, checked like a file.

    >>> from fedcodist import config
    >>> put(config.read("quick/toy"), "pools.small.work.lr", 0.5).pools["small"].work.lr
    0.5
    """
    problems: list[Problem] = []
    changed = change(config, key, value, problems)
    if problems:
        raise ConfigError("\n".join(map(str, problems)))
    return changed


def get(config: Config, key: str) -> Any:
    """The plain value of a dotted key; a constant schedule is its number.

    >>> from fedcodist import config
    >>> get(config.read("quick/toy"), "method.alpha")
    0.7
    """
    value: Any = settings.plain(config)
    while key:
        name, key = _first(key, value if isinstance(value, dict) else ())
        value = value[name] if isinstance(value, dict) and name in value else None
    return value["value"] if isinstance(value, dict) and value.get("kind") == "constant" else value


def change(config: Config, key: str, value: Any, problems: list[Problem], where: str = "") -> Any:
    """The config with one dotted key set; None if that is not allowed, and then `problems` has why. `where` stands in for their paths."""
    found: list[Problem] = []
    changed = _changed(config, key, "", value, found)
    if not found:
        found += relations(changed)
    problems += [p._replace(path=where, got=f"{p.got} for {p.path}" if p.path != where else p.got) if where else p for p in found]
    return None if found else changed


def _changed(part: Any, rest: str, path: str, value: Any, problems: list[Problem]) -> Any:
    """The part with the rest of a dotted key set: dataclasses and tables of them are walked, the last field is read as in a file."""
    fields: Any = {f.name: f for f in dataclasses.fields(part)} if not isinstance(part, dict) else None
    known: Any = part if fields is None else fields
    name, rest = _first(rest, known)
    path = f"{path}.{name}" if path else name
    if name not in known:
        problems.append(Problem(path, "an unknown key", ", ".join(known), nearest(name, known)))
        return None
    if fields is None:
        if not rest:
            problems.append(Problem(path, "a whole pool", "a key of it"))
        return {**part, name: _changed(part[name], rest, path, value, problems)} if rest else None
    field, current = fields[name], getattr(part, name)
    nested = dataclasses.is_dataclass(current) or name == "pools"
    if rest and nested and not field.metadata.get("reader"):
        inner = _changed(current, rest, path, value, problems)
    else:
        table = _with(settings.plain(current), rest, path, value, problems) if rest else value
        inner = settings.read(typing.get_type_hints(type(part))[name], table, path, problems, field) if not problems else None
    if problems:
        return None
    try:
        return dataclasses.replace(part, **{name: inner})  # type: ignore[type-var]
    except SettingError as error:  # a relation between fields that the class itself checks
        problems += [p._replace(path=path) for p in error.problems]
        return None


def _with(table: Any, rest: str, path: str, value: Any, problems: list[Problem]) -> Any:
    known = table if isinstance(table, dict) else {}
    name, rest = _first(rest, known)
    if name not in known:
        problems.append(Problem(f"{path}.{name}", "an unknown key", ", ".join(known) or "no keys below it", nearest(name, known)))
        return None
    return {**table, name: _with(table[name], rest, f"{path}.{name}", value, problems) if rest else value}


def _first(key: str, names: Iterable[str]) -> tuple[str, str]:
    """The first name of a dotted key, and the rest. Names of pools may have dots, so the longest that fits is taken."""
    fits = [name for name in names if key == name or key.startswith(f"{name}.")]
    name = max(fits, key=len) if fits else key.partition(".")[0]
    return name, key[len(name) + 1 :]
