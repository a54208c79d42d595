"""Starts Flower's processes and keeps them alive: whatever ends is started again, sooner at first and then every half minute.

Telemetry, update checks and installing packages at run time are off for all of them. What they print goes to a file each.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fedcodist.errors import ConfigError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
}
FIRST_SECONDS, LAST_SECONDS, CALM_SECONDS = 1.0, 30.0, 120.0
PATIENCE_SECONDS = 10.0  # between asking a process to end and ending it


def program(name: str) -> str:
    """One of Flower's programs: those beside this interpreter first."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise ConfigError(f"deploy: the program {name} is missing: Flower is not installed; pip install 'fedcodist[deploy]'")
    return found


def environment(home: Path, cache: Path, *first: Path) -> dict[str, str]:
    """What Flower's processes and the apps that they start are told; programs are looked for in the `first` places first. A cache of
    compiled programs that the user names is used instead."""
    beside = str(Path(sys.executable).parent)
    others = [p for p in os.environ.get("PATH", "").split(os.pathsep) if p and p != beside]
    told = {
        "PATH": os.pathsep.join([*map(str, first), beside, *others]),
        "FLWR_HOME": str(home),
        "FEDCODIST_CACHE": os.environ.get("FEDCODIST_CACHE") or str(cache),
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **QUIET, **told}


@dataclass
class Kept:
    """One process that is kept alive. `after` is whether it may be started yet."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    after: Callable[[], bool] = lambda: True
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    last_seconds: float = LAST_SECONDS
    _began: float = 0.0
    _wait: float = FIRST_SECONDS
    _next: float = 0.0
    _file: IO[bytes] | None = field(default=None, repr=False)

    def tend(self, say: Callable[[str], Any]) -> None:
        """Start the process if it is to run and does not."""
        now = time.monotonic()
        if self.process is not None and (code := self.process.poll()) is not None:
            self._wait = FIRST_SECONDS if now - self._began > CALM_SECONDS else min(2 * self._wait, self.last_seconds)
            self._next, self.process = now + self._wait, None
            say(f"{self.name} ended ({code}); it starts again in {self._wait:.0f} s; see {self.log}")
        if self.process is None and now >= self._next and self.after():
            if self._file is None:
                self._file = open(self.log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600))  # noqa: SIM115
            # A session of its own: Ctrl-C reaches only this process, which then ends the others in their order.
            self.process = subprocess.Popen(self.command, env=dict(self.env), stdout=self._file, stderr=self._file, start_new_session=True)
            self._began, self.starts = now, self.starts + 1

    def ask(self) -> None:
        """Ask the process and all that it started to end."""
        if self.process is not None:
            _signal(self.process.pid, signal.SIGTERM)

    def end(self) -> None:
        """Wait for its end, and end what does not."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_SECONDS)
            _signal(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def keeping(kept: Sequence[Kept], say: Callable[[str], Any] = print) -> Iterator[Callable[[], None]]:
    """Processes, started in this order and ended in the other; call what this gives again and again to tend them."""
    try:

        def tend() -> None:
            for one in kept:
                one.tend(say)

        tend()
        yield tend
    finally:
        for one in reversed(kept):
            one.ask()
        for one in reversed(kept):
            one.end()


def run(command: Sequence[str], env: Mapping[str, str], seconds: float = 120.0) -> tuple[int, str]:
    """A command to its end: its code, and what it printed."""
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return 124, f"no end within {seconds:.0f} seconds"
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def _signal(group: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signum)
