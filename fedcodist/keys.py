"""Randomness by name, not by counter (A37, R1).

Every draw is a function of (seed, what it is for, round, client): nothing to save in a checkpoint, nothing that depends on the number
of workers or on the order of anything. Names are hashed with SHA-256 on the host, so deriving a key costs no compiled program.
"""

from __future__ import annotations

import hashlib

import numpy as np

from fedcodist.types import Key


def root(seed: int) -> Key:
    """The key of a run.

    >>> root(0).tolist() == root(0).tolist() != root(1).tolist()
    True
    """
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: got {seed}; allowed 0 to 2**63 - 1")
    return _key(b"fedcodist" + seed.to_bytes(8, "big"))


def derive(key: Key, *names: str | int) -> Key:
    """The key of a named draw.

    >>> a = derive(root(0), "client", 3, "anna")
    >>> a.tolist() == derive(root(0), "client", 3, "anna").tolist() != derive(root(0), "client", 3, "bert").tolist()
    True
    """
    # The type and length of each name are hashed too: ("a", "b") is not ("ab",), and 1 is not "1".
    said = "".join(f"{type(name).__name__[0]}{len(str(name))}:{name}" for name in names)
    return _key(np.asarray(key, np.uint32).astype(">u4").tobytes() + said.encode("utf-8", "surrogatepass"))


def bits(key: Key, n: int) -> np.ndarray:
    """n random 64-bit integers on the host. Raw Philox output is stable over numpy versions, unlike Generator's methods."""
    return _philox(key).random_raw(n)


def permutation(key: Key, n: int) -> np.ndarray:
    """A random order of 0..n-1 on the host.

    >>> sorted(permutation(root(0), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.argsort(bits(key, n), kind="stable")


def generator(key: Key) -> np.random.Generator:
    """numpy's own distributions on the host, for data that is drawn once; what a round draws goes by `bits`."""
    return np.random.Generator(_philox(key))


def _philox(key: Key) -> np.random.Philox:
    high, low = (int(word) for word in np.asarray(key, np.uint32))
    return np.random.Philox(key=(high << 32) | low)


def _key(message: bytes) -> Key:
    return np.frombuffer(hashlib.sha256(message).digest()[:8], ">u4").astype(np.uint32)
