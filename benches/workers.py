"""The driver's end of the pipes: start a worker in its own process and environment, ask it for a round, and see what its whole process
tree used. Workers may start daemons (Ray does), so a tree is found by parentage and by a mark in the environment that all of them inherit.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PATIENCE = 900.0  # seconds that a worker may be silent before it counts as hung
THAW_SECONDS = 0.5
MARK = "BENCH_MARK"


class Failed(Exception):
    """A worker cannot go on; the words say why."""


class Worker:
    """A process that does one round when asked."""

    def __init__(
        self, side: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, patience: float = PATIENCE
    ) -> None:
        self.side, self.log, self.patience = side, log, patience
        self.rounds: list[dict[str, float]] = []
        self.rss_mb = self.first_seconds = 0.0
        self._mark, self._known, self._text = uuid.uuid4().hex, set[tuple[int, int]](), b""
        self._hears, says = os.pipe()
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        marks = {"PYTHONPATH": path, "BENCH_ANSWERS": str(says), MARK: self._mark, **(env or {})}
        self.started = time.perf_counter()
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("wb") as words:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=words, stderr=words, env={**os.environ, **marks}, pass_fds=(says,), cwd=ROOT
                )
        except OSError as error:
            os.close(self._hears)
            raise Failed(f"cannot start: {error}") from None
        finally:
            os.close(says)
        try:
            self.hello = self._hear()
            self.rounds.append(self.round())
        except Failed:
            self.close()
            raise
        self.first_seconds = time.perf_counter() - self.started  # from the start of the process to the end of its first round

    def round(self) -> dict[str, float]:
        """One round's measurements: wall seconds as the worker saw them, CPU seconds of the tree, what others took of our cores."""
        assert self.process.stdin is not None
        before, busy, wall = self._used(), busy_seconds(), time.perf_counter()
        try:
            self.process.stdin.write(b"round\n")
            self.process.stdin.flush()
        except OSError:
            raise Failed(self._last_words()) from None
        found = self._hear()
        wall, busy = time.perf_counter() - wall, busy_seconds() - busy
        # The worker counts its own time to the microsecond; ticks of 10 ms are for the processes it started.
        found["cpu_seconds"] += max(0.0, self._used() - before)
        found["others"] = max(0.0, busy - found["cpu_seconds"]) / (wall * len(our_cores()))
        return found

    def freeze(self) -> None:
        """Stop the tree until `thaw`. Only of a worker with daemons: Ray's take a twentieth of a core while they wait, and sides that split
        every operation over the cores would pay for it."""
        if self._tree():
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on, and give what was stopped a moment to catch up with its timers."""
        if self._tree():
            self._signal(signal.SIGCONT)
            time.sleep(THAW_SECONDS)

    def _signal(self, what: signal.Signals) -> None:
        for pid in (self.process.pid, *(pid for pid, _ in self._tree())):
            with suppress(OSError):  # gone meanwhile
                os.kill(pid, what)

    def close(self) -> None:
        """End the process by ending its input, and what it left behind by their ids."""
        if self.process.stdin is not None:
            with suppress(OSError):  # it died with a line unread
                self.process.stdin.close()
        self._signal(signal.SIGCONT)
        left = self._tree()
        try:
            self.process.wait(timeout=min(30.0, self.patience))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._hears)
        deadline = time.perf_counter() + min(5.0, self.patience)
        while (left := self._tree() | {p for p in left if _start(p[0]) == p[1]}) and time.perf_counter() < deadline:
            time.sleep(0.1)
        for pid, _ in left:
            with suppress(OSError):  # gone meanwhile
                os.kill(pid, signal.SIGKILL)

    def _hear(self) -> dict[str, Any]:
        deadline = time.perf_counter() + self.patience
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._hears], [], [], 0.5)
            if ready:
                piece = os.read(self._hears, 65536)
                if not piece:
                    raise Failed(self._last_words())
                self._text += piece
            elif self.process.poll() is not None:  # a process it started may keep the pipe open
                raise Failed(self._last_words())
            elif time.perf_counter() > deadline:
                raise Failed(f"no answer for {self.patience:.0f} s")
        line, self._text = self._text.split(b"\n", 1)
        return json.loads(line)

    def _last_words(self) -> str:
        try:
            code = self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = None
        return f"ended with code {code}: {last_line(self.log)}"

    def _tree(self) -> set[tuple[int, int]]:
        """(pid, start) of every process that this worker started, itself not among them."""
        parents = {pid: _stat(pid) for pid in _pids()}
        starts = {pid: int(stat[19]) for pid, stat in parents.items() if stat}
        found = {pid for pid, start in self._known if starts.get(pid) == start} | {self.process.pid}
        found |= {pid for pid in starts if f"{MARK}={self._mark}".encode() in _read(f"/proc/{pid}/environ")}
        while more := {pid for pid, stat in parents.items() if stat and pid not in found and int(stat[1]) in found}:
            found |= more
        self._known = {(pid, starts[pid]) for pid in found if pid != self.process.pid and pid in starts}
        return self._known

    def _used(self) -> float:
        """CPU seconds of the processes that this one started, dead ones too; and note the peak memory of all."""
        pids = {pid for pid, _ in self._tree()}
        peak = sum(_peak_mb(pid) for pid in (*pids, self.process.pid))
        self.rss_mb = max(self.rss_mb, peak)
        stats = [stat for pid in pids if (stat := _stat(pid))]
        ticks = sum(int(n) for stat in stats for n in stat[11:15])
        own = _stat(self.process.pid)
        return (ticks + sum(int(n) for n in own[13:15])) / TICK if own else ticks / TICK


def last_line(log: Path) -> str:
    """The last thing that a log says."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    return lines[-1][:300] if lines else "it said nothing"


def our_cores() -> set[int]:
    """The cores that the driver, and so every worker, may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def busy_seconds() -> float:
    """Seconds that our cores together have worked or were taken away since the machine started; 0 where nobody says."""
    cores = {f"cpu{n}" for n in our_cores()}
    ticks = 0
    for line in _read("/proc/stat").decode().splitlines():
        name, *numbers = line.split()
        if name in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, numbers[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / TICK


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on: [0] state, [1] parent, [11:15] ticks of itself and of its ended children, [19] start."""
    return _read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(") ")[2].split()


def _start(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[19]) if stat and stat[0] != "Z" else -1


def _peak_mb(pid: int) -> float:
    """The peak memory of a process. Not ru_maxrss: that one also remembers the process that forked this."""
    words = _read(f"/proc/{pid}/status").decode(errors="replace").partition("VmHWM:")[2].split()
    return int(words[0]) / 1024 if words else 0.0


if sys.platform != "linux":
    print("bench: memory, and what others took, are read from /proc: they are 0 on this system", file=sys.stderr)
