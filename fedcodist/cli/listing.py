"""`fedcodist list`: what can be named in a config."""

from __future__ import annotations

import argparse

from fedcodist.cli.arguments import Parser

HELP = "List what can be named in a config."
EXAMPLE = "fedcodist list losses"


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help="methods, rules, tasks, models, works, folds, servers, topologies, losses, schedules, engines, partitions, datasets "
        "or configs",
    )


def run(args: argparse.Namespace) -> int:
    """The verb."""
    from fedcodist.config import parts
    from fedcodist.reports import tables

    rows = parts.rows(args.what)
    print(parts.words(rows) if args.format == "table" else tables.render(rows, args.format))
    return 0
