"""A user's own images or numbers as a store: read, checked and decoded once, and memory-mapped from then on.

The columns keep their names, so the `arrays` task reads the store as it reads any directory of .npy files: `path = "NAME"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedcodist.data import checks
from fedcodist.data.published import Progress, Published
from fedcodist.data.store import Writer, check_room
from fedcodist.data.table import read_table
from fedcodist.errors import data_error
from fedcodist.settings import check, show

BLOCK = 4_096  # rows written at once


@dataclass(frozen=True)
class OwnFiles:
    """Your own images or numbers: a folder of images a client, .csv, .npz, Parquet, a saved Hugging Face data set."""

    kind: ClassVar[str] = "own"
    published: ClassVar[tuple[Published, ...]] = ()
    wants: ClassVar[str] = (
        "a .csv, .npz or .parquet file, a directory of .npy or .parquet files, a saved data set, or a folder of images a client"
    )
    x: str = "x"  # the column of inputs
    y: str = "y"  # the column of labels
    client: str = "client"  # the column of client names
    domain: str = "domain"  # the column of domains, if there is one
    split: str = "split"  # the column that says train, public, held_out or test, if there is one
    also: tuple[str, ...] = ()  # further columns to keep, such as a capacity or a coarse label

    def __post_init__(self) -> None:
        check(self)

    def prepare(self, source: Path, writer: Writer, progress: Progress) -> Mapping[str, Any]:
        roles = {"x": self.x, "y": self.y, "client": self.client, "domain": self.domain, "split": self.split, "public_x": "public_x"}
        wanted = {name for name in roles.values() if name} | set(self.also)
        table = read_table(str(source), wanted, self.split, self.x)
        self._check(str(source), table.columns, table.others)
        check_room(writer.partial, 2 * sum(column.nbytes for column in table.columns.values()))
        for name, column in table.columns.items():
            known = next((role for role, given in roles.items() if given == name), name)
            for start in range(0, len(column), BLOCK):
                writer.append(known, np.asarray(column[start : start + BLOCK]))
                progress(min(start + BLOCK, len(column)), len(column), f"rows of {known}")
        return {"kind": "own", "notes": list(table.notes)}

    def _check(self, source: str, columns: Mapping[str, np.ndarray], others: list[str]) -> None:
        """DataError for what the task would refuse, before anything is written."""
        missing = [name for name in (self.x, self.y, *self.also) if name not in columns]
        if missing:
            there = show(", ".join([*columns, *others]))[1:-1] or "none"
            raise data_error(source, f"no column {', '.join(missing)}", f"columns {self.x} and {self.y}", f"found: {there}")
        x = checks.features(f"{source}: {self.x}", columns[self.x])
        for name, column in columns.items():
            if name not in (self.x, "public_x"):
                checks.same_rows(f"{source}: {name}", column, len(x))
        checks.classes_of(f"{source}: {self.y}", columns[self.y], None)
        for name in (self.client, self.domain):
            if name in columns:
                checks.names(f"{source}: {name}", columns[name])
        if self.split in columns:
            checks.splits(f"{source}: {self.split}", columns[self.split])
        if "public_x" in columns:
            checks.public_like(f"{source}: public_x", columns["public_x"], x, np.zeros(0, np.int64))
