"""`fedcodist export-model`: a trained model as a file that needs no fedcodist."""

from __future__ import annotations

import argparse

from fedcodist.cli.arguments import Once, Parser

HELP = "Export a trained model as a file that does not need fedcodist, with its preprocessing and the names of its classes."
EXAMPLE = "fedcodist export-model runs/toy/merged/seed-0 --pool small --to stablehlo"


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument("run", metavar="RUN", help="a run directory, finished or not")
    parser.add_argument("--pool", action=Once, metavar="NAME", help="the pool whose model is exported (required if there are several)")
    parser.add_argument("--to", action=Once, default="safetensors", metavar="FORMAT", help="safetensors (default), stablehlo or onnx")
    parser.add_argument("--out", action=Once, metavar="FILE", help="the file (default: named after the pool)")


def run(args: argparse.Namespace) -> int:
    """The verb."""
    from fedcodist.reports import tables
    from fedcodist.runs import model_files
    from fedcodist.runs.trained import open_run

    model = open_run(args.run).model(args.pool)
    path = model_files.export(model, args.to, args.out)
    row = {"file": str(path), "pool": model.pool, "round": model.round, "bytes": path.stat().st_size}
    print(
        f"{path}: {row['bytes']:,} bytes, pool {model.pool} after round {model.round}"
        if args.format == "table"
        else tables.render([row], args.format)
    )
    return 0
