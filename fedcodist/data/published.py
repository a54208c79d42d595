"""Published files, and the interface of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from fedcodist.data.store import Writer

Progress = Callable[[int, int | None, str], None]  # (done, total or None, unit)


class Published(NamedTuple):
    """A file at a public address. Without a known SHA-256 its address is shown, and it is not downloaded."""

    address: str
    bytes: int | None = None
    sha256: str = ""

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.address.rpartition("/")[2]


class Dataset(Protocol):
    """A dataset that can be prepared as a store."""

    kind: ClassVar[str]
    published: ClassVar[tuple[Published, ...]]
    wants: ClassVar[str]  # a description of what --from may be

    def prepare(self, source: Path, writer: Writer, progress: Progress) -> Mapping[str, Any]:
        """Write the columns, continuing from the writer's state, and return the facts of the store: at least `kind`."""
        ...
