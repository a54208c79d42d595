"""`fedcodist compare`: paired differences between runs that share seeds."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedcodist.cli.arguments import Once, Parser

HELP = "Show paired differences between runs that share seeds: every RUN is compared with the first."
EXAMPLE = "fedcodist compare runs/images/fedavg runs/images/merged"


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, or a directory of seeds")
    splits, said = ("test", "held_out", "personal_test", "personal_held_out"), "of all, or each client's own (default: test)"
    parser.add_argument("--split", choices=splits, default="test", action=Once, help=said)


def run(args: argparse.Namespace) -> int:
    """The verb."""
    from fedcodist.reports import compare, tables

    rows = compare.of_paths([Path(path) for path in args.runs], args.split)
    print(tables.render(compare.display_pairs(rows) if args.format not in ("json", "csv") else rows, args.format))
    return 0
