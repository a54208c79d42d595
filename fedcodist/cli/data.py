"""`fedcodist data`: what can be prepared and what is, preparing it, checking it, looking at it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from fedcodist.cli import arguments
from fedcodist.cli.arguments import Once, Parser
from fedcodist.errors import DataError

HELP = "Prepare, verify and inspect data."
EXAMPLE = "fedcodist data list"
EXAMPLES = {
    "list": "fedcodist data list",
    "prepare": "fedcodist data prepare cifar100 --from ~/data/cifar-100-binary",
    "verify": "fedcodist data verify cifar100",
    "show": "fedcodist data show cifar100 --out pictures",
}


def add(parser: Parser) -> None:
    """The verbs under `data`."""
    verbs = parser.add_subparsers(dest="data_verb", metavar="VERB", parser_class=Parser)
    shared, shown = arguments.shared(), arguments.shown()

    def verb(name: str, help: str, *parents: Any) -> Any:
        return verbs.add_parser(name, help=help, description=help, epilog=f"example: {EXAMPLES[name]}", parents=[*parents, shared])

    verb("list", "List the data sets that can be prepared, their files, and the prepared stores.", shown)
    prepare = verb(
        "prepare",
        "Turn a publisher's files, or your own, into a memory-mapped store. An interrupted preparation continues where it stopped.",
    )
    prepare.add_argument("dataset", metavar="NAME", help="a dataset of `fedcodist data list`")
    prepare.add_argument("--from", dest="source", action=Once, metavar="PATH", help="the files: a file, an archive or a directory")
    prepare.add_argument("--name", action=Once, help="of the store (default: the dataset's)")
    prepare.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the dataset; may be repeated")
    prepare.add_argument("--fetch", action="store_true", help="download the published file if there is no --from; resumable")
    prepare.add_argument("--again", action="store_true", help="prepare again, even if the store exists")
    verify = verb("verify", "Read prepared stores completely and compare every digest.", shown)
    verify.add_argument("stores", nargs="*", metavar="STORE", help="names or paths (default: all)")
    show = verb(
        "show",
        "Show clients, examples, histograms of labels and lengths, and rows in more than one part. Exit code 3 if any row is in two parts.",
        shown,
    )
    show.add_argument("what", metavar="WHAT", help="a prepared store, or a config, whose task is shown")
    show.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key of a config, or of a store's task; may be repeated",
    )
    show.add_argument("--out", action=Once, metavar="DIR", help="also draw the histograms there, as PNG and SVG")
    show.add_argument("--allow-overlap", action="store_true", help="do not fail on rows in more than one part")


def run(args: argparse.Namespace) -> int:
    """One of the verbs."""
    return {"list": _list, "prepare": _prepare, "verify": _verify, "show": _show}[args.data_verb](args)


def _list(args: argparse.Namespace) -> int:
    from fedcodist.data import prepare, store
    from fedcodist.reports import tables

    rows = prepare.rows()
    if args.format != "table":
        print(tables.render(rows, args.format))
        return 0
    for row in rows:
        size = f" ({row['bytes'] / 1e6:,.0f} MB)" if row["bytes"] else ""
        print(f"{row['dataset']:<14} {row['is']}\n{'':<14} from: {row['from']}\n{'':<14} prepared: {row['prepared']}{size}\n")
    print(f"stores are kept in {store.home()} (FEDCODIST_DATA)")
    return 0


def _prepare(args: argparse.Namespace) -> int:
    from fedcodist.config import toml
    from fedcodist.data import prepare
    from fedcodist.reports import progress

    dataset = prepare.read(args.dataset, toml.assigned(args.set))
    source = Path(os.path.expanduser(args.source)) if args.source is not None else None
    try:
        with progress.counting(args.quiet) as count:
            store, made = prepare.prepare(dataset, source, count, args.name, args.fetch, args.again)
    except KeyboardInterrupt:
        print("interrupted: saved progress is kept; the same command continues from there", file=sys.stderr)
        return 130
    print(prepare.describe(store) if made else f"already prepared: {store.path}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from fedcodist.data import store, verification
    from fedcodist.reports import tables

    rows, wrong = verification.verify(args.stores or sorted(store.stores()))
    print(tables.render(rows, args.format))
    if wrong:
        raise DataError("\n".join(wrong))
    return 0


def _show(args: argparse.Namespace) -> int:
    from fedcodist.config import named
    from fedcodist.data import survey
    from fedcodist.reports import tables

    public = named.public(args.what)
    found = survey.survey_public(public) if public else survey.survey(named.task(args.what, args.set).load())
    if args.format == "json":
        print(json.dumps(found._asdict(), indent=2))
    else:
        print(tables.render(found.rows, args.format))
        if args.format == "table":
            print("\n" + survey.as_text(found))
    if args.out is not None:
        from fedcodist.reports import plots

        os.makedirs(args.out, exist_ok=True)
        picture = Path(args.out) / "data.png"
        plots.draw_bars(found.histograms, picture)
        print(f"picture: {picture}", file=sys.stdout if args.format == "table" else sys.stderr)  # other formats are for programs
    if found.overlaps and not args.allow_overlap:
        shared = ", ".join(f"{count} rows of {later} that are also in {earlier}" for later, earlier, count in found.overlaps)
        raise DataError(f"{args.what}: got {shared}; allowed none (--allow-overlap)")
    return 0
