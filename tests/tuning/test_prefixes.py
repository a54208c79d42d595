"""Rounds that trainings share change no bit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tuned import EVERY, PERIODIC, end_of, finish, searched
from worlds import same_bits

from fedcodist import config
from fedcodist.runs import checkpoint
from fedcodist.runs.session import Signals
from fedcodist.tuning import dotted, prefixes, space, study, suggestions, trial
from fedcodist.tuning.study import Search

pytestmark = pytest.mark.usefixtures("prepared")


@pytest.fixture
def watched(monkeypatch):
    """Every round that trials really train: (round, state)."""
    seen = []

    def train(*given):
        for step in real(*given):
            seen.append((step.t, step.state))
            yield step

    real = trial.train
    monkeypatch.setattr(trial, "train", train)
    return seen


@pytest.mark.parametrize("method, alone", [(PERIODIC, 2), (EVERY, 2), ("method.alpha=0.7", 0), ("method={ kind = 'fedavg' }", 0)])
def test_a_shared_beginning_changes_no_bit(read, tmp_path, watched, method, alone):
    base = read(method)
    task = base.task.load()
    assert prefixes.alone(config.assemble(base, task, 7)) == alone
    other = dotted.put(base, "pools.small.learns.lr", 0.05)
    straight = [end_of(trial.perform(trial.Job(n, one, 7), task)) for n, one in enumerate((base, other))]
    last = {n: watched[4 * n + 3][1] for n in (0, 1)}
    watched.clear()
    data = trial.content(task)
    shared = [end_of(trial.perform(trial.Job(n, one, 7, data=data, prefixes=tmp_path), task)) for n, one in enumerate((base, other))]
    assert [t for t, _ in watched] == [1, 2, 3, 4, *range(alone + 1, 5)], "the second begins where the first lesson is"
    assert [o.trained for o in shared] == [4, 4 - alone] and [o.rounds for o in shared] == [4, 4]
    assert [o.curve for o in shared] == [o.curve for o in straight] and [t for t, _ in shared[1].curve] == [1, 2, 3, 4]
    assert [o.server_flops for o in shared] == [o.server_flops for o in straight]
    assert same_bits(watched[3][1], last[0]) and same_bits(watched[-1][1], last[1])
    if base.method.kind != "fedavg":
        assert not same_bits(last[0], last[1]), "or this test shows nothing"


def prefix(job: trial.Job) -> str:
    return prefixes.digest(job.config, job.seed, job.clamp, job.data)


def test_what_a_shared_beginning_depends_on(read):
    base = read(PERIODIC)
    job = trial.Job(0, base, 7, data="d")
    name = prefix(job)
    same = [
        ("pools.small.learns.lr", 0.05), ("pools.large.teaches.temperature", 3.0), ("method.period", 4), ("method.distill.steps", 9),
        ("topology", "chain"), ("engine.workers", 3), ("name", "other"), ("checkpoint_every", 5), ("seeds", [1]),
    ]  # fmt: skip
    for key, value in same:
        assert prefix(job._replace(config=dotted.put(base, key, value), number=1)) == name, key
    other = [
        ("pools.small.work.lr", 0.05), ("pools.small.work.batch", 5), ("pools.large.server.lr", 0.05), ("pools.large.server", "average"),
        ("pools.small.cohort", 3), ("pools.large.clients.take", 5), ("pools.large.model", {"kind": "mlp", "hidden": [9]}),
        ("rounds", 5), ("task.noise", 2.0), ("engine.block", 2), ("engine", "serial"), ("evaluate_every", 2),
        ("pools.small.domain", "first"),
    ]  # fmt: skip
    names = [prefix(job._replace(config=dotted.put(base, key, value))) for key, value in other]
    names += [prefix(job._replace(**change)) for change in ({"seed": 8}, {"data": "e"}, {"clamp": True})]
    assert len({name, *names}) == 1 + len(names)


def test_all_trials_of_a_distillation_space_share_one_beginning(read, tmp_path, watched):
    base = read(PERIODIC)
    found = finish(searched(base, trials=3, prune=False), tmp_path)
    assert [t for t, _ in watched] == [1, 2, 3, 4, 3, 4, 3, 4]
    assert [t.outcome.trained for t in found] == [4, 2, 2] and [t.outcome.rounds for t in found] == [4, 4, 4]
    (kept,) = tmp_path.glob("small/prefixes/*/000002")
    # The same values without a beginning to share end with the same accuracy.
    task = base.task.load()
    assert end_of(trial.perform(trial.Job(0, found[2].config, 7), task)).curve == found[2].outcome.curve
    # One that is damaged is trained again, and replaced.
    watched.clear()
    (kept / "small.safetensors").write_bytes(b"x")
    found = finish(searched(base, trials=5, prune=False), tmp_path)
    assert [t for t, _ in watched] == [1, 2, 3, 4, 3, 4] and checkpoint.verify(kept)
    # Rates that are drawn from a range have no beginning in common with anyone.
    job = next(iter(_jobs(searched(base, "all"), tmp_path / "b")))
    assert job.prefixes is None
    choices = {"lr": space.Range(("pools.small.work.lr",), choices=(0.1, 0.2))}
    assert next(iter(_jobs(Search(base, choices), tmp_path / "c"))).prefixes is not None


def _jobs(search: Search, root: Path):
    """What a study hands out first."""
    task = search.config.task.load()
    with Signals() as signals, suggestions.opened(search, study.place(root, search.config), trial.content(task)) as (opened, _):
        yield suggestions.Desk(search, opened, trial.content(task), 1, signals, root / "prefixes").next()
