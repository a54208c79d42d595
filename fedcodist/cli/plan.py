"""`fedcodist plan`: what a federation would ask of each kind of device, before anything is trained."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fedcodist.cli import arguments
from fedcodist.cli.arguments import Once, Parser, read_config

HELP = (
    "What a federation would ask of each kind of device and of the server: bytes, operations, memory, seconds, and which devices could "
    "carry which model. Nothing is trained."
)
EXAMPLE = "fedcodist plan quick/images --devices mine.csv --picture plan.png"


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument(
        "--devices",
        action=Once,
        metavar="FILE",
        help="your park of devices as CSV: device, share, memory_mb, gflops, down_mbps, up_mbps, source (default: a table of this package)",
    )
    parser.add_argument(
        "--efficiency", type=float, default=0.1, action=Once, metavar="X", help="share of its peak at which a device trains (default: 0.1)"
    )
    parser.add_argument(
        "--memory-share", type=float, default=0.25, action=Once, metavar="X", help="share of its memory for training (default: 0.25)"
    )
    parser.add_argument(
        "--deadline", type=float, default=600.0, action=Once, metavar="SECONDS", help="that a round may take (default: 600)"
    )
    parser.add_argument("--picture", action=Once, metavar="FILE", help="draw cost against reach, as FILE.png and FILE.svg")


def run(args: argparse.Namespace) -> int:
    """The verb."""
    from fedcodist import config
    from fedcodist.runs import clock, devices, fleet

    park = devices.read(args.devices) if args.devices else devices.shipped()
    assumed = fleet.Assumed(args.efficiency, args.memory_share, args.deadline)
    resolved = read_config(args)
    arguments.prepare_jax()
    from fedcodist.reports import fleet as shown
    from fedcodist.reports import planned, tables

    found = fleet.fleet(config.build(resolved, 0, args.clamp), park, assumed)
    if args.picture:
        shown.draw(found, Path(args.picture).with_suffix(""))
    if args.format == "json":
        print(json.dumps({"config": config.plain(resolved), **found}, indent=2))
    elif args.format == "table":
        where = args.devices or "the table of this package"
        print(shown.words(resolved, found, park, where, planned.takes(resolved, clock.recall(resolved))))
    else:
        print(tables.render(found["devices"], args.format))
    return 0
