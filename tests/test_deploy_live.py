"""A real federation on loopback, by the project's own commands: Flower's processes, TLS, node authentication, six devices.

Run it with `make test-deploy`; `make test-deploy PUBLISH=1` keeps what it measures in docs/measured/deploy.json. The first test takes a
minute or two; the others, under the mark `long` too, half an hour and more.
"""

import random
import subprocess
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("flwr", reason="make test-deploy installs Flower")

from live.federation import Live, command, context, free_port, publish, reach, rounds, running, simulated, tensors, until

from fedcodist.deploy import federation, layout

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(7200)]

TOY = """
rounds = 3
seeds = [0]
name = "devices"
task = { kind = "toy", clients = 6, public = 60, held_out = 40, test = 40 }
membership = "nested"
keep = 1000

[pools.small]
model  = { kind = "mlp", hidden = [5] }
cohort = 4
work   = { kind = "local_sgd", lr = 0.1, batch = 10 }
server = { kind = "adam", lr = 0.03 }

[pools.large]
like    = "small"
model   = { kind = "mlp", hidden = [7] }
clients = { where = { capacity = "high" } }
cohort  = 1

[method]
kind    = "merged"
alpha   = 0.7
distill = { steps = 4, batch = 20 }
"""
NAMES = [f"client-{k:03}" for k in (0, 1, 2, 3, 4, 5)]
HIGH = NAMES[:2]
FEDERATED = [f"client-{k:03}" for k in (0, 1, 2, 3, 4, 8)]  # clients of the embedded images
IMAGES = f"""
rounds = 3
seeds = [0]
name = "devices"
task = {{ kind = "fashion", public_flips = false }}
membership = "nested"
keep = 1000

[pools.small]
model   = {{ kind = "cnn", filters = [8, 16, 16], dense = [32, 64] }}
clients = {{ ids = {FEDERATED} }}
cohort  = 6
work    = {{ kind = "local_sgd", lr = 0.05, epochs = 1, batch = 10 }}
server  = {{ kind = "adam", lr = 0.01 }}

[pools.large]
like    = "small"
model   = {{ kind = "cnn", filters = [16, 32, 32], dense = [64, 128] }}
clients = {{ ids = {HIGH} }}
cohort  = 2

[method]
METHOD
""".replace("'", '"')
MERGED = 'kind = "merged"\nalpha = 0.7\ndistill = { steps = 10, batch = 32 }'
PERIODIC = 'kind = "periodic"\nperiod = 2\ndistill = { steps = 10, batch = 32 }'


def test_a_federation_on_loopback_ends_with_the_bits_of_the_simulation(tmp_path):
    began, port = time.monotonic(), free_port()
    (tmp_path / "devices.toml").write_text(TOY, "utf-8")
    local = command("deploy", "local", "devices.toml", "--nodes", "6", "--out", "fed", "--port", port)
    with open(tmp_path / "local.log", "wb") as log:
        code = subprocess.run(local, cwd=tmp_path, stdout=log, stderr=log, check=False, timeout=2700).returncode
    assert code == 0, (tmp_path / "local.log").read_text("utf-8")[-3000:]
    seconds = time.monotonic() - began
    live = tmp_path / "fed" / "server" / "runs" / "devices" / "merged" / "seed-0"
    assert tensors(live) == tensors(simulated(tmp_path))
    assert [{name: pool["clients"] for name, pool in row.items()} for row in rounds(live)] == [{"small": 4, "large": 1}] * 3
    assert not reach(port, tmp_path / "fed" / "server" / "ca.crt"), "something still listens"
    publish("small", {"nodes": 6, "rounds": 3, "seconds": round(seconds), "same_bits": True})


@pytest.mark.long
@pytest.mark.parametrize("method", ["merged", "periodic"])
def test_images_end_with_the_bits_of_the_simulation_and_no_large_tensor_reaches_a_small_device(tmp_path, method):
    text = IMAGES.replace("METHOD", {"merged": MERGED, "periodic": PERIODIC}[method])
    with Live(tmp_path, text, FEDERATED, HIGH) as live:
        _no_way_in(live)
        live.enter_devices()
        live.finish()
        seconds = live.seconds()
    same = tensors(live.run) == tensors(simulated(tmp_path))
    low, high = live.seen([name for name in FEDERATED if name not in HIGH]), live.seen(HIGH)
    large = {digest for row in high for pool, _, digest, plain in row["arrays"] if pool == "large" and not plain}
    told = [array for row in low for array in row["arrays"]]
    tainted = [array for array in told if array[2] in large or array[0] != "small"]
    publish(
        method,
        {
            "nodes": 6,
            "rounds": 3,
            "round_seconds": seconds,
            "same_bits": same,
            "messages_to_low": len(low),
            "tensors_to_low": len(told),
            "large_tensors": len(large),
            "of_them_to_low": len(tainted),
            "bytes_to_low": low[0]["bytes"],
            "bytes_to_high": high[0]["bytes"],
        },
    )
    assert same and len(low) >= 3 * 4 and len(large) >= 3 * 8 and not tainted
    assert {name: pool["clients"] for row in rounds(live.run) for name, pool in row.items()} == {"small": 6, "large": 2}


@pytest.mark.long
def test_offenders_are_dropped_and_the_models_are_those_without_them(tmp_path):
    text = IMAGES.replace("METHOD", MERGED).replace("rounds = 3", "rounds = 4")
    one, other = FEDERATED[-2:]
    spoil = {
        one: {"1": "NaN", "2": "1e30", "3": "weight -5", "4": "extra"},
        other: {"1": "shape", "2": "weight 1e12", "3": "float64", "4": "silent"},
    }
    with Live(tmp_path, text, FEDERATED, HIGH, "deadline_seconds = 150\nstrikes = 100\n", spoil) as live:
        live.enter_devices()
        live.finish()
        seconds = live.seconds()
    honest = [name for name in FEDERATED if name not in spoil]
    ids = str(honest).replace("'", '"')
    same = tensors(live.run) == tensors(simulated(tmp_path, f"pools.small.clients={{ ids = {ids} }}", "pools.small.cohort=4"))
    reasons = [row["small"]["reasons"] for row in rounds(live.run)]
    publish("offenders", {"nodes": 6, "offences": 8, "round_seconds": seconds, "reasons": reasons, "same_bits": same})
    assert reasons == [
        {"NaN or infinite": 1, "shape": 1},
        {"norm": 1, "weight": 1},
        {"dtype": 1, "weight": 1},
        {"late": 1, "names": 1},
    ]
    assert same


@pytest.mark.long
def test_each_process_may_be_killed_and_nothing_changes(tmp_path):
    with Live(tmp_path, TOY.replace("rounds = 3", "rounds = 8").replace("cohort = 4", "cohort = 6"), NAMES, HIGH) as live:
        _no_stranger(live)
        live.enter_devices()
        process, log = live.start()
        found = {}
        for t, what in ((1, "flower-supernode"), (3, "flower-superlink"), (4, "flower-superexec"), (5, "flwr-serverapp")):
            until(lambda t=t: live.done() >= t, f"round {t}")
            home = live.home(NAMES[-1]) if what == "flower-supernode" else live.server / "flower"
            began, done = time.monotonic(), live.done()
            assert live.kill(what, home) >= 1, what
            until(lambda what=what, home=home: _back(live, what, home), what)
            back = time.monotonic() - began
            until(lambda done=done: live.done() > done, what)
            found[what] = {"back_seconds": round(back), "next_round_seconds": round(time.monotonic() - began)}
        assert process.wait(3600) == 0, log.read_text("utf-8")[-3000:]
    ids = str(HIGH).replace("'", '"')  # the simulation's clients have the task's capacities, and these have ours
    same = tensors(live.run) == tensors(simulated(tmp_path, f"pools.large.clients={{ ids = {ids} }}"))
    publish("kills", {"nodes": 6, "killed": found, "round_seconds": live.seconds(), "same_bits": same})
    assert same and all(one["back_seconds"] <= 120 for one in found.values()), found
    assert all(one["next_round_seconds"] - one["back_seconds"] <= 90 for one in found.values()), found


def _back(live, what, home):
    """Whether the process is there again; a SuperNode, whether the server has let it in."""
    if what == "flower-supernode":
        return (home / "supernode.log").read_text("utf-8", "replace").count("SuperNode ID") >= 2
    if what == "flower-superlink":
        return reach(live.port + 1, live.server / "ca.crt")
    return bool(live.processes(what, home))


@pytest.mark.long
def test_a_long_run_survives_thirty_random_kills(tmp_path):
    draw, killed = random.Random(0), {}
    with Live(tmp_path, TOY.replace("rounds = 3", "rounds = 400"), NAMES, HIGH, "patience = 100\n") as live:
        live.enter_devices()
        process, log = live.start()
        until(lambda: live.done() >= 1, log)
        began = time.monotonic()
        while sum(killed.values()) < 30:
            time.sleep(draw.uniform(5, 25))
            what = draw.choice(
                ["flower-supernode"] * 4 + ["flower-superlink", "flower-superexec", "flwr-serverapp", "fedcodist.deploy.front"]
            )
            home = live.home(draw.choice(NAMES)) if what == "flower-supernode" else live.server / "flower"
            assert process.poll() is None, log.read_text("utf-8")[-3000:]
            if live.kill(what, home):
                killed[what] = killed.get(what, 0) + 1
        seconds, before = time.monotonic() - began, live.done()
        until(lambda: live.done() >= before + 3, log)  # it goes on when they are over
    counts = [sum(pool["clients"] for pool in row.values()) for row in rounds(live.run)]
    publish(
        "random",
        {
            "nodes": 6,
            "killed": killed,
            "seconds": round(seconds),
            "rounds": live.done(),
            "rounds_in_full": sum(count == 5 for count in counts),
        },
    )
    assert live.done() >= before + 3 and len(counts) == live.done()


def _no_way_in(live):
    """Whoever starts experiments, or asks in plain text, is not served where devices are."""
    authority, port = live.server / "ca.crt", live.port
    for path in ("/v1/control/start-run", "/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"https://127.0.0.1:{port}{path}", b"", timeout=30, context=context(authority))
        assert refused.value.code == 403
    with pytest.raises((urllib.error.URLError, OSError)):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/fleet/activate-node", b"", timeout=30)
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"https://127.0.0.1:{port}/", timeout=30)


def _no_stranger(live):
    """A device whose key is not registered, and one that trusts another authority, do not get in."""
    other = live.place / "other"
    layout.init(other, str(live.place / "devices.toml"), "127.0.0.1", live.port, ["stranger"], {"stranger": live._site(NAMES[0])})
    log, stranger = live.server / "flower" / "superlink.log", other / "nodes" / "stranger"
    told = stranger / "flower" / "supernode.log"
    with running(live.place, "deploy", "node", stranger, env=live.env):  # it trusts another authority
        until(lambda: told.is_file() and _tried(told), told)
    assert "activate-node" not in log.read_text("utf-8")
    (stranger / "ca.crt").write_bytes((live.server / "ca.crt").read_bytes())  # it trusts the right one, and nobody knows its key
    with running(live.place, "deploy", "node", stranger, env=live.env):
        until(lambda: "/v1/fleet/" in log.read_text("utf-8"), log)
        time.sleep(5)
    assert "Activated node_id" not in log.read_text("utf-8")
    assert federation.reachable("127.0.0.1", live.port, live.server / "ca.crt") is None


def _tried(told):
    text = told.read_text("utf-8", "replace").lower()
    return "certificate" in text or "connection" in text or "retry" in text
