"""`fedcodist report`: one page about runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fedcodist.cli.arguments import Once, Parser

HELP = "Write a self-contained HTML report on runs, with plots and a CSV file."
EXAMPLE = "fedcodist report runs/images"


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories, or directories that hold some")
    parser.add_argument("--out", action=Once, metavar="DIR", help="directory of the report (default: the first RUN)")


def run(args: argparse.Namespace) -> int:
    """The verb."""
    from fedcodist import runs
    from fedcodist.reports import report

    page = report.write([runs.read(path) for path in runs.find_all(args.runs)], Path(args.out or args.runs[0]))
    print(json.dumps({"report": str(page)}) if args.format == "json" else page)
    return 0
