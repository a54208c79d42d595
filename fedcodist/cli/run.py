"""`fedcodist run` and `fedcodist demo`: train the arms of an experiment, compare them, and write a report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fedcodist.cli import arguments
from fedcodist.cli.arguments import Once, Parser, parse_seeds, read_config
from fedcodist.errors import ConfigError

HELP = "Train a config, for one or many seeds. The same command again resumes unfinished runs and skips finished ones."
EXAMPLE = "fedcodist run quick/images --twin --seeds 0,1,2 --set method.alpha=0.7"
DEMO_HELP = "Train FedAvg, PeriodicCodist and MergedCodist on embedded images, and compare them."
DEMO_EXAMPLE = "fedcodist demo"
DEMO = """Two pools: a small model on all 63 clients, a larger one on the 8 that can carry it.
Three ways to train them, on the same clients, batches and initial models:
  fedavg    each pool on its own
  periodic  PeriodicCodist: now and then the two models teach each other on unlabelled images
  merged    MergedCodist: they teach each other in every round
"""


def add(parser: Parser) -> None:
    """The arguments of `run`, besides those that are shared."""
    parser.add_argument("--twin", action="store_true", help="train plain FedAvg on the same seeds, clients and batches too, and compare")
    parser.add_argument("--name", action=Once, help="of the run directory (default: the config's)")
    parser.add_argument("--restart", action="store_true", help="start again; the files of these runs are kept under another name")
    parser.add_argument("--profile", action="store_true", help="record where the time of each round goes; the report shows it")
    parser.add_argument("--strict", action="store_true", help="treat warnings, and a resume that is not bit-identical, as errors")


def run(args: argparse.Namespace) -> int:
    """`fedcodist run`."""
    from fedcodist import config

    base = read_config(args)
    if args.strict and (found := config.warnings(base)):
        raise ConfigError("\n".join(f"{warning} (--strict)" for warning in found))
    arguments.tell_warnings(base)
    from fedcodist.reports import running

    return _train(args, running.arms(base, args.twin))


def demo(args: argparse.Namespace) -> int:
    """`fedcodist demo`."""
    from fedcodist import config

    args.config, args.set, args.clamp, args.name = "quick/demo", [], False, None
    args.strict = args.restart = args.profile = False
    base = read_config(args)
    return _train(args, [config.twin(base), config.read("quick/demo-periodic"), base], opening=DEMO)


def _train(args: argparse.Namespace, arms: list[Any], opening: str = "") -> int:
    arguments.prepare_jax()
    from fedcodist.reports import planned, running, tensorboard
    from fedcodist.reports.screen import Screen
    from fedcodist.runs import batch

    if args.tensorboard:
        tensorboard.check()
    root = Path(args.out)
    seeds, note = (parse_seeds(args.seeds), "") if args.seeds is not None else batch.choose_seeds(arms[-1], root)
    if note and not args.quiet:
        print(f"note: {note}", file=sys.stderr)
    task = arms[0].task.load()
    how = {"clamp": args.clamp, "strict": args.strict, "restart": args.restart, "profile": args.profile}
    if args.tensorboard:
        how["wrap"] = tensorboard.track
    long = planned.ahead(arms, seeds, root)
    with Screen(args.quiet) as screen:
        if opening:
            screen.say(opening)
        for text in task.notes:
            screen.say(f"data: {text}")
        if long and not args.restart:
            screen.say(long)
        recorded = running.train(arms, root, seeds, screen, task, **how)
    _print(args, arms, recorded, root / arms[0].name)
    return 0


def _print(args: argparse.Namespace, arms: list[Any], recorded: list[Any], place: Path) -> None:
    from fedcodist.reports import compare, report, tables, verdicts
    from fedcodist.reports.screen import wrapped

    page = report.write_below(place) if args.format == "table" else None  # first: whoever reads the table may be gone by its end
    rows = compare.results(recorded)
    if rows or args.format != "table":
        print(tables.render(compare.display(rows) if args.format == "table" else rows, args.format))
    if args.format != "table":
        return
    if own := compare.personal(recorded):
        print("", tables.render(compare.display_personal(own), title="each client's own test split, mean over clients"), sep="\n")
    if len(arms) > 1:
        print("", *map(wrapped, verdicts.verdicts(recorded)), sep="\n")
    print(f"\nreport: {page}")
    if not report.available():
        print(f"The report has no plots: pip install 'fedcodist[plots]', then fedcodist report {place}")
