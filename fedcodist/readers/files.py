"""Opening a path that a user gives: nothing hangs, nothing is unpacked to disk, and no archive unpacks to more than its size allows.

A path may be a directory, a .tar, .tar.gz, .tgz or .zip; `members` gives the wanted files of either as streams, by their exact names.
`unpacked` decompresses .gz, .xz and .lzma as a stream, with a limit on the ratio of the sizes.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

from fedcodist.errors import DataError, data_error

RATIO, SMALL_BYTES = 200, 64 * 2**20  # more bytes than this, compressed more than this, are a decompression bomb
MOST_MEMBERS = 100_000  # of an archive
CHUNK = 2**20
# tarfile reads extended headers whole, and searches them in time that grows with the square of their length.
MOST_HEADER, MOST_HEADER_WORK = 4096, 10**9
KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
NPY, ZIP, ZIP_EMPTY, GZIP, XZ = b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"\xfd7zXZ\x00"
LZMA = b"\x5d\x00\x00"  # the old .lzma format has no magic number; this is how such files usually begin
SQLITE, HDF5, PARQUET, ARROW = b"SQLite format 3\x00", b"\x89HDF\r\n\x1a\n", b"PAR1", b"ARROW1"
NAMES = {
    NPY: "a .npy file",
    ZIP: "a zip or .npz file",
    ZIP_EMPTY: "an empty zip or .npz file",
    GZIP: "a gzip file",
    XZ: "an xz file",
    SQLITE: "an SQLite file",
    HDF5: "an HDF5 file",
    PARQUET: "a Parquet file",
    ARROW: "an Arrow file",
}
# Protocols 2 to 5 begin with their number; 0 and 1 with the opcode of a list, a dict, a tuple or a class.
PICKLES = (b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5", b"(l", b"(d", b"(t", b"cn", b"]q", b"}q")
# What a damaged archive may raise; an encrypted one raises RuntimeError.
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, RuntimeError),
    *(ValueError, TypeError, IndexError, OverflowError, MemoryError),
)


def kind(path: str | Path) -> str:
    """What a path is, without opening it: opening a FIFO would wait for ever.

    >>> kind("/"), kind("/no/such/place")
    ('a directory', 'nothing at this path')
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "a broken symbolic link" if os.path.islink(path) else "nothing at this path"
    except (OSError, ValueError) as error:
        return f"{getattr(error, 'strerror', None) or error}"
    return KINDS.get(stat.S_IFMT(mode), "something that is no file")


def open_file(path: str | Path, allowed: str = "a file") -> IO[bytes]:
    """A regular file, opened; anything else is a DataError that says what it is."""
    found = kind(path)
    if found != "a file":
        raise data_error(str(path), found, allowed)
    try:
        # Non-blocking, in case the path has become a FIFO in the meantime.
        file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)), "rb")
    except OSError as error:
        raise data_error(str(path), f"{error.strerror}", "a file that can be read") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise data_error(str(path), "something that is no file", allowed)
    return file


def sniff(start: bytes) -> str:
    """What a file is, judged by its first bytes.

    >>> sniff(b"PAR1...."), sniff(b"\\x80\\x04..."), sniff(b"hello")
    ('a Parquet file', 'a pickle', "a file that begins with b'hello'")
    """
    if not start:
        return "an empty file"
    known = next((name for magic, name in NAMES.items() if start.startswith(magic)), None)
    return known or ("a pickle" if start.startswith(PICKLES) else f"a file that begins with {start[:8]!r}")


def check_magic(path: str | Path, file: IO[bytes], wanted: tuple[bytes, ...], allowed: str) -> None:
    """DataError unless the file begins with one of the wanted magic numbers; then it is rewound."""
    start = file.read(16)
    file.seek(0)
    if not start.startswith(wanted):
        raise data_error(str(path), sniff(start), allowed)


class Limited(io.RawIOBase):
    """A stream that refuses to give more than `most` bytes, since the sizes that an archive claims cannot be trusted.

    Closing it also closes the underlying files, `also`.
    """

    def __init__(self, where: str, stream: IO[bytes], most: int, allowed: str, *also: IO[bytes]):
        self.where, self.stream, self.left, self.allowed, self.also = where, stream, most, allowed, also

    def close(self) -> None:
        for file in self.also:
            file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[override]
        try:
            data = self.stream.read(len(buffer))
        except DAMAGED as error:
            raise data_error(self.where, f"a file that is truncated or damaged ({_reason(error)})", self.allowed) from error
        self.left -= len(data)
        if self.left < 0:
            raise data_error(self.where, "more bytes than it may hold", self.allowed)
        buffer[: len(data)] = data
        return len(data)


def unpacked(path: str | Path, most: int | None = None) -> IO[bytes]:
    """The bytes of a plain, .gz, .xz or .lzma file as a buffered stream; reading a damaged file or a bomb raises DataError."""
    file = open_file(path)
    start = file.read(8)
    file.seek(0)
    size = os.fstat(file.fileno()).st_size
    allowed = f"at most {RATIO} times the packed size" if most is None else f"at most {most} bytes"
    limit = max(SMALL_BYTES, RATIO * size) if most is None else most
    if start.startswith(GZIP):
        inner: Any = gzip.GzipFile(fileobj=file)
    elif start.startswith(XZ) or (start.startswith(LZMA) and str(path).endswith(".lzma")):
        inner = lzma.LZMAFile(file)  # noqa: SIM115  # closed with the stream
    elif most is None:
        return file  # type: ignore[return-value]
    else:
        inner = file
    return io.BufferedReader(Limited(str(path), inner, limit, f"a whole file, {allowed}", inner, file), CHUNK)


def members(path: str | Path, wanted: Mapping[str, int | None]) -> Iterator[tuple[str, IO[bytes]]]:
    """(name, stream) of each wanted file of a directory or an archive; `wanted` maps names to exact sizes (None: any size).

    Names are compared without their directories; an archive is read once, in its own order, and nothing is written. Read each stream before
    asking for the next one. A file of another size is a DataError; missing files are skipped.
    """
    found = kind(path)
    if found == "a directory":
        for name, size in wanted.items():
            place = Path(path) / name
            if kind(place) != "nothing at this path":
                with open_file(place) as file:
                    _check_size(str(place), os.fstat(file.fileno()).st_size, size)
                    yield name, file
        return
    if found != "a file":
        raise data_error(str(path), found, "a directory, a .tar, .tar.gz or .zip file")
    with open_file(path) as file:
        start = file.read(512)
        file.seek(0)
        try:
            if start.startswith((ZIP, ZIP_EMPTY)):
                yield from _zip_members(str(path), file, wanted)
            elif start.startswith(GZIP) or start[257:262] == b"ustar":
                yield from _tar_members(str(path), file, wanted)
            else:
                raise data_error(str(path), sniff(start), "a directory, a .tar, .tar.gz or .zip file")
        except DataError:
            raise
        except DAMAGED as error:
            raise data_error(str(path), f"an archive that is truncated or damaged ({_reason(error)})", "a whole archive") from error


def sha256(stream: IO[bytes]) -> str:
    """The SHA-256 of the rest of a stream."""
    total = hashlib.sha256()
    while chunk := stream.read(CHUNK):
        total.update(chunk)
    return total.hexdigest()


def _tar_members(path: str, file: IO[bytes], wanted: Mapping[str, int | None]) -> Iterator[tuple[str, IO[bytes]]]:
    size = os.fstat(file.fileno()).st_size
    most = max(SMALL_BYTES, RATIO * size)
    with tarfile.open(fileobj=file, mode="r|*", tarinfo=_bounded_headers()) as archive:
        seen: set[str] = set()
        total = 0
        for count, member in enumerate(archive):
            _check_name(path, member.name)
            total += max(0, member.size)
            if count >= MOST_MEMBERS:
                raise data_error(path, f"more than {MOST_MEMBERS} members", f"at most {MOST_MEMBERS}")
            if total > most:
                raise data_error(path, f"{total} bytes packed into {size}", f"at most {RATIO} times the packed size")
            name = PurePosixPath(member.name).name
            if name not in wanted or member.isdir():
                continue
            if not member.isfile() or member.issparse():  # a sparse file claims a length without having the bytes
                raise data_error(f"{path}: {name}", "a link, a device or a sparse file", "a file")
            if name in seen:
                raise data_error(path, f"two members {name}", "each once")
            seen.add(name)
            _check_size(f"{path}: {name}", member.size, wanted[name])
            stream = archive.extractfile(member)
            assert stream is not None
            yield name, _whole(path, name, stream, member.size)


def _zip_members(path: str, file: IO[bytes], wanted: Mapping[str, int | None]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        if len(infos) > MOST_MEMBERS:
            raise data_error(path, f"{len(infos)} members", f"at most {MOST_MEMBERS}")
        seen: set[str] = set()
        for info in infos:
            _check_name(path, info.filename)
            name = PurePosixPath(info.filename).name
            if name not in wanted or info.is_dir():
                continue
            if name in seen:
                raise data_error(path, f"two members {name}", "each once")
            seen.add(name)
            check_ratio(f"{path}: {name}", info.file_size, info.compress_size)
            _check_size(f"{path}: {name}", info.file_size, wanted[name])
            with archive.open(info) as stream:
                yield name, _whole(path, name, stream, info.file_size)


def _whole(path: str, name: str, stream: IO[bytes], size: int) -> IO[bytes]:
    """A member as a stream that raises DataError where it turns out to be damaged."""
    return io.BufferedReader(Limited(f"{path}: {name}", stream, size, "a whole archive"), CHUNK)


def _bounded_headers() -> type[tarfile.TarInfo]:
    """A class for the members of one archive that refuses negative sizes, and headers that would take too much memory or time."""
    work = 0

    class Bounded(tarfile.TarInfo):
        def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
            nonlocal work
            if self.size < 0:
                raise tarfile.ReadError(f"a member of {self.size} bytes")
            if self.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
                work += self.size**2
                if self.size > MOST_HEADER or work > MOST_HEADER_WORK:
                    raise tarfile.ReadError(f"a header of {self.size} bytes")
            return super()._proc_member(archive)  # type: ignore[misc]

    return Bounded


def check_ratio(where: str, size: int, packed: int) -> None:
    """DataError if the ratio of the sizes is that of a decompression bomb."""
    if size > SMALL_BYTES and size > RATIO * packed:
        raise data_error(where, f"{size} bytes packed into {packed}", f"at most {RATIO} times the packed size")


def _check_name(path: str, name: str) -> None:
    parts = PurePosixPath(name).parts
    if name.startswith(("/", "\\")) or ".." in parts or "\0" in name:
        raise data_error(path, f"a member named {name!r}", "names inside the archive")


def _check_size(where: str, found: int, size: int | None) -> None:
    if size is not None and found != size:
        raise data_error(where, f"{found} bytes", f"{size} bytes", "truncated?" if found < size else "")


def _reason(error: BaseException) -> str:
    with contextlib.suppress(Exception):
        return str(error).splitlines()[0][:80] or type(error).__name__
    return type(error).__name__
