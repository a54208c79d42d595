"""The command line: verbs only; each calls one function of the library.

Data goes to stdout in any of five formats, progress to stderr, failures as one line each with an exit code (`errors.py`). A verb imports
what it needs itself: `list` draws no plots.
"""

from __future__ import annotations

import argparse
import difflib
import io
import json
import os
import re
import secrets
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedcodist.cli import data as data_cli
from fedcodist.cli import export, reproduce, tune
from fedcodist.errors import ConfigError, Failure, Interrupted
from fedcodist.reports.tables import FORMATS
from fedcodist.settings import one_line


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, the nearest flag for a typo, and no flag twice."""

    def error(self, message: str) -> NoReturn:
        known = [flag for action in self._actions for flag in action.option_strings]
        wrong = re.search(r"unrecognized arguments: ([^\s=]+)", message)
        if chosen := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            wrong, known = chosen, re.findall(r"[\w-]+", chosen[2])
        close = difflib.get_close_matches(wrong[1], known, n=1) if wrong else []
        hint = f"; did you mean {close[0]}?" if close else f"; see {self.prog} --help"
        raise ConfigError(one_line(f"{self.prog}: {message}{hint}"))


class Once(argparse.Action):
    """A flag that may be given once; argparse would silently take the last."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        seen = namespace.__dict__.setdefault("_seen", set())
        if self.dest in seen:
            parser.error(f"{option_string} is given twice")
        seen.add(self.dest)
        setattr(namespace, self.dest, values)


def parser() -> Parser:
    """All verbs and flags."""
    shared = Parser(add_help=False)
    shared.add_argument("--debug", action="store_true", help="show tracebacks")
    shared.add_argument("--errors", choices=("text", "json"), default="text", action=Once, help="how failures are printed (default: text)")
    shared.add_argument("--quiet", action="store_true", help="no progress and no notes")
    shown = Parser(add_help=False)
    shown.add_argument("--format", choices=FORMATS, default="table", action=Once, help="of the data on stdout (default: table)")
    configured = Parser(add_help=False)
    configured.add_argument("config", metavar="CONFIG", help="a TOML file, or a shipped config by name, such as quick/images")
    configured.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key, as in method.alpha=0.7; may be repeated"
    )
    configured.add_argument("--clamp", action="store_true", help="shrink cohorts and batches that are larger than the data")
    running = Parser(add_help=False)
    running.add_argument("--out", default="runs", action=Once, metavar="DIR", help="where runs are kept (default: runs)")
    running.add_argument("--seeds", action=Once, metavar="LIST", help="such as 0, 0,1,2 or 0-4 (default: the config's)")
    running.add_argument("--workers", type=int, action=Once, metavar="N", help="threads (default: one a core); changes no result")
    running.add_argument(
        "--tensorboard", action="store_true", help="keep a TensorBoard event file in each run directory; changes no result"
    )

    top = Parser(
        prog="fedcodist",
        description="Federated learning where devices differ: models of different sizes teach each other on the server.",
        epilog="example: fedcodist run quick/images --twin --seeds 0,1,2",
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)

    def verb(name: str, help: str, example: str, *parents: Parser) -> Parser:
        return verbs.add_parser(name, help=help, description=help, epilog=f"example: {example}", parents=[*parents, shared])

    verb(
        "demo",
        "Train FedAvg, PeriodicCodist and MergedCodist on embedded images, and say which is better.",
        "fedcodist demo",
        running,
        shown,
    )
    run = verb(
        "run",
        "Train a config, for one or many seeds. The same command again resumes what is unfinished and skips what is done.",
        "fedcodist run quick/images --twin --seeds 0,1,2 --set method.alpha=0.7",
        configured,
        running,
        shown,
    )
    run.add_argument("--twin", action="store_true", help="train plain FedAvg on the same seeds, clients and batches too, and compare")
    run.add_argument("--name", action=Once, help="of the run directory (default: the config's)")
    run.add_argument("--restart", action="store_true", help="set aside what these runs have computed, deleting nothing, and begin again")
    run.add_argument("--profile", action="store_true", help="note where the time of each round goes; the report shows it")
    run.add_argument("--strict", action="store_true", help="refuse warnings, and a resume that is not bit-identical")
    show = verb(
        "show",
        "What a config will cost: parameters, bytes, FLOPs, time. Trains nothing. --config-only prints the resolved config.",
        "fedcodist show quick/images --set rounds=100",
        configured,
        shown,
    )
    show.add_argument("--config-only", action="store_true", help="print the resolved config as JSON and stop")
    listing = verb("list", "What can be named in a config.", "fedcodist list losses", shown)
    listing.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help="methods, tasks, models, works, servers, topologies, losses, schedules, engines, partitions, datasets or configs",
    )
    compare = verb(
        "compare",
        "Paired differences between runs that share seeds: every RUN against the first.",
        "fedcodist compare runs/images/fedavg runs/images/merged",
        shown,
    )
    compare.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, or a directory of seeds")
    compare.add_argument("--split", choices=("test", "held_out"), default="test", action=Once, help="(default: test)")
    report = verb("report", "One self-contained HTML page, plots and a CSV about runs.", "fedcodist report runs/images", shown)
    report.add_argument("runs", nargs="+", metavar="RUN", help="run directories, or directories that hold some")
    report.add_argument("--out", action=Once, metavar="DIR", help="where the page goes (default: in the first RUN)")
    exporting = verb(
        "export",
        "All rounds of runs as one tidy table, on stdout or as CSV, Parquet or JSON lines; or as TensorBoard event files.",
        "fedcodist export runs/images --out rounds.parquet",
        shown,
    )
    export.add(exporting, Once)
    tune.add(verb("tune", tune.HELP, tune.EXAMPLE, configured, shown), Once)
    reproduce.add(verb("reproduce", reproduce.HELP, reproduce.EXAMPLE, shown), Once)
    data = verb("data", "Prepare, verify and look at data.", "fedcodist data list")
    data_cli.add(data, Parser, Once, shared=shared, shown=shown)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug, as_json = "--debug" in argv, re.search(r"--errors[ =]json", " ".join(argv)) is not None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does: a name that the terminal cannot show is no reason to fail
    try:
        top = parser()
        args, unknown = top.parse_known_args(argv)
        if unknown:
            verbs = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
            verbs.choices.get(args.verb, top).error(f"unrecognized arguments: {' '.join(unknown)}")
        if args.version:
            from fedcodist import __version__

            print(__version__)
            return 0
        if args.verb is None:
            top.print_help()
            return 2
        if args.verb == "data" and args.data_verb is None:
            top.parse_args(["data", "--help"])
        code = VERBS[args.verb](args)
        sys.stdout.flush()
        return code
    except Failure as failure:
        if debug:
            traceback.print_exc()
        return _fail(failure.lines, failure.code, as_json)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains again at exit
        return 141
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        return _fail(["memory: not enough; smaller models, batches or fewer --workers need less"], 9, as_json)
    except OSError as error:
        if debug:
            traceback.print_exc()
        return _fail([one_line(f"{error.filename or 'output'}: {error.strerror or error}")], 6, as_json)
    except Interrupted as signal:
        print("interrupted: every completed round is saved; the same command goes on from there", file=sys.stderr)
        return signal.code
    except Exception as error:
        if debug:
            raise
        return _bug(error, as_json)


def _fail(lines: list[str], code: int, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"code": code, "errors": lines}), file=sys.stderr)
    else:
        for line in lines:
            print(f"error: {line}", file=sys.stderr)
    return code


def _bug(error: Exception, as_json: bool) -> int:
    with tempfile.NamedTemporaryFile("w", prefix="fedcodist-", suffix=".log", delete=False) as file:
        traceback.print_exc(file=file)
    return _fail(
        [f"a bug of fedcodist: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} (traceback in {file.name})"],
        70,
        as_json,
    )


def _demo(args: argparse.Namespace) -> int:
    from fedcodist import config

    args.config, args.set, args.clamp, args.name = "quick/demo", [], False, None
    args.strict = args.restart = args.profile = False
    base = read_config(args)
    arms = [config.twin(base), config.read("quick/demo-periodic"), base]
    return _run_arms(args, arms, opening=DEMO)


DEMO = """Two pools: a small model on all 63 clients, a larger one on the 8 that can carry it.
Three ways to train them, on the same clients, batches and initial models:
  fedavg    each pool on its own
  periodic  PeriodicCodist: now and then the two models teach each other on unlabelled images
  merged    MergedCodist: they teach each other in every round
"""


def _run(args: argparse.Namespace) -> int:
    from fedcodist import config

    base = read_config(args)
    warnings = config.warnings(base)
    if warnings and args.strict:
        raise ConfigError("\n".join(f"{warning} (--strict)" for warning in warnings))
    if not args.quiet:
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
    wants_twin = args.twin and base.method.kind != "fedavg"
    return _run_arms(args, [config.twin(base), base] if wants_twin else [base])


def _run_arms(args: argparse.Namespace, arms: list[Any], opening: str = "") -> int:
    prepare_jax()
    from fedcodist import config, runs
    from fedcodist.reports import compare, progress, report, tables, tensorboard, verdicts
    from fedcodist.runs import session

    if args.tensorboard:
        tensorboard.check()
    root = Path(args.out)
    seeds = _seeds(args, arms, root)
    task = arms[0].task.load()
    for arm in arms:
        config.assemble(arm, task, seeds[0], args.clamp)  # or the last arm could be refused after the first one is trained
    last = []
    with progress.Screen(args.quiet) as display:
        if opening:
            display.say(opening)
        for note in task.notes:
            display.say(f"data: {note}")
        for seed in seeds:
            for arm in arms:
                events = session.perform(
                    arm, task, seed, root, clamp=args.clamp, strict=args.strict, restart=args.restart, profile=args.profile
                )
                last.append(progress.follow(tensorboard.track(events) if args.tensorboard else events, display))
                if not display.live and (many := len(seeds) * len(arms)) > 1:  # no bars: a line a run, or minutes of silence
                    display.say(f"{len(last)} of {many} runs are over: {arm.method.kind} seed {seed}")
    recorded = [runs.read(event.path) for event in last]
    rows = compare.results(recorded)
    print(tables.render(compare.display(rows) if args.format == "table" else rows, args.format))
    if args.format == "table":
        if len(arms) > 1:
            print()
            for arm in arms[1:]:
                print(
                    verdicts.verdict(
                        [r for r in recorded if r.path.parent.name == "fedavg"],
                        [r for r in recorded if r.path.parent.name == arm.method.kind],
                    )
                )
        place = root / arms[0].name
        if report.available():
            print(f"\nreport: {report.write(recorded, place)}")
        else:
            print(f"\nruns: {place} (pip install 'fedcodist[plots]', then fedcodist report {place})")
    return 0


def _seeds(args: argparse.Namespace, arms: list[Any], root: Path) -> list[int]:
    """The seeds asked for; or the config's; or those already in the run directory; or one drawn now, which is printed and kept."""
    if args.seeds is not None:
        return parse_seeds(args.seeds)
    if arms[-1].seeds:
        return list(arms[-1].seeds)
    there = sorted((root / arms[-1].name / arms[-1].method.kind).glob("seed-*"))
    known = [int(path.name[5:]) for path in there if path.name[5:].isdigit()]
    if known:
        return known
    drawn = secrets.randbelow(2**31)
    if not args.quiet:
        print(f"note: no seed given: drew {drawn}, kept in the run directory", file=sys.stderr)
    return [drawn]


def parse_seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,19})(?:-(\d{1,19}))?\s*", part)
        if not match or int(match[2] or match[1]) >= 2**63 or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"--seeds: got {part!r}; allowed integers from 0 to 2**63 - 1, as in 0, 0,1,2 or 0-4")
        if int(match[2] or match[1]) - int(match[1]) >= 10_000:
            raise ConfigError(f"--seeds: got {part!r}; allowed at most 10000 seeds")
        seeds += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds: got {text!r}; allowed each seed once")
    return seeds


def _show(args: argparse.Namespace) -> int:
    from fedcodist import config
    from fedcodist.reports import forecast, tables
    from fedcodist.runs import plan

    resolved = read_config(args)
    if args.config_only:
        print(json.dumps(config.plain(resolved), indent=2))
        return 0
    planned = plan.plan(config.build(resolved, 0, args.clamp))
    if args.format == "json":
        print(json.dumps({"config": config.plain(resolved), **planned}, indent=2))
    elif args.format == "table":
        print(forecast.words(resolved, planned))
    else:
        print(tables.render(planned["pools"], args.format))
    return 0


def _list(args: argparse.Namespace) -> int:
    from fedcodist.config import parts
    from fedcodist.reports import tables

    rows = parts.rows(args.what)
    print(parts.words(rows) if args.format == "table" else tables.render(rows, args.format))
    return 0


def _compare(args: argparse.Namespace) -> int:
    from fedcodist.reports import compare, tables

    rows = compare.of_paths([Path(run) for run in args.runs], args.split)
    print(tables.render(compare.display_pairs(rows) if args.format not in ("json", "csv") else rows, args.format))
    return 0


def _report(args: argparse.Namespace) -> int:
    from fedcodist import runs
    from fedcodist.reports import report

    page = report.write([runs.read(path) for path in runs.find_all(args.runs)], Path(args.out or args.runs[0]))
    print(json.dumps({"report": str(page)}) if args.format == "json" else page)
    return 0


VERBS = {
    "demo": _demo,
    "run": _run,
    "show": _show,
    "list": _list,
    "compare": _compare,
    "report": _report,
    "export": export.run,
    "tune": tune.tune,
    "reproduce": reproduce.run,
    "data": data_cli.run,
}


def read_config(args: argparse.Namespace) -> Any:
    from fedcodist import config

    assignments = list(args.set)
    if getattr(args, "workers", None) is not None:
        assignments.append(f"engine.workers={args.workers}")
    if getattr(args, "name", None) is not None:
        assignments.append(f"name={json.dumps(args.name)}")
    return config.read(args.config, assignments)


def prepare_jax() -> None:
    """Memory that is kept, and a compilation cache, so that a second run starts in seconds. FEDCODIST_CACHE names it; empty switches it
    off."""
    from fedcodist.runs import memory

    memory.keep()
    import jax

    place = os.environ.get("FEDCODIST_CACHE")
    if place is None:
        home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and os.path.join(os.environ["HOME"], ".cache"))
        place = os.path.join(home, "fedcodist") if home else ""
    try:
        if place:
            os.makedirs(place, mode=0o700, exist_ok=True)
    except OSError:
        return
    if place and os.access(place, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", place)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        # JAX writes an entry in place: another process may read half of it, and then compiles for itself, which is all that is to be done.
        warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")


if __name__ == "__main__":
    sys.exit(main())
