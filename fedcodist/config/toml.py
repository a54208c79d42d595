"""TOML as it came from the user: the table, where each key stands, and `--set` on top of it.

The standard library's parser does the reading and refuses duplicates; it does not say where a value stands, so keys are found again by
their line. That is exact for one key a line, which is how TOML is written; anything else falls back to the line of the key around it.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from fedcodist.errors import ConfigError
from fedcodist.settings import one_line, show

MAX_BYTES = 2**20
MAX_DEPTH = 16
_HEADER = re.compile(r"\s*\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")


class Source(NamedTuple):
    """A parsed file."""

    name: str
    table: dict[str, Any]
    lines: dict[str, int]  # {dotted key: line}

    def where(self, path: str) -> str:
        """`file:line` of a dotted key, or of the nearest key around it."""
        parts = path.replace("[", ".").split(".")
        for end in range(len(parts), 0, -1):
            line = self.lines.get(".".join(parts[:end]))
            if line is not None:
                return f"{self.name}:{line}" if line else "--set"
        return self.name


def read(path: Path) -> Source:
    """A config file: a UTF-8 text of at most 1 MiB. BOM and CRLF are accepted."""
    name = one_line(str(path))
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ConfigError(
            f"{name}: {getattr(error, 'strerror', None) or error}; allowed a TOML file, or one of `fedcodist list configs`"
        ) from None
    if not stat.S_ISREG(kind):
        raise ConfigError(f"{name}: got a {'directory' if stat.S_ISDIR(kind) else 'special file'}; allowed a TOML file")
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from None
    return parse(data, name)


def parse(data: bytes, name: str) -> Source:
    """The table and the lines of a config's bytes."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name}: got more than 1 MiB; allowed a config of at most 1 MiB")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: got a byte that is not UTF-8 at offset {error.start}; allowed UTF-8 text") from None
    if not text.strip():
        raise ConfigError(f"{name}: the config is empty; see `fedcodist show quick/images` for an example")
    lines, first = find_lines(text)
    try:
        table = tomllib.loads(text)
    except ValueError as error:  # of the parser, or of Python for an integer of thousands of digits
        said = str(error)
        line = re.search(r"at line (\d+)", said)
        again = first.get(int(line[1])) if line else None
        said = said.replace("Cannot overwrite a value", "a key is given twice") + (f", first in line {again}" if again else "")
        at = f"{name}:{line[1]}" if line else name
        raise ConfigError(f"{at}: not TOML: {one_line(said)[:200]}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply; allowed {MAX_DEPTH} levels") from None
    if _depth(table) > MAX_DEPTH:
        raise ConfigError(f"{name}: nested too deeply; allowed {MAX_DEPTH} levels")
    return Source(name, table, lines)


def find_lines(text: str) -> tuple[dict[str, int], dict[int, int]]:
    """{dotted key: its line}, and {line: the earlier line of the same key} for keys given twice."""
    lines: dict[str, int] = {}
    twice: dict[int, int] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = _dotted(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            path = f"{table}.{_dotted(key[1])}" if table else _dotted(key[1])
            if path in lines:
                twice[number] = lines[path]
            lines.setdefault(path, number)
            for inner in re.finditer(r"[{,]\s*([A-Za-z0-9_-]+)\s*=", line[key.end() :]):
                lines.setdefault(f"{path}.{inner[1]}", number)
    return lines, twice


def assigned(assignments: list[str]) -> dict[str, Any]:
    """The table that `--set KEY=VALUE` makes by itself.

    >>> assigned(["a.b=1"])
    {'a': {'b': 1}}
    """
    return override(Source("--set", {}, {}), assignments).table


def override(source: Source, assignments: list[str]) -> Source:
    """The source with every `a.b=value` on top. A value is read as TOML; what is no TOML is a string."""
    table = _copy(source.table)
    lines, own = dict(source.lines), set[str]()
    for given in assignments:
        key, equals, text = given.partition("=")
        key, text = key.strip(), text.strip()
        if not equals or not text or not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", key):
            raise ConfigError(f"--set: got {show(given)}; allowed KEY=VALUE with a dotted key, as in --set method.alpha=0.7")
        try:
            value = tomllib.loads(f"v = {text}")["v"]
        except (ValueError, RecursionError):
            value = text
        if _depth(value) > MAX_DEPTH:
            raise ConfigError(f"--set: got {show(given)}; nested too deeply; allowed {MAX_DEPTH} levels")
        *outer, last = key.split(".")
        inside = table
        for name in outer:
            if isinstance(inside.get(name), str):
                inside[name] = {"kind": inside[name]}  # a kind by its name alone is a table with that kind
            inside = inside.setdefault(name, {})
            if not isinstance(inside, dict):
                raise ConfigError(f"--set: got {show(given)}; {name} is no table")
        if last == "kind" and inside.get("kind", value) != value:
            for name in [name for name in inside if ".".join([*outer, name]) not in own]:
                del inside[name]  # as in a file: a table of another kind replaces the other whole, but nothing that was set here is lost
        inside[last] = value
        lines[key] = 0
        own.add(key)
    return Source(source.name, table, lines)


def _dotted(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _depth(value: Any, most: int = MAX_DEPTH + 1) -> int:
    """How deep a value is nested; who is deeper than `most` is not looked into further."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + (max((_depth(v, most - 1) for v in inner), default=0) if most else 0)


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, dict) else value


def text(table: Any) -> str:
    """A plain table as TOML: single values first, then a section a table; `pools` and its like get a section for each entry.

    >>> print(text({"rounds": 2, "task": {"kind": "a"}, "pools": {"s": {"cohort": 1, "model": {"kind": "m"}}}}))
    rounds = 2
    task = { kind = "a" }
    <BLANKLINE>
    [pools.s]
    cohort = 1
    model = { kind = "m" }
    """
    if not isinstance(table, dict):
        return ""
    top, sections = [], []
    for key, value in table.items():
        if isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):
            sections += [(f"{bare(key)}.{bare(name)}", inner) for name, inner in value.items()]
        elif isinstance(value, dict) and any(isinstance(v, dict) for v in value.values()):
            sections.append((bare(key), value))
        elif value is not None:  # TOML has no null: a key that is not set is left out
            top.append(f"{bare(key)} = {inline(value)}")
    blocks = ["\n".join(top)] if top else []
    for head, inner in sections:
        blocks.append("\n".join([f"[{head}]", *(f"{bare(k)} = {inline(v)}" for k, v in inner.items() if v is not None)]))
    return "\n\n".join(blocks)


def bare(key: Any) -> str:
    """A key as TOML writes it, in quotes where it must be."""
    return str(key) if re.fullmatch(r"[A-Za-z0-9_-]+", str(key)) else json.dumps(str(key), ensure_ascii=False)


def inline(value: Any) -> str:
    """A value on one line. TOML has no null: a key without a value is left out.

    >>> inline({"kind": "kl", "weights": (1, 0.5), "gate": None})
    '{ kind = "kl", weights = [1, 0.5] }'
    """
    if isinstance(value, dict):
        inner = ", ".join(f"{bare(k)} = {inline(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
