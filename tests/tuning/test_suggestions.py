"""What is tried next, what is stopped early, and that a study goes on as if it had never stopped."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from tuned import by_alpha, finish, searched, values

from fedcodist import config
from fedcodist.runs.session import Signals
from fedcodist.tuning import dotted, ranking, space, study, suggestions, trial, tune
from fedcodist.tuning.study import Search

pytestmark = pytest.mark.usefixtures("prepared")


def test_the_first_trial_is_the_configs_own(base, tmp_path, pretend):
    pretend(by_alpha)
    found = finish(searched(base), tmp_path)
    assert found[0].own and found[0].config == base and found[0].values == space.own(base, found[0].search.space)[0]
    assert found[0].values["method.alpha"] == 0.7 and not any(t.own for t in found[1:])
    assert ranking.winner(found).value >= found[0].value


def test_a_config_that_the_space_cannot_say_is_the_first_trial_all_the_same(read, tmp_path, pretend):
    base = read("pools.small.work.lr=0.5", "pools.large.work.lr=0.1", "pools.large.server.lr=1.0", "pools.large.learns.self_weight=0")
    seen = []
    pretend(lambda one, t: seen.append(one) or 0.5)
    events = list(tune.run(searched(base, "all", trials=2), tmp_path))
    assert seen[0] == base and seen[-1] != base
    assert [note.split(":")[0] for note in events[0].notes] == [
        "pools.*.work.lr", "pools.large.server.lr", "pools.large.learns.self_weight",
    ]  # fmt: skip
    assert "the config has 0.5, 0.1, which the space (0.0001 to 0.1, log) cannot say; trial 0 is the config as it is" in events[0].notes[0]
    row = json.loads((study.place(tmp_path, base) / "trials.jsonl").read_text().splitlines()[0])
    assert row["pools.small.work.lr"] == 0.5 and row["pools.large.work.lr"] == 0.1 and row["pools.large.server.lr"] == 1.0


def test_optuna_does_not_learn_from_values_that_the_first_trial_did_not_have(read, tmp_path, pretend):
    base = read("method.alpha=0.97")
    pretend(lambda one, t: 0.9 if dotted.get(one, "method.alpha") == 0.97 else 0.1)
    search = replace(searched(base, trials=12), space=space.only(space.preset(base), ["method.alpha"]))
    found = finish(search, tmp_path)
    assert found[0].own and found[0].state == "complete" and found[0].value == pytest.approx(0.9) and ranking.winner(found) == found[0]
    with suggestions.opened(search, study.place(tmp_path, base), trial.content(base.task.load())) as (opened, _):
        learned = [t for t in opened.get_trials() if t.state.name in ("COMPLETE", "PRUNED")]
    assert len(learned) == 11 and 0.95 not in {t.params["method.alpha"] for t in learned}
    assert values(finish(search, tmp_path)) == values(found) and len(found) == 12, "and it is not tried again"
    assert finish(replace(search, trials=13), tmp_path)[:12] == [t._replace(search=replace(search, trials=13)) for t in found]


def test_the_same_seed_gives_the_same_suggestions(base, tmp_path, pretend):
    pretend(by_alpha)
    a, b, c = (finish(searched(base, trials=14, seed=seed), tmp_path / name) for name, seed in (("a", 7), ("b", 7), ("c", 8)))
    assert values(a) == values(b) != values(c)
    assert len({t.values["method.alpha"] for t in a}) == 14


def test_a_study_goes_on_as_if_it_had_never_stopped(base, tmp_path, pretend):
    trained = pretend(by_alpha)
    straight = finish(searched(base, trials=14), tmp_path / "a")
    trained.clear()
    for trials in (1, 2, 6, 13, 14, 14, 3):
        found = finish(searched(base, trials=trials), tmp_path / "b")
    assert values(found) == values(straight) and len(trained) == sum(t.outcome.rounds for t in straight), "nothing is trained twice"
    assert max(by_alpha(t.config, 1) for t in straight[10:]) > 0.9, "it learns"


def by_server_rate(one: config.Config, t: int) -> dict[str, float]:
    """Each pool by its own rate alone: the small one wants a high rate, the large one a low one."""
    rates = {pool: math.log10(dotted.get(one, f"pools.{pool}.server.lr")) for pool in one.pools}
    return {"small": (5 + rates["small"]) / 5, "large": -rates["large"] / 5}


def test_the_last_trial_of_fedavg_joins_what_was_best_for_each_pool(read, tmp_path, pretend):
    pretend(by_server_rate)
    base = read('method={ kind = "fedavg" }')
    rates = space.only(space.preset(base, "rates"), ["*.server.lr"])
    search = Search(base, rates, trials=7, seed=7)
    found = finish(search, tmp_path)
    *before, last = found
    small, large = (max(t.outcome.accuracy[pool] for t in before if t.state == "complete") for pool in ("small", "large"))
    assert last.outcome.accuracy == {"small": small, "large": large} and ranking.winner(found) == last
    assert last.value > max(t.value for t in before), "no trial was the best for both"
    assert suggestions.joined(search, found) is None, "it is tried once"
    more = finish(replace(search, trials=9), tmp_path)
    assert values(more)[:7] == values(found) and len(more) == 9, "more trials go on"
    assert values(finish(search, tmp_path / "again")) == values(found)


def test_the_trial_that_joins_waits_for_the_others(read, tmp_path, pretend):
    base = read('method={ kind = "fedavg" }')
    search = Search(base, space.only(space.preset(base, "rates"), ["*.server.lr"]), trials=4, seed=7)
    path, data = study.place(tmp_path, base), trial.content(base.task.load())
    with Signals() as signals, suggestions.opened(search, path, data) as (opened, _):
        desk = suggestions.Desk(search, opened, data, 3, signals, path)
        jobs = [desk.next() for _ in range(4)]
        assert [job and job.number for job in jobs] == [0, 1, 2, None]
        for job in jobs[:3]:
            assert desk.next() is None
            desk.record(job, trial.Outcome([(4, by_server_rate(job.config, 4))], 4, 4, 0.1))
        last = desk.next()
        best = {pool: max(by_server_rate(job.config, 4)[pool] for job in jobs[:3]) for pool in base.pools}
        assert by_server_rate(last.config, 4) == best and desk.next() is None
    search = replace(search, config=read(), space=space.preset(read(), "rates"))
    with Signals() as signals, suggestions.opened(search, study.place(tmp_path, read()), data) as (opened, _):
        desk = suggestions.Desk(search, opened, data, 4, signals, path)
        assert all(desk.next() for _ in range(4)) and desk.next() is None, "nobody else waits"


def test_nothing_is_joined_where_pools_share_a_rate_or_teach(base, read, tmp_path, pretend):
    pretend(by_server_rate)
    alone = read('method={ kind = "fedavg" }')
    rates = space.preset(base, "rates")
    own = space.only(rates, ["*.server.lr"])
    one = [t for t in finish(Search(alone, own, trials=3, seed=7), tmp_path) if t.state == "complete"]
    assert suggestions.joined(Search(alone, own), one) is not None
    assert suggestions.joined(Search(base, own), one) is None, "who teaches changes what suits the other"
    assert suggestions.joined(Search(alone, rates), one) is None, "a client rate for both pools"
    assert suggestions.joined(Search(alone, own, objective="pareto"), one) is None
    assert suggestions.joined(Search(alone, own), one[:1]) is None, "one trial is the best for all"
    assert suggestions.joined(Search(alone, own), []) is None


def test_choices_and_whole_numbers(base, tmp_path, pretend):
    pretend(lambda one, t: 0.5)
    ranges = {
        "method.distill.steps": space.Range(("method.distill.steps",), 1, 3),
        "pools.*.server": space.Range(("pools.small.server", "pools.large.server"), choices=("average", {"kind": "momentum", "lr": 0.5})),
        "method.distill.augment": space.Range(("method.distill.augment",), choices=(False, True)),
    }
    found = finish(Search(base, ranges, trials=20), tmp_path)
    assert {t.config.method.distill.steps for t in found} == {1, 2, 3}
    assert {t.config.pools["large"].server.kind for t in found} == {"adam", "average", "momentum"}, "its own is no choice, but tried"
    assert found[0].config == base and found[0].own
    assert {t.config.method.distill.augment for t in found} == {False, True}
    assert values(finish(Search(base, ranges, trials=20), tmp_path)) == values(found), "they come back from the journal as they were"


def test_bad_trials_are_stopped_after_the_warm_up(read, tmp_path, pretend):
    base = read("rounds=20")
    trained = pretend(lambda one, t: (1 - dotted.get(one, "method.alpha")) * t / 20)
    found = finish(searched(base, trials=20), tmp_path / "a")
    stopped = [t for t in found if t.state == "pruned"]
    assert 3 <= len(stopped) <= 14 and len(trained) < 20 * 20 and len(found) == 20, "stopped trials count"
    assert min(t.outcome.rounds for t in stopped) == 7, "not in the first third"
    assert not any(t.state == "pruned" for t in found[: suggestions.STARTUP])
    assert ranking.winner(found).state == "complete" and max(t.value for t in stopped) < ranking.winner(found).value
    order = [t.state for t in ranking.ranked(found)]
    assert order == sorted(order) and order[0] == "complete"
    assert all(t.state == "complete" for t in finish(searched(base, trials=12, prune=False), tmp_path / "b"))


def test_the_configs_own_trial_is_never_stopped(base, tmp_path):
    search = searched(base, trials=8)
    path, data = study.place(tmp_path, base), trial.content(base.task.load())
    with Signals() as signals, suggestions.opened(search, path, data) as (opened, _):
        desk = suggestions.Desk(search, opened, data, 8, signals, path)
        first, *others, last = [desk.next() for _ in range(7)]
        for job in others:
            for t in range(1, 5):
                desk.should_stop(job, trial.Report(t, {"small": 0.5, "large": 0.5}))
            desk.record(job, trial.Outcome([(4, {"small": 0.5, "large": 0.5})], 4, 4, 0.1))
        bad = trial.Report(3, {"small": 0.1, "large": 0.1})
        assert desk.should_stop(last, bad) and not desk.should_stop(first, bad)


def test_nothing_is_stopped_before_the_first_lesson_has_settled(read, tmp_path, pretend):
    base = read("rounds=20", "method={ kind = 'periodic', period = 12, distill = { steps = 2, batch = 20 } }")
    pretend(lambda one, t: one.pools["small"].learns.lr)
    found = finish(searched(base, trials=15), tmp_path)
    assert min(t.outcome.rounds for t in found if t.state == "pruned") == 14  # the lesson is in round 12, and a quarter of 9 rounds is 3
