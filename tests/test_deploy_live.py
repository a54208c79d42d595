"""A real federation on loopback, by the project's own commands: Flower's processes, TLS, node authentication, four devices.

Run it with `make test-deploy`. It takes minutes: every message starts a process.
"""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedcodist.cli.main import main

pytest.importorskip("flwr", reason="make test-deploy installs Flower")
pytestmark = [pytest.mark.deploy, pytest.mark.timeout(3600)]

CONFIG = """
rounds = 3
seeds = [0]
name = "devices"
task = { kind = "toy", clients = 4, public = 60, held_out = 40, test = 40 }
membership = "nested"
keep = 10

[pools.small]
model  = { kind = "mlp", hidden = [5] }
cohort = 3
work   = { kind = "local_sgd", lr = 0.1, batch = 10 }
server = { kind = "adam", lr = 0.03 }

[pools.large]
like    = "small"
model   = { kind = "mlp", hidden = [7] }
clients = { where = { capacity = "mid" } }
cohort  = 1

[method]
kind    = "merged"
alpha   = 0.7
distill = { steps = 4, batch = 20 }
"""
PATIENCE = float(os.environ.get("FEDCODIST_TEST_PATIENCE", "900"))  # seconds for what takes one on a quiet machine


@pytest.fixture
def place(tmp_path):
    (tmp_path / "devices.toml").write_text(CONFIG, "utf-8")
    return tmp_path


def free_port():
    """A port whose neighbour is free as well."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            try:
                two.bind(("127.0.0.1", one.getsockname()[1] + 1))
            except (OSError, OverflowError):
                continue
            return one.getsockname()[1]


def command(*arguments):
    return [sys.executable, "-m", "fedcodist.cli.main", *map(str, arguments)]


@contextmanager
def running(place, *arguments):
    """A command that is ended in the end, and what it printed so far."""
    log = place / f"{'-'.join(Path(str(a)).name for a in arguments)}.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(command(*arguments), stdout=file, stderr=file, start_new_session=True, cwd=place)
        try:
            yield process, log
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def until(what, said="", seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"nothing for {seconds} s: {said}"
        time.sleep(1)
    return found


def tensors(run):
    """{file: bytes} of the last checkpoint."""
    last = sorted(path for path in (run / "checkpoints").iterdir() if path.name.isdigit())[-1]
    return last.name, {path.name: path.read_bytes() for path in sorted(last.glob("*.safetensors"))}


def simulated(place):
    (place / "blocks.toml").write_text('like = "devices.toml"\nengine = { kind = "compiled", block = 1 }\n', "utf-8")
    done = subprocess.run(command("run", "blocks.toml", "--quiet", "--name", "devices", "--out", "simulated"), cwd=place, check=False)
    assert done.returncode == 0
    return place / "simulated" / "devices" / "merged" / "seed-0"


def rounds(run):
    return [json.loads(line)["pools"] for line in (run / "rounds.jsonl").read_text("utf-8").splitlines()]


def test_a_federation_on_loopback_ends_with_the_bits_of_the_simulation(place):
    began = time.monotonic()
    port = free_port()
    local = command("deploy", "local", "devices.toml", "--nodes", "4", "--out", "fed", "--port", port)
    with open(place / "local.log", "wb") as log:
        code = subprocess.run(local, cwd=place, stdout=log, stderr=log, check=False, timeout=3 * PATIENCE).returncode
    assert code == 0, (place / "local.log").read_text("utf-8")[-3000:]
    live, simulation = place / "fed" / "server" / "runs" / "devices" / "merged" / "seed-0", simulated(place)
    assert tensors(live) == tensors(simulation)
    told = rounds(live)
    assert [{name: pool["clients"] for name, pool in row.items()} for row in told] == [{"small": 3, "large": 1}] * 3
    assert not reach(port, place / "fed" / "server" / "ca.crt"), "something still listens"
    print(f"\n3 rounds with 4 devices, byte-equal to blocks of one, in {time.monotonic() - began:.0f} s with all starts")


def reach(port, authority):
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as plain:
            context = ssl.create_default_context(cafile=str(authority))
            with context.wrap_socket(plain, server_hostname="127.0.0.1"):
                return True
    except OSError:
        return False


def test_strangers_are_refused_and_killed_processes_change_nothing(place):
    port = free_port()
    names = ["client-000", "client-001", "client-002", "client-003"]
    from fedcodist.deploy import federation, layout

    os.chdir(place)
    sites = federation.shares("devices.toml", 4)
    fed, other = place / "fed", place / "other"
    layout.init(fed, "devices.toml", "127.0.0.1", port, names, sites)
    layout.init(other, "devices.toml", "127.0.0.1", port, ["stranger"], {"stranger": sites["client-000"]})
    federation._set_first(fed / "server", 4)
    with running(place, "deploy", "server", fed / "server") as (_, log):
        until(lambda: reach(port, fed / "server" / "ca.crt"), log)
        _no_way_in(port, fed)
        _no_stranger(place, port, fed, other)
        for name in names:
            assert main(["deploy", "register", str(fed / "server"), name, str(fed / "nodes" / name / "node.pub")]) == 0
        nodes = [running(place, "deploy", "node", fed / "nodes" / name) for name in names]
        entered = [node.__enter__() for node in nodes]
        try:
            with running(place, "deploy", "run", fed / "server") as (run, log):
                story = fed / "server" / "rounds.log"
                until(lambda: story.is_file() and "round 1 of 3" in story.read_text("utf-8"), log)
                _kill("flwr-serverapp", fed)
                until(lambda: "round 2 of 3" in story.read_text("utf-8"), story)
                assert run.wait(PATIENCE) == 0, log.read_text("utf-8")[-3000:]
                assert "starting another" in log.read_text("utf-8")
        finally:
            for node in reversed(nodes):
                node.__exit__(None, None, None)
        assert all(process.poll() is not None for process, _ in entered)
    live = fed / "server" / "runs" / "devices" / "merged" / "seed-0"
    assert tensors(live) == tensors(simulated(place))
    assert [row["small"]["clients"] for row in rounds(live)] == [3, 3, 3]


def _no_way_in(port, fed):
    """Whoever starts experiments, or asks in plain text, is not served where devices are."""
    context = ssl.create_default_context(cafile=str(fed / "server" / "ca.crt"))
    for path in ("/v1/control/start-run", "/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"https://127.0.0.1:{port}{path}", b"", timeout=30, context=context)
        assert refused.value.code == 403
    with pytest.raises((urllib.error.URLError, OSError)):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/fleet/activate-node", b"", timeout=30)
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"https://127.0.0.1:{port}/", timeout=30, context=ssl.create_default_context())


def _no_stranger(place, port, fed, other):
    """A device whose key is not registered, one that trusts another authority, and one in plain text do not get in."""
    log = fed / "server" / "flower" / "superlink.log"
    stranger = other / "nodes" / "stranger"
    ours, theirs = (stranger / "ca.crt").read_bytes(), (fed / "server" / "ca.crt").read_bytes()
    told = stranger / "flower" / "supernode.log"
    with running(place, "deploy", "node", stranger):  # it trusts another authority
        until(lambda: told.is_file() and _tried(told), told)
    assert "activate-node" not in log.read_text("utf-8")
    (stranger / "ca.crt").write_bytes(theirs)  # it trusts the right one, and nobody knows its key
    with running(place, "deploy", "node", stranger):
        until(lambda: "/v1/fleet/" in log.read_text("utf-8"), log)
        time.sleep(5)
    assert "Activated node_id" not in log.read_text("utf-8")
    (stranger / "ca.crt").write_bytes(ours)


def _tried(told):
    text = told.read_text("utf-8", "replace").lower()
    return "certificate" in text or "connection" in text or "retry" in text


def _kill(what, fed):
    """kill -9 to the process of this federation with this name."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                home = (process / "environ").read_bytes()
            except OSError:
                continue
            if any(Path(word.decode("utf-8", "replace")).name == what for word in words[:2]) and str(fed).encode() in home:
                found.append(int(process.name))
    assert found, f"no {what} of this federation"
    for number in found:
        os.kill(number, signal.SIGKILL)
