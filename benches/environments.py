"""The peers and their environments: each in benches/.peers/<name>, made once by pip from pinned versions in benches/peers/<name>.txt.

The lists are complete and installed without looking at dependencies: a peer's own pins may contradict each other by now, and what was
measured should be what is installed. An install that fails is a result with the last line of its error, not a reason to stop.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benches.workers import Failed, last_line

HERE = Path(__file__).resolve().parent
MADE = HERE / ".peers"
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}  # a bench reports to nobody else
QUIET = {"PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "2"}


@dataclass(frozen=True)
class Peer:
    """Another side: its program benches/peers/<program>.py, what it leaves out of the work, and the Python that it needs."""

    name: str
    says: str  # how it is run
    absent: str = "nothing"  # what it does not do of what we do
    program: str = ""
    python: str = ""  # "3.10", or whichever runs the driver
    families: tuple[str, ...] = ("w1",)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """Its program, for `python -m`."""
        return f"benches.peers.{self.program or self.name}"

    @property
    def interpreter(self) -> Path:
        """The Python of its environment."""
        return MADE / self.name / "bin" / "python"


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "torch",
            "a plain PyTorch loop, channels_last, all threads",
            "nothing; of eval the calibration error",
            program="torch_loop",
            families=("w1", "w2", "w3", "eval"),
        ),
        Peer("pfl", "pfl-research: SimulatedBackend, FederatedAveraging, PyTorch, all threads"),
        Peer(
            "fedlab",
            "FedLab: serial trainer, PyTorch, all threads",
            "the server's Adam: it takes the plain mean; weights by examples (here all are equal)",
        ),
        Peer(
            "fedjax",
            "FedJAX: federated_averaging with haiku, jit backend, on a jax it was not made for",
            "the training loss",
            env={"JAX_PLATFORMS": "cpu"},
        ),
        Peer(
            "fedjax_old",
            "FedJAX on the jax of its time",
            "the training loss",
            program="fedjax",
            python="3.10",
            env={"JAX_PLATFORMS": "cpu"},
        ),
        Peer("flower", "Flower: simulation on Ray, one worker a core, PyTorch with 1 thread, FedAdam", env=SILENT),
        Peer("tff", "TensorFlow Federated: weighted FedAvg with Keras, default executors", env={"JAX_PLATFORMS": "cpu"}),
    )
}


def make(peer: Peer) -> None:
    """Make a peer's environment unless it is there; Failed with the reason otherwise. The whole story is in .peers/<name>.log."""
    pins, log, done = HERE / "peers" / f"{peer.name}.txt", MADE / f"{peer.name}.log", MADE / peer.name / "pins.txt"
    wanted = pins.read_text()
    if done.exists() and done.read_text() == wanted:
        return
    MADE.mkdir(exist_ok=True)
    (MADE / ".gitignore").write_text("*\n")
    python = interpreter(peer.python)
    if python is None:
        raise Failed(f"not installed: there is no Python {peer.python} here")
    shutil.rmtree(MADE / peer.name, ignore_errors=True)
    pip = [str(peer.interpreter), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--requirement", str(pins)]
    with log.open("w") as words:
        for command in ([python, "-m", "venv", str(MADE / peer.name)], pip):
            if subprocess.run(command, stdout=words, stderr=subprocess.STDOUT).returncode:
                words.flush()
                raise Failed(f"not installed: {last_line(log)}")
    done.write_text(wanted)


def interpreter(wanted: str) -> str | None:
    """A Python of this version that really runs: this one, one on the PATH, or one of pyenv's."""
    if not wanted or wanted == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for found in (shutil.which(f"python{wanted}"), *sorted(map(str, pyenv.glob(f"versions/{wanted}.*/bin/python")))):
        if found and subprocess.run([found, "-c", "import venv"], capture_output=True).returncode == 0:
            return found
    return None
