"""A federation on disk: what `fedcodist deploy init` writes, and where everything is.

    DIR/authority/         the private authority: needed to make certificates, by nothing that runs
    DIR/server/            all that the server machine needs: server.toml, certificate, Flower's state, runs
    DIR/nodes/NAME/        all that one device needs: node.key, ca.crt, site.toml, node.toml
    DIR/examples/          systemd units, a compose file, a Kubernetes example

Nothing that exists is written over: a second `init` adds devices, and makes no new keys for those that are there.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedcodist import config, settings
from fedcodist.deploy import examples, files, keys
from fedcodist.deploy.serving import NOISE_KEY, SETTINGS, refused
from fedcodist.errors import ConfigError
from fedcodist.settings import Problem
from fedcodist.storage import durable

AUTHORITY, SERVER, NODES, EXAMPLES = "authority", "server", "nodes", "examples"
NODE, SITE, SECRET, HOME = "node.toml", "site.toml", "superexec.secret", "flower"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
APP = """[project]
name = "fedcodist-federation"
version = "0.1.0"
description = "Only names the apps: fedcodist must be installed where they run"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedcodist"

[tool.flwr.app.components]
serverapp = "apps:server"
clientapp = "apps:client"

[tool.flwr.app.config]
directory = ""
"""
CODE = """from fedcodist.deploy.apps import client_app, server_app

server = server_app()
client = client_app()
"""


@dataclass(frozen=True)
class Node:
    """A device's `node.toml`: where its server is."""

    name: str
    server: str


def init(directory: Path, what: str, host: str, port: int, names: Sequence[str], sites: Mapping[str, str] | None = None) -> list[str]:
    """Make the federation's directory, or add devices to it; what was done, line by line."""
    problems = [Problem("nodes", settings.show(name), f"names that match {durable.NAME}") for name in names if not _named(name)]
    problems += [Problem("port", str(port), "1024 to 65533")] if not 1024 <= port <= 65533 else []
    problems += refused(config.read(what))
    if problems:
        raise ConfigError("\n".join(map(str, problems)))
    server, authority, done = directory / SERVER, directory / AUTHORITY, []
    durable.make_directories(directory)
    if not (authority / "ca.crt").exists():
        durable.make_directories(authority)
        keys.authority(authority)
        done.append(f"authority: {authority} (its key signs certificates; keep it on no machine that runs)")
    if not (server / SETTINGS).exists():
        _server(server, authority, what, host, port)
        done.append(f"server: {server}")
    if not (server / NOISE_KEY).exists():
        keys.secret(server / NOISE_KEY)
    for name in names:
        if not (directory / NODES / name).exists():
            _node(directory / NODES / name, authority, name, f"{host}:{port}", (sites or {}).get(name, ""))
            done.append(f"node: {directory / NODES / name}")
    if not (directory / EXAMPLES).exists():
        durable.make_directories(directory / EXAMPLES)
        for name, text in examples.texts(directory.resolve(), host, port, list(names)).items():
            durable.write_file(directory / EXAMPLES / name, text.encode())
        done.append(f"examples: {directory / EXAMPLES}")
    return done or ["nothing to do"]


def certify(directory: Path, host: str) -> str:
    """Another certificate for the server, for this name or address; the old one is kept beside it."""
    server = directory / SERVER
    for name in ("server.key", "server.crt"):
        if (server / name).exists():
            durable.rename(server / name, _aside(server / name))
    keys.certificate(directory / AUTHORITY, server, [host, *LOOPBACK])
    return f"certificate: {server / 'server.crt'} for {host}; start the server again"


def _aside(path: Path) -> Path:
    n = 1
    while (old := path.with_name(f"{path.name}.{n}")).exists():
        n += 1
    return old


def read_node(directory: Path) -> Node:
    """The device that lives in this directory."""
    return files.read(Node, directory / NODE)


def _named(name: str) -> bool:
    return re.fullmatch(durable.NAME, name) is not None


def _server(server: Path, authority: Path, what: str, host: str, port: int) -> None:
    durable.make_directories(server / "app")
    durable.make_directories(server / HOME)
    keys.certificate(authority, server, [host, *LOOPBACK])
    shutil.copyfile(authority / "ca.crt", server / "ca.crt")
    keys.secret(server / SECRET)
    durable.write_file(server / "app" / "pyproject.toml", APP.encode())
    durable.write_file(server / "app" / "apps.py", CODE.encode())
    connection = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port + 1}"\n'
    durable.write_file(server / HOME / "config.toml", f'{connection}root-certificates = "{(server / "ca.crt").resolve()}"\n'.encode())
    path = Path(what)
    if path.is_file():
        shutil.copyfile(path, server / "experiment.toml")
        what = "experiment.toml"
    text = (
        f'# Every key that may stand here is in docs/deploy.md.\nconfig = "{what}"\nhost = "{host}"\nport = {port}\nseed = 0\n\n[rounds]\n'
    )
    durable.write_file(server / SETTINGS, text.encode())


def _node(node: Path, authority: Path, name: str, server: str, site: str) -> None:
    durable.make_directories(node)
    keys.device(node)
    shutil.copyfile(authority / "ca.crt", node / "ca.crt")
    durable.write_file(node / NODE, f'name = "{name}"\nserver = "{server}"\n'.encode())
    durable.write_file(node / SITE, (site or examples.SITE).encode())
