"""What the verbs share: their parser, groups of arguments, reading these, and preparing JAX."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from typing import Any, NoReturn

from fedcodist.errors import ConfigError
from fedcodist.reports.tables import FORMATS
from fedcodist.settings import one_line


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, the nearest flag for a typo, and no flag twice."""

    def error(self, message: str) -> NoReturn:
        known = [flag for action in self._actions for flag in action.option_strings]
        wrong = re.search(r"unrecognized arguments: ([^\s=]+)", message)
        if chosen := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            wrong, known = chosen, re.findall(r"[\w-]+", chosen[2])
        close = difflib.get_close_matches(wrong[1], known, n=1) if wrong else []
        hint = f"; did you mean {close[0]}?" if close else f"; see {self.prog} --help"
        raise ConfigError(one_line(f"{self.prog}: {message}{hint}"))


class Once(argparse.Action):
    """A flag that may be given once; argparse would silently take the last."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        seen = namespace.__dict__.setdefault("_seen", set())
        if self.dest in seen:
            parser.error(f"{option_string} is given twice")
        seen.add(self.dest)
        setattr(namespace, self.dest, values)


def shared() -> Parser:
    """What every verb takes."""
    group = Parser(add_help=False)
    group.add_argument("--debug", action="store_true", help="show tracebacks")
    group.add_argument("--errors", choices=("text", "json"), default="text", action=Once, help="how failures are printed (default: text)")
    group.add_argument("--quiet", action="store_true", help="no progress and no notes; warnings are shown all the same")
    return group


def shown() -> Parser:
    """What a verb takes that prints data."""
    group = Parser(add_help=False)
    group.add_argument("--format", choices=FORMATS, default="table", action=Once, help="of the data on stdout (default: table)")
    return group


def configured() -> Parser:
    """What a verb takes that reads a config."""
    group = Parser(add_help=False)
    group.add_argument("config", metavar="CONFIG", help="a TOML file, or a shipped config by name, such as quick/images")
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key, as in method.alpha=0.7; may be repeated"
    )
    group.add_argument("--clamp", action="store_true", help="shrink cohorts and batches that are larger than the data")
    return group


def running() -> Parser:
    """What a verb takes that trains."""
    group = Parser(add_help=False)
    group.add_argument("--out", default="runs", action=Once, metavar="DIR", help="where runs are kept (default: runs)")
    group.add_argument("--seeds", action=Once, metavar="LIST", help="such as 0, 0,1,2 or 0-4 (default: the config's)")
    group.add_argument("--workers", type=int, action=Once, metavar="N", help="threads (default: one a core); changes no result")
    group.add_argument("--tensorboard", action="store_true", help="keep a TensorBoard event file in each run directory; changes no result")
    return group


def read_config(args: argparse.Namespace) -> Any:
    """The config that the arguments name, with what they override."""
    from fedcodist import config

    assignments = list(args.set)
    if getattr(args, "workers", None) is not None:
        assignments.append(f"engine.workers={args.workers}")
    if getattr(args, "name", None) is not None:
        assignments.append(f"name={json.dumps(args.name)}")
    return config.read(args.config, assignments)


def tell_warnings(config: Any) -> list[str]:
    """Print what a config allows but is hardly meant; `--quiet` does not hide it."""
    from fedcodist.config import warnings

    found = warnings(config)
    for warning in found:
        print(f"warning: {warning}", file=sys.stderr)
    return found


def parse_seeds(text: str) -> list[int]:
    """Seeds from a list of numbers and ranges.

    >>> parse_seeds("0,3-5")
    [0, 3, 4, 5]
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,19})(?:-(\d{1,19}))?\s*", part)
        if not match or int(match[2] or match[1]) >= 2**63 or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"--seeds: got {part!r}; allowed integers from 0 to 2**63 - 1, as in 0, 0,1,2 or 0-4")
        if int(match[2] or match[1]) - int(match[1]) >= 10_000:
            raise ConfigError(f"--seeds: got {part!r}; allowed at most 10000 seeds")
        seeds += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds: got {text!r}; allowed each seed once")
    return seeds


def prepare_jax() -> None:
    """Keep freed memory for reuse, and compiled programs on disk."""
    from fedcodist.runs import memory, programs

    memory.keep()
    programs.keep()
