"""`fedcodist init`: a commented config to start from."""

from __future__ import annotations

import argparse

from fedcodist.cli.arguments import Once, Parser

HELP = "Write a commented config to start from; with --data, inspect your own file and write a config for it."
EXAMPLE = "fedcodist init --data sensors.csv --out sensors.toml"


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument("--data", action=Once, metavar="FILE", help="a .csv, .npz or Parquet file, a saved data set, or a folder of images")
    parser.add_argument("--out", action=Once, default="fedcodist.toml", metavar="FILE", help="the config (default: fedcodist.toml)")
    parser.add_argument(
        "--y", action=Once, metavar="NAME", help="the column of labels (default: a column with a usual name, such as label)"
    )
    parser.add_argument(
        "--client",
        action=Once,
        metavar="NAME",
        help="the column of clients (default: a column with a usual name; without one, rows are divided among clients)",
    )


def run(args: argparse.Namespace) -> int:
    """The verb."""
    from fedcodist.config import starter

    for line in starter.write(args.out, args.data, y=args.y, client=args.client):
        print(line)
    print(f"{args.out}: next, fedcodist run {args.out} --twin --seeds 0,1,2")
    return 0
