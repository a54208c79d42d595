"""`fedcodist tune`: search a config's rates and knobs on held-out data, the twin's with as many trials, and confirm the winners."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import Any

from fedcodist.cli import arguments
from fedcodist.cli.arguments import Once, Parser, read_config
from fedcodist.errors import ConfigError, Interrupted

EXAMPLE = "fedcodist tune quick/toy --twin --space distillation --trials 20"
HELP = "Tune a config's rates and other settings on held-out data. The same command again continues the study, or shows its results."
CONFIRM = 3  # fresh seeds where there is a twin to compare with


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument(
        "--trials", type=int, default=30, action=Once, metavar="N", help="number of trials, including stopped ones (default: 30)"
    )
    parser.add_argument(
        "--space",
        default="all",
        action=Once,
        metavar="SPACE",
        help="rates, distillation or all of the paper's ranges, or a TOML file of your own (default: all)",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="only parameters that match, as in '*.lr'; may be repeated"
    )
    parser.add_argument(
        "--objective",
        choices=("mean", "pareto"),
        default="mean",
        action=Once,
        help="the pools' mean accuracy, or the front of each pool's accuracy and the server's cost (default: mean)",
    )
    parser.add_argument("--twin", action="store_true", help="tune plain FedAvg too, first, with as many trials, and compare the winners")
    parser.add_argument(
        "--rates-from",
        choices=("twin",),
        action=Once,
        help="fix the rates to those of the tuned twin (default with --twin and a space without them)",
    )
    parser.add_argument(
        "--confirm", type=int, action=Once, metavar="N", help="train the winners again on N fresh seeds (default: 3 with --twin, else 0)"
    )
    parser.add_argument("--seed", type=int, action=Once, metavar="N", help="of all trials and suggestions (default: the config's first)")
    parser.add_argument("--no-prune", action="store_true", help="train every trial to its end")
    parser.add_argument(
        "--jobs", type=int, default=1, action=Once, metavar="N", help="worker processes, which share the threads (default: 1)"
    )
    parser.add_argument(
        "--cluster", default="", action=Once, metavar="ADDRESS", help="spread the jobs over a Ray cluster: its host:port, or local"
    )
    parser.add_argument("--workers", type=int, action=Once, metavar="N", help="threads (default: one a core); changes no result")
    parser.add_argument("--out", default="studies", action=Once, metavar="DIR", help="where studies are kept (default: studies)")
    parser.add_argument("--name", action=Once, help="of the study's directory (default: the config's)")
    parser.add_argument("--restart", action="store_true", help="start again; the files of these studies are kept under another name")
    parser.add_argument("--top", type=int, default=10, action=Once, metavar="N", help="trials to show (default: 10)")


def run(args: argparse.Namespace) -> int:
    """The verb."""
    try:
        return _tune(args)
    except Interrupted as interrupted:
        print("interrupted: every finished trial is saved; the same command continues from there", file=sys.stderr)
        return interrupted.code


def _tune(args: argparse.Namespace) -> int:
    from fedcodist import config
    from fedcodist.reports import progress
    from fedcodist.tuning import space, twins
    from fedcodist.tuning.study import Search

    _check(args)
    base = read_config(args)
    arguments.tell_warnings(base)
    seed = args.seed if args.seed is not None else (base.seeds or (0,))[0]
    chosen = space.choose(args.space, base, args.only)
    search = Search(base, chosen, args.trials, seed, args.objective, not args.no_prune, args.clamp)
    for flag in ("twin", "rates_from"):
        if config.twin(base) == base and getattr(args, flag):
            raise ConfigError(f"--{flag.replace('_', '-')}: got it for fedavg; allowed for a method that has a twin: fedavg is the twin")
    rates = twins.takes_rates(search, args.twin, wanted=bool(args.rates_from))
    many = args.confirm if args.confirm is not None else CONFIRM if args.twin else 0
    arguments.prepare_jax()
    task = base.task.load()
    how = {
        "with_twin": args.twin,
        "twin_rates": rates,
        "fresh_seeds": many,
        "jobs": args.jobs,
        "cluster": args.cluster,
        "restart": args.restart,
    }
    with progress.StudyScreen(args.quiet) as screen:
        studies, used = screen.follow(twins.tune(search, args.out, task, **how))
    _print(args, studies, used)
    return 0


def _check(args: argparse.Namespace) -> None:
    for flag, least in (("trials", 1), ("jobs", 1), ("top", 1), ("confirm", 0), ("seed", 0)):
        value = getattr(args, flag)
        if value is not None and not least <= value < 2**63:
            raise ConfigError(f"--{flag}: got {value}; allowed an integer >= {least}")


def _print(args: argparse.Namespace, studies: list[Any], rates: Any) -> None:
    from fedcodist.reports import studies as words
    from fedcodist.reports import tables
    from fedcodist.tuning import ranking

    shown = [(one.search, ranking.best_first(one.search, one.trials)[: args.top]) for one in studies]
    fresh, older = words.fresh(studies), words.older_rates(studies[-1].search, rates)
    if args.format == "json":
        trials = [row for search, trials in shown for row in ranking.rows(search, trials)]
        print(json.dumps({"trials": trials, "fresh": fresh, "notes": [older] if older else []}, indent=2))
        return
    if args.format != "table":
        blocks = [tables.render([row for search, trials in shown for row in ranking.rows(search, trials)], args.format)]
        print("\n\n".join(blocks + ([tables.render(fresh, args.format)] if fresh else [])))
        if older:
            print(f"note: {older}", file=sys.stderr)
        return
    print(tables.render([row for search, trials in shown for row in words.display_trials(search, trials)]))
    for one in studies:
        print(f"\n{words.method(one.search)}: trial {one.winner.number}" + (", the config's own values" if one.winner.own else ""))
        print(tables.render(words.display_parameters(ranking.parameters(one.search, one.winner))))
    if fresh:
        print(
            f"\nThe winners on {fresh[0]['seeds']} fresh seeds, held-out data; the seed on which they were chosen may be easier or harder"
        )
        print(tables.render(words.display_fresh(fresh)))
    if older:
        print(f"\nnote: {older}")
    _print_commands(args, studies)


def _print_commands(args: argparse.Namespace, studies: list[Any]) -> None:
    from fedcodist.tuning.study import BEST, place
    from fedcodist.tuning.tune import tuned_name

    best = [str(place(args.out, one.search.config) / BEST) for one in studies]
    print("", *(f"best: {path}" for path in best), sep="\n")
    if len(studies) > 1:
        print("\nOn the test split, on seeds that no trial has seen:")
        for one, path in zip(studies, best, strict=True):
            print(shlex.join(["fedcodist", "run", path, *["--clamp"][: one.search.clamp]]))
        runs = [f"runs/{tuned_name(one.winner)}/{one.winner.config.method.kind}" for one in studies]
        print(shlex.join(["fedcodist", "compare", *runs]))
