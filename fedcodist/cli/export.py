"""`fedcodist export`: all rounds of runs as one tidy table, on stdout or as a file, or as TensorBoard event files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from fedcodist.cli.arguments import Once, Parser
from fedcodist.errors import ConfigError

HELP = "Export all rounds of runs as one tidy table, on stdout or as CSV, Parquet or JSON lines; or as TensorBoard event files."
EXAMPLE = "fedcodist export runs/images --out rounds.parquet"


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories, or directories that hold some")
    parser.add_argument("--out", action=Once, metavar="FILE", help="a .csv, .parquet or .jsonl file (default: print the table)")
    parser.add_argument("--to", action=Once, choices=("tensorboard",), help="write event files into each run directory instead")


def run(args: argparse.Namespace) -> int:
    """The verb."""
    if args.to and args.out is not None:
        raise ConfigError("--out: got a file with --to tensorboard; allowed one of the two: event files go into each run directory")
    notes = _to_tensorboard(args) if args.to else _to_file(args) if args.out is not None else _to_stdout(args)
    for note in () if args.quiet else notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _to_tensorboard(args: argparse.Namespace) -> Iterable[str]:
    from fedcodist.reports import tables, tensorboard

    rows, notes = tensorboard.write_all(args.runs)
    print(tables.render(rows, args.format))
    return notes


def _to_file(args: argparse.Namespace) -> Iterable[str]:
    from fedcodist.reports import export, tables
    from fedcodist.reports.units import plural

    table, count = export.export(args.runs, args.out)
    if args.format == "table":
        print(f"{args.out}: {count:,} rows of {plural(len(table.found), 'run')}")
    else:
        print(tables.render([{"file": args.out, "runs": len(table.found), "rows": count}], args.format))
    return table.notes


def _to_stdout(args: argparse.Namespace) -> Iterable[str]:
    from fedcodist.reports import export, tables, tidy

    table = tidy.table(args.runs)
    if args.format == "csv":
        export.to_csv(table, sys.stdout)
    else:
        print(tables.render(export.display(table) if args.format == "table" else list(table.rows()), args.format))
    return table.notes
