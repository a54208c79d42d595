"""The widths of a config, and which clients carry them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedcodist.settings import checked, setting


@dataclass(frozen=True)
@checked
class Carriers:
    """Which clients carry a width: so many, a share of all, those with these attributes, or these ids. Nothing said: all that are left."""

    take: int | None = setting(None, ge=1)  # so many of the clients that wider widths have left, in the pool's order
    share: float | None = setting(None, gt=0, le=1)  # this share of all clients of the pool
    where: dict[str, str] = field(default_factory=dict)  # those whose attributes have these values
    ids: tuple[str, ...] = ()  # exactly these clients

    def of(self, left: Sequence[str], many: int, attributes: Mapping[str, Mapping[str, object]]) -> list[str]:
        """Those among the clients that are left, of so many in all."""
        found = [c for c in left if all(str(attributes.get(name, {}).get(c)) == value for name, value in self.where.items())]
        found = [c for c in found if c in set(self.ids)] if self.ids else found
        return found[: self.take if self.take is not None else round(self.share * many) if self.share is not None else None]


@dataclass(frozen=True)
@checked
class Width:
    """A share of every hidden width of the model, and the clients that carry it."""

    rate: float = setting(1.0, gt=0, le=1)  # the share of every hidden width
    clients: Carriers = Carriers()  # which clients carry it; all that are left if nothing is said

    @property
    def label(self) -> str:
        """As names of models have it: `pool@0.5`."""
        return f"{self.rate:g}"
