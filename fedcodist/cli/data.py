"""`fedcodist data`: what can be prepared and what is, preparing it, checking it, looking at it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedcodist.cli import arguments
from fedcodist.cli.arguments import Once, Parser
from fedcodist.errors import ConfigError, DataError, data_error

HELP = "Prepare, verify and look at data."
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

    verb("list", "What can be prepared, from which files, and what is.", shown)
    prepare = verb(
        "prepare",
        "Turn a publisher's files, or your own, into a memory-mapped store. An interrupted preparation goes on where it was.",
    )
    prepare.add_argument("dataset", metavar="NAME", help="a dataset of `fedcodist data list`")
    prepare.add_argument("--from", dest="source", action=Once, metavar="PATH", help="the files: a file, an archive or a directory")
    prepare.add_argument("--name", action=Once, help="of the store (default: the dataset's)")
    prepare.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the dataset; may be repeated")
    prepare.add_argument("--fetch", action="store_true", help="fetch the published file if there is no --from; resumable")
    prepare.add_argument("--again", action="store_true", help="even if it is prepared already")
    verify = verb("verify", "Read prepared stores through and compare every digest.", shown)
    verify.add_argument("stores", nargs="*", metavar="STORE", help="names or paths (default: all)")
    show = verb(
        "show",
        "Clients, examples, histograms of labels and lengths, and what the parts share. Exit code 3 if any row is in two parts.",
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
    show.add_argument("--allow-overlap", action="store_true", help="shared rows are no failure")


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
    from fedcodist.data import prepare
    from fedcodist.reports import progress

    dataset = prepare.read(args.dataset, _settings(args.set))
    source = Path(os.path.expanduser(args.source)) if args.source is not None else None
    try:
        with progress.counting(args.quiet) as count:
            store, made = prepare.prepare(dataset, source, count, args.name, args.fetch, args.again)
    except KeyboardInterrupt:
        print("interrupted: what was marked is kept; the same command goes on from there", file=sys.stderr)
        return 130
    print(prepare.describe(store) if made else f"already prepared: {store.path}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from fedcodist.data import store
    from fedcodist.reports import tables

    rows, wrong = [], []
    for name in args.stores or sorted(store.stores()):
        columns, found = {}, []
        try:
            opened = store.open_store(name)
            columns, found = opened.columns, [f"{line}; prepare it again" for line in store.verify(opened)]
        except DataError as error:  # of one store: the others are still to be read
            found = error.lines
        wrong += found
        size = sum(column["bytes"] for column in columns.values())
        rows.append({"store": str(name), "columns": len(columns), "bytes": size, "verified": "no" if found else "yes"})
    print(tables.render(rows, args.format))
    if wrong:
        raise DataError("\n".join(wrong))
    return 0


def _show(args: argparse.Namespace) -> int:
    from fedcodist.data import survey
    from fedcodist.reports import tables

    found = survey.survey_public(opened) if (opened := _public(args.what)) else survey.survey(_task(args.what, args.set).load())
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


def _public(what: str) -> Any:
    """A store that is only public data, and so no task by itself."""
    from fedcodist.data import store

    if not (store.locate(what) / store.META).is_file():
        return None
    opened = store.open_store(what)
    facts = opened.facts
    other = facts["kind"] == "labelled_images" and facts["classes"] != 100
    return opened if other or (facts["kind"] == "text" and not facts["examples"]["federated"]) else None


def _task(what: str, assignments: list[str]) -> Any:
    """The task of a config, or the usual task of a store. Overlaps are left in, for they are what is looked for."""
    from fedcodist import config, settings
    from fedcodist.data import store
    from fedcodist.tasks import Arrays, Cifar100, Text

    if (store.locate(what) / store.META).is_file():
        opened = store.open_store(what)
        tasks = {"labelled_images": (Cifar100, {"data": what}), "text": (Text, {"data": what}), "own": (Arrays, {"path": str(opened.path)})}
        if opened.facts["kind"] not in tasks:
            raise data_error(f"data {what}", f"a store of {opened.facts['kind']}", f"one of {', '.join(tasks)}")
        cls, place = tasks[opened.facts["kind"]]
        problems: list[settings.Problem] = []
        task: Any = settings.read_part(cls, _settings(assignments) | place, "", problems)
        if problems:
            raise ConfigError("\n".join(map(str, problems)))
    elif what in config.shipped() or os.path.lexists(what):
        task = config.read(what, assignments).task
    else:
        known = [*store.stores(), *config.shipped()]
        hint = settings.nearest(what, known)
        raise ConfigError(
            str(settings.Problem("data show", settings.show(what), "a prepared store, or a config", hint or "fedcodist data list"))
        )
    if isinstance(task, Text):
        return replace(task, public_labels=True)  # they say where a sentence ends
    return replace(task, overlap="allow") if hasattr(task, "overlap") else task


def _settings(assignments: list[str]) -> dict[str, Any]:
    """The table of all `--set KEY=VALUE`."""
    from fedcodist.config import toml

    return toml.override(toml.Source("--set", {}, {}), assignments).table
