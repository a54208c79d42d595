"""`fedcodist deploy`: a real federation on Flower, from its keys to its last round."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from fedcodist.cli import arguments
from fedcodist.cli.arguments import Once, Parser
from fedcodist.errors import ConfigError, Interrupted
from fedcodist.settings import Problem

HELP = "Train on real devices: keys and settings, the processes of the server and of each device, and the experiment on them (Flower)."
EXAMPLE = "fedcodist deploy local --nodes 6 quick/devices"
PORT = 9092


def add(parser: Parser) -> None:
    """The verbs under `deploy`."""
    verbs = parser.add_subparsers(dest="deploy_verb", metavar="VERB", parser_class=Parser)
    shared, shown = arguments.shared(), arguments.shown()

    def verb(name: str, help: str, example: str, *parents: Parser) -> Parser:
        return verbs.add_parser(name, help=help, description=help, epilog=f"example: {example}", parents=[*parents, shared])

    init = verb(
        "init",
        "Make the keys and settings of a federation, or add devices to it.",
        "fedcodist deploy init fed quick/devices --nodes anna,bert",
    )
    init.add_argument("directory", metavar="DIR", help="of the federation")
    init.add_argument("config", metavar="CONFIG", help="a TOML file, or a shipped config by name")
    init.add_argument(
        "--host", default="127.0.0.1", action=Once, help="the name or address where devices find the server (default: 127.0.0.1)"
    )
    init.add_argument(
        "--port", type=int, default=PORT, action=Once, help=f"and the port (default: {PORT}); the next one is used on loopback"
    )
    init.add_argument("--nodes", default="", action=Once, metavar="NAMES", help="of devices, such as anna,bert")
    certify = verb(
        "certify", "Make the server another certificate, as when the old one ends.", "fedcodist deploy certify fed --host fl.example.org"
    )
    certify.add_argument("directory", metavar="DIR", help="of the federation")
    certify.add_argument("--host", required=True, action=Once, help="the name or address where devices find the server")
    server = verb("server", "Run the server's processes, and keep them alive.", "fedcodist deploy server fed/server")
    server.add_argument("directory", metavar="DIR", help="of the server")
    register = verb("register", "Let a device in under a name.", "fedcodist deploy register fed/server anna fed/nodes/anna/node.pub")
    register.add_argument("directory", metavar="DIR", help="of the server")
    register.add_argument("name", help="of the device, which is its id in every run")
    register.add_argument("key", metavar="KEY", help="its public key")
    node = verb("node", "Run a device's processes, and keep them alive.", "fedcodist deploy node fed/nodes/anna")
    node.add_argument("directory", metavar="DIR", help="of the device")
    running = verb("run", "Run the experiment on the devices that are there; the same command goes on.", "fedcodist deploy run fed/server")
    running.add_argument("directory", metavar="DIR", help="of the server")
    status = verb("status", "The devices and runs that the server knows.", "fedcodist deploy status fed/server", shown)
    status.add_argument("directory", metavar="DIR", help="of the server")
    local = verb(
        "local", "A whole federation on this machine, over TLS on loopback, and its end.", "fedcodist deploy local --nodes 6 quick/devices"
    )
    local.add_argument("config", metavar="CONFIG", help="a TOML file, or a shipped config by name")
    local.add_argument("--nodes", type=int, default=6, action=Once, metavar="N", help="how many devices (default: 6)")
    local.add_argument("--out", default="federation", action=Once, metavar="DIR", help="where everything is kept (default: federation)")
    local.add_argument("--port", type=int, default=PORT, action=Once, help=f"(default: {PORT})")


def run(args: argparse.Namespace) -> int:
    """The verb."""
    from fedcodist.deploy import federation, layout
    from fedcodist.reports import tables

    def say(text: str) -> None:
        if not args.quiet:
            print(text, file=sys.stderr, flush=True)

    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _interrupt)  # so that what was started is ended
    if args.deploy_verb == "local":
        if not 1 <= args.nodes <= 100:
            raise ConfigError(str(Problem("--nodes", str(args.nodes), "1 to 100")))
        federation.local(Path(args.out), args.config, args.nodes, args.port, say)
        print(f"runs: {Path(args.out) / 'server' / 'runs'}")
        return 0
    directory = Path(args.directory)
    if args.deploy_verb == "init":
        names = [name for name in args.nodes.split(",") if name]
        print(*layout.init(directory, args.config, args.host, args.port, names), sep="\n")
    elif args.deploy_verb == "certify":
        print(layout.certify(directory, args.host))
    elif args.deploy_verb == "server":
        federation.keep(federation.server(directory), say)
    elif args.deploy_verb == "register":
        federation.register(directory, Path(args.key), args.name)
    elif args.deploy_verb == "node":
        federation.keep(federation.node(directory), say)
    elif args.deploy_verb == "run":
        federation.run(directory, say)
        print(f"runs: {directory / 'runs'}")
    else:
        print(tables.render(federation.status(directory), args.format))
    return 0


def _interrupt(signum: int, frame: Any) -> None:
    raise Interrupted(signum)
