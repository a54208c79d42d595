"""Files that survive a crash: they are written completely and synced, or they do not exist. Every OSError becomes one line that names the
file."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedcodist.errors import Failure
from fedcodist.settings import show

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
RESERVED = {"con", "prn", "aux", "nul"} | {f"{device}{n}" for device in ("com", "lpt") for n in range(1, 10)}


class RunError(Failure):
    """Something is wrong with a run, in one line."""


class BadName(RunError):
    """A name that cannot be a file name everywhere."""

    code = 2


class CheckpointError(RunError):
    """What is stored cannot be continued from."""

    code = 4


class StorageError(RunError):
    """The disk fails, and not the run: it is full, read-only, forbidden or broken."""

    code = 6


class Damaged(Exception):
    """Why a stored file cannot be trusted. The caller falls back to an older one, or gives up."""


@contextmanager
def as_storage_error(path: Path) -> Iterator[None]:
    """Any OSError inside becomes one line that names the file and the reason."""
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        raise StorageError(f"{printable(path)}: {error.strerror or error}" + (f" ({name})" if name else "")) from error


def make_directory(path: Path) -> None:
    """A directory for the owner only."""
    with as_storage_error(path):
        os.mkdir(path, 0o700)


def make_directories(path: Path) -> None:
    """A directory for the owner only, and those above it; one that is there already is as good."""
    if path.parent != path and not path.parent.is_dir():
        make_directories(path.parent)
    try:
        with as_storage_error(path):
            os.mkdir(path, 0o700)
    except StorageError as error:
        if not isinstance(error.__cause__, FileExistsError):
            raise
        if path.is_symlink() or not path.is_dir():
            raise StorageError(f"{printable(path)}: not a directory (ENOTDIR)") from error
        return
    sync_directory(path.parent)


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """A new file, on disk when this returns."""
    with as_storage_error(path):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            write_all(file, data)
            os.fsync(file)
        finally:
            os.close(file)


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """The whole new file or the whole old one, at every instant. A symbolic link is replaced by the file, and not followed."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with as_storage_error(temporary):
        if os.path.lexists(temporary):
            os.unlink(temporary)
    write_file(temporary, data, mode)
    with as_storage_error(path):
        os.replace(temporary, path)
    sync_directory(path.parent)


def publish(path: Path, data: bytes) -> None:
    """`replace_file` for what others may read, such as a report."""
    replace_file(path, data, 0o666)


def own_directory(path: Path) -> None:
    """A directory of ours within one that the user named: made if it is not there, and refused if it is a symbolic link."""
    with as_storage_error(path):
        if path.is_symlink():
            raise StorageError(f"{printable(path)}: a symbolic link; allowed a directory")
        path.mkdir(parents=True, exist_ok=True)


def write_all(file: int, data: bytes) -> None:
    """os.write may write less than it was given."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def rename(old: Path, new: Path) -> None:
    """Atomic; durable only after sync_directory."""
    with as_storage_error(new):
        os.rename(old, new)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    with as_storage_error(path):
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def read_file(path: Path, size: int | None = None) -> bytes:
    """A regular file, of this size if one is given; Damaged if it is absent, something else, or unreadable on the medium."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # neither a link nor a wait for the other end of a pipe
        with os.fdopen(file, "rb") as stream:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise Damaged(f"{path.name}: not a regular file")
            if size is not None and status.st_size != size:
                raise Damaged(f"{path.name}: {status.st_size} bytes, not {size}")
            return stream.read()
    except FileNotFoundError as error:
        raise Damaged(f"{path.name}: missing") from error
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO, errno.ENXIO):
            raise Damaged(f"{path.name}: {error.strerror}") from error
        raise StorageError(f"{printable(path)}: {error.strerror}") from error


def free_space(path: Path) -> tuple[int, Path]:
    """(bytes that may still be written, where that was measured): at the path, or at the nearest directory above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    with as_storage_error(path):
        return shutil.disk_usage(path).free, path


def check_name(what: str, name: str) -> None:
    """Refuse what is not a safe file name on every system."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise BadName(f"{what}: got {show(name)}; allowed {NAME}")
    if name.endswith(".") or name.split(".")[0].lower() in RESERVED:
        raise BadName(f"{what}: got {show(name)}; allowed {NAME}, without a trailing dot and no reserved name such as CON or NUL")


def printable(path: Path | str) -> str:
    """A path as it may stand in a message: one line of ASCII."""
    return ascii(str(path))[1:-1]
