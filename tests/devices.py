"""A post without a network: devices of this process, which may be made to misbehave."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from fedcodist.deploy import device
from fedcodist.engines.roll import QUERY
from fedcodist.engines.wire import Fault, Parcel
from fedcodist.types import Examples

Spoil = Callable[[Parcel, Parcel], Parcel | Fault | None]  # (question, answer) -> what arrives; None is silence


class FakePost:
    """Devices of this process. Time passes only when somebody sleeps."""

    def __init__(self, data: Mapping[str, Examples], attributes: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.data, self.attributes = dict(data), attributes or {}
        self.spoil: dict[str, Spoil] = {}
        self.away: set[str] = set()
        self.now = 0.0
        self.sent: list[tuple[str, str, Parcel]] = []  # (client, kind, parcel)
        self._replies: dict[str, Parcel | Fault] = {}

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _number(self, client: str) -> int:
        return sorted(self.data).index(client)

    def nodes(self) -> dict[str, int]:
        return {client: self._number(client) for client in self.data if client not in self.away}

    def push(self, kind: str, parcels: Mapping[int, Parcel], seconds: float) -> dict[str, int]:
        found = {}
        for node, parcel in parcels.items():
            client, message = sorted(self.data)[node], f"m{len(self.sent)}"
            self.sent.append((client, kind, parcel))
            found[message] = node
            if kind == QUERY:
                self._replies[message] = device.introduce(parcel, self.data[client], self.attributes.get(client, {}))
                continue
            answer = device.work(parcel, self.data[client])
            spoil = self.spoil.get(client)
            spoilt = answer if spoil is None else spoil(parcel, answer)
            if spoilt is not None:
                self._replies[message] = spoilt
        return found

    def pull(self, messages: Collection[str]) -> dict[str, Parcel | Fault]:
        return {message: self._replies.pop(message) for message in list(messages) if message in self._replies}
