"""Where publishers' files are to be had, and what each dataset needs of its preparation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from fedcodist.data.store import Writer

Progress = Callable[[int, int | None, str], None]  # (done, of how many or None, what)


class Published(NamedTuple):
    """A file at a public address. Without a SHA-256 that is public knowledge it is named, and not fetched."""

    address: str
    bytes: int | None = None
    sha256: str = ""

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.address.rpartition("/")[2]


class Dataset(Protocol):
    """What can be prepared."""

    kind: ClassVar[str]
    published: ClassVar[tuple[Published, ...]]
    wants: ClassVar[str]  # what --from may be, in words

    def prepare(self, source: Path, writer: Writer, progress: Progress) -> Mapping[str, Any]:
        """Write the columns, from where the writer's state says; give the facts for the store: at least `kind`."""
        ...
