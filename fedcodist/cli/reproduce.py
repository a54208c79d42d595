"""`fedcodist reproduce`: run or resume the cells of a table or figure of the paper, and write the paper's numbers beside ours; or those of
the studies that go beyond it."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from fedcodist.cli import arguments
from fedcodist.cli.arguments import Once, Parser, parse_seeds

EXAMPLE = "fedcodist reproduce table1 --budget smoke"
HELP = (
    "Run the experiments of a table or figure of the paper, and compare its numbers with ours, with intervals and a verdict on each "
    "claim; or run experiments that go beyond the paper (studies), or that compare other systems with codistillation (rivals). The same "
    "command again resumes unfinished runs and skips finished ones."
)
BUDGETS = ("smoke", "small", "paper")


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    from fedcodist.reproduce.paper import TABLES

    parser.add_argument("table", choices=TABLES, metavar="WHAT", help=" | ".join(TABLES))
    parser.add_argument(
        "--budget",
        choices=BUDGETS,
        default="smoke",
        action=Once,
        help="smoke: embedded data, minutes; small: real data, hours; paper: the paper's 1,500 rounds, in days (default: smoke)",
    )
    parser.add_argument(
        "--cell",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only these cells (a family of data, a method, a column of the table: --list names them), as in images/merged or "
        "'*/fedavg/*', or a study's name; may be repeated",
    )
    parser.add_argument("--seeds", action=Once, metavar="LIST", help="such as 0, 0,1,2 or 0-4 (default: the budget's)")
    parser.add_argument("--out", default="runs/reproduce", action=Once, metavar="DIR", help="where runs are kept (default: runs/reproduce)")
    parser.add_argument(
        "--cluster", default="", action=Once, metavar="ADDRESS", help="spread the runs over a Ray cluster: its host:port, or local"
    )
    parser.add_argument(
        "--jobs", type=int, default=0, action=Once, metavar="N", help="runs at a time on the cluster (default: one on each of its CPUs)"
    )
    parser.add_argument("--workers", type=int, action=Once, metavar="N", help="threads (default: one a core); changes no result")
    parser.add_argument("--list", action="store_true", help="show the cells and their progress, without training")
    parser.add_argument("--report", action="store_true", help="write tables and figures from finished runs, without training")
    parser.add_argument(
        "--docs",
        action=Once,
        metavar="DIR",
        help="also add the results to this directory of docs, which may hold results of other machines, and write its page",
    )


def run(args: argparse.Namespace) -> int:
    """The verb."""
    from fedcodist.reports import drawing, tables
    from fedcodist.runs import session

    arguments.prepare_jax()
    from fedcodist.reproduce import page, running, selection, writing

    if args.docs is not None:
        drawing.load_matplotlib()  # now, and not after hours of training
        for shipped in page.load(Path(args.docs) / page.FOLDER):
            page.section(shipped)  # and a file there that cannot be joined, or a finding that is stale, is refused now too
    every = selection.cells(args.table, args.budget)
    chosen = selection.choose(every, args.cell, parse_seeds(args.seeds) if args.seeds is not None else None)
    root = Path(args.out)
    place = root / f"{args.table}-{args.budget}"
    write = partial(writing.write, args.table, args.budget, every, root, place)
    if args.list:
        rows, left = running.listing(chosen, root)
        print(tables.render(rows, args.format))
        if args.format == "table":
            print(f"\n{left}")
        return 0
    wrong: dict[str, str] = {}
    if not args.report:
        wanted = running.jobs(chosen, root, args.workers)
        wrong = running.run(wanted, root, args.quiet, lambda: write(draw=False), args.cluster, args.jobs)
    result = write(draw=True)
    _print(args, result, {cell.id for cell in chosen}, place)
    if args.docs is not None:  # last: words there may have gone stale with new numbers, and these are on the screen by now
        writing.publish(result, Path(args.docs), place.name)
    return session.DivergedRun.code if wrong else 0


def _print(args: argparse.Namespace, result: Any, chosen: set[str], place: Path) -> None:
    from fedcodist.reports import tables
    from fedcodist.reproduce import claims, results, sections, writing

    if args.format == "json":
        print(results.dump(result))
        return
    print(tables.render(sections.display(result, chosen), args.format))
    if args.format == "table":
        judged = claims.judge([result])
        if judged:
            print("\nThe paper's claims:")
        for found in judged:
            print(f"({found.claim.name}) {found.verdict}: {found.why}")
        print(f"\nresults: {place / writing.PAGE}")
