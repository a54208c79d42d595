"""A whole federation on loopback for `test_deploy_live`: its processes by the project's own commands, kills, and what is measured."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedcodist.deploy import federation, layout
from fedcodist.runs.environment import fingerprint

HERE = Path(__file__).parent
PATIENCE = float(os.environ.get("FEDCODIST_TEST_PATIENCE", "900"))  # seconds for what takes one on a quiet machine
MEASURED = HERE.parent.parent / "docs/measured/deploy.json"
MARK = re.compile(r"(started|round) (\d+) of ")  # what the log says when a round is over
ON = ("python", "jax", "cpu", "cores", "fedcodist")


def publish(name: str, found: Mapping[str, Any]) -> None:
    """Print what was measured; keep it for the documentation if FEDCODIST_PUBLISH says so."""
    print(f"\n{name}: {json.dumps(found)}", flush=True)
    if os.environ.get("FEDCODIST_PUBLISH"):
        known = json.loads(MEASURED.read_text("utf-8")) if MEASURED.is_file() else {}
        known["on"] = {key: value for key, value in fingerprint().items() if key in ON} | {"load": round(os.getloadavg()[2], 1)}
        known[name] = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), **found}
        MEASURED.write_text(json.dumps(known, indent=1) + "\n", "utf-8")


def free_port() -> int:
    """A port whose neighbour is free as well."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            try:
                two.bind(("127.0.0.1", one.getsockname()[1] + 1))
            except (OSError, OverflowError):
                continue
            return one.getsockname()[1]


def command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "fedcodist.cli.main", *map(str, arguments)]


@contextmanager
def running(place: Path, *arguments: Any, env: Mapping[str, str] | None = None) -> Iterator[tuple[Any, Path]]:
    """A command that is ended in the end, and what it printed so far."""
    log = place / f"{'-'.join(Path(str(a)).name for a in arguments)}.log"
    with open(log, "ab") as file:
        told = {**os.environ, **(env or {})}
        process = subprocess.Popen(command(*arguments), stdout=file, stderr=file, start_new_session=True, cwd=place, env=told)
        try:
            yield process, log
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def until(what: Callable[[], Any], said: Any = "", seconds: float = PATIENCE) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"nothing for {seconds} s: {said}"
        time.sleep(0.5)
    return found


def reach(port: int, authority: Path) -> bool:
    return federation.reachable("127.0.0.1", port, authority) is None


def tensors(run: Path) -> tuple[str, dict[str, bytes]]:
    """The name of the last checkpoint, and {file: bytes} in it."""
    last = sorted(path for path in (run / "checkpoints").iterdir() if path.name.isdigit())[-1]
    return last.name, {path.name: path.read_bytes() for path in sorted(last.glob("*.safetensors"))}


def rounds(run: Path) -> list[dict[str, Any]]:
    """What the journal says of each pool, round by round."""
    return [json.loads(line)["pools"] for line in (run / "rounds.jsonl").read_text("utf-8").splitlines()]


def simulated(place: Path, *settings: str) -> Path:
    """The run of the same config as a simulation with blocks of one."""
    (place / "blocks.toml").write_text('like = "devices.toml"\nengine = { kind = "compiled", block = 1 }\n', "utf-8")
    more = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(
        command("run", "blocks.toml", "--quiet", "--name", "devices", "--out", "simulated", *more), cwd=place, check=False
    )
    assert done.returncode == 0
    return next((place / "simulated" / "devices").glob("*/seed-0"))


class Live:
    """The server, the devices and the experiment of one config. What devices are told to do wrong stands in `spoil`."""

    def __init__(self, place: Path, text: str, names: Sequence[str], high: Sequence[str], terms: str = "", spoil: Any = None) -> None:
        (place / "devices.toml").write_text(text, "utf-8")
        self.place, self.names, self.high, self.fed, self.port = place, list(names), set(high), place / "fed", free_port()
        (place / "seen").mkdir()
        self.server = self.fed / "server"
        story = {"config": str(place / "devices.toml"), "spoil": spoil or {}, "seen": str(place / "seen")}
        (place / "story.json").write_text(json.dumps(story), "utf-8")
        cache = os.environ.get("FEDCODIST_CACHE") or str(place / "cache")
        self.env = {"ONSITE": str(place / "story.json"), "PYTHONPATH": str(HERE), "FEDCODIST_CACHE": cache}
        layout.init(self.fed, str(place / "devices.toml"), "127.0.0.1", self.port, self.names, {name: self._site(name) for name in names})
        path = self.server / "server.toml"
        path.write_text(f"{path.read_text('utf-8')}first = {len(self.names)}\n{terms}", "utf-8")
        self._stack, self._node_stacks = ExitStack(), {}

    def _site(self, name: str) -> str:
        capacity = "high" if name in self.high else "low"
        return f'[attributes]\ncapacity = "{capacity}"\n\n[data]\nkind = "function"\nfunction = "onsite:{name.replace("-", "_")}"\n'

    def __enter__(self) -> Live:
        self._stack.enter_context(running(self.place, "deploy", "server", self.server, env=self.env))
        until(lambda: reach(self.port, self.server / "ca.crt"), "server")
        return self

    def enter_devices(self) -> None:
        """Register all devices and start them."""
        for name in self.names:
            federation.register(self.server, self.fed / "nodes" / name / "node.pub", name)
        for name in self.names:
            self._stack.enter_context(running(self.place, "deploy", "node", self.fed / "nodes" / name, env=self.env))

    def start(self) -> tuple[Any, Path]:
        """Begin the experiment."""
        return self._stack.enter_context(running(self.place, "deploy", "run", self.server, env=self.env))

    def finish(self, seconds: float = 4 * PATIENCE) -> None:
        """Run the experiment to its end."""
        process, log = self.start()
        assert process.wait(seconds) == 0, log.read_text("utf-8")[-3000:]

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def run(self) -> Path:
        return next((self.server / "runs" / "devices").glob("*/seed-0"))

    def told(self) -> list[tuple[float, str]]:
        """What the server's log says, with times."""
        path = self.server / "rounds.log"
        lines = path.read_text("utf-8").splitlines() if path.is_file() else []
        return [(datetime.datetime.fromisoformat(line[:20].replace("Z", "+00:00")).timestamp(), line[21:]) for line in lines]

    def done(self) -> int:
        """How many rounds are over."""
        return max((int(found[2]) for _, text in self.told() if (found := MARK.match(text))), default=0)

    def seconds(self) -> list[int]:
        """How long each round took, from when its predecessor was over, or the run was started."""
        times = [at for at, text in self.told() if MARK.match(text)]
        return [round(b - a) for a, b in pairwise(times)]

    def seen(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """What these devices were sent, a row for each message."""
        rows: list[dict[str, Any]] = []
        for name in names:
            path = self.place / "seen" / f"{name}.jsonl"
            rows += [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
        return rows

    def processes(self, what: str, home: Path) -> list[int]:
        """The processes with this program, or a module of this name, whose Flower directory is this one."""
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                    known = (process / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if f"FLWR_HOME={home.resolve()}".encode() in known and any(Path(word).name == what for word in words[:3]):
                    found.append(int(process.name))
        return found

    def kill(self, what: str, home: Path | None = None) -> int:
        """kill -9; how many."""
        found = self.processes(what, home or self.server / "flower")
        for number in found:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                found = [n for n in found if n != number]
        return len(found)

    def home(self, name: str) -> Path:
        return self.fed / "nodes" / name / "flower"


def context(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))
