"""Frozen dataclasses that say what they allow, and the strict reading of plain tables into them.

A part of this package (a work, a model, a method ...) is a frozen dataclass; the same fields are its Python arguments and its TOML
keys. `setting` writes down the allowed range beside the default, `read` turns a table into the part, and everything that is wrong is
collected as a `Problem` instead of stopping at the first.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

Registry = Mapping[str, type]
T = TypeVar("T")


class Problem(NamedTuple):
    """One thing wrong with one field."""

    path: str
    got: str
    allowed: str
    hint: str = ""

    def __str__(self) -> str:
        return one_line(f"{self.path}: got {self.got}; allowed {self.allowed}" + (f" ({self.hint})" if self.hint else ""))


class SettingError(ValueError):
    """A part was given values that it does not allow."""

    def __init__(self, problems: list[Problem]):
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


def setting(default: Any = dataclasses.MISSING, *, gt=None, ge=None, lt=None, le=None, kinds=None, reader=None, silent=None) -> Any:
    """A dataclass field with its allowed range; or the registry that its `kind` key chooses from; or its own reader. A `silent` field is
    left out of a plain table while it has its default, so that configs keep the digests that they had before the field existed."""
    metadata = {"gt": gt, "ge": ge, "lt": lt, "le": le, "kinds": kinds, "reader": reader, "silent": silent}
    return dataclasses.field(default=default, metadata=metadata)


def check(part: Any) -> None:
    """Raise SettingError if a field of this dataclass is outside its range: for `__post_init__`."""
    hints = typing.get_type_hints(type(part))
    problems: list[Problem] = []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if _is_number(value) and _numeric(hints[field.name]):
            _check_range(value, field, hints[field.name], f"{type(part).__name__}.{field.name}", problems)
    if problems:
        raise SettingError(problems)


def checked(cls: type[T]) -> type[T]:
    """A class decorator: make the dataclass check its ranges however it is built."""

    def __post_init__(self: Any) -> None:
        check(self)

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    return cls


def read(want: Any, value: Any, path: str, problems: list[Problem], field: dataclasses.Field | None = None) -> Any:
    """The value as the wanted type; whatever does not fit goes to `problems`, and None comes back."""
    origin, args = typing.get_origin(want), typing.get_args(want)
    kinds = field.metadata.get("kinds") if field else None
    if field and field.metadata.get("reader"):
        return field.metadata["reader"](value, path, problems)
    if kinds is not None:
        return read_kind(kinds, value, path, problems, field.default if field else None)
    if origin in (typing.Union, types.UnionType):
        return _read_union(args, value, path, problems, field)
    if origin is Literal:
        if value not in args or isinstance(value, bool):
            names = [str(a) for a in args]
            problems.append(Problem(path, show(value), " | ".join(names), nearest(value, names)))
            return None
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            problems.append(Problem(path, show(value), "a list"))
            return None
        return tuple(read(args[0], v, f"{path}[{i}]", problems, field) for i, v in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            problems.append(Problem(path, show(value), "a table"))
            return None
        return {k: read(args[1], v, join(path, k), problems, field) for k, v in value.items()}
    if dataclasses.is_dataclass(want):
        return read_part(want, value, path, problems)
    return _read_scalar(want, value, path, problems, field)


def read_kind(kinds: Registry, value: Any, path: str, problems: list[Problem], default: Any = None) -> Any:
    """A part chosen by name: `"name"`, or a table with `kind = "name"` and the part's own fields. Fields of the default need no kind."""
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        problems.append(Problem(path, show(value), f"a name or a table with kind = {' | '.join(kinds)}"))
        return None
    if "kind" not in table and table and dataclasses.is_dataclass(default) and set(table) <= {f.name for f in dataclasses.fields(default)}:
        return read_part(type(default), table, path, problems)
    if "kind" not in table:
        problems.append(Problem(f"{path}.kind", "nothing", " | ".join(kinds)))
        return None
    kind = table["kind"]
    if not isinstance(kind, str) or kind not in kinds:
        where = path if isinstance(value, str) else f"{path}.kind"
        problems.append(Problem(where, show(kind), " | ".join(kinds), nearest(kind, kinds)))
        return None
    try:
        part = kinds[kind]
    except ImportError as error:  # of another package
        problems.append(Problem(path, show(kind), "a plugin that can be imported", str(error)))
        return None
    return read_part(part, {k: v for k, v in table.items() if k != "kind"}, path, problems)


def read_part(cls: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    """A dataclass from a table. Unknown keys are problems, with the nearest known name."""
    if not isinstance(value, dict):
        problems.append(Problem(path, show(value), "a table"))
        return None
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    before = len(problems)
    for key in value:
        if key not in fields:
            problems.append(Problem(join(path, key), "an unknown key", ", ".join(fields) or "no keys", nearest(key, fields)))
    given = {}
    for name, field in fields.items():
        if name in value:
            given[name] = read(hints[name], value[name], join(path, name), problems, field)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(Problem(join(path, name), "nothing", _describe(hints[name], field)))
    if len(problems) > before:
        return None
    try:
        return cls(**given)
    except SettingError as error:  # a relation between fields that the class itself checks
        problems.extend(Problem(join(path, p.path.split(".", 1)[-1]), *p[1:]) for p in error.problems)
        return None


def nearest(name: Any, known: Any) -> str:
    """`did you mean ...?`, or nothing."""
    close = difflib.get_close_matches(str(name), [str(k) for k in known], n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def number_hint(value: Any) -> str:
    """A hint for a number that was given as text."""
    if not isinstance(value, str):
        return ""
    if "," in value:
        return "write a decimal point, without quotes"
    return "write the number without quotes" if any(letter.isdigit() for letter in value) else ""


def show(value: Any) -> str:
    """A value as it may stand in a message: one short line without control characters."""
    try:
        text = ascii(value) if not isinstance(value, bool) else str(value).lower()
    except ValueError:  # Python does not write out integers of thousands of digits
        text = f"{type(value).__name__} of too many digits"
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(text: str) -> str:
    """The text with control characters and all that is not ASCII escaped, so that a message stays one line on every terminal."""
    return re.sub(r"[^ -~]", lambda odd: ascii(odd[0])[1:-1], text)


def join(path: str, key: str) -> str:
    """The dotted path of a key; odd keys are quoted so that a message stays one line."""
    key = key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else ascii(key)
    return f"{path}.{key}" if path else key


def plain(part: Any) -> Any:
    """The part as a plain table again: the inverse of `read`, for the resolved config and its digest."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        if table := getattr(part, "table", None):  # of a part whose keys are not its fields
            return plain(table())
        said = [f for f in dataclasses.fields(part) if f.init and not (f.metadata.get("silent") and getattr(part, f.name) == f.default)]
        table = {f.name: plain(getattr(part, f.name)) for f in said}
        kind = getattr(type(part), "kind", None)
        return {"kind": kind, **table} if kind else table
    if isinstance(part, dict):
        return {k: plain(v) for k, v in part.items()}
    if isinstance(part, list | tuple):
        return [plain(v) for v in part]
    return part


def leaves(table: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested tables under its dotted key. An empty table inside another is a value.

    >>> list(leaves({"method": {"alpha": 0.5}, "rounds": 3, "topology": {}}))
    [('method.alpha', 0.5), ('rounds', 3), ('topology', {})]
    """
    if isinstance(table, Mapping) and (table or not path):
        for key, inner in table.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, table


def _read_union(args: tuple, value: Any, path: str, problems: list[Problem], field: dataclasses.Field | None) -> Any:
    if value is None and type(None) in args:
        return None
    tries = []
    for want in (a for a in args if a is not type(None)):
        found: list[Problem] = []
        result = read(want, value, path, found, field)
        if not found:
            return result
        tries.append(found)
    problems.extend(min(tries, key=lambda found: (_shallow(found, path), len(found))))  # the alternative that was read furthest
    return None


def _shallow(found: list[Problem], path: str) -> bool:
    return any(p.path == path for p in found)


def _read_scalar(want: type, value: Any, path: str, problems: list[Problem], field: dataclasses.Field | None) -> Any:
    if want is float and _is_number(value):
        value = _float(value)
    elif not isinstance(value, want) or (isinstance(value, bool) and want is not bool):
        hint = number_hint(value) if want in (int, float) else ""
        problems.append(Problem(path, show(value), _describe(want, field), hint))
        return None
    if field is not None and _is_number(value):
        _check_range(value, field, want, path, problems)
    return value


def _check_range(value: Any, field: dataclasses.Field, want: Any, path: str, problems: list[Problem]) -> None:
    meta = field.metadata
    good = math.isfinite(_float(value))
    good &= meta.get("gt") is None or value > meta["gt"]
    good &= meta.get("ge") is None or value >= meta["ge"]
    good &= meta.get("lt") is None or value < meta["lt"]
    good &= meta.get("le") is None or value <= meta["le"]
    if not good:
        problems.append(Problem(path, show(value), _describe(want, field)))


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numeric(want: Any) -> bool:
    union = typing.get_origin(want) in (typing.Union, types.UnionType)
    return want in (int, float) or (union and not {int, float}.isdisjoint(typing.get_args(want)))


def _describe(want: Any, field: dataclasses.Field | None) -> str:
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    if typing.get_origin(want) is Literal:
        return " | ".join(str(a) for a in typing.get_args(want))
    if typing.get_origin(want) in (typing.Union, types.UnionType):
        want = next(a for a in typing.get_args(want) if a is not type(None))
    meta = field.metadata if field else {}
    if meta.get("kinds") is not None:
        return f"a name or a table with kind = {' | '.join(meta['kinds'])}"
    word = names.get(want, "a list" if typing.get_origin(want) is tuple else "a table")
    low = f">= {meta['ge']:g}" if meta.get("ge") is not None else f"> {meta['gt']:g}" if meta.get("gt") is not None else ""
    high = f"<= {meta['le']:g}" if meta.get("le") is not None else f"< {meta['lt']:g}" if meta.get("lt") is not None else ""
    return " ".join(filter(None, [word, " and ".join(filter(None, [low, high]))]))
