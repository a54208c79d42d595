"""A user's own images or numbers as a store: read, checked and decoded once, mapped ever after.

The columns keep their names, so the `arrays` task reads the store as it reads any directory of .npy files: `path = "NAME"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedcodist.datasets.published import Progress, Published
from fedcodist.settings import check
from fedcodist.store import Writer, check_room
from fedcodist.tasks import checks
from fedcodist.tasks.arrays import found

BLOCK = 4_096  # rows written at once


@dataclass(frozen=True)
class OwnFiles:
    """Your own images or numbers: a folder of images a client, .npz, Parquet, a saved Hugging Face data set."""

    kind: ClassVar[str] = "own"
    published: ClassVar[tuple[Published, ...]] = ()
    wants: ClassVar[str] = (
        "a .npz or .parquet file, a directory of .npy or .parquet files, a saved data set, or a folder of images a client"
    )
    x: str = "x"  # the names of the columns
    y: str = "y"
    client: str = "client"
    domain: str = "domain"
    split: str = "split"
    also: tuple[str, ...] = ()  # further columns to keep, such as a capacity or a coarse label

    def __post_init__(self) -> None:
        check(self)

    def prepare(self, source: Path, writer: Writer, progress: Progress) -> Mapping[str, Any]:
        roles = {"x": self.x, "y": self.y, "client": self.client, "domain": self.domain, "split": self.split, "public_x": "public_x"}
        wanted = {name for name in roles.values() if name} | set(self.also)
        table = found(str(source), wanted, self.split)
        x = checks.features(f"{source}: {self.x}", table.columns[self.x]) if self.x in table.columns else None
        check_room(writer.partial, 2 * sum(column.nbytes for column in table.columns.values()))
        for name, column in table.columns.items():
            if x is not None and name != "public_x" and name != self.x:
                checks.same_rows(f"{source}: {name}", column, len(x))
            known = next((role for role, given in roles.items() if given == name), name)
            for start in range(0, len(column), BLOCK):
                writer.append(known, np.asarray(column[start : start + BLOCK]))
                progress(min(start + BLOCK, len(column)), len(column), f"rows of {known}")
        return {"kind": "own", "notes": list(table.notes)}
