"""The benchmark's driver on fake workers: turns, pairs, medians, the table, the history, and workers that die, hang or never install."""

from __future__ import annotations

import ast
import doctest
import json
import os
import sys
import time

import jax
import numpy as np
import pytest

from benches import bench, environments, machine, ours, plot, profile, report, workers, workload
from benches.environments import PEERS, Peer
from benches.report import OURS
from benches.workers import Failed, Worker
from benches.workload import WORKLOADS
from fedcodist import native

WORK = WORKLOADS["w1-small-20"]
HOW = bench.How(warm=2, turns=5, seconds=1e9)


class Fake:
    """A side whose rounds take what the test says; `None` is its death."""

    def __init__(self, name, seconds, log, parameters=WORK.parameters, others=0.0):
        self.name, self.seconds, self.log, self.others = name, list(seconds), log, others
        self.hello = {"parameters": parameters, "versions": {"made": "1"}}
        self.rss_mb, self.first_seconds, self.closed = 100.0, 2.0, 0
        self.frozen = False
        self.rounds = [self.round()]

    def freeze(self):
        self.frozen = True

    def thaw(self):
        self.frozen = False

    def round(self):
        assert not self.frozen
        self.log.append(self.name)
        seconds = self.seconds.pop(0)
        if seconds is None:
            raise Failed("ended with code 3: out of luck")
        return {"seconds": seconds, "cpu_seconds": 2 * seconds, "others": self.others, "loss": 1.0}

    def close(self):
        self.closed += 1


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(bench, "PAUSE_SECONDS", 0.0)


def run(how=HOW, limits=None, work=WORK, **sides):
    """Measure fake sides: {name: seconds of the rounds, the first and the warm one among them}."""
    log, made = [], {}

    def start(name, said):
        def begin():
            if isinstance(said, Exception):
                raise said
            made[name] = said if isinstance(said, Fake) else Fake(name, said, log)
            return made[name]

        return begin

    found = bench.measure(work, {name: start(name, said) for name, said in sides.items()}, how, limits)
    return found, log, made


def test_each_turn_asks_every_side_once_and_begins_with_another():
    found, log, made = run(**{OURS: [9] * 7, "a": [9] * 7, "b": [9] * 7})
    assert log[:6] == [OURS, "a", "b"] * 2  # the first rounds, then one warm one
    turns = [log[i : i + 3] for i in range(6, len(log), 3)]
    assert turns == [[OURS, "a", "b"], ["a", "b", OURS], ["b", OURS, "a"], [OURS, "a", "b"], ["a", "b", OURS]]
    assert found["turns"] == 5 and all(side.closed == 1 for side in made.values())


def test_ratios_are_of_pairs_and_leave_out_the_warm_rounds():
    ours, theirs = [1.0, 1.0, 1.0, 2.0, 1.0, 4.0, 1.0], [50.0, 50.0, 3.0, 4.0, 5.0, 3.0, 2.0]
    found, *_ = run(**{OURS: ours, "a": theirs})
    side = found["sides"]["a"]
    assert side["ratio"] == {"median": 2.0, "q1": 2.0, "q3": 3.0, "low": 0.75, "high": 5.0}  # of 3 2 5 0.75 2, by hand
    assert side["ms"]["median"] == pytest.approx(3000) and side["cpu_ms"] == pytest.approx(6000)
    assert side["gflops"] == pytest.approx(WORK.flops / 3.0 / 1e9)  # of the median round
    assert "ratio" not in found["sides"][OURS]


def test_the_limit_is_sampled_at_begin_middle_and_end():
    log = []
    samples = iter([{"fma_all": 10.0, "sgemm_all": 1.0}, {"fma_all": 30.0, "sgemm_all": 1.0}, {"fma_all": 20.0, "sgemm_all": 1.0}])

    def limits():
        log.append("limit")
        return next(samples)

    fake = Fake(OURS, [1.0] * 7, log)
    found, *_ = run(limits=limits, **{OURS: fake})
    assert log == [OURS, OURS, "limit", OURS, OURS, OURS, "limit", OURS, OURS, "limit"]
    assert found["limit"]["fma_all"] == 30.0  # the best: what disturbs a sample only makes it lower
    assert found["sides"][OURS]["of_limit"] == pytest.approx(WORK.flops / 1e9 / 30.0)


def test_what_a_basis_saves_is_speed_and_no_share_of_the_limit():
    fake = Fake(OURS, [1.0] * 7, [])
    fake.hello["wide"] = 16 / 36
    side = run(limits=lambda: {"fma_all": 30.0, "sgemm_all": 1.0}, **{OURS: fake})[0]["sides"][OURS]
    assert side["gflops"] == pytest.approx(WORK.flops / 1e9) and side["done"] < 1
    kernel = (workers.ROOT / "fedcodist/native/winograd.h").read_text()
    assert "channels * filters >= 32 * 32" in kernel and workload.WIDE == 32 * 32 and "16 products" in kernel
    saved = 2_000 * 3 * 2 * 36 * 9 * 32 * 32 * 20 / 36  # of the last convolution and both of its gradients
    assert side["of_limit"] == pytest.approx((WORK.flops - saved) / 1e9 / 30.0)


def test_only_the_kernels_save_products():
    assert ours.wide() == (16 / 36 if native.path() else 1.0)
    with native.portable():
        assert ours.wide() == 1.0


def test_without_a_compiler_shares_are_of_sgemm():
    found, *_ = run(limits=lambda: {"sgemm_1": 5.0, "sgemm_all": 8.0}, **{OURS: [1.0] * 7})
    assert found["sides"][OURS]["of_limit"] == pytest.approx(WORK.flops / 1e9 / 8.0)


def test_no_turn_begins_after_the_time_is_up_but_three():
    found, *_ = run(how=bench.How(warm=2, turns=50, seconds=0.0, fewest=3), **{OURS: [1.0] * 60})
    assert found["turns"] == 3


def test_only_the_side_that_is_asked_runs_and_all_are_ended_after_an_interrupt():
    log, made = [], {}

    class Watched(Fake):
        def round(self):
            assert all(other.frozen for name, other in made.items() if name != self.name)
            if len(log) == 8:
                raise KeyboardInterrupt
            return super().round()

    def start(name):
        def begin():
            made[name] = Watched(name, [1.0] * 7, log)
            return made[name]

        return begin

    with pytest.raises(KeyboardInterrupt):
        bench.measure(WORK, {name: start(name) for name in (OURS, "a", "b")}, HOW, None)
    assert len(log) == 8 and [side.closed for side in made.values()] == [1, 1, 1]


@pytest.mark.parametrize("at", [1, 2, 4])  # in the warm round, in the first turn, in the third
def test_a_side_that_dies_is_reported_and_the_others_go_on(at):
    dying = [1.0] * 7
    dying[at] = None
    found, log, made = run(**{OURS: [1.0] * 7, "a": dying, "b": [2.0] * 7})
    assert found["sides"]["a"] == {"failed": "ended with code 3: out of luck"}
    assert found["sides"]["b"]["ratio"]["median"] == 2.0 and found["turns"] == 5
    assert made["a"].closed == 1 and log.count("a") == at + 1 and log.count("b") == 7


def test_a_side_that_never_starts_and_one_with_another_model_are_reported():
    other = Fake("b", [1.0] * 7, [], parameters=7)
    found, *_ = run(**{OURS: [1.0] * 7, "a": Failed("not installed: no wheel"), "b": other})
    assert found["sides"]["a"] == {"failed": "not installed: no wheel"}
    assert found["sides"]["b"] == {"failed": "has 7 parameters instead of 109,348"} and other.closed == 1
    words = report.table([found], {})
    assert "| a | not installed: no wheel |" in words and "| b | has 7 parameters" in words
    rows = [line for line in words.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1  # a row of a failed side is as wide as the others


def test_without_ours_there_are_times_but_no_ratios():
    found, *_ = run(**{OURS: Failed("broken"), "a": [1.0] * 7})
    assert "ratio" not in found["sides"]["a"] and found["sides"]["a"]["ms"]["median"] == pytest.approx(1000)
    assert "| a | 1000 (1000-1000) |" in report.table([found], {})


def test_the_table_says_the_ratio_what_is_left_out_and_when_it_was_not_quiet():
    loud = Fake("a", [3.0] * 7, [], others=0.5)
    found, *_ = run(limits=lambda: {"fma_1": 5.0, "fma_all": 30.1}, **{OURS: [1.0] * 7, "a": loud})
    words = report.table([found], {"a": "the server's Adam"})
    assert "**3.00** (3.00-3.00; 3.00-3.00)" in words and "the server's Adam |" in words and "| 50% |" in words
    assert "NOT QUIET" in words and "rounds of a." in words and "fma all 30" in words
    quiet, *_ = run(**{OURS: [1.0] * 7})
    assert "NOT QUIET" not in report.table([quiet], {})


def test_the_picture_is_drawn_where_there_is_something_to_compare(tmp_path):
    found, *_ = run(**{OURS: [1.0] * 7, "a": [3.0] * 7, "b": Failed("no")})
    made = plot.draw([found, found, found], tmp_path / "bench", "a machine")
    assert [path.name for path in made] == ["bench.png", "bench.svg"] and all(path.stat().st_size > 1000 for path in made)
    assert plot.draw([run(**{OURS: [1.0] * 7})[0]], tmp_path / "none", "") == []


def test_history_only_grows(tmp_path):
    for n in (1, 2):
        bench.remember(tmp_path / "h.jsonl", {"bench": "bench", "results": n})
    assert [json.loads(line)["results"] for line in (tmp_path / "h.jsonl").read_text().splitlines()] == [1, 2]


# -- real processes --

PREAMBLE = "import subprocess, sys, time\nfrom benches.workload import serve\nprint('noise on stdout', flush=True)\n"
BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def worker(tmp_path, body, patience=60.0):
    command = [sys.executable, "-c", PREAMBLE + body]
    return Worker("fake", command, tmp_path / "fake.log", patience=patience)


def test_a_worker_answers_and_its_childrens_time_and_memory_count(tmp_path):
    hold = "x = bytearray(150 * 2**20); import time; time.sleep(60)"
    body = f"""
held = subprocess.Popen([sys.executable, "-c", {hold!r}])
time.sleep(1)
def one_round():
    subprocess.run([sys.executable, "-c", {BURN!r}])
    return 0.5
serve(one_round, 7, {{"made": "1"}})
held.kill(); held.wait()
"""
    fake = worker(tmp_path, body)
    assert fake.hello == {"parameters": 7, "versions": {"made": "1"}, "wide": 1.0} and fake.rounds[0]["loss"] == 0.5
    seen = fake.round()
    fake.close()
    assert seen["cpu_seconds"] >= 0.25 and seen["seconds"] >= 0.25 and 0 <= seen["others"] <= 1
    assert fake.rss_mb > 150 and fake.first_seconds > 1
    assert "noise on stdout" in (tmp_path / "fake.log").read_text()


def test_what_a_worker_leaves_behind_is_counted_and_ended(tmp_path):
    burn_on = f"import time\nwhile True:\n    exec({BURN!r})\n    time.sleep(0.01)"
    leave = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {burn_on!r}], start_new_session=True)"
    body = f"""
subprocess.run([sys.executable, "-c", {leave!r}])  # a daemon: its parent is gone
time.sleep(0.5)
serve(lambda: time.sleep(1), 7, {{}})
"""
    fake = worker(tmp_path, body, patience=20.0)
    seen = fake.round()
    left = {pid for pid, _ in fake._tree()}
    assert len(left) == 1 and seen["cpu_seconds"] > 0.1
    fake.freeze()
    before = fake._used()
    time.sleep(0.5)
    assert fake._used() == before
    fake.thaw()
    assert fake.round()["cpu_seconds"] > 0.1
    fake.freeze()  # a frozen tree can be ended too
    fake.patience = 1.0  # it has no more to say
    fake.close()
    deadline = time.monotonic() + 10
    while any(workers._start(pid) != -1 for pid in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(workers._start(pid) == -1 for pid in left)


@pytest.mark.parametrize(
    "body, says",
    [
        ("sys.exit('no module named luck')", "ended with code 1: no module named luck"),
        ("serve(lambda: 1 / 0, 7, {})", "ended with code 1: ZeroDivisionError: division by zero"),
        ("serve(lambda: time.sleep(60), 7, {})", "no answer for 1 s"),
    ],
)
def test_a_worker_that_dies_or_hangs_says_why(tmp_path, body, says):
    with pytest.raises(Failed, match=says):
        worker(tmp_path, body, patience=1.0 if "60" in body else 60.0)


def test_a_worker_that_cannot_be_started_says_why(tmp_path):
    with pytest.raises(Failed, match="cannot start: .*nowhere"):
        Worker("fake", [str(tmp_path / "nowhere")], tmp_path / "log")


# -- environments and the machine --


def fake_python(tmp_path, monkeypatch, pip):
    """Environments in tmp_path, whose Python is a script: as `venv` it copies itself, as `pip` it does what the test says."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nif [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit 0; fi\n{pip}\n')
    script.chmod(0o755)
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "some.txt").write_text("some==1\n")
    monkeypatch.setattr(environments, "HERE", tmp_path)
    monkeypatch.setattr(environments, "MADE", tmp_path / ".peers")
    monkeypatch.setattr(environments, "interpreter", lambda wanted: str(script))
    return Peer("some", "somehow")


def test_an_install_that_fails_is_told_with_its_last_line_and_tried_again(tmp_path, monkeypatch):
    peer = fake_python(tmp_path, monkeypatch, "echo trying; echo 'ERROR: no wheel for some'; exit 1")
    for _ in range(2):
        with pytest.raises(Failed, match="^not installed: ERROR: no wheel for some$"):
            environments.make(peer)
    assert "trying" in (tmp_path / ".peers" / "some.log").read_text()


def test_an_environment_is_made_once_and_again_when_its_pins_change(tmp_path, monkeypatch):
    peer = fake_python(tmp_path, monkeypatch, f'echo "$@" >> {tmp_path}/asked')
    for _ in range(2):
        environments.make(peer)
    assert len((tmp_path / "asked").read_text().splitlines()) == 1 and "--no-deps" in (tmp_path / "asked").read_text()
    (tmp_path / "peers" / "some.txt").write_text("some==2\n")
    environments.make(peer)
    assert len((tmp_path / "asked").read_text().splitlines()) == 2


def test_a_peer_whose_python_is_not_here_says_so(tmp_path, monkeypatch):
    peer = fake_python(tmp_path, monkeypatch, "exit 0")
    monkeypatch.undo()
    monkeypatch.setattr(environments, "MADE", tmp_path / ".peers")
    monkeypatch.setattr(environments, "HERE", tmp_path)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert environments.interpreter("2.1") is None
    with pytest.raises(Failed, match="there is no Python 2.1 here"):
        environments.make(Peer(peer.name, peer.says, python="2.1"))


def test_every_peer_has_a_program_and_complete_pins():
    for peer in PEERS.values():
        program = environments.HERE.parent / f"{peer.module.replace('.', '/')}.py"
        assert "main" in {node.name for node in ast.parse(program.read_text()).body if isinstance(node, ast.FunctionDef)}, peer.name
        pins = (environments.HERE / "peers" / f"{peer.name}.txt").read_text().splitlines()
        assert all(line.startswith("#") or line.count("==") == 1 for line in pins), peer.name


def test_without_a_compiler_the_limit_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    command, words = machine.build_fma(tmp_path)
    assert command is None and "no C++ compiler" in words
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'fma.cpp: too old' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(machine.shutil, "which", lambda name: str(broken))
    command, words = machine.build_fma(tmp_path)
    assert command is None and "fma.cpp: too old" in words


def test_the_fingerprint_names_the_machine_but_not_its_owner():
    found = machine.fingerprint(2)
    assert found["cpu"] and found["cores"] == os.cpu_count() and "jax" in found["packages"]
    assert os.uname().nodename not in json.dumps(found)


# -- the workloads --


def test_operations_are_counted_from_the_shapes():
    for module in (workload, bench, report):
        assert doctest.testmod(module).failed == 0
    # By hand: 16,000 tokens, 6 operations for each of 46,480 + 6,720 + 960,384 products.
    assert WORKLOADS["w2-small"].flops == 16_000 * 6 * 1_013_584
    both = WORKLOADS["w1-small-20"].flops + WORKLOADS["w1-large-20"].flops
    taught = 2048 * sum(workload.cnn_flops(size, train) for size in ("small", "large") for train in (False, True))
    assert WORKLOADS["w3"].flops == both + taught
    # Wide are only the small model's last convolution and the large one's last two; the first layer has no gradient of its input.
    small, large = 36 * 9 * 32 * 32, 144 * 9 * 32 * 64 + 36 * 9 * 64 * 64
    assert WORKLOADS["eval-small"].flops - WORKLOADS["eval-small"].operations(0.0) == 10_000 * 2 * small
    assert WORKLOADS["w1-large-20"].flops - WORKLOADS["w1-large-20"].operations(0.5) == 2_000 * 6 * large / 2
    assert WORKLOADS["w2-small"].operations(0.5) == WORKLOADS["w2-small"].flops
    assert WORKLOADS["w1-small-500"].flops == 25 * WORKLOADS["w1-small-20"].flops


@pytest.mark.parametrize("name", ["w1-small-20", "w1-large-20", "w2-small", "w2-large", "w3", "eval-large"])
def test_our_side_has_the_models_that_are_counted(name):
    from benches import ours
    from fedcodist import keys, tree

    work = WORKLOADS[name]
    fed, _ = ours.federation(work, threads=1, lazy=work.family in ("w1", "w3"))
    sizes = [tree.size(jax.eval_shape(pool.model.init, keys.root(0))) for pool in fed.pools.values()]
    assert sum(map(int, sizes)) == work.parameters
    assert all(pool.cohort == 20 and len(pool.clients) == 64 for pool in fed.pools.values())


def test_scaling_and_overhead_say_whether_the_goals_are_met():
    def words(*cohorts: tuple[int, float, float], others: float = 0.0) -> str:
        turn = {n: {"ms_a_client": ms, "others": others} for n, ms, _ in cohorts}
        return report.scaling_table({"workload": "w1", "turns": 3} | report.scaled([turn] * 3, {n: mb for n, _, mb in cohorts}))

    text = words((20, 11.0, 700.0), (100, 10.0, 500.0), (500, 11.0, 500.0))
    assert "200 MB (MISSED" in text and "10% (met" in text and "NOT QUIET" not in text  # in between as at the ends
    text = words((20, 11.0, 600.0), (100, 9.0, 501.0), (500, 10.0, 500.0), others=0.2)
    assert "100 MB (met" in text and "22% (MISSED" in text and "NOT QUIET" in text
    log: list[str] = []
    sides = {20: Fake("20", [2.0] * 11, log), 500: Fake("500", [50.0] * 2, log)}
    assert bench._turn(sides, [500, 20]) == {20: {"others": 0.0, "ms_a_client": 100.0}, 500: {"others": 0.0, "ms_a_client": 100.0}}
    assert log[2:] == ["500"] + ["20"] * 10  # about as many clients of each
    found = {"workload": "w1-small-20", "round_ms": 100.0, "clients_ms": 96.0, "overhead_ms": 4.0, "journal_ms": 0.1, "checkpoint_ms": 9.0}
    found |= {"rounds": 3, "gflops": report.spread([90.0, 120.0, 130.0])}
    assert "4.0 (4.0%, met, goal below 5%)" in report.overhead_table(found) and "no compiler" in report.overhead_table(found)
    assert "6.0 (6.0%, MISSED, goal below 5%)" in report.overhead_table({**found, "overhead_ms": 6.0})
    found |= {"limit": report.spread([200.0, 200.0, 260.0]), "of_limit": report.spread([0.45, 0.6, 0.5])}
    said = report.overhead_table(found)
    assert "120 GFLOP/s (105-125), and in multiplications really done 50% (48%-55%) of" in said and "(met, goal 50%)" in said
    assert "That loop: 200 GFLOP/s (200-230).\n\nNOT QUIET: in a quarter of its turns the loop had less than 90% of its best." in said
    assert "NOT QUIET" not in report.overhead_table({**found, "limit": report.spread([200.0, 200.0, 210.0])})
    assert "(MISSED, goal 50%)" in report.overhead_table({**found, "of_limit": report.spread([0.49])})


@pytest.fixture
def call(tmp_path, monkeypatch):
    """The driver on pieces that are there: its code."""
    monkeypatch.setattr(bench.os, "sched_setaffinity", lambda *_: None, raising=False)
    monkeypatch.setattr(bench, "OWN", tmp_path)
    monkeypatch.setattr(bench, "HERE", tmp_path / "published")
    monkeypatch.setattr(bench, "taken", lambda: 0.0)
    monkeypatch.setenv("FEDCODIST_NATIVE", "1")  # so that what --portable sets is taken back
    monkeypatch.setattr(machine, "build_fma", lambda where: (None, "no compiler"))
    (tmp_path / "published").mkdir()

    def call(pieces, *argv):
        monkeypatch.setattr(bench, "compared", lambda *_: pieces)
        monkeypatch.setattr(sys, "argv", ["bench", *argv])
        return bench.main()

    return call


def history(place):
    return [(row["bench"], len(row["results"])) for row in map(json.loads, (place / "history.jsonl").read_text().splitlines())]


def test_exit_code_is_1_when_our_side_fails(tmp_path, call, capsys):
    for said, code in (([1.0] * 7, 0), (Failed("broken"), 1)):
        assert call(iter([run(**{OURS: said})[0]])) == code
    out = capsys.readouterr().out
    assert "| fedcodist | broken |" in out and out.endswith((tmp_path / "bench.md").read_text() + "\n")
    assert history(tmp_path) == [("bench", 1)] * 2


@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_what_was_measured_before_an_interrupt_is_written(tmp_path, call, capsys, end, code):
    def pieces():
        yield run(**{OURS: [1.0] * 7, "torch": [3.0] * 7})[0]
        assert "w1-small-20" in (tmp_path / "bench.md").read_text() and (tmp_path / "bench.svg").exists()  # before the next one is begun
        raise end

    try:
        found = call(pieces())
    except SystemExit as exit:
        found = exit.code
    assert found == code and history(tmp_path) == [("bench", 1)]
    assert "Not measured yet: w1-large-20, w2-small" in (tmp_path / "bench.md").read_text()


def test_only_who_publishes_touches_what_the_documentation_quotes_and_only_with_the_whole(tmp_path, call, capsys):
    one = run(**{OURS: [1.0] * 7, "torch": [3.0] * 7})[0]
    assert call(iter([one]), "--publish") == 0 and history(tmp_path / "published") == [("bench", 1)]
    assert (tmp_path / "published/results/bench.md").read_bytes() == (tmp_path / "bench.md").read_bytes()
    assert (tmp_path / "published/results/bench.svg").exists()
    assert call(iter([one]), "--workloads", "w1-small-20") == 0 and history(tmp_path) == [("bench", 1), ("bench-some", 1)]
    assert call(iter([one]), "--peers", "--portable") == 0 and (tmp_path / "peers-portable.md").exists()
    with pytest.raises(SystemExit):
        call(iter([one]), "--publish", "--sides", "pfl")
    assert "--publish: allowed without --sides" in capsys.readouterr().err and len(history(tmp_path / "published")) == 1


def test_what_is_not_whole_and_quiet_is_not_published(tmp_path, call, capsys, monkeypatch):
    disturbed = run(limits=lambda: {"fma_all": 10.0, "sgemm_all": 9.0}, **{OURS: [1.0] * 7})[0]
    assert call(iter([disturbed]), "--publish") == 1
    assert "bench: not published: w1-small-20: the machine's limit was measured beside others" in capsys.readouterr().err
    assert call(iter([run(**{OURS: Failed("broken")})[0]]), "--publish") == 1
    monkeypatch.setattr(bench, "taken", lambda: 0.2)
    assert call(iter([run(**{OURS: [1.0] * 7})[0]]), "--publish") == 1
    assert "not published: others take 20% of the cores now" in capsys.readouterr().err
    assert not (tmp_path / "published/history.jsonl").exists() and len(history(tmp_path)) == 3


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--scaling", "--overhead"], "not allowed with argument --scaling"),
        (["--overhead", "--peers"], "--scaling, --overhead and --profile: allowed without other sides and workloads"),
        (["--turns", "0"], "--turns, --threads and --warm: allowed whole numbers from 1"),
    ],
)
def test_bad_commands(call, capsys, argv, words):
    with pytest.raises(SystemExit) as refused:
        call(iter([]), *argv)
    assert refused.value.code == 2 and words in capsys.readouterr().err


def test_a_busy_machine_is_told_beforehand(call, capsys, monkeypatch):
    monkeypatch.setattr(bench, "taken", lambda: 0.87)
    call(iter([run(**{OURS: [1.0] * 7})[0]]))
    assert "warning: others take 87% of the cores now" in capsys.readouterr().err


def test_a_share_above_the_limit_means_that_the_limit_was_disturbed():
    found, *_ = run(limits=lambda: {"fma_all": 10.0, "sgemm_all": 9.0}, **{OURS: [1.0] * 7})  # 15.1 GFLOP in a second
    assert report.doubts(found) == ["the machine's limit was measured beside others, and fedcodist is above it"]
    assert "NOT QUIET: the machine's limit" in report.table([found], {}) and report.in_short(found).endswith("5 turns; NOT QUIET")
    found, *_ = run(limits=lambda: {"fma_all": 20.0, "sgemm_all": 21.0}, **{OURS: [1.0] * 7})
    assert "the matrix product is above it" in report.table([found], {})
    found, *_ = run(limits=lambda: {"fma_all": 20.0, "sgemm_all": 19.0}, **{OURS: [1.0] * 7})
    assert report.doubts(found) == [] and "; 5 turns\n" in report.table([found], {})


def test_goals_are_told_with_what_was_reached():
    limits = {"fma_all": 30.1, "sgemm_all": 20.0}
    found, *_ = run(limits=lambda: limits, **{OURS: [1.0] * 7, "pfl": [4.0] * 7, "flower": [4.0] * 7, "fedjax": Failed("no wheel")})
    assert report.goals("peers", [found]).splitlines()[2:] == [
        "| w1-small-20 | pfl, times ours | 3.5 | 4.00 | met |",
        "| w1-small-20 | fedjax, times ours | 4.5 |  | MISSED |",
        "| w1-small-20 | flower, times ours | 5 | 4.00 | MISSED |",
        "| w1-small-20 | fedcodist, of the limit | 50% | 50% | met |",
    ]
    assert report.goals("bench", [found]) == ""
    assert all(side in PEERS or side == OURS for of in report.GOALS.values() for sides in of.values() for side in sides)
    assert all(name in WORKLOADS for of in report.GOALS.values() for name in of)


def test_progress_is_one_line_on_a_terminal_and_two_elsewhere(monkeypatch, capsys):
    for live, said in ((True, "\r\033[Ka: b (0 s)\r\033[Ka: c (0 s)\n"), (False, "a\na: c (0 s)\n")):
        monkeypatch.setattr(sys.stderr, "isatty", lambda live=live: live, raising=False)
        tell = bench.progress("a")
        tell("b")
        tell("c", last=True)
        assert capsys.readouterr().err == said


def test_the_readme_says_of_every_side_what_its_table_says():
    rows = [line.split(" | ") for line in (environments.HERE / "README.md").read_text().splitlines() if line.startswith("| ")]
    assert {row[0][2:]: row[2][:-2] for row in rows if row[0][2:] in PEERS} == {peer.name: peer.absent for peer in PEERS.values()}


def test_the_profile_says_what_hid_behind_training():
    rounds = [
        {"workload": "w1-small-20", "ms": {"round": 100.0, "gather": 5.0, "clients (threads)": 180.0}, "share": 0.9},
        {"workload": "w3", "ms": {"round": 700.0, "distil": 60.5}, "share": 0.85},
    ]
    text = report.profile_table({"rounds": rounds, "steps": {"small": {"step": 1000.0, "see": 30.0}}})
    assert "| ms, median of a round | w1-small-20 | w3 |" in text and "| distil |  | 60.5 |" in text and "| gather | 5.0 |  |" in text
    assert "the process used 90% in w1-small-20, 85% in w3;" in text
    assert "A small client's step: 1000 us on one core, of which crop, flip and standardisation 30 (3%)." in text


def test_a_profile_is_taken_from_clients_on_disk(tmp_path):
    images, labels = profile.on_disk(tmp_path, 3)
    again, _ = profile.on_disk(tmp_path, 3)
    assert isinstance(images, np.memmap) and (images == workload.examples(3)[0]).all() and (labels == workload.examples(3)[1]).all()
    assert again.filename == images.filename and len(list(tmp_path.iterdir())) == 2
