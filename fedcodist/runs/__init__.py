"""Runs: their directories (`directory`), how they are read back (`recorded`), and how one is performed (`session`)."""

from fedcodist.runs.directory import Mismatch, Run, run_path
from fedcodist.runs.environment import differences, fingerprint
from fedcodist.runs.recorded import NotARun, Recorded, find, find_all, read
from fedcodist.storage.durable import BadName, CheckpointError, RunError, StorageError
from fedcodist.storage.lock import Busy

__all__ = [
    "BadName", "Busy", "CheckpointError", "Mismatch", "NotARun", "Recorded", "Run", "RunError", "StorageError",
    "differences", "find", "find_all", "fingerprint", "read", "run_path",
]  # fmt: skip
