"""The directory of a study: one writer, one search, and nothing deleted."""

from __future__ import annotations

import sys

import pytest
from tuned import by_alpha, finish, searched

from fedcodist import runs
from fedcodist.errors import ConfigError
from fedcodist.storage import durable, lock
from fedcodist.tuning import study

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
    assert code == 0 and "note: began again; what was there is in before-1" in errors
    aside = (tmp_path / "out/small/merged/before-1/study.journal").read_bytes()
    assert aside.startswith(before[tmp_path / "out/small/merged/study.journal"])


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
    assert str(refused.value) == "tune: got no optuna; allowed an installation with it (pip install 'fedcodist[tune]')"
    assert not list(tmp_path.rglob("study.*"))
