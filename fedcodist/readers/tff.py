"""TensorFlow Federated's own files, without TensorFlow: SQLite with a serialized example in each row, and HDF5 with a group per client.

Files are read lazily: `clients` lists the clients and their sizes, `read` gives the examples of one client. In SQLite the tables are
`examples` and `client_metadata`, and the split is a column; in HDF5 the content is `examples/<client>/<feature>`, and each split is a file.
Deliberately absent: downloading, and shapes other than those of the published images (other lists of numbers stay flat).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fedcodist.errors import DataError, data_error
from fedcodist.readers.files import CHUNK, HDF5, SQLITE, kind, open_file, sniff, unpacked
from fedcodist.readers.hdf5_process import Hdf5Process
from fedcodist.readers.libraries import library
from fedcodist.readers.sqlite import Database, client_name, count
from fedcodist.settings import show
from fedcodist.storage.durable import StorageError, free_space

Column = np.ndarray | list[bytes]
EXAMPLES = {
    "examples": ("split_name", "client_id", "serialized_example_proto"),
    "client_metadata": ("client_id", "split_name", "num_examples"),
}
SPLITS = {"train": "train", "heldout": "held_out", "held_out": "held_out", "test": "test"}  # {name in the files: name here}
SHAPES = {("image", 3072): (32, 32, 3), ("pixels", 784): (28, 28)}
MOST_EXAMPLE, MOST_CLIENT = 16 * 2**20, 2**30  # bytes
MARGIN = 64 * 2**20  # to be left free on the disk


class Source(Protocol):
    """One split of a federated file, for the thread that opened it."""

    def clients(self) -> dict[str, int]:
        """{client: number of examples}, sorted, without reading an example."""
        ...

    def read(self, client: str) -> dict[str, Column]:
        """The columns of one client: numbers as [n, ...], text and other bytes as a list."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...

    def __enter__(self) -> Source: ...

    def __exit__(self, *_: object) -> None: ...


def open_tff(path: str | Path, quick_check: bool = False) -> dict[str, Source]:
    """{split: source} of a file, or of a directory with one SQLite file or with HDF5 files such as fed_cifar100_train.h5."""
    if kind(path) == "a directory":
        files = by_split(path, (".h5", ".hdf5"))
        if files:
            return {split: Hdf5Process(file) for split, file in files.items()}
        plain = sorted(p for p in Path(path).iterdir() if p.suffix == ".sqlite")
        if len(plain) != 1:
            raise data_error(
                str(path), f"{len(plain)} .sqlite files and no .h5 file named after its split", "one of the two", "name the file itself"
            )
        path = plain[0]
    with open_file(path, "an SQLite or HDF5 file, or a directory of them") as file:
        start = file.read(16)
    if start.startswith(SQLITE):
        return _open_sqlite(path, quick_check)
    if start.startswith(HDF5):
        split = split_of(path)
        if split is None:
            raise data_error(str(path), "a name without a split", "a name such as fed_cifar100_train.h5")
        return {split: Hdf5Process(path)}
    packed = str(path).endswith((".lzma", ".xz", ".gz", ".bz2"))
    raise data_error(str(path), sniff(start), "an SQLite or HDF5 file, or a directory of them", "unpack it first" if packed else "")


def split_of(path: str | Path) -> str | None:
    """The split that a file is named after.

    >>> split_of("stackoverflow_held_out.h5"), split_of("fed_cifar100_test.h5"), split_of("latest.h5")
    ('held_out', 'test', None)
    """
    found = re.fullmatch(r"(?:.*[_.-])?(train|held_?out|test)", Path(path).stem)
    return SPLITS[found[1]] if found else None


def by_split(path: str | Path, endings: tuple[str, ...]) -> dict[str, Path]:
    """{split: file} of the files in a directory with one of these endings that are named after a split; train comes first."""
    try:
        files = sorted(p for p in Path(path).iterdir() if p.name.endswith(endings))
    except OSError as error:
        raise data_error(str(path), f"{error.strerror}", "a directory that can be read") from error
    found: dict[str, Path] = {}
    for file in files:
        split = split_of(file)
        if split in found:
            raise data_error(str(path), f"{found[split].name} and {file.name}, both {split}", "one file a split")
        if split is not None:
            found[split] = file
    return {split: found[split] for split in dict.fromkeys(SPLITS.values()) if split in found}


def decompress(path: str | Path, target_dir: str | Path, progress: Callable[[int], None] | None = None) -> Path:
    """The decompressed copy of a .lzma, .xz or .gz file in a directory, made if it does not exist.

    The copy is written under another name and renamed when it is complete, so that an interrupted one is never used; it is begun again.
    `progress` is called with the number of bytes written so far.
    """
    if not str(path).endswith((".lzma", ".xz", ".gz")):
        raise data_error(str(path), "another name", "a .lzma, .xz or .gz file")
    target = Path(target_dir) / Path(path).stem
    if kind(target) == "a file":
        return target
    if kind(target) != "nothing at this path":
        raise data_error(str(target), kind(target), "a file, or nothing yet")
    partial = target.with_name(f"{target.name}.partial")
    with unpacked(path) as stream:
        try:
            file = os.fdopen(_take(partial), "wb")
        except OSError as error:
            raise data_error(
                str(partial), f"{error.strerror}", "a directory to write to, and no other process that unpacks into it"
            ) from error
        with file:
            try:
                written = 0
                while chunk := stream.read(CHUNK):
                    _check_room(partial, len(chunk))
                    file.write(chunk)
                    written += len(chunk)
                    if progress is not None:
                        progress(written)
                file.flush()
                os.fsync(file.fileno())
                os.replace(partial, target)
            except DataError:
                partial.unlink(missing_ok=True)
                raise
            except OSError as error:
                raise StorageError(f"{partial}: {error.strerror}") from error
    return target


def _take(partial: Path) -> int:
    """The file, emptied and locked: two processes that decompress to the same file would mix their output."""
    import fcntl

    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_room(partial: Path, size: int) -> None:
    if free_space(partial.parent)[0] < size + MARGIN:
        raise StorageError(f"{partial}: a full disk; {MARGIN} bytes are to be left free")


class _Rows:
    """One split of the SQLite file."""

    _places: dict[str, list[int]] | None

    def __init__(self, database: Database, split: bytes):
        self.database, self.split = database, split
        self._clients: dict[str, int] | None = None
        self._searchable, self._places = False, None

    def __enter__(self) -> _Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    def clients(self) -> dict[str, int]:
        if self._clients is None:
            found: dict[str, int] = {}
            path = self.database.path
            question = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?"
            for raw, examples in self.database.rows(question, [self.split.decode()]):
                client = client_name(path, raw)
                if client in found:
                    raise data_error(path, f"client {show(client)} twice in {self.split.decode()}", "each once")
                found[client] = count(path, client, examples)
            self._clients = dict(sorted(found.items()))
        return dict(self._clients)

    def read(self, client: str) -> dict[str, Column]:
        if self._clients is None:
            self.clients()
        assert self._clients is not None
        where = f"{self.database.path}: client {client}"
        if client not in self._clients:
            raise data_error(where, "nothing", f"a client of {self.split.decode()}")
        blobs, size = [], 0
        for blob in self._blobs(client):
            size += len(blob) if isinstance(blob, bytes) else 0
            if not isinstance(blob, bytes) or len(blob) > MOST_EXAMPLE or size > MOST_CLIENT or len(blobs) >= self._clients[client]:
                break
            blobs.append(blob)
        else:
            if len(blobs) == self._clients[client]:
                return parse(where, blobs)
        allowed = f"{self._clients[client]}, as client_metadata says, of at most {MOST_EXAMPLE} bytes each"
        raise data_error(where, f"{len(blobs)} whole examples and what follows", allowed)

    def _blobs(self, client: str) -> Iterable[Any]:
        """The examples in the order of the file. Without an index each client would take a scan, so one scan remembers all row ids."""
        split = self.split.decode()
        if not self._searchable:
            self._searchable = True
            if not any(self.database.indexed("examples", *columns) for columns in (("split_name", "client_id"), ("client_id",))):
                places: dict[str, list[int]] = {}
                for raw, place in self.database.rows("SELECT client_id, rowid FROM examples WHERE split_name = ? ORDER BY rowid", [split]):
                    places.setdefault(client_name(self.database.path, raw), []).append(place)
                self._places = places
        if self._places is None:
            question = "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER BY rowid"
            for (blob,) in self.database.rows(question, [split, client]):
                yield blob
            return
        for place in self._places.get(client, []):
            for (blob,) in self.database.rows("SELECT serialized_example_proto FROM examples WHERE rowid = ?", [place]):
                yield blob


def _open_sqlite(path: str | Path, quick_check: bool) -> dict[str, Source]:
    with Database(path, EXAMPLES, quick_check) as database:
        raws = [row[0] for row in database.rows("SELECT DISTINCT split_name FROM client_metadata LIMIT 9")]
    names: dict[str, bytes] = {}
    for raw in raws:
        split = SPLITS.get(raw.decode("utf-8", "replace")) if isinstance(raw, bytes) else None
        if split is None or split in names:
            raise data_error(str(path), f"the split {show(raw)}", "train, heldout or test, each once")
        names[split] = raw
    if not names:
        raise data_error(str(path), "no clients", "at least one in client_metadata")
    # Each split has its own connection, so that closing one leaves the others open.
    return {split: _Rows(Database(path, EXAMPLES), names[split]) for split in dict.fromkeys(SPLITS.values()) if split in names}


@functools.cache
def _example() -> Any:
    """The class of tf.train.Example, built from its description: a map of names to lists of bytes, floats or integers."""
    descriptor_pb2, descriptor_pool, message_factory = (
        library(f"google.protobuf.{name}", "tff", "a serialised example", "data that this installation can read")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tf", syntax="proto3")
    for name, kind_of in (("Bytes", field.TYPE_BYTES), ("Floats", field.TYPE_FLOAT), ("Ints", field.TYPE_INT64)):
        file.message_type.add(name=name).field.add(name="value", number=1, type=kind_of, label=field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("Bytes", "Floats", "Ints"), 1):
        feature.field.add(
            name=name.lower(), number=number, type=field.TYPE_MESSAGE, type_name=f".tf.{name}", label=field.LABEL_OPTIONAL, oneof_index=0
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_MESSAGE, type_name=".tf.Feature", label=field.LABEL_OPTIONAL)
    features.field.add(name="feature", number=1, type=field.TYPE_MESSAGE, type_name=".tf.Features.FeatureEntry", label=field.LABEL_REPEATED)
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type=field.TYPE_MESSAGE, type_name=".tf.Features", label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Example"))


def parse(where: str, blobs: Iterable[bytes]) -> dict[str, Column]:
    """The columns of serialized examples; DataError unless all have the same features with the same numbers of values."""
    example = _example()
    columns: dict[str, list[Any]] = {}
    kinds: dict[str, tuple[str, int]] = {}
    for row, blob in enumerate(blobs):
        message = example()
        try:
            message.ParseFromString(blob)
        except Exception as error:  # protobuf's own class, which has moved between modules
            raise data_error(f"{where}: example {row}", f"{len(blob)} bytes that are no tf.train.Example", "a whole one") from error
        features: Mapping[str, Any] = message.features.feature
        if row and set(features) != set(kinds):
            odd = sorted(set(features) ^ set(kinds))
            raise data_error(f"{where}: example {row}", f"features that differ in {show(odd)}", "the same in every example")
        for name in features:
            word = features[name].WhichOneof("kind")
            values = getattr(features[name], word).value if word else ()
            if (word == "bytes" and len(values) != 1) or not values or kinds.setdefault(name, (word, len(values))) != (word, len(values)):
                got = f"{len(values)} {word or 'values'} of {show(name)}"
                allowed = f"{' '.join(map(str, kinds[name][::-1]))}, as before" if name in kinds else "one string, or some numbers"
                raise data_error(f"{where}: example {row}", got, allowed)
            numbers = {"floats": np.float32, "ints": np.int64}.get(word)
            columns.setdefault(name, []).append(values[0] if numbers is None else np.fromiter(values, numbers, len(values)))
    return {name: column(where, name, rows, kinds[name][1]) for name, rows in sorted(columns.items())}


def column(where: str, name: str, rows: list[Any], width: int) -> Column:
    """The rows of one feature as a column; single numbers lose their axis, and images become uint8 in their shape."""
    if isinstance(rows[0], bytes):
        return rows
    found = np.stack(rows)
    if width == 1:
        return found[:, 0]
    if (name, width) in SHAPES:
        found = found.reshape(-1, *SHAPES[name, width])
    if name == "image" and found.dtype == np.int64:
        if found.min() < 0 or found.max() > 255:
            raise data_error(f"{where}: image", f"{found.min()} to {found.max()}", "0 to 255")
        found = found.astype(np.uint8)
    return found
