"""Files that come with clients, whoever wrote them: TFF's SQLite and HDF5, compressed or not, and FedJAX's SQLite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedcodist.errors import DataError, data_error
from fedcodist.readers import files
from fedcodist.readers.fedjax import TABLE, open_fedjax
from fedcodist.readers.sqlite import Database
from fedcodist.readers.tff import Source, decompress, open_tff

SUFFIXES = (".h5", ".hdf5", ".sqlite", ".db", ".lzma")


def federated_files(path: Path) -> list[Path]:
    """The federated files at a path, recognised by their suffixes; an empty list if there is none."""
    found = files.kind(path)
    if found == "a directory":
        return sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and files.kind(file) == "a file")
    return [path] if found == "a file" and path.suffix in SUFFIXES else []


def open_federated(path: Path, scratch: Path, progress: Callable[[int, int | None, str], None]) -> dict[str, Source]:
    """{split: source}. A compressed database cannot be queried, so it is decompressed into the scratch directory first."""
    found = federated_files(path)
    if not found:
        raise data_error(str(path), files.kind(path), f"a file or a directory of files that end with {', '.join(SUFFIXES)}")
    packed = [file for file in found if file.suffix == ".lzma"]
    if packed and len(packed) == len(found):
        place = decompress(packed[0], scratch, lambda done: progress(done, None, "bytes unpacked"))
        try:
            return open_tff(place)
        except DataError as error:  # the user knows the compressed file, not our copy of it
            raise DataError(str(error).replace(str(place), f"{packed[0]} (unpacked)")) from error
    databases = [file for file in found if file.suffix in (".sqlite", ".db")]
    return open_fedjax(path) if databases and _is_fedjax(databases[0]) else open_tff(path)


def _is_fedjax(path: Path) -> bool:
    try:
        Database(path, TABLE).close()
    except DataError:
        return False
    return True
