"""The live page over HTTP: three files and a stream of server-sent events. On loopback, or with a token and TLS."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from fedcodist.errors import ConfigError, Failure

LEAST_TOKEN = 16  # characters
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Unservable(Failure):
    """The page cannot be served there."""

    code = 6


def check_place(host: str, token: str | None, certificate: str | None, key: str | None) -> None:
    """ConfigError, unless the host is this machine's loopback or there are both a token and a certificate."""
    if (certificate is None) != (key is None):
        raise ConfigError(f"--{'key' if key is None else 'certificate'}: got nothing; allowed a file, with the other one")
    if not is_loopback(host) and (token is None or certificate is None):
        missing = " and ".join(flag for flag, value in (("--token-file", token), ("--certificate and --key", certificate)) if value is None)
        raise ConfigError(f"--host: got {host}; allowed a loopback address, or another one with {missing}")


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_token(path: str) -> str:
    """The token in a file."""
    try:
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file: got {path!r}; allowed a text file ({error})") from None
    if len(token) < LEAST_TOKEN or any(not 33 <= ord(sign) <= 126 for sign in token):
        raise ConfigError(f"--token-file: got {len(token)} characters; allowed at least {LEAST_TOKEN}, all printable and without spaces")
    return token


def serve(
    paths: Sequence[str], host: str, port: int, token: str | None, certificate: str | None, key: str | None, tell: Callable[[str], None]
) -> None:
    """Serve the page until it is interrupted; `tell` is given its address once it can be opened."""
    check_place(host, token, certificate, key)
    try:
        import uvicorn

        from fedcodist.live.app import application
    except ImportError:
        raise ConfigError("watch needs FastAPI and uvicorn: pip install fedcodist[watch]") from None
    app = application(paths, token, LOOPBACK if is_loopback(host) else (), certificate is not None)
    try:
        there = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Unservable(f"--port: got {port}; allowed one that is free on {host} ({error.strerror})") from None
    with there:
        scheme, shown = "https" if certificate else "http", f"[{host}]" if ":" in host else host
        tell(f"{scheme}://{shown}:{there.getsockname()[1]}/{'?token=...' if token else ''}")
        config = uvicorn.Config(
            app, log_level="warning", ssl_certfile=certificate, ssl_keyfile=key, server_header=False, timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[there])
