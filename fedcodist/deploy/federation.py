"""The verbs of a real federation: its server, a device, an experiment on it, how it stands, and all of that on one machine."""

from __future__ import annotations

import json
import re
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcodist import config, settings
from fedcodist.deploy import executor, keys, layout, processes
from fedcodist.deploy.layout import HOME, NODES, SECRET, SERVER, SITE
from fedcodist.deploy.processes import Kept, keeping, program
from fedcodist.deploy.serving import DEVICES, LOG, OUTCOME, read_config, read_server
from fedcodist.errors import ConfigError, Failure
from fedcodist.settings import Problem

Say = Callable[[str], Any]
TURN_SECONDS = 0.5
WATCH_SECONDS = 20.0  # each look starts one of Flower's programs, which costs seconds of a core
NODE_SECONDS = 4.0  # between two starts of a SuperNode that is not let in
MOST_VAIN = 5  # starts of an experiment without a round between them, until it is given up
FINAL = {2, 3, 4, 6, 7, 8, 9}  # failures that the same command would meet again


class Unreachable(Failure):
    """The server, or Flower, does not do as it is asked."""

    code = 10


class Ended(Failure):
    """The experiment failed; the code is the server's."""

    def __init__(self, code: int, lines: Sequence[str]):
        self.code = code
        super().__init__("\n".join(lines))


def server(directory: Path) -> list[Kept]:
    """What runs on the server machine: the SuperLink and the SuperExec on loopback, and the door for devices."""
    here = read_server(directory)
    for name in ("server.key", SECRET):
        keys.check_private(directory / name)
    keys.check_certificate(directory / "server.crt", here.host)
    for host, port in ((here.host, here.port), ("127.0.0.1", here.port + 1)):
        _check_free(host, port)
    home = (directory / HOME).resolve()
    env = processes.environment(home, home / "cache")
    place, port = directory.resolve(), here.port + 1
    tls = [f"--ssl-certfile={place / 'server.crt'}", f"--ssl-keyfile={place / 'server.key'}", f"--ssl-ca-certfile={place / 'ca.crt'}"]
    secret = f"--superexec-auth-secret-file={place / SECRET}"
    link = [
        program("flower-superlink"),
        "--host=127.0.0.1",
        f"--port={port}",
        *tls,
        "--enable-supernode-auth",
        "--isolation=process",
        secret,
    ]
    link += [f"--database={home / 'link.db'}", "--disable-runtime-dependency-installation"]
    execute = [program("flower-superexec"), f"--runtime-api-address=127.0.0.1:{port}", f"--root-certificates={place / 'ca.crt'}", secret]
    front = [sys.executable, "-m", "fedcodist.deploy.front", "--host", here.host, "--port", str(here.port), "--behind", str(port)]
    front += ["--certificate", str(place / "server.crt"), "--key", str(place / "server.key"), "--authority", str(place / "ca.crt")]

    def up() -> bool:
        return reachable("127.0.0.1", port, place / "ca.crt") is None

    return [
        Kept("superlink", link, env, home / "superlink.log"),
        Kept("superexec", execute, env, home / "superexec.log", up),
        Kept("front", front, env, home / "front.log", up),
    ]


def node(directory: Path) -> list[Kept]:
    """What runs on a device: a SuperNode. One that the server does not let in yet is started again until it does."""
    mine = layout.read_node(directory)
    keys.check_private(directory / "node.key")
    home = (directory / HOME).resolve()
    home.mkdir(mode=0o700, exist_ok=True)
    place = directory.resolve()
    command = [
        program("flower-supernode"),
        f"--superlink={mine.server}",
        f"--root-certificates={place / 'ca.crt'}",
        f"--auth-supernode-private-key={place / 'node.key'}",
        f"--node-config=site={json.dumps(str(place / SITE))}",
        "--host=127.0.0.1",
        f"--port={_free_port()}",  # of what serves the ClientApp's process, on loopback
    ]
    env = processes.environment(home, home / "cache", executor.install(home / "bin"))
    # Flower lets a killed SuperNode in again when it has marked it offline, after a minute: the next try should not be far then.
    return [Kept(f"node {mine.name}", command, env, home / "supernode.log", last_seconds=NODE_SECONDS)]


def keep(kept: Sequence[Kept], say: Say) -> None:
    """Keep these processes alive until this one is ended."""
    with keeping(kept, say) as tend:
        say(f"running: {', '.join(one.name for one in kept)}; Ctrl-C ends it")
        while True:
            time.sleep(TURN_SECONDS)
            tend()


def register(directory: Path, key: Path, name: str) -> None:
    """Let a device in, under this name."""
    code, text = _flwr(directory, ["supernode", "register", str(key.resolve()), "here", "--name", name])
    if code and "already" not in text.lower():
        raise Unreachable(settings.one_line(f"register {name}: {_last(text)}"))


def run(directory: Path, say: Say, tend: Callable[[], None] = lambda: None) -> None:
    """Run the server's experiment to its end; one whose processes were killed is started again, and goes on from its last round. One that
    is going on already is followed."""
    read_config(directory, read_server(directory))
    (directory / OUTCOME).unlink(missing_ok=True)
    watched = _Watched(directory, say)
    try:
        while not watched.over():
            tend()
            time.sleep(TURN_SECONDS)
    except BaseException:  # an interrupt: nothing goes on behind it
        watched.stop()
        raise


class _Watched:
    """The experiment, from outside of the process that runs it."""

    def __init__(self, directory: Path, say: Say) -> None:
        self._directory, self._say = directory, say
        self._log, self._looked, self._vain = _Tail(directory / LOG), 0.0, 0
        self._number = _going(directory)

    def over(self) -> bool:
        """Whether it came to its end. Ended, if it failed for good."""
        said = self._outcome()
        for line in self._log.more():
            self._say(line)
            if " round " in line:
                self._vain = 0
        if said is not None:
            if said["code"] == 0:
                return True
            if said["code"] in FINAL:
                raise Ended(said["code"], said["lines"])
            self._number = None
        if time.monotonic() - self._looked > WATCH_SECONDS:
            self._looked = time.monotonic()
            self._look()
        return False

    def stop(self) -> None:
        """End what runs."""
        if self._number is not None:
            self._say("stopping the experiment; every completed round is saved")
            _flwr(self._directory, ["stop", self._number, "here"])

    def _look(self) -> None:
        if self._number is None:
            if self._vain >= MOST_VAIN:
                where = self._directory / HOME / "superexec.log"
                raise Ended(70, [f"the experiment was started {self._vain} times without a round; {where} and flwr log say why"])
            self._number = _start(self._directory, self._say)
            self._vain += self._number is not None
        elif (
            (status := _status(self._directory, self._number))
            and status.startswith("finished")
            and not (self._directory / OUTCOME).is_file()
        ):
            self._say(f"run {self._number} is {status}: starting another, which goes on from the last round")
            self._number, self._looked = None, 0.0

    def _outcome(self) -> dict[str, Any] | None:
        """What the experiment wrote when it ended, once."""
        path = self._directory / OUTCOME
        if not path.is_file():
            return None
        said = json.loads(path.read_text("utf-8"))
        path.unlink()
        return said


def status(directory: Path) -> list[dict[str, Any]]:
    """The clients that declared themselves, and the devices and runs that Flower knows, as rows."""
    known = directory / DEVICES
    clients = json.loads(known.read_text("utf-8")) if known.is_file() else {}
    rows: list[dict[str, Any]] = []
    for name, one in clients.items():
        said = " ".join(f"{key}={value}" for key, value in one["attributes"].items())
        rows.append({"what": "client", "id": name, "status": f"{one['examples']} examples {said}".rstrip()})
    for what, arguments in (("device", ["supernode", "list", "here"]), ("run", ["list", "here"])):
        code, text = _flwr(directory, [*arguments, "--format", "json"])
        table = _json(text)
        if code or table is None:
            raise Unreachable(settings.one_line(f"status: {_last(text)}"))
        for one in table.get("nodes", table.get("runs", [])):
            rows.append({"what": what, "id": str(one.get("node-id", one.get("run-id"))), "status": one.get("status", "")})
    return rows


def local(directory: Path, what: str, nodes: int, port: int, say: Say) -> None:
    """All of a federation on this machine: a device for each of the first clients of the config's task, with its own data and capacity."""
    sites = shares(what, nodes)
    for line in layout.init(directory, what, "127.0.0.1", port, list(sites), sites):
        say(line)
    _set_first(directory / SERVER, len(sites))
    with keeping(server(directory / SERVER), say) as tend_server:
        _wait(lambda: reachable("127.0.0.1", port, directory / SERVER / "ca.crt"), tend_server, f"the server at 127.0.0.1:{port}")
        for name in sites:
            register(directory / SERVER, directory / NODES / name / "node.pub", name)
        with keeping([one for name in sites for one in node(directory / NODES / name)], say) as tend_nodes:

            def tend() -> None:
                tend_server()
                tend_nodes()

            run(directory / SERVER, say, tend)


def shares(what: str, nodes: int) -> dict[str, str]:
    """{client: its site file}, of the first clients of a config's task; as many as possible in every pool."""
    read = config.read(what)
    task = read.task.load()
    known = dict(task.attributes.items())
    chosen: list[str] = []
    for pool in read.pools.values():  # one for each pool at least
        named = pool.clients.ids or [
            c for c in sorted(task.clients) if all(str(known.get(k, {}).get(c)) == v for k, v in pool.clients.where.items())
        ]
        chosen += [client for client in named[: max(1, nodes // 3)] if client not in chosen]
    chosen = sorted((chosen + [client for client in sorted(task.clients) if client not in chosen])[:nodes])
    if len(chosen) < nodes:
        raise ConfigError(str(Problem("--nodes", str(nodes), f"1 to the task's {len(task.clients)} clients")))
    return {client: _share(read.task, client, {k: str(v[client]) for k, v in known.items() if client in v}) for client in chosen}


def reachable(host: str, port: int, authority: Path) -> str | None:
    """None if a server with a certificate of this authority answers there; or what is wrong."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with socket.create_connection((host, port), 5) as plain, context.wrap_socket(plain, server_hostname=host):
            return None
    except (OSError, ValueError) as error:
        return str(error)


def _share(task: Any, client: str, attributes: Mapping[str, str]) -> str:
    said = "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in attributes.items())
    return f'[attributes]\n{said}\n\n[data]\nkind = "share"\nclient = {json.dumps(client)}\ntask = {_inline(settings.plain(task))}\n'


def _inline(value: Any) -> str:
    """A plain value as TOML on one line; what is None is left out, as it is the default."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(k))} = {_inline(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)


def _set_first(directory: Path, nodes: int) -> None:
    path = directory / "server.toml"
    text = path.read_text("utf-8")
    if "first =" not in text:
        path.write_text(f"{text}first = {nodes}\n", "utf-8")


def _start(directory: Path, say: Say) -> str | None:
    place = json.dumps(str(directory.resolve()))
    code, text = _flwr(
        directory, ["run", str(directory.resolve() / "app"), "here", "--run-config", f"directory={place}", "--format", "json"]
    )
    table = _json(text)
    if code or table is None or not table.get("run-id"):
        say(settings.one_line(f"the server does not take the experiment yet: {_last(text)}"))
        return None
    say(f"run {table['run-id']} started")
    return str(table["run-id"])


def _going(directory: Path) -> str | None:
    """The run that has not ended, if there is one."""
    code, text = _flwr(directory, ["list", "here", "--format", "json"])
    runs = [] if code else (_json(text) or {}).get("runs", [])
    return next((str(run["run-id"]) for run in runs if not str(run.get("status", "")).startswith("finished")), None)


def _status(directory: Path, number: str) -> str | None:
    code, text = _flwr(directory, ["list", "here", "--run-id", number, "--format", "json"])
    runs = (_json(text) or {}).get("runs", [])
    return None if code or not runs else str(runs[0].get("status", ""))


def _flwr(directory: Path, arguments: Sequence[str]) -> tuple[int, str]:
    home = (directory / HOME).resolve()
    return processes.run([program("flwr"), *arguments], processes.environment(home, home / "cache"))


def _json(text: str) -> dict[str, Any] | None:
    """The last object in what a command printed."""
    start = text.find("{")
    while start >= 0:
        try:
            found, _ = json.JSONDecoder().raw_decode(text[start:])
        except ValueError:
            start = text.find("{", start + 1)
            continue
        return found if isinstance(found, dict) else None
    return None


def _last(text: str) -> str:
    """What a command of Flower's said went wrong, on one line."""
    if said := (_json(text) or {}).get("error-message"):
        return " ".join(str(said).split())
    words = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip(" │╭╮╰╯─") for line in text.splitlines()]
    return next((line for line in reversed(words) if line), "it said nothing")


def _wait(problem: Callable[[], str | None], tend: Callable[[], None], what: str, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while (said := problem()) is not None:
        if time.monotonic() > end:
            raise Unreachable(settings.one_line(f"{what}: got no answer within {seconds:.0f} seconds ({said})"))
        time.sleep(TURN_SECONDS)
        tend()


def _check_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise Unreachable(
            settings.one_line(f"port: got {host}:{port}, which cannot be used ({error.strerror}); allowed a free port")
        ) from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class _Tail:
    """What is added to a file from now on, line by line."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, path.stat().st_size if path.is_file() else 0

    def more(self) -> list[str]:
        if not self._path.is_file():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode("utf-8", "replace").splitlines()
