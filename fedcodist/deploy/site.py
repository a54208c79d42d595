"""A site: what one device says of itself and where its own data is. Everything is in one file on the device, `site.toml`.

The server cannot name a file, a function or a task: it only ever learns how many examples there are, and the attributes that stand here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedcodist import imports, settings
from fedcodist.data.table import read_table
from fedcodist.deploy import files
from fedcodist.errors import DataError, data_error
from fedcodist.registry import Registry
from fedcodist.settings import setting
from fedcodist.tasks import TASKS
from fedcodist.types import Examples


@dataclass(frozen=True)
class Share:
    """One client's examples of any task that a config can name, read on this device."""

    kind: ClassVar[str] = "share"
    client: str
    task: Any = setting(kinds=TASKS)

    def load(self, beside: Path) -> Examples:
        clients = self.task.load().clients
        if self.client not in clients:
            some = ", ".join(sorted(clients)[:3])
            raise data_error("data.client", settings.show(self.client), f"a client of the task, such as {some}")
        return clients[self.client]


@dataclass(frozen=True)
class File:
    """Two columns of a .npz file, a directory of .npy files, a Parquet file or a saved Hugging Face data set; a path is from the site's."""

    kind: ClassVar[str] = "file"
    path: str
    x: str = "x"
    y: str = "y"

    def load(self, beside: Path) -> Examples:
        table = read_table(str(beside / Path(self.path).expanduser()), {self.x, self.y}, "split")
        missing = [name for name in (self.x, self.y) if name not in table.columns]
        if missing:
            raise data_error(table.where, f"no column {missing[0]}", f"columns {self.x} and {self.y}")
        return Examples(np.asarray(table.columns[self.x]), np.asarray(table.columns[self.y]))


@dataclass(frozen=True)
class Function:
    """A function of one's own, "module:name" without arguments, that gives x and y."""

    kind: ClassVar[str] = "function"
    function: str

    def load(self, beside: Path) -> Examples:
        try:
            made = imports.function(self.function)()
            x, y = (made["x"], made["y"]) if isinstance(made, Mapping) else made
        except Exception as error:  # it is somebody else's code
            raise data_error("data.function", settings.show(self.function), "a function that gives x and y", str(error)) from error
        return Examples(np.asarray(x), np.asarray(y))


LOADERS = Registry("loaders", Share, File, Function)


@dataclass(frozen=True)
class Site:
    """One device: its data, and the attributes by which the server chooses its pools, such as capacity."""

    data: Any = setting(kinds=LOADERS)
    attributes: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> Site:
    """The site of this file."""
    return files.read(Site, path)


def load(site: Site, path: Path) -> Examples:
    """The site's data. Labels of any integer type are taken; everything else must be as the server's task has it."""
    x, y = site.data.load(path.parent)
    if y is None:
        raise DataError(f"{path}: got data without labels; allowed a label for each row")
    return Examples(x, y if np.asarray(y).dtype == np.int32 or not np.issubdtype(np.asarray(y).dtype, np.integer) else y.astype(np.int32))
