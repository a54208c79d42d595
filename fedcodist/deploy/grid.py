"""Flower's Grid as a `Post`: parcels in and out of its messages, its error codes as words, its nodes by the names that the operator gave.

Replies are matched by the message that they answer, never by the sender which they claim. Arrays travel as the .npy bytes that they are; a
record's own word about shape and type is not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedcodist.engines.wire import Fault, Parcel

TEXT, ARRAYS = "text", "arrays"
CODES = {1: "failed", 2: "failed", 3: "expired", 4: "expired", 5: "offline", 7: "failed", 8: "died"}


def record(parcel: Parcel) -> Any:
    """A parcel as Flower's records."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict  # pyright: ignore[reportMissingImports]

    arrays = {name: Array("bytes", (len(data),), "numpy.ndarray", data) for name, data in parcel.arrays.items()}
    return RecordDict({TEXT: ConfigRecord({TEXT: parcel.text}), ARRAYS: ArrayRecord(arrays)})


def parcel(content: Any) -> Parcel:
    """The parcel in Flower's records; an empty one, which nothing accepts, if there is none or more than that."""
    from flwr.app import ArrayRecord, ConfigRecord  # pyright: ignore[reportMissingImports]

    if set(content) != {TEXT, ARRAYS} or not isinstance(content[TEXT], ConfigRecord) or not isinstance(content[ARRAYS], ArrayRecord):
        return Parcel("", {})
    text = content[TEXT].get(TEXT)
    if set(content[TEXT]) != {TEXT} or not isinstance(text, str):
        return Parcel("", {})
    return Parcel(text, {name: array.data for name, array in content[ARRAYS].items()})


class GridPost:
    """A live connection to the devices of a run."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def nodes(self) -> dict[str, int]:
        """The nodes that are there, by the operator's names; of two with one name only the first."""
        found: dict[str, int] = {}
        for node in sorted(self._grid.get_nodes(), key=lambda node: node.node_id):
            found.setdefault(node.name or f"node-{node.node_id}", node.node_id)
        return found

    def push(self, kind: str, parcels: Mapping[int, Parcel], seconds: float) -> dict[str, int]:
        """One message to each node. A node that its message could not be handed over for has none."""
        from flwr.app import Message  # pyright: ignore[reportMissingImports]

        found: dict[str, int] = {}
        for node, one in parcels.items():  # singly: together they could be larger than what the server takes at once
            ids = list(self._grid.push_messages([Message(record(one), node, kind, ttl=seconds)]))
            found |= {message: node for message in ids if message}
        return found

    def pull(self, messages: Collection[str]) -> dict[str, Parcel | Fault]:
        """The replies that have come. Each is asked for alone: one that cannot be read is a fault of its sender only."""
        found: dict[str, Parcel | Fault] = {}
        for message in messages:
            try:
                replies = [reply for reply in self._grid.pull_messages([message]) if reply.metadata.reply_to_message_id == message]
                if replies:
                    found[message] = _read(replies[0])
            except Exception as error:
                if _is_network(error):
                    raise
                found[message] = Parcel("", {})
        return found


def _read(reply: Any) -> Parcel | Fault:
    if reply.has_error():
        return Fault(CODES.get(reply.error.code, "failed"), (reply.error.reason or "")[:200])
    return parcel(reply.content)


def _is_network(error: Exception) -> bool:
    """Whether the connection is at fault, and not what came over it."""
    return isinstance(error, OSError) or type(error).__module__.startswith("httpx")
