"""`fedcodist show`: what a config will cost."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from fedcodist.cli import arguments
from fedcodist.cli.arguments import Parser, read_config

HELP = (
    "Show what a config will cost: parameters, bytes, FLOPs, time. A few rounds are timed on a state that is discarded, unless this "
    "machine's times of such programs are known. --config-only prints the resolved config."
)
EXAMPLE = "fedcodist show quick/images --set rounds=100"


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument("--config-only", action="store_true", help="print the resolved config as JSON and stop")
    parser.add_argument("--no-timing", action="store_true", help="do not time any round; the time is shown only if it is already known")


def run(args: argparse.Namespace) -> int:
    """The verb."""
    from fedcodist import config

    resolved = read_config(args)
    warnings = arguments.tell_warnings(resolved)
    if args.config_only:
        print(json.dumps(config.plain(resolved), indent=2))
        return 0
    arguments.prepare_jax()
    from fedcodist.reports import planned, tables
    from fedcodist.runs import clock, plan

    experiment = config.build(resolved, 0, args.clamp)
    costs, times, why = plan.plan(experiment), clock.recall(resolved), " without timing"
    if not args.no_timing and args.format in ("table", "json"):
        times, why = _measured(experiment, times, args.quiet)
    if args.format == "json":
        total = times.total(clock.parts(resolved)) if times else None
        seconds = {"seconds": total[0] if total else None, "cpu_seconds": total[1] if total else None}
        told = {**costs, "total": costs["total"] | seconds, "times": dataclasses.asdict(times) if times else None}
        print(json.dumps({"config": config.plain(resolved), **told, "warnings": warnings}, indent=2))
    elif args.format == "table":
        print(planned.words(resolved, costs, times, why))
    else:
        print(tables.render(costs["pools"], args.format))
    return 0


def _measured(experiment: Any, known: Any, quiet: bool) -> tuple[Any, str]:
    """This machine's times of an experiment, measured unless they are known and were taken in quiet; and why there are none."""
    from fedcodist.reports import progress
    from fedcodist.rule import Diverged
    from fedcodist.runs import clock, cost, timing

    if known is not None and known.busy <= clock.BUSY and known.total(clock.parts(experiment.config)) is not None:
        return known, ""
    try:
        cost.check_memory(experiment.federation)
        if not quiet:
            print("timing a few rounds of these programs; --no-timing skips it", file=sys.stderr)
        with progress.counting(quiet) as tell:
            return timing.measure(experiment, lambda rounds: tell(rounds, None, "rounds timed")), ""
    except (cost.NoMemory, Diverged) as error:
        return None, f": {error}"
