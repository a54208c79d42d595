"""The engine `ray`: what can be said without a cluster, and, in `make test-ray`, what `cluster/checks.py` finds on one.

The cluster is in a network namespace of its own, with an outside interface and a route, as a real machine has: Ray must not use them.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fedcodist import config
from fedcodist.config import Config, builder, plain, read, shipped
from fedcodist.config.builder import Elsewhere
from fedcodist.engines import ray as engine
from fedcodist.engines.ray import Placed, Ray
from fedcodist.errors import ConfigError, DataError
from fedcodist.runs.environment import fingerprint
from fedcodist.settings import SettingError, read_part

ROOT = Path(__file__).parent.parent
NAMESPACE = """
ip link set lo up && ip link add out type veth peer name in && ip address add 10.9.9.1/24 dev out && ip link set out up &&
ip link set in up && ip route add default via 10.9.9.2 && exec "$@"
"""


# -- without a cluster --


def test_a_config_comes_back_from_its_text():
    for name in shipped():
        table = plain(read(name))
        problems: list = []
        again = read_part(Config, json.loads(json.dumps(table)), "", problems)
        assert not problems and plain(again) == table, name


def test_an_actor_finds_the_same_clients_or_refuses():
    made = config.load("quick/toy", ["engine=serial"])
    source = Elsewhere.of(made.config, made.federation.task)
    population = source()
    for name, pool in made.federation.pools.items():
        assert list(population[name]) == list(pool.clients)
        for client in pool.clients:
            assert np.array_equal(population[name][client].x, pool.clients[client].x)
    other = config.read("quick/toy", ["task={kind='toy', split_seed=1}"])
    text = Elsewhere.of(other, other.task.load()).text
    with pytest.raises(DataError, match="task: got data [0-9a-f]{12} in a worker; allowed that of the run"):
        Elsewhere(text, source.content)()
    assert source == Elsewhere.of(config.read("quick/toy", ["seeds=[7]", "method='fedavg'", "rounds=3"]), made.federation.task)


def test_a_config_places_the_engine_and_a_missing_ray_is_one_line(monkeypatch):
    monkeypatch.setattr(engine, "find_spec", lambda name: object())
    made = config.load("quick/toy", ["engine={kind='ray', workers=3}"])
    placed = made.federation.engine
    assert isinstance(placed, Placed) and placed.workers == 3 and isinstance(placed.source, builder.Elsewhere)
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    for refused in (lambda: config.load("quick/toy", ["engine='ray'"]), lambda: Ray().gather({}, [])):
        with pytest.raises(ConfigError) as caught:
            refused()
        assert caught.value.lines == ["the engine ray needs the package ray, which is not installed: pip install 'fedcodist[ray]'"]


@pytest.mark.parametrize("address", ["8.8.8.8:6379", "[2606:4700::1]:6379"])
def test_a_public_address_is_refused_unless_it_is_allowed(address):
    with pytest.raises(SettingError, match="which is public; allowed a private network, or allow_public = true"):
        Ray(address=address)
    assert Ray(address=address, allow_public=True).address == address


@pytest.mark.parametrize("address", ["10.0.0.1", "10.0.0.1:x", ":6379", "ray://10.0.0.1:70000", "10.0.0.1:0"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(ConfigError, match="engine.address: got .*; allowed host:port"):
        config.read("quick/toy", [f"engine={{kind='ray', address='{address}'}}"])


def test_private_addresses_pass():
    for address in ("10.0.0.1:6379", "192.168.1.4:6379", "127.0.0.1:6379", "[::1]:6379", "head:6379"):
        assert Ray(address=address).address == address


# -- on a cluster --


@pytest.fixture(scope="module")
def found():
    if find_spec("ray") is None:
        pytest.skip("ray is not installed: make test-ray")
    unshare, ip = shutil.which("unshare"), shutil.which("ip") or shutil.which("ip", path="/sbin:/usr/sbin")
    command = [unshare or "unshare", *(["-n"] if os.geteuid() == 0 else ["-rn"]), "sh", "-c", NAMESPACE, "namespace"]
    if not (unshare and ip) or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    path = os.pathsep.join([os.environ.get("PATH", ""), "/sbin", "/usr/sbin"])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests", ROOT / "tests/cluster", ROOT)))}
    done = subprocess.run(
        [*command, sys.executable, "-W", "ignore", str(ROOT / "tests/cluster/checks.py")],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout)
    told = {name: value for line in done.stdout.splitlines() if line.startswith("{") for name, value in json.loads(line).items()}
    if os.environ.get("FEDCODIST_PUBLISH"):
        on = {key: value for key, value in fingerprint().items() if key in ("python", "jax", "cpu", "cores", "fedcodist")}
        kept = {name: told[name] for name in ("identical", "lost", "memory", "overhead", "trials", "cells", "address")}
        table = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "on": on, **kept}
        (ROOT / "docs/measured/ray.json").write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    return told


@pytest.mark.ray
@pytest.mark.timeout(3600)
class TestCluster:
    def test_the_bytes_are_those_of_the_compiled_engine_for_any_number_of_workers(self, found):
        assert found["identical"] == {name: [True, True] for name in ("merged", "scaffold", "feddf", "krum", "faults")}

    def test_it_keeps_the_contract_of_engines(self, found):
        assert found["contract"] is True

    def test_nothing_listens_but_on_loopback(self, found):
        assert found["listens"] == []

    def test_killed_actors_come_back_and_change_no_byte(self, found):
        assert found["lost"] == {"killed": 3, "same": True}

    def test_other_data_and_a_cluster_that_is_not_there_are_refused(self, found):
        assert found["differs"].startswith("3 task: got data ") and "every machine needs the same data" in found["differs"]
        assert found["refuses"].startswith("10 engine.address: got no answer from 127.0.0.1:9")

    def test_actors_compile_nothing_after_the_first_rounds(self, found):
        assert found["compiled"] == 0

    def test_a_round_takes_hardly_longer_than_without_it(self, found):
        assert found["overhead"]["same"] and found["overhead"]["time"] < 1.1, found["overhead"]

    def test_trials_and_cells_are_those_of_this_process(self, found):
        assert found["trials"] == {"trials": 4, "same": True}
        assert found["cells"] == {"runs": 3, "failed": [], "files": 6, "same": True}

    def test_a_cluster_that_is_there_is_used_by_its_address_and_left_there(self, found):
        assert found["address"] == {"same": True, "again": True}

    def test_memory_is_flat(self, found):
        first, last = found["memory"]["after"]
        assert all(after < before * 1.05 + 20 for before, after in zip(first["rss"], last["rss"], strict=True)), found["memory"]
        assert last["store"] <= first["store"] + 2**21, found["memory"]
