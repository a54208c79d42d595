"""What is said of the time of a run: counts of its parts times seconds that were measured, kept for this machine."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fedcodist import config, runs
from fedcodist.cli import main
from fedcodist.reports import planned
from fedcodist.reports.progress import TimeLeft
from fedcodist.runs import clock, session, timing
from fedcodist.runs.clock import CHECKPOINT, EVALUATE, RESULT, ROUND, START, Times
from fedcodist.storage import sealed
from fedcodist.types import Split

pytestmark = pytest.mark.usefixtures("prepared")
PERIODIC = 'method={ kind = "periodic", period = 3, distill = { steps = 4, batch = 10 } }'
TAUGHT = "round that teaches small, large"
PARTS = {START: (5.0, 5.0), ROUND: (1.0, 2.0), TAUGHT: (10.0, 10.0), EVALUATE: (0.5, 0.5), CHECKPOINT: (0.25, 0.0), RESULT: (2.0, 2.0)}


def read(*given: str) -> config.Config:
    return config.read("quick/toy", ["rounds=7", "evaluate_every=2", "checkpoint_every=5", *given])


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "place", lambda: tmp_path / "clock.json")
    return tmp_path / "clock.json"


def test_a_run_is_counted_in_parts():
    # Of rounds 1 to 7 the third and the sixth teach. Evaluated are 2, 4, 6, the last one, and 3 because it teaches; saved are 5 and 7.
    assert clock.parts(read(PERIODIC)) == {START: 1, RESULT: 1, ROUND: 5, TAUGHT: 2, EVALUATE: 5, CHECKPOINT: 2}
    assert clock.parts(read(PERIODIC), after=6) == {START: 1, RESULT: 1, ROUND: 1, EVALUATE: 1, CHECKPOINT: 1}
    assert clock.parts(read('method="fedavg"'))[ROUND] == 7 and clock.parts(read())[TAUGHT] == 7
    assert Times(PARTS, 4).total(clock.parts(read(PERIODIC))) == (5 + 2 + 5 + 20 + 2.5 + 0.5, 5 + 2 + 10 + 20 + 2.5)
    assert Times({ROUND: (1.0, 1.0)}, 4).total(clock.parts(read(PERIODIC))) is None, "a lesson was never timed"


def test_what_is_left_is_counted_down(file):
    clock.remember(read(PERIODIC), Times(PARTS, 4))
    down = clock.countdown(read(PERIODIC), 4)
    assert down == [2 + 1.75 + 10.5 + 1.25, 2 + 1.75 + 10.5, 2 + 1.75, 2.0], "after rounds 4 to 7"
    assert clock.left(read(PERIODIC), 4) == down[0] + 5, "and a start"
    left = TimeLeft(read(PERIODIC), 4)
    assert left.after(4) == down[0] and left.after(8) is None and TimeLeft(read(), 0).after(0) is None
    left._began -= 1000  # round 5 compiles
    assert left.after(5) == down[1]
    left._began -= 2 * (down[1] - down[2])  # round 6 took twice as long as expected: so will the last one
    assert left.after(6) == pytest.approx(2 * down[2], rel=0.01)


def test_the_first_of_a_part_belongs_to_the_start_and_a_nap_to_nobody():
    watch = clock.Watch()
    watch.add(START, (1.0, 1.0))
    for wall in (9.0, 2.0, 4.0, 3.0, 500.0):
        watch.add(ROUND, (wall, wall / 2))
    watch.add(TAUGHT, (7.0, 7.0))
    times = watch.times()
    assert times.parts == {START: (1.0 + 6.0, 1.0 + 3.0), ROUND: (3.0, 1.5), TAUGHT: (7.0, 7.0)} and times.rounds == 4
    with pytest.raises(KeyError), watch.part(EVALUATE):
        raise KeyError
    assert EVALUATE not in watch.times().parts


def test_what_changes_no_program_shares_times():
    name = clock.name_of(read(PERIODIC))
    same = ("rounds=9", "seeds=[3]", "evaluate_every=1", "pools.small.server.lr=0.5", "pools.small.teaches.temperature=3.0", "name='x'")
    assert {clock.name_of(read(PERIODIC, given)) for given in same} == {name}
    other = ("pools.small.cohort=2", "pools.small.model.hidden=[5]", "method.distill.steps=5", "engine.workers=1", "task.public=50")
    assert len({name, *(clock.name_of(read(PERIODIC, given)) for given in other)}) == 1 + len(other)


def test_times_are_kept_and_what_is_not_ours_is_ignored(file):
    one, two = read(PERIODIC), read('method="fedavg"')
    assert clock.recall(one) is None and clock.left(one) is None
    clock.remember(one, Times(PARTS, 4))
    clock.remember(two, Times({ROUND: (1.0, 1.0)}, 4, busy=0.5))
    assert clock.recall(one) == Times(PARTS, 4) and clock.recall(two).busy == 0.5
    clock.remember(one, Times({ROUND: (3.0, 3.0), START: (9.0, 9.0)}, 8))
    assert clock.recall(one) == Times({**PARTS, ROUND: (3.0, 3.0)}, 8), "a start that took longer may have compiled"
    clock.remember(one, Times({ROUND: (30.0, 3.0)}, 8, busy=0.9))
    assert clock.recall(one).parts[ROUND] == (3.0, 3.0), "times of a busy machine replace none of a quiet one"
    good = file.read_bytes()
    for bad in (b"", b"[]", good[:-9], good.replace(b"3.0", b"4.0"), sealed.seal({"times": 3}), sealed.seal({"times": [[1]]})):
        file.write_bytes(bad)
        assert clock.recall(one) is None
    for parts in ({ROUND: [1.0]}, {ROUND: [-1.0, 1.0]}, {ROUND: ["x", 1.0]}, 3):
        file.write_bytes(sealed.seal({"times": [[clock.name_of(one), {"parts": parts, "rounds": 3, "busy": 0}]]}))
        assert clock.recall(one) is None
    clock.remember(one, Times(PARTS, 4))
    assert clock.recall(one) == Times(PARTS, 4)


def test_measuring_times_every_part_and_reads_no_answer_of_the_test(file, monkeypatch):
    monkeypatch.setattr(timing, "LEAST", 0.0)
    built = config.build(read(PERIODIC), 0)
    task = built.federation.task
    hidden = replace(task, test=Split(task.test.x, None))  # whoever looks at these labels fails
    told = []
    times = timing.measure(config.assemble(read(PERIODIC), hidden, 0), told.append)
    assert set(times.parts) == set(PARTS) and times.rounds == 8 and told == list(range(1, 11))
    assert clock.recall(read(PERIODIC)).parts.keys() == times.parts.keys() and 0 <= times.busy <= 1
    assert [path.name for path in file.parent.iterdir()] == ["clock.json"]


def test_a_run_times_itself_and_the_next_one_is_foretold(file, tmp_path):
    def train(name):
        made = replace(read(PERIODIC), name=name, seeds=(0,))
        for _ in session.perform(config.build(made, 0), tmp_path / "runs"):
            pass
        return runs.read(tmp_path / "runs" / name / "periodic/seed-0")

    first = train("first")
    assert clock.left(read(PERIODIC)) is not None and set(clock.recall(read(PERIODIC)).parts) == set(PARTS)
    second = train("second")
    assert ["expected_seconds" in row for row in first.timing] == [False] * 7
    assert ["expected_seconds" in row for row in second.timing] == [True] + [False] * 6
    assert ["evaluate_seconds" in row for row in first.timing] == [False, True, True, True, False, True, True]
    assert ["checkpoint_seconds" in row for row in first.timing] == [False] * 4 + [True, False, True]
    assert first.rounds == second.rounds and first.result == second.result


def test_show_and_run_say_how_long(file, tmp_path, capsys):
    asked = ["show", "quick/toy", "--set", "rounds=7", "--set", PERIODIC]
    assert main.main([*asked, "--no-timing"]) == 0
    said = capsys.readouterr()
    assert "how long is not known without timing" in said.out and not said.err
    clock.remember(read(PERIODIC), Times({**PARTS, ROUND: (60.0, 100.0)}, 4))
    assert main.main(asked) == 0, "what is known is not timed again"
    said = capsys.readouterr()
    assert "about 5 min 30 s a seed on this machine (measured from 4 rounds)" in said.out and not said.err
    assert main.main([*asked, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["total"]["seconds"] == Times.read(told["times"]).total(clock.parts(config.read("quick/toy", ["rounds=7", PERIODIC])))[0]
    made = read(PERIODIC)
    assert planned.ahead([made], [0, 1], tmp_path) == "2 runs: about 11 min on this machine, by earlier times of these programs"
    assert planned.ahead([made, read()], [0], tmp_path) == ""
    busy = Times(PARTS, 4, busy=0.4)
    said = planned.takes(made, busy)
    assert "of which others took 40.0% meanwhile; alone it may be as short as" in said


def test_show_times_what_is_not_known(file, capsys, monkeypatch):
    monkeypatch.setattr(timing, "measure", lambda experiment, tell: Times(PARTS, 4))
    assert main.main(["show", "quick/toy", "--set", PERIODIC]) == 0
    said = capsys.readouterr()
    assert "measured from 4 rounds" in said.out and said.err.startswith("timing a few rounds of these programs; --no-timing skips it")
    assert main.main(["show", "quick/toy", "--set", "pools.small.model.hidden=[1000000, 1000000]"]) == 0
    assert "how long is not known: memory: got models of" in capsys.readouterr().out
