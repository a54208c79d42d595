"""The directory of a study: one writer, one search, and nothing deleted."""

from __future__ import annotations

import re
import sys

import pytest
from tuned import by_alpha, finish, searched, values

from fedcodist import runs
from fedcodist.errors import ConfigError
from fedcodist.runs import environment
from fedcodist.storage import durable, lock, sealed
from fedcodist.tuning import study, tune

pytestmark = pytest.mark.usefixtures("prepared")


def test_another_study_is_refused_and_set_aside_on_request(base, read, tmp_path, pretend, call):
    pretend(by_alpha)
    finish(searched(base), tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("study.j*")}
    for search in (
        searched(base, seed=8),
        searched(base, "all"),
        searched(base, objective="pareto"),
        searched(base, prune=False),
        searched(read("pools.small.cohort=3")),
        searched(read("task.noise=2.0")),
    ):
        with pytest.raises(runs.Mismatch, match="this study is another one: .* -> .*; use another --name, or --restart"):
            finish(search, tmp_path / "out")
    assert {path: path.read_bytes() for path in before} == before
    assert len(finish(searched(read("engine.workers=1", "seeds=[1, 2]", "keep=9")), tmp_path / "out")) == 3, (
        "what changes no result may change"
    )
    code, _, errors = call("--space", "distillation", "--trials", 2, "--seed", 8)
    assert code == 4 and errors.startswith("error: ") and "seed: 7 -> 8" in errors and len(errors.splitlines()) == 1
    code, _, errors = call("--space", "distillation", "--trials", 2, "--seed", 8, "--restart")
    assert code == 0 and "note: restarted; the previous files are in before-1" in errors
    aside = (tmp_path / "out/small/merged/before-1/study.journal").read_bytes()
    assert aside.startswith(before[tmp_path / "out/small/merged/study.journal"])


def test_an_unfinished_study_is_carried_to_another_machine(base, tmp_path, pretend, monkeypatch):
    trained = pretend(by_alpha)
    straight = finish(searched(base, trials=14), tmp_path / "straight")
    here, there = (study.place(tmp_path / name, base) for name in ("here", "there"))
    finish(searched(base, trials=11), tmp_path / "here")
    assert sealed.unseal(here / "study.json")["trials"] == 11
    events = tune.run(searched(base, trials=14), tmp_path / "here")
    while next(events).kind != "round":  # trial 11 is in its first round
        pass
    events.close()
    durable.make_directories(there)
    for name in ("study.json", "study.journal"):
        text = (here / name).read_text()
        assert str(tmp_path) not in text and not re.search(r'"/\w', text), "no path of this machine"
        (there / name).write_text(text)
    fingerprint = environment.fingerprint()
    monkeypatch.setattr(environment, "fingerprint", lambda: fingerprint | {"cpu": "another"})
    trained.clear()
    events = list(tune.run(searched(base, trials=14), tmp_path / "there"))
    assert any("continues in another environment than before: cpu " in note for note in events[0].notes)
    assert "trial 11 was interrupted and is repeated" in events[0].notes and events[0].done == 11
    assert set(trained) == {12, 13, 14}, "finished trials count"
    found = tune.trials(searched(base, trials=14), tmp_path / "there")
    assert values(found) == values(straight) and sealed.unseal(there / "study.json")["trials"] == 14


def test_a_study_has_one_writer(base, tmp_path, pretend):
    pretend(by_alpha)
    place = study.place(tmp_path, base)
    durable.make_directories(place)
    held, _ = lock.take(place / "study.lock", "study")
    with pytest.raises(lock.Busy, match="is writing this study"):
        finish(searched(base), tmp_path)
    lock.release(held)
    assert len(finish(searched(base), tmp_path)) == 3


def test_damaged_files_are_told(base, tmp_path, pretend):
    pretend(by_alpha)
    finish(searched(base), tmp_path)
    place = study.place(tmp_path, base)
    good = (place / "study.journal").read_bytes()
    (place / "study.journal").write_bytes(b"{]\n" + good)
    with pytest.raises(durable.CheckpointError, match=r"study.journal: damaged .*--restart begins again"):
        finish(searched(base), tmp_path)
    (place / "study.journal").write_bytes(good)
    (place / "study.json").write_text("{}")
    with pytest.raises(durable.CheckpointError, match=r"study.json: .*; nothing was changed; --restart begins again"):
        finish(searched(base), tmp_path)


def test_without_optuna(base, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError) as refused:
        finish(searched(base), tmp_path)
    assert str(refused.value) == "tune needs the package optuna, which is not installed: pip install 'fedcodist[tune]'"
    assert not list(tmp_path.rglob("study.*"))
