"""A .npz file, or a directory of .npy files, as named columns.

Files are data and never code: nothing is unpickled, and what a header claims is compared with the size of the file before anything is
allocated. The arrays of a directory are memory-mapped, so they may be larger than memory; those of an archive are read. What the columns
mean is not known here.
"""

from __future__ import annotations

import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import IO

import numpy as np

from fedcodist.errors import DataError, data_error
from fedcodist.readers.files import NPY, ZIP, ZIP_EMPTY, check_magic, check_ratio, kind, open_file
from fedcodist.settings import show

COLUMNS = ("x", "y", "client", "domain", "split", "public_x")
MOST_COLUMNS = 1_000  # of an archive
ALLOWED = "a .npz file, or a directory of .npy files"
# What a damaged archive and a damaged header may raise; an encrypted archive raises RuntimeError.
DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OSError, ValueError, OverflowError)
NO_HEADER = (ValueError, TypeError, SyntaxError, RecursionError, tokenize.TokenError)


def read(path: str, names: Collection[str] = COLUMNS) -> tuple[dict[str, np.ndarray], list[str]]:
    """The named columns, as far as they exist, and the names of all other columns."""
    found = kind(path)
    if found == "a directory" and not path.endswith((".npz", ".npy")):
        try:
            there = sorted(name.removesuffix(".npy") for name in os.listdir(path) if name.endswith(".npy"))
        except OSError as error:
            raise data_error(path, f"{error.strerror}", "a directory that can be read") from error
        return {name: _npy(str(Path(path) / f"{name}.npy")) for name in there if name in names}, _others(there, names)
    return _npz(path, names)


def _npz(path: str, names: Collection[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    with open_file(path, ALLOWED) as file:
        check_magic(path, file, (ZIP, ZIP_EMPTY), ALLOWED)
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                there = [info.filename.removesuffix(".npy") for info in members]
                if len(members) > MOST_COLUMNS:
                    raise data_error(path, f"{len(members)} members", f"at most {MOST_COLUMNS}")
                if len(set(there)) < len(there):
                    raise data_error(path, "two members of the same name", "each column once")
                wanted = {name: info for name, info in zip(there, members, strict=True) if name in names}
                return {name: _member(f"{path}: {name}", archive, info) for name, info in wanted.items()}, _others(there, names)
        except DataError:
            raise
        except DAMAGED as error:
            raise data_error(path, f"a file that is truncated or damaged: {error}", "a whole .npz file") from error


def _member(where: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise data_error(where, f"packing {info.compress_type}", "an array as numpy.savez writes it")
    check_ratio(where, info.file_size, info.compress_size)
    with archive.open(info) as stream:
        shape, fortran, dtype = _header(where, stream, info.file_size)
        raw = stream.read()  # to the end, so that the checksum is verified
    flat = np.frombuffer(raw, dtype)
    return _native(flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape))


def _npy(path: str) -> np.ndarray:
    with open_file(path, "a .npy file") as file:
        check_magic(path, file, (NPY,), "a .npy file")
        shape, fortran, dtype = _header(path, file, os.fstat(file.fileno()).st_size)
        return _native(np.asarray(np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")))


def _header(where: str, stream: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, Fortran order, dtype), after checking them against the number of bytes."""
    try:
        version = np.lib.format.read_magic(stream)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = reader(stream)
    except NO_HEADER as error:
        raise data_error(where, f"a header that is no header ({type(error).__name__})", "an array as numpy.save writes it") from error
    check_dtype(where, dtype)
    claimed = stream.tell() + math.prod(shape) * dtype.itemsize
    if any(n < 0 for n in shape) or claimed != size:
        raise data_error(where, f"{size} bytes, truncated or damaged", f"{claimed} bytes, as its header says")
    check_shape(where, shape)
    return shape, fortran, dtype


def check_dtype(where: str, dtype: np.dtype) -> None:
    """DataError unless these are plain numbers or strings.

    >>> check_dtype("x", np.dtype(object))
    Traceback (most recent call last):
    fedcodist.errors.DataError: x: got Python objects (dtype object); allowed numbers or strings (objects would have to be unpickled, which runs code)
    """  # noqa: E501
    if dtype.hasobject:
        raise data_error(
            where, "Python objects (dtype object)", "numbers or strings", "objects would have to be unpickled, which runs code"
        )
    if dtype.kind not in "biufUS" or not dtype.itemsize or (dtype.kind == "f" and dtype.itemsize > 8):
        raise data_error(where, f"dtype {dtype}", "numbers of at most 64 bits, or strings")


def check_shape(where: str, shape: tuple[int, ...]) -> None:
    """DataError if an array of this shape is empty."""
    if not math.prod(shape):
        raise data_error(where, f"nothing (shape {show(list(shape))})", "at least one row")


def _native(array: np.ndarray) -> np.ndarray:
    """The array in C order and native byte order; copied only if it is not so already."""
    return np.asarray(array, array.dtype.newbyteorder("="), order="C") if not (array.flags.c_contiguous and array.dtype.isnative) else array


def _others(there: list[str], names: Collection[str]) -> list[str]:
    return [name for name in there if name not in names]
