"""One checkpoint, a directory that is there whole or not at all (R3), and the journal that it vouches for (R5).

Tensors go into one safetensors file a pool, under their path in the state (`opt/0/mu/dense0/w`). `COMMIT.json` is written last and lists
size and SHA-256 of every file; only then is the directory renamed to its number. Every file is synced before the rename and the parent
after it, so a reader trusts what it verifies and nothing else. Deliberately absent: pickle, time stamps, and any choice of which
checkpoint to use or keep (runs.py).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcodist.errors import Failure
from fedcodist.settings import show

if TYPE_CHECKING:
    from fedcodist.types import State, Tree

FORMAT = 1  # `format` and `digest` keep their meaning in every later format, so that an older reader can say what it met
COMMIT = "COMMIT.json"
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
    """The disk, not the run: full, read-only, forbidden, failing."""

    code = 6


class Damaged(Exception):
    """Why a stored file cannot be trusted. The caller falls back to an older one, or gives up."""


# Tensors


def encode(tree: Tree) -> bytes:
    """A pytree of arrays as safetensors: equal trees give equal bytes."""
    from safetensors.numpy import save

    tensors: dict[str, np.ndarray] = {}
    for name, leaf in _named(tree):
        if name in tensors:
            raise ValueError(f"two tensors are called {name}")
        tensors[name] = np.asarray(leaf, order="C")  # ascontiguousarray would turn shape () into (1,)
    return save({name: tensors[name] for name in sorted(tensors)})


def load(template: State, files: Mapping[str, bytes]) -> State:
    """The state in these files (by pool), if names, shapes and dtypes are those of the template (values or eval_shape's)."""
    import jax
    import jax.numpy as jnp
    from safetensors import SafetensorError, deserialize

    def restore(leaf: Any, data: bytes, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        array = np.frombuffer(data, dtype).reshape(shape)
        if isinstance(leaf, bool | int | float):
            return type(leaf)(array.item())
        # numpy stays numpy: what a resumed round computes with must be the same kind of thing as without the stop
        return array if isinstance(leaf, np.ndarray) else array[()] if isinstance(leaf, np.generic) else jnp.asarray(array)

    odd = [f"pool {pool}: only in the checkpoint" for pool in sorted(set(files) - set(template))]
    odd += [f"pool {pool}: not in the checkpoint" for pool in sorted(set(template) - set(files))]
    state = {}
    for pool in sorted(set(template) & set(files)):
        try:
            stored = dict(deserialize(files[pool]))
        except SafetensorError as error:
            raise Damaged(f"{pool}.safetensors: {error}") from error
        wanted = dict(_named(template[pool]))
        for name in sorted(set(stored) | set(wanted)):
            there = _dtype_name(stored[name]["dtype"], stored[name]["shape"]) if name in stored else "nothing"
            here = _describe(wanted[name]) if name in wanted else "nothing"
            if there != here:
                odd.append(f"{pool}/{name}: {there} in the checkpoint, {here} here")
        if not odd:
            leaves = [restore(leaf, stored[name]["data"], *_shape(leaf)) for name, leaf in wanted.items()]
            state[pool] = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(template[pool]), leaves)
    if odd:
        raise CheckpointError("another model: " + "; ".join(odd[:3]) + (f"; and {len(odd) - 3} more" if len(odd) > 3 else ""))
    return state


def size_bytes(template: State) -> int:
    """Bytes of the tensors of a state, or of its shapes: for the free-space check before a run."""
    return sum(_shape(leaf)[1].itemsize * int(np.prod(_shape(leaf)[0])) for tree in template.values() for _, leaf in _named(tree))


def _named(tree: Tree) -> list[tuple[str, Any]]:
    import jax

    pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in pairs]


def _shape(leaf: Any) -> tuple[tuple[int, ...], np.dtype]:
    if hasattr(leaf, "dtype"):
        return tuple(leaf.shape), np.dtype(leaf.dtype)
    return (), np.asarray(leaf).dtype


def _describe(leaf: Any) -> str:
    shape, dtype = _shape(leaf)
    return f"{dtype.name}{list(shape)}"


def _dtype_name(code: str, shape: list[int]) -> str:
    words = {"F": "float", "I": "int", "U": "uint", "C": "complex", "BF": "bfloat"}
    kind, bits = re.fullmatch(r"([A-Z]+)(\d*)(?:_.*)?", code).groups()  # type: ignore[union-attr]
    return ("bool" if code == "BOOL" else words.get(kind, kind.lower()) + bits) + f"{list(shape)}"


# Commit and verify


def write(parent: Path, round: int, state: State, facts: Mapping[str, Any]) -> Path:
    """Commit the state after a round. Whatever fails or is killed on the way leaves the other checkpoints as they were."""
    for pool in state:
        check_name("pool", pool)
    final, temporary = parent / f"{round:06d}", parent / f".tmp-{round}-{os.getpid()}"
    make_directory(temporary)
    files = {}
    for pool in sorted(state):
        data = encode(state[pool])
        write_file(temporary / f"{pool}.safetensors", data)
        files[f"{pool}.safetensors"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_file(temporary / COMMIT, seal({**facts, "round": round, "files": files}))
    sync_directory(temporary)
    if os.path.lexists(final):  # left by a commit of this process whose last sync failed: never taken for saved
        rename(final, parent / f".trash-{round}-{os.getpid()}")
    rename(temporary, final)
    sync_directory(parent)
    return final


def verify(directory: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The commit record and the files by pool, every byte of them verified; or Damaged."""
    commit = unseal(directory / COMMIT, exact=True)
    try:
        if f"{commit['round']:06d}" != directory.name:
            raise Damaged(f"{COMMIT}: is of round {commit['round']}")
        files = {}
        for name, want in commit["files"].items():
            data = read_file(directory / name, want["bytes"])
            if hashlib.sha256(data).hexdigest() != want["sha256"]:
                raise Damaged(f"{name}: sha256 differs")
            files[name.removesuffix(".safetensors")] = data
        return commit, files
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Damaged(f"{COMMIT}: incomplete") from error


# The journal


class Lines:
    """A file of JSON lines, each ending in its checksum. It knows how long it should be, and cuts off whatever a failed write left."""

    def __init__(self, path: Path):
        self.path = path
        self.lost = False
        with storing(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(f"{say(path)}: not a regular file")
        self.size = status.st_size
        self._sha = self._hash(self.size)

    def append(self, row: Mapping[str, Any]) -> None:
        line = encode_line(row)
        with storing(self.path):
            self._heal()
            write_all(self._file, line)
        self.size += len(line)
        self._sha.update(line)

    def sync(self) -> None:
        """All lines are on disk, or StorageError, now and ever after: a second fsync may succeed without having saved anything."""
        if self.lost:
            raise StorageError(f"{say(self.path)}: an earlier sync failed; open the run again")
        with storing(self.path):
            self._heal()
            try:
                os.fsync(self._file)
            except OSError:
                self.lost = True
                raise

    def cut(self, size: int) -> None:
        with storing(self.path):
            if size != self.size:
                os.ftruncate(self._file, size)
        self.size, self._sha = size, self._hash(size)

    def sha256(self, size: int | None = None) -> str:
        return (self._sha if size is None else self._hash(size)).hexdigest()

    def whole_bytes(self) -> int:
        """Where the last whole line ends."""
        with storing(self.path):
            return os.pread(self._file, self.size, 0).rfind(b"\n") + 1

    def close(self) -> None:
        os.close(self._file)

    def _heal(self) -> None:
        if os.fstat(self._file).st_size != self.size:
            os.ftruncate(self._file, self.size)

    def _hash(self, size: int) -> Any:
        sha, at = hashlib.sha256(), 0
        with storing(self.path):
            while at < size and (data := os.pread(self._file, min(size - at, 2**20), at)):
                sha.update(data)
                at += len(data)
        return sha


def encode_line(row: Mapping[str, Any]) -> bytes:
    """A row as a line; NaN and infinities are written as Python's json does, and come back as they were.

    >>> encode_line({"round": 1, "loss": 0.1})
    b'{"loss":0.1,"round":1,"crc32":"1daed988"}\\n'
    """
    if "crc32" in row:
        raise ValueError("crc32 is the journal's own key")
    text = canonical(dict(row))
    comma = "," if row else ""
    return f'{text[:-1]}{comma}"crc32":"{zlib.crc32(text.encode()):08x}"}}\n'.encode()


def decode_lines(data: bytes, name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The good rows, and a note for each line that is not; a last line without its end is what a crash leaves, and no news."""
    rows, notes = [], []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        match = re.fullmatch(rb'(\{.*?),?"crc32":"([0-9a-f]{8})"\}', line)
        text = match[1] + b"}" if match else b""
        if not match or f"{zlib.crc32(text):08x}".encode() != match[2]:
            notes.append(f"{name} line {number}: bad checksum, left out")
            continue
        try:
            rows.append(json.loads(text))
        except (ValueError, RecursionError):
            notes.append(f"{name} line {number}: not JSON, left out")
    return rows, notes


# Sealed JSON: a document that carries its own digest


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, floats by repr; numpy and JAX scalars are numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def digest(value: Any) -> str:
    """SHA-256 of the canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def seal(document: Mapping[str, Any]) -> bytes:
    """The document with format and digest, as a file for people too."""
    body = json.loads(canonical({**document, "format": FORMAT}))
    return (json.dumps({**body, "digest": digest(body)}, sort_keys=True, indent=1) + "\n").encode()


def unseal(path: Path, exact: bool = False) -> dict[str, Any]:
    """The document in a sealed file (still with its digest), or Damaged. Spaces may differ (people open such files) unless `exact`."""
    data = read_file(path)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path.name}: not JSON") from error
    body = {key: value for key, value in document.items() if key != "digest"} if isinstance(document, dict) else {}
    if not body or document.get("digest") != digest(body):
        raise Damaged(f"{path.name}: digest differs")
    if document.get("format") != FORMAT:
        raise CheckpointError(f"{say(path)}: format {document.get('format')}; this version reads format {FORMAT}")
    if exact and data != seal(body):
        raise Damaged(f"{path.name}: not as it was written")
    return document


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy and JAX
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


# Files that survive


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Any OSError inside becomes one line that names the file and the reason."""
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        raise StorageError(f"{say(path)}: {error.strerror or error}" + (f" ({name})" if name else "")) from error


def make_directory(path: Path) -> None:
    """A directory for the owner only."""
    with storing(path):
        os.mkdir(path, 0o700)


def make_directories(path: Path) -> None:
    """A directory for the owner only, and those above it; one that is there already is as good."""
    if path.parent != path and not path.parent.is_dir():
        make_directories(path.parent)
    try:
        with storing(path):
            os.mkdir(path, 0o700)
    except StorageError as error:
        if not isinstance(error.__cause__, FileExistsError):
            raise
        if path.is_symlink() or not path.is_dir():
            raise StorageError(f"{say(path)}: not a directory (ENOTDIR)") from error
        return
    sync_directory(path.parent)


def write_file(path: Path, data: bytes) -> None:
    """A new file, on disk when this returns."""
    with storing(path):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            write_all(file, data)
            os.fsync(file)
        finally:
            os.close(file)


def replace_file(path: Path, data: bytes) -> None:
    """The whole new file or the whole old one, at every instant."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with storing(temporary):
        if os.path.lexists(temporary):
            os.unlink(temporary)
    write_file(temporary, data)
    with storing(path):
        os.replace(temporary, path)
    sync_directory(path.parent)


def write_all(file: int, data: bytes) -> None:
    """os.write may write less than it was given."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def rename(old: Path, new: Path) -> None:
    """Atomic; durable only after sync_directory."""
    with storing(new):
        os.rename(old, new)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    with storing(path):
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
        raise StorageError(f"{say(path)}: {error.strerror}") from error


def check_name(what: str, name: str) -> None:
    """Refuse what is not a safe file name on every system."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise BadName(f"{what}: got {show(name)}; allowed {NAME}")
    if name.endswith(".") or name.split(".")[0].lower() in RESERVED:
        raise BadName(f"{what}: got {show(name)}; allowed {NAME}, without a trailing dot and no reserved name such as CON or NUL")


def say(path: Path | str) -> str:
    """A path as it may stand in a message: one line of ASCII."""
    return ascii(str(path))[1:-1]
