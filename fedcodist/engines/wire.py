"""What goes over the wire: arrays as .npy bytes, trees by the names of their leaves, and which question an answer belongs to.

Nothing that arrives is trusted: the header of an array is read here, by one pattern, and its length is compared with what follows before
any array is made. No pickle, no evaluation of text, no object types. Deliberately absent: parts (works, models, objectives) as text, which
need the registries of the floors above.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fedcodist.types import Tree

DTYPES = {"<f4", "<f8", "<f2", "<i4", "<i8", "<i2", "|i1", "|u1", "<u2", "<u4", "<u8", "|b1"}
HEADER = re.compile(rb"\{'descr': '([<|][a-z][0-9])', 'fortran_order': False, 'shape': \(((?:[0-9]{1,15}(?:, |,|(?=\))))*)\), \} *\n")
MOST_TEXT = 2**20
OFFENCES = ("malformed", "stale", "names", "dtype", "shape", "size", "NaN or infinite", "weight", "norm")  # what only a wrong client sends


class Rejected(Exception):
    """Something that arrived cannot be used. The message is the reason, one of OFFENCES."""


class Parcel(NamedTuple):
    """One message: text, and arrays by name as .npy bytes."""

    text: str
    arrays: Mapping[str, bytes]


class Fault(NamedTuple):
    """What came in the place of a reply: failed, died, offline or expired, with whatever the transport said."""

    reason: str
    said: str = ""


class Post(Protocol):
    """What carries parcels to devices and back."""

    def nodes(self) -> Mapping[str, int]:
        """{client: number of its node}, of those that are there now."""
        ...

    def push(self, kind: str, parcels: Mapping[int, Parcel], seconds: float) -> Mapping[str, int]:
        """Send one parcel to each node, to be answered within so many seconds: {message: node}."""
        ...

    def pull(self, messages: Collection[str]) -> Mapping[str, Parcel | Fault]:
        """The replies to these messages that are there now."""
        ...


class Identity(NamedTuple):
    """Which question an answer belongs to."""

    run: str
    pool: str
    round: int
    attempt: int
    model: str  # the digest of what was sent


def packed(array: Any) -> bytes:
    """An array as .npy bytes.

    >>> unpacked(packed(np.arange(3, dtype=np.int32))).tolist()
    [0, 1, 2]
    """
    array = np.asarray(array, order="C")
    if array.dtype.str not in DTYPES:
        raise TypeError(f"array: got {array.dtype}; allowed numbers of at most 64 bits and booleans, little-endian")
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def unpacked(data: bytes, like: Any = None) -> np.ndarray:
    """The array in .npy bytes, if its type and shape are those of `like` (an array or its shapes), where that is given."""
    if len(data) < 10 or data[:8] != b"\x93NUMPY\x01\x00":
        raise Rejected("malformed")
    end = 10 + int.from_bytes(data[8:10], "little")
    header = HEADER.fullmatch(data[10:end])
    if header is None:
        raise Rejected("malformed")
    descr = header[1].decode()
    if descr not in DTYPES:
        raise Rejected("dtype")
    dtype, shape = np.dtype(descr), tuple(int(n) for n in re.findall(rb"[0-9]+", header[2]))
    if like is not None and np.dtype(like.dtype) != dtype:
        raise Rejected("dtype")
    if like is not None and tuple(like.shape) != shape:
        raise Rejected("shape")
    if math.prod(shape) * dtype.itemsize != len(data) - end:
        raise Rejected("size")
    return np.frombuffer(data, dtype, offset=end).reshape(shape)


def named(tree: Tree) -> dict[str, Any]:
    """The leaves of a tree by their paths.

    >>> list(named({"dense": {"w": 1, "b": 2}}))
    ['dense/b', 'dense/w']
    """
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def tree_packed(tree: Tree, prefix: str) -> dict[str, bytes]:
    """All arrays of a tree, each under its path."""
    return {f"{prefix}/{name}": packed(leaf) for name, leaf in named(tree).items()}


def tree_unpacked(arrays: Mapping[str, bytes], like: Tree, prefix: str) -> Tree:
    """The tree whose arrays stand under this prefix, if their names, types and shapes are exactly those of `like`."""
    wanted = named(like)
    if {name for name in arrays if name.startswith(f"{prefix}/")} != {f"{prefix}/{name}" for name in wanted}:
        raise Rejected("names")
    leaves = [unpacked(arrays[f"{prefix}/{name}"], leaf) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def form(tree: Tree) -> Any:
    """A tree of dicts and tuples with zeros for leaves, as it is written in JSON: how a device knows the structure of what it was sent.

    >>> form(({"w": np.ones(2)}, np.ones(())))
    [{'w': 0}, 0]
    """
    if isinstance(tree, Mapping):
        return {str(name): form(inner) for name, inner in tree.items()}
    if type(tree) is tuple:
        return [form(inner) for inner in tree]
    if not hasattr(tree, "dtype"):
        raise TypeError(f"what is sent: got {type(tree).__name__}; allowed dicts and tuples of arrays")
    return 0


def formed(text: Any, arrays: Mapping[str, bytes], prefix: str) -> Tree:
    """The tree of this form from its arrays."""
    if isinstance(text, dict):
        return {name: formed(inner, arrays, f"{prefix}/{name}") for name, inner in text.items()}
    if isinstance(text, list):
        return tuple(formed(inner, arrays, f"{prefix}/{place}") for place, inner in enumerate(text))
    if text != 0 or prefix not in arrays:
        raise Rejected("names")
    return unpacked(arrays[prefix])


def digest(arrays: Mapping[str, bytes]) -> str:
    """SHA-256 of arrays under their names.

    >>> digest({"w": b"1"}) != digest({"w": b"2"})
    True
    """
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(f"{len(name)}:{name}:{len(arrays[name])}:".encode() + arrays[name])
    return total.hexdigest()


def written(table: Any) -> str:
    """A plain table as text; numbers come back to the bit."""
    return json.dumps(table, allow_nan=False, separators=(",", ":"))


def read(text: str) -> dict[str, Any]:
    """The table in a text that arrived."""
    if len(text) > MOST_TEXT:
        raise Rejected("size")
    try:
        table = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Rejected("malformed") from None
    if not isinstance(table, dict):
        raise Rejected("malformed")
    return table


def _no_number(text: str) -> Any:
    raise ValueError(text)
