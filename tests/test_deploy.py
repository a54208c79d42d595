"""What a deployment writes, reads and refuses, without starting a process."""

import shutil
import stat
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedcodist import config
from fedcodist.cli.main import main
from fedcodist.deploy import apps, device, examples, executor, front, grid, processes, serving, site
from fedcodist.engines import wire
from fedcodist.engines.roll import QUERY, Declared, declared, question
from fedcodist.engines.wire import Fault, Parcel, Rejected
from fedcodist.errors import ConfigError, DataError
from fedcodist.methods import METHODS
from fedcodist.objectives.classify import Classify
from fedcodist.task import Row, Spec

SPEC = Spec(Classify(), Row((2,), "float32"), Row((), "int32"), 3)


def written(path, text):
    path.write_text(text, "utf-8")
    return path


def npz(path, n=4, dtype=np.float32, labels=np.int64):
    np.savez(path, x=np.ones((n, 2), dtype), y=np.arange(n).astype(labels) % 3)


def test_a_site_says_how_many_examples_it_has_and_its_attributes(tmp_path):
    npz(tmp_path / "data.npz")
    path = written(tmp_path / "site.toml", '[attributes]\ncapacity = "high"\n[data]\nkind = "file"\npath = "data.npz"\n')
    assert declared(apps.answer(QUERY, question(SPEC), path), 10) == Declared(4, {"capacity": "high"})


def test_a_site_may_name_a_client_of_a_task_or_a_function(tmp_path, monkeypatch):
    share = '[data]\nkind = "share"\nclient = "client-001"\ntask = { kind = "toy", clients = 3, features = 2, classes = 3 }\n'
    path = written(tmp_path / "site.toml", share)
    assert len(site.load(site.read(path), path).x) > 0
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n\n\ndef load():\n    return np.zeros((5, 2), np.float32), np.zeros(5, np.int32)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = written(tmp_path / "other.toml", '[data]\nkind = "function"\nfunction = "mine:load"\n')
    assert declared(apps.answer(QUERY, question(SPEC), path), 10) == Declared(5, {})


@pytest.mark.parametrize(
    "n,dtype,labels,said", [(4, np.float64, np.int64, "x: got rows of"), (4, np.float32, np.float32, "y: got rows of")]
)
def test_a_site_with_other_rows_than_the_task_says_so(tmp_path, n, dtype, labels, said):
    npz(tmp_path / "data.npz", n, dtype, labels)
    path = written(tmp_path / "site.toml", '[data]\nkind = "file"\npath = "data.npz"\n')
    with pytest.raises(DataError, match=said):
        apps.answer(QUERY, question(SPEC), path)


@pytest.mark.parametrize(
    "text,said", [("x = 1", "data: got nothing"), ("[data", "cannot be read"), ('data = "other"', "share \\| file \\| function")]
)
def test_a_site_file_that_is_wrong_is_one_line(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        site.read(written(tmp_path / "site.toml", text))


@pytest.mark.parametrize(
    "said",
    ['{"examples": 0, "attributes": {}}', '{"examples": true, "attributes": {}}', '{"examples": 2, "attributes": {"a": 1}}', "{}", "x"],
)
def test_what_a_device_declares_is_checked(said):
    with pytest.raises(Rejected):
        declared(Parcel(said, {}), 100)
    with pytest.raises(Rejected, match="weight"):
        declared(Parcel('{"examples": 101, "attributes": {}}', {}), 100)


def test_only_registered_parts_can_be_named():
    with pytest.raises(device.Refused, match="os:system"):
        device.part(device.WORKS, {"kind": "os:system"}, "work")
    with pytest.raises(device.Refused, match=r"work\.lr"):
        device.part(device.WORKS, {"kind": "local_sgd", "lr": -1.0}, "work")


def test_parts_of_every_shipped_config_come_back_from_their_text():
    for name in ("quick/devices", "quick/demo", "quick/text"):
        for pool in config.read(name).pools.values():
            for registry, part in ((device.MODELS, pool.model), (device.WORKS, pool.work)):
                assert device.part(registry, wire.read(wire.written({"p": device.settings.plain(part)}))["p"], "part") == part


def test_configs_that_choose_clients_by_number_are_refused():
    read = config.read("quick/devices")
    assert serving.refused(read) == []
    large = read.pools["large"]
    other = replace(read, pools={**read.pools, "large": replace(large, clients=config.Choice(take=2), domain="first")})
    assert [problem.path for problem in serving.refused(other)] == ["pools.large.clients.take", "pools.large.domain"]
    pools = serving.membership(read)
    assert pools("a", {"capacity": "high"}) == ["small", "large"] and pools("a", {"capacity": "low"}) == ["small"] == pools("a", {})


def test_secure_aggregation_is_refused_with_its_reason(tmp_path):
    written(tmp_path / "server.toml", 'config = "quick/devices"\nsecure_aggregation = true\n')
    with pytest.raises(ConfigError, match="secure_aggregation: got true; allowed false .*legacy strategies.*MergedCodist would fit it"):
        serving.read_config(tmp_path, serving.read_server(tmp_path))
    by_one = replace(config.read("quick/devices"), method=METHODS["feddf"]())
    assert "FedDF would not fit it" in serving.secure_aggregation(by_one).hint


def test_init_makes_private_keys_and_writes_nothing_over(tmp_path, capsys):
    pytest.importorskip("cryptography", reason="comes with fedcodist[deploy]")
    place = tmp_path / "fed"
    assert main(["deploy", "init", str(place), "quick/devices", "--host", "fl.example.org", "--nodes", "anna,bert"]) == 0
    secrets = [place / "authority/ca.key", place / "server/server.key", place / "server/superexec.secret", place / "nodes/anna/node.key"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in secrets)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert main(["deploy", "init", str(place), "quick/devices", "--nodes", "anna,carl"]) == 0
    assert all(path.read_bytes() == data for path, data in before.items()) and (place / "nodes/carl/node.key").is_file()
    from cryptography import x509

    made = x509.load_pem_x509_certificate((place / "server/server.crt").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fl.example.org" in names.get_values_for_type(x509.DNSName)
    capsys.readouterr()
    assert main(["deploy", "init", str(place), "quick/devices", "--nodes", "../anna"]) == 2
    assert main(["deploy", "init", str(tmp_path / "x"), "quick/toy"]) == 2
    assert "pools.large.clients.take: got 4; allowed where or ids" in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_a_key_that_others_can_read_is_refused(tmp_path):
    pytest.importorskip("flwr", reason="comes with fedcodist[deploy]")
    assert main(["deploy", "init", str(tmp_path), "quick/devices", "--nodes", "anna"]) == 0
    (tmp_path / "nodes/anna/node.key").chmod(0o644)
    assert main(["deploy", "node", str(tmp_path / "nodes/anna")]) == 10


def test_a_certificate_that_is_for_other_names_is_refused_and_made_again(tmp_path, capsys):
    pytest.importorskip("cryptography", reason="comes with fedcodist[deploy]")
    from fedcodist.deploy import keys

    assert main(["deploy", "init", str(tmp_path), "quick/devices", "--host", "fl.example.org"]) == 0
    keys.check_certificate(tmp_path / "server/server.crt", "fl.example.org")
    with pytest.raises(keys.Insecure, match=r"for fl\.example\.org, 127.*; allowed one for 10\.0\.0\.1"):
        keys.check_certificate(tmp_path / "server/server.crt", "10.0.0.1")
    assert main(["deploy", "certify", str(tmp_path), "--host", "10.0.0.1"]) == 0
    keys.check_certificate(tmp_path / "server/server.crt", "10.0.0.1")
    assert (tmp_path / "server/server.key.1").is_file()


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/runtime/x", "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control", "/docs", "//v1/fleet/x"],
)
def test_the_door_lets_only_devices_in(path):
    import asyncio

    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": [], "query_string": b""}
    asyncio.run(front.Front(1, "")(scope, receive, send))
    assert sent[0]["status"] == 403


def test_one_reply_that_cannot_be_read_is_its_senders_fault_alone():
    class Broken:
        def pull_messages(self, messages):
            if messages == ["bad"]:
                raise TypeError("no record")
            metadata = SimpleNamespace(reply_to_message_id="good" if messages == ["good"] else "another")
            error = SimpleNamespace(code=8, reason="gone")
            return [SimpleNamespace(metadata=metadata, has_error=lambda: True, error=error)]

    post = grid.GridPost(Broken())
    assert post.pull(["bad", "good", "none"]) == {"bad": Parcel("", {}), "good": Fault("died", "gone")}


def test_of_two_nodes_with_one_name_only_the_first_counts():
    nodes = [SimpleNamespace(node_id=number, name=name) for number, name in ((3, "anna"), (2, "anna"), (7, ""))]
    assert grid.GridPost(SimpleNamespace(get_nodes=lambda: nodes)).nodes() == {"anna": 2, "node-7": 7}


def test_a_watchdog_ends_what_hangs():
    import subprocess
    import sys

    code = "import time\nfrom fedcodist.deploy.apps import watchdog\nwith watchdog(0.2):\n    time.sleep(60)\n"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == -14  # SIGALRM


def test_a_supernode_finds_the_executor_that_forks(tmp_path):
    found = executor.install(tmp_path / "bin") / "flower-superexec"
    assert found.stat().st_mode & 0o777 == 0o700 and "fedcodist.deploy.executor" in found.read_text("utf-8")
    told = processes.environment(tmp_path, tmp_path / "cache", tmp_path / "bin")
    assert shutil.which("flower-superexec", path=told["PATH"]) == str(found)


def test_a_supernode_that_is_not_let_in_is_started_again_every_few_seconds(monkeypatch, tmp_path):
    now, said = [0.0], []
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    kept = processes.Kept("node", ["false"], {}, tmp_path / "log", last_seconds=4.0)
    for _ in range(5):
        kept.tend(said.append)
        kept.process.wait()
        kept.tend(said.append)
        now[0] += 4.0
    kept.end()
    assert kept.starts == 5 and said[-1].split("again in ")[1].startswith("4 s")


def test_the_examples_for_other_supervisors_are_well_formed(tmp_path):
    yaml = pytest.importorskip("yaml")
    texts = examples.texts(tmp_path, "fl.example.org", 9092, ["anna", "bert"])
    services = yaml.safe_load(texts["compose.yaml"])["services"]
    assert set(services) == {"server", "run", "anna", "bert"} and services["server"]["ports"] == ["9092:9092"]
    kinds = [part["kind"] for part in yaml.safe_load_all(texts["kubernetes.yaml"])]
    assert kinds == ["Service", "StatefulSet"]
    (cluster,) = yaml.safe_load_all(texts["kuberay.yaml"])
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    if shutil.which("systemd-analyze"):
        units = [name for name in texts if name.endswith(".service")]
        for name in units:
            (tmp_path / name).write_text(texts[name], "utf-8")
        checked = subprocess.run(["systemd-analyze", "verify", *(str(tmp_path / name) for name in units)], capture_output=True, text=True)
        assert checked.returncode == 0 and "fedcodist" not in checked.stderr, checked.stderr
