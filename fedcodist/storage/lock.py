"""One writer for each directory: a lock that the kernel releases with its process, and that names its holder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from pathlib import Path

from fedcodist.storage.durable import RunError, StorageError, as_storage_error, printable, write_all
from fedcodist.storage.sealed import canonical


class Busy(RunError):
    """Another process is writing here."""

    code = 5


def take(path: Path, what: str) -> tuple[int, str]:
    """The locked file, and the previous holder if it did not release the lock itself."""
    with as_storage_error(path):
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        with as_storage_error(path):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            gone = _holder(lock)
            os.ftruncate(lock, 0)
            write_all(lock, (canonical({"pid": os.getpid(), "host": socket.gethostname(), "boot": _boot()}) + "\n").encode())
        return lock, gone
    except StorageError as error:
        who = _holder(lock)
        os.close(lock)
        if isinstance(error.__cause__, BlockingIOError):
            raise Busy(f"{printable(path.parent)}: busy: {who or 'another process'} is writing this {what}") from None
        raise


def release(lock: int) -> None:
    """Release the lock."""
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)  # the file stays: unlinking it would let two writers lock two files
    os.close(lock)


def is_held(path: Path) -> bool:
    """Whether a process has the lock, by what it wrote there: to look is not to take it, so a writer that starts meanwhile is not refused.
    Of a process on another machine it is believed."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        holder = json.loads(os.pread(lock, 4096, 0))
        if (holder["host"], holder["boot"]) != (socket.gethostname(), _boot()):
            return holder["host"] != socket.gethostname()
        os.kill(int(holder["pid"]), 0)
        return True
    except PermissionError:
        return True  # somebody else's
    except (OSError, ValueError, KeyError, TypeError):
        return False
    finally:
        os.close(lock)


def _holder(lock: int) -> str:
    try:
        holder = json.loads(os.pread(lock, 4096, 0))
        return f"pid {int(holder['pid'])} on {printable(holder['host'])}"
    except (ValueError, KeyError, TypeError):
        return ""  # empty: let go in order, or not written yet


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
