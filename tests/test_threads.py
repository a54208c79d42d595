"""The engine's threads: the most urgent task first, results in order, failures told, nothing begun that nobody waits for."""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest

from fedcodist.engines import blocks
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.serial import Serial
from fedcodist.engines.threads import PriorityThreads, shared


@pytest.fixture(autouse=True)
def _signals():
    """The end of a crew gives SIGINT back to the system, which is for the end of a process."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_most_urgent_task_comes_first_and_then_the_oldest():
    crew, gate, done = PriorityThreads(1), threading.Event(), []
    first = crew.submit(1, gate.wait)  # keeps the only thread busy while the others queue up
    waiting = [
        crew.submit(urgency, done.append, name) for urgency, name in [(1, "block 1"), (1, "block 2"), (0, "student"), (1, "block 3")]
    ]
    gate.set()
    for task in [first, *waiting]:
        task.result(timeout=10)
    assert done == ["student", "block 1", "block 2", "block 3"]


def test_results_come_in_the_order_of_the_items():
    crew, late = PriorityThreads(2), threading.Event()

    def answer(n: int) -> int:
        if n == 0:
            assert late.wait(10)
        late.set()
        return n * n

    assert list(crew.map(answer, range(4))) == [0, 1, 4, 9]


def test_a_failure_is_raised_and_what_has_not_begun_is_given_up():
    crew, begun, gate = PriorityThreads(1), [], threading.Event()

    def fail(n: int) -> None:
        begun.append(n)
        if n == 0:
            raise ValueError("task 0")
        assert gate.wait(10)

    with pytest.raises(ValueError, match="task 0"):
        list(crew.map(fail, range(5)))
    gate.set()
    crew.submit(9, int).result(timeout=10)  # after all that is left
    assert begun in ([0], [0, 1])  # the thread may have taken the next one before anybody knew


@pytest.mark.parametrize("engine", [Serial(), Compiled(workers=1), Compiled(workers=2)])
def test_beside_gives_the_result_or_the_failure(engine):
    assert engine.host.start(lambda: list(engine.host.map(abs, [-1, -2]))).result() == [
        1,
        2,
    ]  # and may use the crew without waiting for itself

    def fail() -> None:
        raise ValueError("beside")

    with pytest.raises(ValueError, match="beside"):
        engine.host.start(fail).result()


def test_the_process_ends_while_the_crew_works():
    code = "import time; from fedcodist.engines.threads import shared; shared(2).submit(0, time.sleep, 0.2); print('end', flush=True)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout == "end\n" and ended.stderr == ""


ENDLESS = """
import atexit, sys, threading, time
from fedcodist.engines.threads import PriorityThreads

atexit.register(lambda: print(threading.active_count()))  # what is registered first comes last
crew = PriorityThreads(2)

def speak():
    try:
        while True:
            list(crew.map(time.sleep, [0.01, 0.01, 0.01]))
    finally:
        time.sleep(0.3)  # what it does itself is waited for, what others would do for it is not

crew.start(speak)
time.sleep(0.1)
sys.exit(5)
"""


def test_no_thread_is_left_when_the_process_ends():
    """One that came back from compiled code after the interpreter has gone would take the process down with SIGABRT."""
    ended = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (5, "1\n", "")


def test_nobody_is_begun_after_the_end():
    """One that conducts gets what is being done for it, and may want to begin another."""
    crew, begun, gate, later = PriorityThreads(1), threading.Event(), threading.Event(), []

    def nested() -> None:
        crew.submit(0, lambda: begun.set() or gate.wait()).result()
        later.append(crew.start(time.sleep))

    conducted = crew.start(nested)
    assert begun.wait(10)
    threading.Timer(0.1, gate.set).start()
    crew._close()
    assert conducted.done() and later[0].cancelled() and not crew._conductors


def test_a_failure_in_a_round_ends_what_is_done_beside(monkeypatch):
    engine, crew = Compiled(workers=1), shared(1)
    begun, gate = threading.Event(), threading.Event()

    def speak() -> None:
        begun.set()
        assert gate.wait(10)
        list(engine.host.map(abs, [-1]))
        raise AssertionError("somebody still works for it")

    beside = engine.host.start(speak)
    assert begun.wait(10)
    monkeypatch.setattr(blocks, "pack", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.gather({"p": {}}, [SimpleNamespace(pool="p", clients=["a"])])
    assert beside.cancelled()
    (thread,) = crew._conductors
    gate.set()
    thread.join(10)
    assert not crew._conductors


def test_who_conducts_is_awaited_at_the_end_and_what_nobody_began_is_given_up():
    crew, begun, gate = PriorityThreads(1), threading.Event(), threading.Event()
    began = crew.submit(0, lambda: begun.set() or gate.wait())
    assert begun.wait(10)
    conducted = crew.start(lambda: list(crew.map(abs, [-1])))
    waiting = crew.submit(1, int)
    threading.Timer(0.1, gate.set).start()
    crew._close()
    assert began.result() and waiting.cancelled() and conducted.done() and crew.submit(0, int).cancelled()
    with pytest.raises(CancelledError):
        conducted.result()
