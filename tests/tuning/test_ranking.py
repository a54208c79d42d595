"""Which trials are best."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tuned import finish, searched

from fedcodist import config
from fedcodist.tuning import dotted, ranking, space, study, suggestions, trial
from fedcodist.tuning.study import Search

pytestmark = pytest.mark.usefixtures("prepared")


def test_the_front(base, tmp_path, pretend):
    pretend(lambda one, t: min(0.9, 0.2 * one.method.distill.steps) if dotted.get(one, "method.alpha") < 0.9 or t < 2 else -1)
    ranges = {
        "method.distill.steps": space.Range(("method.distill.steps",), 1, 8),
        "method.alpha": space.Range(("method.alpha",), 0.1, 1.0),
    }
    search = Search(base, ranges, trials=40, objective="pareto")
    found = finish(search, tmp_path)
    assert {t.state for t in found} == {"complete", "diverged"}, "nothing is stopped early where there is no one order"
    best = ranking.front(found)
    assert [t.outcome.server_flops for t in best] == sorted(t.outcome.server_flops for t in best)
    assert {t.config.method.distill.steps for t in best} == {1, 2, 3, 4, 5}, "more than 5 steps cost more, and gain nothing"
    assert ranking.winner(found).value == 0.9 and ranking.winner(found) in found
    made = {path.name: config.read(path) for path in study.place(tmp_path, base).glob("front-*.toml")}
    assert made == {f"front-{t.number}.toml": replace(t.config, name=f"small-tuned-{t.number}", seeds=(1, 2, 3)) for t in best}
    with suggestions.opened(search, study.place(tmp_path, base), trial.content(base.task.load())) as (opened, _):
        told = [t for t in opened.get_trials() if t.values]
    lost = {t.number for t in found if t.state == "diverged"}
    for t in told:
        before = [o.values[-1] for o in told if o.number < t.number]
        assert t.number not in lost or t.values == [0.0, 0.0, max([0.0, *before])], "one that diverged is not taken for a cheap one"


def test_training_that_really_diverges(read, tmp_path):
    wild = "{ kind = 'average', lr = 1000.0 }"
    base = read("pools.small.work.lr=1000.0", f"pools.small.server={wild}", f"pools.large.server={wild}")
    found = finish(searched(base, trials=1), tmp_path)
    assert [t.state for t in found] == ["diverged"] and found[0].value == 0.0 and ranking.winner(found) is None
    assert re.search(r"of pool (small|large) is not finite in round [1-4]$", found[0].outcome.diverged)
    assert not (study.place(tmp_path, base) / "best.toml").exists()
