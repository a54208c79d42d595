"""`fedcodist watch`: a page that shows runs while they train."""

from __future__ import annotations

import argparse
import sys

from fedcodist.cli.arguments import Once, Parser
from fedcodist.errors import ConfigError

HELP = (
    "A page that shows runs while they train: curves with teaching marks, who teaches whom, cohorts, dropped replies, time left. Read-only."
)
EXAMPLE = "fedcodist watch runs/"
PORT = 8642


def add(parser: Parser) -> None:
    """The arguments of the verb, besides those that are shared."""
    parser.add_argument(
        "runs", nargs="*", default=["runs"], metavar="DIR", help="run directories, or directories that hold some (default: runs)"
    )
    parser.add_argument("--host", default="127.0.0.1", action=Once, help="the address to serve on (default: 127.0.0.1, this machine alone)")
    parser.add_argument("--port", type=int, default=PORT, action=Once, help=f"and the port; 0 takes any that is free (default: {PORT})")
    parser.add_argument("--token-file", action=Once, metavar="FILE", help="a secret that the page is opened with, as ?token=...")
    parser.add_argument("--certificate", action=Once, metavar="FILE", help="for TLS, with --key; off loopback both are needed")
    parser.add_argument("--key", action=Once, metavar="FILE", help="the certificate's private key")


def run(args: argparse.Namespace) -> int:
    """The verb."""
    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port: got {args.port}; allowed 0 to 65535")
    from fedcodist.live import serving

    def tell(address: str) -> None:
        print(f"watching {', '.join(args.runs)} at {address} (Ctrl-C ends it; the runs go on)", flush=True)

    token = serving.read_token(args.token_file) if args.token_file else None
    try:
        serving.serve(args.runs, args.host, args.port, token, args.certificate, args.key, tell)
    except KeyboardInterrupt:
        print("", file=sys.stderr)
    return 0
