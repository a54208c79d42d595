"""The settings files of a deployment: TOML, read as strictly as a config."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar, cast

from fedcodist import settings
from fedcodist.errors import ConfigError
from fedcodist.settings import Problem

T = TypeVar("T")


def read(kind: type[T], path: Path) -> T:
    """The settings of this kind in a file; ConfigError with a line for each problem."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(settings.one_line(f"{path}: got a file that cannot be read; allowed TOML ({error})")) from None
    problems: list[Problem] = []
    made = settings.read_part(kind, table, "", problems)
    if problems:
        raise ConfigError("\n".join(f"{problem} ({path})" for problem in problems))
    return cast("T", made)
