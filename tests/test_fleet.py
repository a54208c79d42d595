"""`fedcodist plan`: what is asked of devices, by hand and against journals."""

import json

import jax
import pytest
from worlds import gauss_federation

from fedcodist import config, runs
from fedcodist.cli import main
from fedcodist.errors import ConfigError
from fedcodist.methods import FedAvg
from fedcodist.models import CNN, LSTM, MLP
from fedcodist.runs import devices, fleet
from fedcodist.runs.devices import Device
from fedcodist.runs.fleet import Assumed, Demand
from fedcodist.train import Experiment

HEAD = "device,share,memory_mb,gflops,down_mbps,up_mbps\n"
PHONE = Device("phone", 1.0, 1024, 50.0, 8.0, 4.0)


def test_seconds_and_obstacles_by_hand():
    demand = Demand(parameters=10, bytes_down=10**6, bytes_up=10**6, flops=1e9, memory_bytes=100 * 2**20)
    # 1 s down at 8 Mbit/s, 2 s up at 4 Mbit/s, 1 GFLOP at a tenth of 50 GFLOP/s: 0.2 s
    assert demand.seconds(PHONE, Assumed(efficiency=0.1)) == pytest.approx(3.2)
    assert demand.obstacle(PHONE, Assumed(deadline=3.3)) == ""
    assert demand.obstacle(PHONE, Assumed(deadline=3.1)) == "time"
    assert demand.obstacle(PHONE, Assumed(memory=100 / 1024)) == ""
    assert demand.obstacle(PHONE, Assumed(memory=99 / 1024)) == "memory"


def test_memory_counts_parameters_three_times_the_batch_and_the_data():
    fed = gauss_federation()
    small, large = (fleet.memory_bytes(fed, fed.pools[name]) for name in ("small", "large"))
    for name, found in (("small", small), ("large", large)):
        pool = fed.pools[name]
        row = fed.task.held_out.x[0].nbytes + fed.task.held_out.y[0].nbytes
        data = row * sum(len(pool.clients[c].y) for c in pool.clients) / len(pool.clients)
        parameters = 12 * sum(leaf.size for leaf in jax.tree.leaves(pool.shapes))
        assert found > parameters + data  # and what the backward pass keeps
    assert large > small


def result_of(root):
    result = runs.read(runs.run_path(root, "toy", "merged", 0)).result
    assert result is not None
    return result


def test_a_plan_says_what_a_journal_will_say(tmp_path):
    """Bytes are equal, and operations within 5 %."""
    made = config.read("quick/toy", ["rounds=30"])
    planned = fleet.fleet(config.build(made, 0), devices.shipped(), Assumed())
    assert main.main(["run", "quick/toy", "--set", "rounds=30", "--out", str(tmp_path), "--quiet"]) == 0
    spent = result_of(tmp_path)["cost"]
    pools = {row["pool"]: row for row in planned["pools"]}
    for name, row in pools.items():
        asked = 30 * made.pools[name].cohort
        assert (row["bytes_down"] + row["bytes_up"]) * asked == spent["client_bytes"][name]
        assert row["flops"] * asked == pytest.approx(spent["client_flops"][name], rel=0.05)
    assert planned["server"]["flops"] == pytest.approx(sum(spent["server_flops"].values()), rel=0.05)
    assert planned["server"]["bytes_in_and_out"] == sum(spent["client_bytes"].values())


def test_who_can_carry_what():
    fed = gauss_federation()
    between = sum(fleet.memory_bytes(fed, fed.pools[name]) for name in ("small", "large")) / 2  # enough for one of the models
    tiny = Device("tiny", 0.75, between / 2**20, 1.0, 8, 8)
    park = (tiny, Device("big", 0.25, 4096, 100.0, 8, 8), Device("none", 0.0, 9999, 1e4, 8, 8))
    found = fleet.fleet(Experiment(fed, FedAvg(), 4), park, Assumed(memory=1.0))
    pools = {row["pool"]: row for row in found["pools"]}
    tiny = {row["pool"]: row for row in found["devices"] if row["device"] == "tiny"}
    assert tiny["small"]["carries"] and not tiny["large"]["carries"] and tiny["large"]["obstacle"] == "memory"
    assert pools["small"]["share_of_devices"] == 1.0 and pools["large"]["share_of_devices"] == 0.25
    # four rounds with 3 of 8 clients
    assert (fed.pools["small"].cohort, len(fed.pools["small"].clients), pools["small"]["rounds_of_a_client"]) == (3, 8, 1.5)
    assert tiny["small"]["bytes_in_all"] == 1.5 * (pools["small"]["bytes_down"] + pools["small"]["bytes_up"])
    sizes = found["sizes"]
    assert [row["share_of_devices"] for row in sizes] == sorted((row["share_of_devices"] for row in sizes), reverse=True)
    worth = [row for row in sizes if row["worth_trying"]]
    assert {row["share_of_devices"] for row in worth} == {row["share_of_devices"] for row in sizes} - {0.0}


@pytest.mark.parametrize("part", [CNN(), LSTM(), MLP()])
def test_every_model_of_this_package_has_widths(part):
    assert fleet.scaled(part, 1.0) == part and fleet.scaled(part, 2.0) != part


def test_a_table_of_your_own(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text(f"{HEAD}phone,3,4096,100,50,10\nboard,1,512,30,50,10\n")
    assert [device.share for device in devices.read(file)] == [0.75, 0.25]
    wrong = {
        f"{HEAD}phone,1,4096,-2,50,10\n": r"mine.csv:2: gflops: got '-2'; allowed a number > 0",
        f"{HEAD}phone,1,4096,fast,50,10\n": r"mine.csv:2: gflops: got 'fast'; allowed a number > 0",
        f"{HEAD}a,1,1,1,1,1\na,1,1,1,1,1\n": r"mine.csv:3: device: got 'a'; allowed a name that no other row has",
        f"{HEAD}a,0,1,1,1,1\n": r"mine.csv: share: got 0 in every row",
        "device,share,memory_mb,gflop,down_mbps,up_mbps\na,1,1,1,1,1\n": r"got no column gflops; .*did you mean gflop",
        "": r"got no column device",
    }
    for text, message in wrong.items():
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            devices.read(file)
    with pytest.raises(ConfigError, match="--devices: got .*; allowed a CSV file"):
        devices.read(tmp_path / "none.csv")


def test_the_verb(tmp_path, capsys):
    assert main.main(["plan", "quick/toy", "--picture", str(tmp_path / "plan.png"), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "small: 100.0% of the devices can carry its model" in said and "worth trying" in said
    assert (tmp_path / "plan.png").is_file() and (tmp_path / "plan.svg").is_file()
    assert main.main(["plan", "quick/toy", "--format", "json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["pool"] for row in found["devices"]} == {"small", "large"} and found["assumed"]["deadline"] == 600
    assert main.main(["plan", "quick/toy", "--efficiency", "2"]) == 2
    assert "--efficiency: got 2; allowed a number > 0 and <= 1" in capsys.readouterr().err
