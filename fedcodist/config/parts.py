"""What can be named in a config: one row for each, with its fields and their defaults."""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from typing import Any

from fedcodist import config, settings, topology
from fedcodist.data.datasets import DATASETS
from fedcodist.data.partition import PARTITIONS
from fedcodist.errors import ConfigError
from fedcodist.folds import FOLDS
from fedcodist.methods import METHODS
from fedcodist.models import MODELS
from fedcodist.rules import RULES
from fedcodist.schedule import SCHEDULES
from fedcodist.servers import SERVERS
from fedcodist.tasks import TASKS
from fedcodist.techniques import LOSSES
from fedcodist.work import WORKS

PARTS: dict[str, Any] = {
    "methods": METHODS,
    "rules": RULES,
    "tasks": TASKS,
    "models": MODELS,
    "works": WORKS,
    "folds": FOLDS,
    "servers": SERVERS,
    "topologies": topology.TOPOLOGIES,
    "losses": LOSSES,
    "schedules": SCHEDULES,
    "engines": config.ENGINES,
    "partitions": PARTITIONS,
    "datasets": DATASETS,
}


def rows(what: str | None = None) -> list[dict[str, str]]:
    """Of one kind of part, or of all."""
    kinds = [*PARTS, "configs"]
    if what is not None and what not in kinds:
        hint = settings.nearest(what, kinds)
        raise ConfigError(f"list: got {settings.show(what)}; allowed {', '.join(kinds)}" + (f" ({hint})" if hint else ""))
    found = []
    for kind in [what] if what else kinds:
        if kind == "configs":
            found += [{"what": kind, "name": name, "is": _header(path), "keys": ""} for name, path in config.shipped().items()]
        else:
            found += [{"what": kind, "name": name, **_described(PARTS[kind], name)} for name in PARTS[kind]]
    return found


def _described(parts: Any, name: str) -> dict[str, str]:
    try:
        return {"is": _first(parts[name]), "keys": _fields(parts[name])} | _needs(parts[name])
    except ImportError as error:  # a plugin that is broken must not hide the others
        return {"is": settings.one_line(f"cannot be imported: {error}"), "keys": ""}


def _needs(part: Any) -> dict[str, str]:
    """What a method, a rule or a loss consumes beyond the clients' own training, and whether it fits secure aggregation, if it says so."""
    if not hasattr(part, "consumes") or not hasattr(part, "secure"):
        return {}
    needs = [*part.consumes, *filter(None, [getattr(part, "needs", "")])]
    return {"consumes": ", ".join(needs) or "nothing more", "secure": "yes" if part.secure else "no"}


def _first(part: Any) -> str:
    return " ".join((part.__doc__ or "").strip().split("\n\n")[0].split())


def _fields(part: Any) -> str:
    if not dataclasses.is_dataclass(part):
        return ""
    said = []
    for field in dataclasses.fields(part):
        default = None if field.default is dataclasses.MISSING else settings.plain(field.default)
        said.append(f"{field.name}={default}" if isinstance(default, int | float | str) else field.name)
    return ", ".join(said)


def _header(path: Any) -> str:
    lines = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("# ") or "Run it:" in line:  # a line without words ends what it is
            break
        lines.append(line.lstrip("# ").strip())
    return " ".join(lines)


def words(rows: list[dict[str, str]]) -> str:
    """Rows for eyes: a name, what it is, and its keys, within a terminal's width. Where there is more than configs, these are counted."""
    groups = Counter(row["name"].partition("/")[0] for row in rows if row["what"] == "configs")
    if any(row["what"] != "configs" for row in rows):
        rows = [row for row in rows if row["what"] != "configs"]
        counted = ", ".join(f"{many} of {group}" for group, many in groups.items())
        rows += [{"what": "configs", "name": "", "is": f"{counted}; fedcodist list configs names them", "keys": ""}] if groups else []
    lines, last = [], ""
    for row in rows:
        if row["what"] != last:
            last = row["what"]
            lines += ["", last] if lines else [last]
        indent, name = " " * 20, row["name"]
        if len(name) > 17:
            lines, name = [*lines, f"  {name}"], ""
        lines += textwrap.wrap(row["is"], 100, initial_indent=f"  {name:<17} ", subsequent_indent=indent)
        lines += textwrap.wrap(row["keys"] and f"keys: {row['keys']}", 100, initial_indent=indent, subsequent_indent=indent + "      ")
        if "consumes" in row:
            lines.append(f"{indent}consumes: {row['consumes']}; fits secure aggregation: {row['secure']}")
    return "\n".join(lines)
