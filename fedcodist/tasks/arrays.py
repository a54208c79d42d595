"""Anyone's own data, from a config alone: one .npz file, or a directory of .npy files, with a column for each question.

`x` [rows, ...], `y` [rows] integer labels and `client` [rows] are needed; `domain`, `split` (train, public, held_out, test) and
`public_x` [rows, ...] are optional. Files are data and never code: nothing is unpickled, what a header claims is compared with the size
of the file before anything is allocated, and everything that is wrong has a one-line DataError. Arrays of a directory are mapped, so they
may be larger than memory.
"""

from __future__ import annotations

import math
import os
import stat
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from fedcodist import keys
from fedcodist.clients import Clients, group
from fedcodist.errors import DataError
from fedcodist.objective import Classify, Images
from fedcodist.settings import check, setting, show
from fedcodist.task import Task
from fedcodist.tasks.splits import bad, check_disjoint, check_shares, digests, divide
from fedcodist.types import Examples, Split

NEEDED, OPTIONAL = ("x", "y", "client"), ("domain", "split", "public_x")
SPLITS = ("train", "public", "held_out", "test")
LONGEST = 200  # characters of a client's or a domain's name
MOST_CLASSES = 1_000_000
MOST_MEMBERS = 1_000  # of an archive
RATIO, SMALL_BYTES = 200, 64 * 2**20  # a member this large that shrank this much is a bomb
BLOCK_BYTES = 16 * 2**20  # looked at at once, to bound memory
NPY, NPZ, NPZ_EMPTY = b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06"
# Protocols 2 to 5 begin with their number; 0 and 1 with the opcode of a list, a dict, a tuple or a class.
PICKLES = (b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5", b"(l", b"(d", b"(t", b"cn", b"]q", b"}q")
# What a damaged archive and a damaged header may raise; RuntimeError is an encrypted one.
DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OSError, ValueError, OverflowError)
NO_HEADER = (ValueError, TypeError, SyntaxError, RecursionError, tokenize.TokenError)
KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True)
class Arrays:
    """Your own arrays. Without a `split` column whole clients are public, held out or for the test, by these shares."""

    kind: ClassVar[str] = "arrays"
    path: str
    public: float = setting(0.3, gt=0, lt=1)
    held_out: float = setting(0.1, gt=0, lt=1)
    test: float = setting(0.1, gt=0, lt=1)
    classes: int | None = setting(None, ge=2, le=MOST_CLASSES)  # the largest label + 1 if not given
    images: bool | None = None  # whether x are images; bytes with four axes are, if not given
    size: int | None = setting(None, ge=1)  # of the crop that a model sees; the whole image if not given
    pad: int = setting(0, ge=0, le=1_000)
    flip: bool = True
    public_flips: bool = True
    mixup_beta: float = setting(2.0, ge=0, le=1e3)
    allow_overlap: bool = False  # rows with the same content among clients, public data, held_out and test
    split_seed: int = setting(0, ge=0, le=2**63 - 1)

    def __post_init__(self) -> None:
        check(self)
        check_shares(self, "public", "held_out", "test")

    def load(self) -> Task:
        """Read the columns, check every one, divide."""
        columns, unused = read(self.path)
        where = {name: f"{self.path}: {name}" for name in (*NEEDED, *OPTIONAL)}
        x = _features(where["x"], columns["x"])
        for name in ("y", "client", "domain", "split"):
            if name in columns:
                _same_rows(where[name], columns[name], len(x))
        y = _labels(where["y"], columns["y"], self.classes)
        client = _names(where["client"], columns["client"])
        notes = [f"columns not used: {', '.join(unused)}"] if unused else []
        domain, domains = None, ("all",)
        if "domain" in columns:
            domains, domain = _domains(where["domain"], columns["domain"])
        rows = self._rows(where, columns, client)
        public_x = x[rows["public"]] if "public_x" not in columns else _public(where["public_x"], columns["public_x"], x, rows["public"])
        held_out, test = (_split(x, y, client, domain, rows[part]) for part in ("held_out", "test"))
        if not self.allow_overlap:
            known = digests(x)
            parts = {"clients": known[rows["train"]], "public": digests(public_x)}
            parts |= {part: known[rows[part]] for part in ("held_out", "test")}
            check_disjoint(self.path, parts, "allow_overlap = true accepts this")
        if len(rows["public"]):
            notes.append(f"the labels of {len(rows['public'])} public rows were dropped")
        found = group(client[rows["train"]])  # type: ignore[arg-type]  # an array of strings is as good as a list
        of_client = {name: rows["train"][r] for name, r in found.items()}
        empty = len(np.unique(client)) - len(of_client)
        if "split" in columns and empty:
            notes.append(f"{empty} clients have no training examples and are left out")
        attributes = {"main_class": {name: str(np.bincount(y[r]).argmax()) for name, r in of_client.items()}}
        if domain is not None:
            attributes["main_domain"] = {name: domains[np.bincount(domain[r]).argmax()] for name, r in of_client.items()}
        return Task(
            name=self.kind,
            objective=Classify(self._images(where["x"], x)),
            clients=Clients(x, y, of_client, domain),
            public=Examples(public_x),
            held_out=held_out,
            test=test,
            classes=self.classes or int(y.max()) + 1,
            domains=domains,
            attributes=attributes,
            notes=tuple(notes),
        )

    def _rows(self, where: Mapping[str, str], columns: Mapping[str, np.ndarray], client: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of each split: by the column, or by whole clients."""
        if "split" in columns:
            said = _strings(where["split"], columns["split"])
            wrong = np.flatnonzero(~np.isin(said, SPLITS))
            if len(wrong):
                raise bad(where["split"], f"{show(str(said[wrong[0]]))} in row {wrong[0]}", ", ".join(SPLITS), f"{len(wrong)} such rows")
            rows = {part: np.flatnonzero(said == part) for part in SPLITS}
            needed = [part for part in SPLITS if part != "public" or "public_x" not in columns]
            for part in needed:
                if not len(rows[part]):
                    raise bad(where["split"], f"no row that is {part}", "at least one of each split")
            return rows
        shares = {"public": self.public, "held_out": self.held_out, "test": self.test}
        if "public_x" in columns:
            del shares["public"]
        names, codes = np.unique(client, return_inverse=True)
        parts = divide(names.tolist(), shares, "train", keys.derive(keys.root(self.split_seed), self.kind))
        return {part: np.flatnonzero(np.isin(names, parts.get(part, []))[codes]) for part in SPLITS}

    def _images(self, where: str, x: np.ndarray) -> Images | None:
        if not (x.ndim == 4 and x.dtype == np.uint8 if self.images is None else self.images):
            return None
        if x.ndim != 4:
            raise bad(where, f"rows of {_describe(x)}", "[rows, height, width, channels] for images = true")
        height, width = x.shape[1:3]
        if self.size is None and height != width and self.pad:
            raise bad(where, f"images of {height} x {width} and pad = {self.pad}", "pad = 0, or a size, for images that are not square")
        if self.size is not None and self.size > min(height, width):
            raise bad(where, f"images of {height} x {width}", f"at least {self.size} x {self.size}, the given size")
        return Images(self.size or height, self.pad, self.flip, self.public_flips, self.mixup_beta)


def read(path: str) -> tuple[dict[str, np.ndarray], list[str]]:
    """The known columns of a .npz file or of a directory of .npy files, and the names of those that are not known."""
    found = _file_kind(path)
    if found == "a directory" and not path.endswith((".npz", ".npy")):
        try:
            names = sorted(name.removesuffix(".npy") for name in os.listdir(path) if name.endswith(".npy"))
        except OSError as error:
            raise bad(path, f"{error.strerror}", "a directory that can be read") from error
        _check_names(path, names)
        return {name: _npy(str(Path(path) / f"{name}.npy")) for name in (*NEEDED, *OPTIONAL) if name in names}, _unknown(names)
    if found != "a file":
        raise bad(path, found, "a .npz file, or a directory of .npy files")
    return _npz(path)


def _npz(path: str) -> tuple[dict[str, np.ndarray], list[str]]:
    with _open(path) as file:
        _check_magic(path, file, (NPZ, NPZ_EMPTY), "a .npz file, or a directory of .npy files")
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                names = [info.filename.removesuffix(".npy") for info in members]
                if len(members) > MOST_MEMBERS:
                    raise bad(path, f"{len(members)} members", f"at most {MOST_MEMBERS}")
                if len(set(names)) < len(names):
                    raise bad(path, "two members of the same name", "each column once")
                _check_names(path, names)
                known = {name: info for name, info in zip(names, members, strict=True) if name in (*NEEDED, *OPTIONAL)}
                return {name: _member(f"{path}: {name}", archive, info) for name, info in known.items()}, _unknown(names)
        except DataError:
            raise
        except DAMAGED as error:
            raise bad(path, f"a file that is truncated or damaged: {error}", "a whole .npz file") from error


def _member(where: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise bad(where, f"packing {info.compress_type}", "an array as numpy.savez writes it")
    if info.file_size > SMALL_BYTES and info.file_size > RATIO * info.compress_size:
        claim = f"{info.file_size} bytes packed into {info.compress_size}"
        raise bad(where, claim, f"at most {RATIO} times the packed size", "save it as a directory of .npy files")
    with archive.open(info) as stream:
        shape, fortran, dtype = _header(where, stream, info.file_size)
        raw = stream.read()  # to the end, so that the checksum is looked at
    flat = np.frombuffer(raw, dtype)
    return _native(flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape))


def _npy(path: str) -> np.ndarray:
    found = _file_kind(path)
    if found != "a file":
        raise bad(path, found, "a .npy file")
    with _open(path) as file:
        _check_magic(path, file, (NPY,), "a .npy file")
        shape, fortran, dtype = _header(path, file, os.fstat(file.fileno()).st_size)
        return _native(np.asarray(np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")))


def _header(where: str, stream: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, Fortran order, dtype), once they agree with the number of bytes that are there."""
    try:
        version = np.lib.format.read_magic(stream)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = reader(stream)
    except NO_HEADER as error:
        raise bad(where, f"a header that is no header ({type(error).__name__})", "an array as numpy.save writes it") from error
    if dtype.hasobject:
        raise bad(where, "Python objects (dtype object)", "numbers or strings", "objects would have to be unpickled, which runs code")
    if dtype.kind not in "biufUS" or not dtype.itemsize or (dtype.kind == "f" and dtype.itemsize > 8):
        raise bad(where, f"dtype {dtype}", "numbers of at most 64 bits, or strings")
    claimed = stream.tell() + math.prod(shape) * dtype.itemsize
    if any(n < 0 for n in shape) or claimed != size:
        raise bad(where, f"{size} bytes, truncated or damaged", f"{claimed} bytes, as its header says")
    if not math.prod(shape):
        raise bad(where, f"nothing (shape {show(list(shape))})", "at least one row")
    return shape, fortran, dtype


def _native(array: np.ndarray) -> np.ndarray:
    """In C order and this machine's byte order; copied only if it is not."""
    return np.asarray(array, array.dtype.newbyteorder("="), order="C") if not (array.flags.c_contiguous and array.dtype.isnative) else array


def _file_kind(path: str) -> str:
    """What a path is, without opening it: a FIFO would wait for ever."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "a broken symbolic link" if os.path.islink(path) else "nothing at this path"
    except (OSError, ValueError) as error:
        return f"{getattr(error, 'strerror', None) or error}"
    return KINDS.get(stat.S_IFMT(mode), "something that is no file")


def _open(path: str) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        raise bad(path, f"{error.strerror}", "a file that can be read") from error


def _check_magic(path: str, file: IO[bytes], wanted: tuple[bytes, ...], allowed: str) -> None:
    """DataError unless the file begins as wanted; a pickle is never opened."""
    start = file.read(8)
    file.seek(0)
    if not start.startswith(wanted):
        kinds = {NPY: "a .npy file", NPZ: "a .npz or zip file", b"\x1f\x8b": "a gzip file", b"\x89HDF": "an HDF5 file"}
        other = "a pickle" if start.startswith(PICKLES) else "an empty file" if not start else f"a file that begins with {start!r}"
        raise bad(path, next((name for magic, name in kinds.items() if start.startswith(magic)), other), allowed)


def _check_names(path: str, names: list[str]) -> None:
    missing = [name for name in NEEDED if name not in names]
    if missing:
        found = show(", ".join(names)) if names else "none"
        raise bad(path, f"no column {', '.join(missing)}", f"columns {', '.join(NEEDED)}", f"found: {found}")


def _unknown(names: list[str]) -> list[str]:
    return [show(name)[1:-1] for name in names if name not in (*NEEDED, *OPTIONAL)]


def _same_rows(where: str, column: np.ndarray, rows: int) -> None:
    if column.shape != (rows,):
        raise bad(where, f"shape {list(column.shape)}", f"[{rows}], a value for each row of x")


def _describe(x: np.ndarray) -> str:
    return f"{list(x.shape[1:])} {x.dtype}"


def _features(where: str, x: np.ndarray) -> np.ndarray:
    """x, if it is finite numbers in rows."""
    if x.dtype.kind not in "biuf":
        raise bad(where, f"dtype {x.dtype}", "numbers")
    if x.ndim < 2:
        raise bad(where, f"shape {list(x.shape)}", "[rows, ...], at least one number in each row")
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8 and not -(2**31) <= x.min() <= x.max() < 2**31:  # a model would see them wrapped
        raise bad(where, f"{x.min()} to {x.max()}", "whole numbers of 32 bits", "save x as float32")
    if x.dtype.kind == "f":
        step = max(1, BLOCK_BYTES // x[0].nbytes)
        wrong: list[np.ndarray] = []
        for start in range(0, len(x), step):
            with np.errstate(over="ignore"):
                finite = np.isfinite(x[start : start + step].astype(np.float32))  # as a model will see it
            wrong.append(start + np.flatnonzero(~finite.reshape(len(finite), -1).all(1)))
        rows = np.concatenate(wrong)
        if len(rows):
            raise bad(where, f"NaN or infinity in row {rows[0]}", "finite 32-bit numbers", f"{len(rows)} such rows")
    return x


def _public(where: str, public: np.ndarray, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Separate public data, if it looks like the clients' and is the only one."""
    if len(rows):
        raise bad(where, f"public data, and {len(rows)} rows of split that are public too", "one of the two")
    public = _features(where, public)
    if public.shape[1:] != x.shape[1:] or public.dtype != x.dtype:
        raise bad(where, f"rows of {_describe(public)}", f"{_describe(x)}, as in x")
    return public


def _labels(where: str, y: np.ndarray, classes: int | None) -> np.ndarray:
    """y as int32, if every one is a whole number below the number of classes."""
    top = classes or MOST_CLASSES
    if y.dtype.kind not in "biuf":
        raise bad(where, f"dtype {y.dtype}", f"whole numbers from 0 to {top - 1}")
    good = (y >= 0) & (y < top) & (y == np.floor(y) if y.dtype.kind == "f" else True)
    wrong = np.flatnonzero(~good)
    if len(wrong):
        raise bad(where, f"{y[wrong[0]]} in row {wrong[0]}", f"whole numbers from 0 to {top - 1}", f"{len(wrong)} such rows")
    if classes is None and not y.any():
        raise bad(where, "0 in every row", "at least two different labels", "or set classes")
    return y.astype(np.int32)


def _strings(where: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind == "S":
        try:
            return np.char.decode(column, "utf-8")
        except UnicodeDecodeError as error:
            raise bad(where, f"the bytes {show(error.object)}", "UTF-8") from error
    if column.dtype.kind not in "iuU":
        raise bad(where, f"dtype {column.dtype}", "strings or whole numbers")
    return np.asarray(column).astype(str)


def _names(where: str, column: np.ndarray) -> np.ndarray:
    """A column of names that may stand in a file, a path or a message."""
    names = _strings(where, column)
    for name in np.unique(names).tolist():
        if not name or len(name) > LONGEST or not name.isprintable() or "/" in name or name in (".", ".."):
            row = int(np.flatnonzero(names == name)[0])
            raise bad(where, f"{show(name)} in row {row}", f"1 to {LONGEST} printable characters without /")
    return names


def _domains(where: str, column: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    names, codes = np.unique(_names(where, column), return_inverse=True)
    if "all" in names[: len(names) if len(names) > 1 else 0]:
        raise bad(where, "'all'", "any other name", "metrics of all rows have it")
    return tuple(names.tolist()), codes


def _split(x: np.ndarray, y: np.ndarray, client: np.ndarray, domain: Any, rows: np.ndarray) -> Split:
    return Split(x[rows], y[rows], np.unique(client[rows], return_inverse=True)[1], None if domain is None else domain[rows])
