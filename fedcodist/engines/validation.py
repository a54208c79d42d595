"""Whether a reply of a device may be used. All of it is checked before any arithmetic, and an invalid reply is counted and never an error.

A reply must belong to the question, hold exactly the arrays that the server's own template has, be finite, claim no more examples than its
client declared, and not move the model much further than the others do. A client that offends repeatedly is not asked for some rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import jax
import numpy as np

from fedcodist.engines import wire
from fedcodist.engines.wire import Identity, Parcel, Rejected
from fedcodist.types import Reply, Tree

FEW = 3  # replies, below which a median says nothing of who is far from the others


def identities(parcel: Parcel) -> list[Identity]:
    """Which questions a parcel answers, in the order of its answers."""
    said = wire.read(parcel.text).get("answers")
    if not isinstance(said, list) or not all(isinstance(one, list) and len(one) == len(Identity._fields) for one in said):
        raise Rejected("malformed")
    return [Identity(*one) for one in said]


def foreign(parcel: Parcel, answers: int) -> bool:
    """Whether a parcel holds arrays that belong to none of its answers."""
    return any(name.split("/", 1)[0] not in {str(place) for place in range(answers)} for name in parcel.arrays)


def checked(parcel: Parcel, place: int, like: Reply, declared: int, most_norm: float) -> Reply:
    """The reply at this place of a parcel. Rejected, if it cannot be used."""
    reply: Reply = wire.tree_unpacked(parcel.arrays, like, str(place))
    for leaf in jax.tree.leaves(reply):
        if np.issubdtype(leaf.dtype, np.inexact) and not np.isfinite(leaf).all():
            raise Rejected("NaN or infinite")
    weight = float(reply.weight)
    if not (weight == round(weight) and 1 <= weight <= declared):
        raise Rejected("weight")
    if norm(reply.value) > most_norm:
        raise Rejected("norm")
    return reply


def norm(value: Tree) -> float:
    """The L2 norm in float64, which the square of no float32 overflows.

    >>> round(norm({"w": np.array([3e30, 4e30], np.float32)}) / 1e30, 3)
    5.0
    """
    return float(np.sqrt(sum(float(np.sum(np.square(np.asarray(leaf, np.float64)))) for leaf in jax.tree.leaves(value))))


def far(norms: Mapping[str, float], factor: float) -> set[str]:
    """Who is further out than so many times the median.

    >>> far({"a": 1.0, "b": 2.0, "c": 30.0}, 10)
    {'c'}
    >>> far({"a": 1.0, "b": 30.0}, 10)
    set()
    """
    if len(norms) < FEW:
        return set()
    most = factor * float(np.median(list(norms.values())))
    return {client for client, size in norms.items() if size > most > 0}


class Strikes:
    """Who offended how often, and who is therefore not asked until which round."""

    def __init__(self, most: int, rounds: int) -> None:
        self._most, self._rounds = most, rounds
        self._seen: Counter[str] = Counter()
        self._until: dict[str, int] = {}

    def offend(self, client: str, t: int) -> None:
        """The client sent something in round t that cannot be used."""
        self._seen[client] += 1
        if self._seen[client] >= self._most:
            self._until[client] = t + self._rounds
            self._seen[client] = 0

    def out(self, client: str, t: int) -> bool:
        """Whether the client is not asked in round t.

        >>> strikes = Strikes(2, rounds=3)
        >>> strikes.offend("a", 1), strikes.out("a", 2), strikes.offend("a", 2), strikes.out("a", 5), strikes.out("a", 6)
        (None, False, None, True, False)
        """
        return t <= self._until.get(client, 0)
