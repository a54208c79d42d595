"""The command line: verbs only; each calls the library and prints.

Data goes to stdout in any of five formats, progress to stderr, failures as one line each with an exit code (`errors.py`). A verb imports
what it needs itself: `list` draws no plots.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence

from fedcodist.cli import (
    arguments,
    audit,
    causes,
    compare,
    data,
    deploy,
    export,
    export_model,
    init,
    listing,
    plan,
    report,
    reproduce,
    run,
    show,
    tune,
    watch,
)
from fedcodist.cli.arguments import Parser
from fedcodist.cli.streams import steady
from fedcodist.errors import ConfigError, Failure, Interrupted
from fedcodist.settings import one_line

VERBS = {
    "demo": run.demo,
    "init": init.run,
    "run": run.run,
    "show": show.run,
    "plan": plan.run,
    "audit": audit.run,
    "list": listing.run,
    "compare": compare.run,
    "report": report.run,
    "watch": watch.run,
    "export": export.run,
    "export-model": export_model.run,
    "tune": tune.run,
    "reproduce": reproduce.run,
    "data": data.run,
    "deploy": deploy.run,
}
SHELLS = ("bash", "zsh", "tcsh")


def parser() -> Parser:
    """All verbs and flags."""
    shared, shown, configured, running = arguments.shared(), arguments.shown(), arguments.configured(), arguments.running()
    top = Parser(
        prog="fedcodist",
        description="Federated learning where devices differ: models of different sizes teach each other on the server.",
        epilog="example: fedcodist run quick/images --twin --seeds 0,1,2",
    )
    top.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    top.add_argument("--print-completion", choices=SHELLS, help="print what makes this shell complete verbs and flags, and exit")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser)

    def verb(name: str, help: str, example: str, *parents: Parser) -> Parser:
        return verbs.add_parser(name, help=help, description=help, epilog=f"example: {example}", parents=[*parents, shared])

    verb("demo", run.DEMO_HELP, run.DEMO_EXAMPLE, running, shown)
    init.add(verb("init", init.HELP, init.EXAMPLE))
    run.add(verb("run", run.HELP, run.EXAMPLE, configured, running, shown))
    show.add(verb("show", show.HELP, show.EXAMPLE, configured, shown))
    plan.add(verb("plan", plan.HELP, plan.EXAMPLE, configured, shown))
    audit.add(verb("audit", audit.HELP, audit.EXAMPLE, configured, shown))
    listing.add(verb("list", listing.HELP, listing.EXAMPLE, shown))
    compare.add(verb("compare", compare.HELP, compare.EXAMPLE, shown))
    report.add(verb("report", report.HELP, report.EXAMPLE, shown))
    export.add(verb("export", export.HELP, export.EXAMPLE, shown))
    export_model.add(verb("export-model", export_model.HELP, export_model.EXAMPLE, shown))
    watch.add(verb("watch", watch.HELP, watch.EXAMPLE))
    tune.add(verb("tune", tune.HELP, tune.EXAMPLE, configured, shown))
    reproduce.add(verb("reproduce", reproduce.HELP, reproduce.EXAMPLE, shown))
    data.add(verb("data", data.HELP, data.EXAMPLE))
    deploy.add(verb("deploy", deploy.HELP, deploy.EXAMPLE))
    asked = verb("help", "The help of a verb, or of all.", "fedcodist help run")
    asked.add_argument("about", nargs="*", metavar="VERB", help="such as run, or data prepare")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    with steady():
        return _main(list(sys.argv[1:] if argv is None else argv))


def _main(argv: list[str]) -> int:
    debug, as_json = "--debug" in argv, re.search(r"--errors[ =]json", " ".join(argv)) is not None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does: a name that the terminal cannot show is no reason to fail
    try:
        top = parser()
        try:
            args, unknown = top.parse_known_args(argv)
        except SystemExit:  # argparse has printed the help that was asked for; its errors are failures here
            return 0
        if unknown:
            verbs = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
            verbs.choices.get(args.verb, top).error(f"unrecognized arguments: {' '.join(unknown)}")
        if args.version:
            from fedcodist import __version__

            print(__version__)
            return 0
        if args.print_completion:
            return _complete(top, args.print_completion)
        if args.verb == "help":
            return _help(top, *args.about)
        if args.verb is None:
            top.print_help()
            return 2
        if getattr(args, f"{args.verb}_verb", "") is None:
            return _help(top, args.verb)
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
        return _fail(["memory: there is not enough; smaller models or batches, or fewer --workers, need less"], 9, as_json)
    except OSError as error:
        if debug:
            traceback.print_exc()
        if (found := causes.cause(error)) is not None:
            return _fail([found[0]], found[1], as_json)
        return _fail([one_line(f"{error.filename or 'output'}: {error.strerror or error}")], 6, as_json)
    except Interrupted as interrupted:
        print("interrupted: every completed round is saved; the same command continues from there", file=sys.stderr)
        return interrupted.code
    except (Exception, SystemExit) as error:
        if debug:
            traceback.print_exc()
        if (found := causes.cause(error)) is not None:
            return _fail([found[0]], found[1], as_json)
        return _bug(error, as_json)


def _help(top: Parser, *verbs: str) -> int:
    try:
        top.parse_args([*verbs, "--help"])
    except SystemExit:
        return 0
    return 2  # not reached: argparse ends with the help


def _complete(top: Parser, shell: str) -> int:
    try:
        import shtab
    except ImportError:
        raise ConfigError("--print-completion needs shtab, which is not installed; pip install shtab") from None
    print(shtab.complete(top, shell=shell))
    return 0


def _fail(lines: list[str], code: int, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"code": code, "errors": lines}), file=sys.stderr)
    else:
        for line in lines:
            print(f"error: {line}", file=sys.stderr)
    return code


def _bug(error: BaseException, as_json: bool) -> int:
    with tempfile.NamedTemporaryFile("w", prefix="fedcodist-", suffix=".log", delete=False) as file:
        traceback.print_exc(file=file)
    return _fail([f"a bug of fedcodist: {causes.said(error)} (traceback in {file.name})"], 70, as_json)


if __name__ == "__main__":
    sys.exit(main())
