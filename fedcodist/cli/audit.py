"""`fedcodist audit`: is this public data any good?"""

from __future__ import annotations

import argparse
import json

from fedcodist.cli import arguments
from fedcodist.cli.arguments import Once, Parser, read_config
from fedcodist.errors import ConfigError

HELP = (
    "Is this public data any good? Duplicates, distance from the clients' data, what teachers say of it after a few rounds, and what a "
    "short lesson on it gives. The exit code is 3 if there is a warning."
)
EXAMPLE = "fedcodist audit quick/images --rounds 20 --sizes 600,3000,all"


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument(
        "--rounds", type=int, default=10, action=Once, metavar="N", help="of FedAvg before the probe's lesson (default: 10)"
    )
    parser.add_argument("--after", type=int, default=5, action=Once, metavar="N", help="of FedAvg after it (default: 5)")
    parser.add_argument(
        "--sizes", default="600,3000,all", action=Once, metavar="LIST", help="public rows of each lesson (default: 600,3000,all)"
    )
    parser.add_argument("--steps", type=int, default=200, action=Once, metavar="N", help="of each lesson (default: 200)")
    parser.add_argument("--no-probe", action="store_true", help="train nothing: look at the rows only")
    parser.add_argument("--seeds", default="0,1,2", action=Once, metavar="LIST", help="of the probe (default: 0,1,2)")


def run(args: argparse.Namespace) -> int:
    """The verb."""
    resolved = read_config(args)
    sizes = _sizes(args.sizes)
    for flag, value, least in (
        ("--rounds", args.rounds, 1),
        ("--after", args.after, 1),
        ("--steps", args.steps, 1),
    ):
        if value < least:
            raise ConfigError(f"{flag}: got {value}; allowed an integer >= {least}")
    if not args.no_probe and args.rounds + args.after > resolved.rounds:
        raise ConfigError(
            f"--rounds: got {args.rounds}, and {args.after} after them; allowed {resolved.rounds} in all, the config's rounds"
        )
    arguments.prepare_jax()
    from fedcodist import config
    from fedcodist.audit import audit
    from fedcodist.audit.lessons import Probe
    from fedcodist.reports import audited, progress, tables

    seeds = arguments.parse_seeds(args.seeds)
    experiments = [config.build(resolved, seed, args.clamp) for seed in (seeds[:1] if args.no_probe else seeds)]
    probe = None if args.no_probe else Probe(args.rounds, args.after, sizes, args.steps)
    with progress.counting(args.quiet) as tell:
        found = audit.audit(experiments, probe, lambda done, many: tell(done, many, "rounds of the probe"))
    if args.format == "json":
        print(json.dumps(found._asdict(), indent=2))
    elif args.format == "table":
        print(audited.words(resolved.name, found, probe, len(seeds)))
    else:
        print(tables.render(found.gains or found.repeated, args.format))
    return 3 if found.warnings else 0


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(0 if part.strip() == "all" else int(part) for part in text.split(","))
    except ValueError:
        sizes = (-1,)
    if not sizes or any(size < 0 for size in sizes) or ("0" in (part.strip() for part in text.split(","))):
        raise ConfigError(f"--sizes: got {text!r}; allowed numbers of rows and `all`, such as 600,3000,all")
    return sizes
