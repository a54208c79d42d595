"""`fedcodist init` looks at a file and writes a config that runs."""

from __future__ import annotations

import numpy as np
import pytest
from test_own_csv import TEXT, csv

from fedcodist import config
from fedcodist.cli.main import main
from fedcodist.config import starter
from fedcodist.errors import ConfigError, DataError
from fedcodist.tasks import Toy


def test_a_config_for_a_csv_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    many = TEXT + "".join(f"d{i % 12},aa,{i + 40},{i / 3}\n" for i in range(90))
    csv(tmp_path, many)
    assert main(["init", "--data", "a.csv", "--out", "mine.toml"]) == 0
    said = capsys.readouterr().out
    assert "2 numbers in a row, 2 classes" in said and "labels from 0: aa, bb" in said and "next, fedcodist run mine.toml" in said
    made = config.read("mine.toml")
    assert made.task.standardise
    assert (made.task.y, made.task.client) == ("label", "user") and list(made.pools) == ["small", "large"]
    assert main(["init", "--data", "a.csv", "--out", "mine.toml"]) == 2  # nothing is written over
    assert main(["run", "mine.toml", "--set", "rounds=1", "--quiet", "--format", "csv"]) == 0


def test_images_without_clients_are_dealt_and_seen_by_a_cnn(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", image=rng.integers(0, 256, (120, 9, 9), np.uint8), label=np.arange(120) % 3)
    starter.write(tmp_path / "a.toml", str(tmp_path / "a.npz"))
    made = config.read(tmp_path / "a.toml")
    assert made.task.partition.clients == 12 and made.task.client == "" and type(made.pools["small"].model).kind == "cnn"
    assert made.task.x == "image"


def test_without_data_it_is_a_toy(tmp_path):
    assert starter.write(tmp_path / "a.toml") == []
    assert config.read(tmp_path / "a.toml").task == Toy() and "# " in (tmp_path / "a.toml").read_text()


def test_what_cannot_be_looked_at_leaves_nothing(tmp_path):
    path = csv(tmp_path, TEXT.replace("label", "species"))
    with pytest.raises(DataError, match=r"got no column of labels; allowed one called y, label.* or --y NAME \(found: 'user, species"):
        starter.write(tmp_path / "a.toml", path)
    with pytest.raises(DataError, match=r"got no column 'specie'; allowed user, species, height, width \(did you mean species\?\)"):
        starter.write(tmp_path / "a.toml", path, y="specie")
    with pytest.raises(ConfigError, match="allowed a name that ends in .toml"):
        starter.write(tmp_path / "a.txt")
    assert not (tmp_path / "a.toml").exists()
