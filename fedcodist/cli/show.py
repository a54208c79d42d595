"""`fedcodist show`: what a config will cost."""

from __future__ import annotations

import argparse
import json

from fedcodist.cli.arguments import Parser, read_config

HELP = "What a config will cost: parameters, bytes, FLOPs, time. Trains nothing. --config-only prints the resolved config."
EXAMPLE = "fedcodist show quick/images --set rounds=100"


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument("--config-only", action="store_true", help="print the resolved config as JSON and stop")


def run(args: argparse.Namespace) -> int:
    """The verb."""
    from fedcodist import config
    from fedcodist.reports import planned, tables
    from fedcodist.runs import plan

    resolved = read_config(args)
    if args.config_only:
        print(json.dumps(config.plain(resolved), indent=2))
        return 0
    costs = plan.plan(config.build(resolved, 0, args.clamp))
    if args.format == "json":
        print(json.dumps({"config": config.plain(resolved), **costs}, indent=2))
    elif args.format == "table":
        print(planned.words(resolved, costs))
    else:
        print(tables.render(costs["pools"], args.format))
    return 0
