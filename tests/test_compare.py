"""Tables of results."""

from __future__ import annotations

import pytest
from made_runs import both

from fedcodist.reports import compare


def test_results_have_means_spread_and_gain():
    rows = compare.results([r for pair in both([{"x": 0.4}, {"x": 0.6}], [{"x": 0.5}, {"x": 0.7}]) for r in pair])
    assert [(row["method"], row["seeds"]) for row in rows] == [("FedAvg", 2), ("MergedCodist", 2)]
    assert rows[0]["accuracy"] == pytest.approx(0.5) and rows[0]["spread"] == pytest.approx(0.02**0.5) and rows[0]["gain"] is None
    assert rows[1]["gain"] == pytest.approx(0.1)


def test_paths_of_several_methods_or_of_other_data_are_refused(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from fedcodist import runs
    from fedcodist.errors import ConfigError

    def run(path):
        name, kind = path.parts[-3:-1]
        result = {"seed": 0, "test": {"p": {"all": {"accuracy": 0.5}}}}
        config = {"method": {"kind": kind}, "data": name, "pools": {"p": {}}}
        return SimpleNamespace(path=path, config=config, rounds=[], timing=[], result=result, notes=[])

    places = [tmp_path / name / kind / "seed-0" for name in ("x", "y") for kind in ("fedavg", "merged")]
    monkeypatch.setattr(runs, "find_all", lambda paths: [p for p in places if paths[0] in (p, *p.parents)])
    monkeypatch.setattr(runs, "read", run)
    with pytest.raises(ConfigError, match="holds fedavg and merged; allowed one method"):
        compare.of_paths([tmp_path / "x", tmp_path / "y"])
    with pytest.raises(ConfigError, match="trained on different data"):
        compare.of_paths([tmp_path / "x/fedavg", tmp_path / "y/merged"])
    assert compare.of_paths([tmp_path / "x/fedavg", tmp_path / "x/merged"])[0]["difference"] == 0
