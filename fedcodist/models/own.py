"""A network of the user's own, named in a config: `model = { function = "mine:build", width = 32 }`.

The function is called as `build(shape, classes, **keys)` with all other keys of the table, and gives a `Model`: two pure functions, or
what an adapter made of another library's module (`fedcodist.models.from_flax` and so on).
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

from fedcodist import imports
from fedcodist.settings import Problem, SettingError, nearest, one_line, show
from fedcodist.types import Model, Spec

WANTED = "module:function, called with (shape, classes) and the other keys"


@dataclass(frozen=True)
class Own:
    """What `function` builds, given these keys."""

    kind: ClassVar[str] = "function"
    function: str
    keys: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_keys(self.keys, _found(self.function))

    def __hash__(self) -> int:  # it is part of a program's identity, as any model's description
        return hash((self.function, self._text))

    @property
    def _text(self) -> str:
        return json.dumps(self.keys, sort_keys=True)

    def table(self) -> dict[str, Any]:
        """As it stands in a config."""
        return {"function": self.function, **self.keys}

    def build(self, shape: tuple[int, ...], classes: int) -> Model:
        """For inputs of this shape. Raises SettingError if no Model comes back, or whatever the function raises."""
        return _built(self, _found(self.function), shape, classes)


@lru_cache  # one model for one description: equal experiments share compiled programs
def _built(own: Own, function: Callable[..., Any], shape: tuple[int, ...], classes: int) -> Model:
    made = function(shape, classes, **own.keys)
    if not isinstance(made, Model):
        allowed = "a Model, such as fedcodist.models.from_flax makes"
        raise SettingError([Problem("its result", f"a {type(made).__name__}", allowed)])
    return made._replace(spec=Spec(own, shape, classes)) if made.spec is None else made


def read_own(table: Mapping[str, Any], path: str, problems: list[Problem]) -> Own | None:
    """An own network from its table in a config."""
    try:
        return Own(table["function"], {key: value for key, value in table.items() if key not in ("function", "kind")})
    except SettingError as error:
        problems += [problem._replace(path=f"{path}.{problem.path}") for problem in error.problems]
        return None


def _found(name: Any) -> Callable[..., Any]:
    if not isinstance(name, str) or not all(name.partition(":")):
        raise SettingError([Problem("function", show(name), WANTED)])
    os.environ.setdefault("KERAS_BACKEND", "jax")  # for a module that imports Keras, which would look for TensorFlow otherwise
    try:
        return imports.function(name)
    except ValueError as error:
        raise SettingError([Problem("function", f"{show(name)}, {error}", WANTED)]) from None
    except Exception as error:  # of the user's module
        raise SettingError([Problem("function", f"{show(name)}, whose module raised {told(error)}", WANTED)]) from None


def _check_keys(keys: Mapping[str, Any], function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # of some built-in functions
        return
    known = list(signature.parameters.values())
    if (
        not any(p.kind is p.VAR_POSITIONAL for p in known)
        and sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in known) < 2
    ):
        raise SettingError([Problem("function", f"a function of {signature}", "a function of (shape, classes) and the other keys")])
    named = {p.name: p for p in known[2:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    anything = any(p.kind is p.VAR_KEYWORD for p in known)
    wrong = [] if anything else [key for key in keys if key not in named]
    problems = [Problem(key, "an unknown key", ", ".join(["function", *named]), nearest(key, named)) for key in wrong]
    problems += [Problem(key, "nothing", "a value: the function has no default") for key, p in named.items() if _open(p, keys)]
    if problems:
        raise SettingError(problems)


def _open(parameter: inspect.Parameter, keys: Mapping[str, Any]) -> bool:
    return parameter.default is parameter.empty and parameter.name not in keys


def told(error: BaseException) -> str:
    """What somebody's code raised, on one line.

    >>> told(KeyError("a"))
    "KeyError: 'a'"
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return one_line(f"{type(error).__name__}: {lines[0][:200]}".rstrip(": "))
