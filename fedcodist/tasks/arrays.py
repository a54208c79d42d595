"""A user's own data by a config alone: the columns of a table in any supported format, or of a Python function.

`x` [rows, ...] and `y` [rows], labels from 0 or by name, are required, and `client` [rows] or a `partition` that deals the rows to clients;
`domain`, `split` (train, public, held_out, test) and `public_x` [rows, ...] are optional. A path is a .csv or .tsv file, a .npz file, a
directory of .npy files, a Parquet file or a directory of its parts, a data set saved by Hugging Face `datasets`, or a folder of images for
each client. Whatever is wrong is a DataError of one line. Text has a task of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedcodist import keys
from fedcodist.clients import Clients
from fedcodist.data import checks
from fedcodist.data.capacity import SIZE, Capacity
from fedcodist.data.checks import SPLITS
from fedcodist.data.overlap import HINT, check_disjoint, digests, repeated
from fedcodist.data.partition import Partition, client_names, group, read_partition
from fedcodist.data.splits import check_shares, divide
from fedcodist.data.store import META, locate
from fedcodist.data.table import Table, call_for_table, read_table
from fedcodist.errors import data_error
from fedcodist.objectives.classify import Classify, Standard
from fedcodist.objectives.images import Images
from fedcodist.readers import files
from fedcodist.settings import Problem, SettingError, check, nearest, setting, show
from fedcodist.task import Task
from fedcodist.types import Examples, Key, Split

ROLES = ("x", "y", "client", "domain", "split")
DERIVED = ("main_class", "main_domain", SIZE)  # attributes that need no column
LARGE = 100  # times the median size: a client that deserves a note


@dataclass(frozen=True)
class Arrays:
    """Your own images or numbers. Parts that no `split` column names are whole clients, by these shares."""

    kind: ClassVar[str] = "arrays"
    path: str | None = None  # a file or directory of rows, or the name of a prepared store
    function: str | None = None  # "module:name" of a Python function without arguments that gives the columns, instead of a path
    x: str = "x"  # the column of inputs
    y: str = "y"  # the column of labels
    client: str = "client"  # the column of client names; "" for data without clients
    domain: str = "domain"  # the column of domains, if there is one
    split: str = "split"  # the column that says train, public, held_out or test, if there is one
    partition: Partition | None = setting(None, reader=read_partition)  # deals the rows to clients where there are none
    capacity: Capacity = Capacity()  # gives each client a level that pools can choose by
    public: float = setting(0.3, gt=0, lt=1)  # share of the clients whose rows become public data
    held_out: float = setting(0.1, gt=0, lt=1)  # share of the clients whose rows are held out
    test: float = setting(0.1, gt=0, lt=1)  # share of the clients whose rows become the test
    classes: int | None = setting(None, ge=2, le=checks.MOST_CLASSES)  # how many classes; the largest label + 1 if not given
    images: bool | None = None  # whether x are images; bytes with four axes are, if not given
    # whether each feature is standardised by its mean and standard deviation in the public rows; for numbers, not for images
    standardise: bool = setting(False, silent=True)
    size: int | None = setting(None, ge=1)  # height and width of the crop that a model sees; the whole image if not given
    pad: int = setting(0, ge=0, le=1_000)  # zero pixels added on every side before cropping
    flip: bool = False  # whether training images are flipped left to right at random
    public_flips: bool = False  # whether public images are flipped both ways at random (A19)
    mixup_beta: float = setting(0.0, ge=0, le=1e3)  # mixup of public images: weights from Beta(b, b); 0 is off (A18)
    overlap: Literal["error", "drop", "allow"] = "error"  # what to do with rows of public, held_out and test that are in a part before them
    split_seed: int = setting(0, ge=0, le=2**63 - 1)  # seed of the split into parts, the same for all seeds of a run

    def __post_init__(self) -> None:
        check(self)
        check_shares(self, "public", "held_out", "test")
        if (self.path is None) == (self.function is None):
            raise SettingError([Problem("Arrays.path", "nothing" if self.path is None else "path and function", "path or function")])
        if self.function is not None and not all(self.function.partition(":")):
            raise SettingError([Problem("Arrays.function", show(self.function), "module:function")])
        if not self.client and self.partition is None:
            raise SettingError([Problem("Arrays.client", "''", "the name of a column", "or set partition")])

    def load(self) -> Task:
        """Read the columns, check each of them, and divide the rows."""
        table = self._table()
        named, where = self._named(table)
        notes: list[str] = []
        x = self._rows_of(where["x"], checks.features(where["x"], named["x"]), notes)
        for name in (name for name in named if name not in ("x", "public_x")):
            checks.same_rows(where[name], named[name], len(x))
        y, names = checks.classes_of(where["y"], named["y"], self.classes)
        labels = names or table.labels
        key = keys.derive(keys.root(self.split_seed), self.kind)
        notes += [f"columns not used: {', '.join(show(name)[1:-1] for name in table.others)}"] if table.others else []
        notes += [f"labels from 0: {show(', '.join(names))[1:-1]}"] if names else []
        notes += table.notes
        domain, domains = None, ("all",)
        if "domain" in named:
            domains, domain = checks.domains(where["domain"], named["domain"])
        rows = _rows_by_part(where["split"], named)
        if "client" in named:
            client = checks.names(where["client"], named["client"])
        else:
            client, rows["train"] = self._dealt(table, y, rows["train"], keys.derive(key, "partition"), notes)
        empty = len(np.unique(client[np.concatenate(list(rows.values()))])) - len(np.unique(client[rows["train"]]))
        if "client" in named and empty:
            notes.append(f"{empty} clients have no training examples and are left out")
        self._divide(rows, client, named, key, notes)
        if "public_x" in named:
            given = self._rows_of(where["public_x"], checks.features(where["public_x"], named["public_x"]), [])
            public_x = checks.public_like(where["public_x"], given, x, rows["public"])
        else:
            public_x = x[rows["public"]]
        public_x, rows = self._distinct(table.where, x, public_x, rows, notes)
        if "public_x" not in named:
            notes.append(f"the labels of {len(public_x)} public rows were dropped")
        of_client = {name: rows["train"][r] for name, r in group(client[rows["train"]]).items()}  # type: ignore[arg-type]
        clients = Clients(x, y, of_client, domain)
        _note_large(clients.sizes(), notes)
        if self.classes is None and int(y.max()) + 1 > 2 * len(np.unique(y)) + 8:
            notes.append(f"{int(y.max()) + 1} classes, as the largest label is {int(y.max())}; only {len(np.unique(y))} of them occur")
        attributes: dict[str, dict[str, Any]] = {"main_class": {name: str(np.bincount(y[r]).argmax()) for name, r in of_client.items()}}
        if domain is not None:
            attributes["main_domain"] = {name: domains[np.bincount(domain[r]).argmax()] for name, r in of_client.items()}
        for name in self._extra():
            attributes[name] = checks.constant(f"{table.where}: {name}", table.columns[name], of_client)
        attributes["capacity"] = self.capacity.assign(of_client, keys.derive(key, "capacity"), attributes, clients.sizes())
        images = self._images(where["x"], x)
        if images is not None and (on := self._augmentation(images, x)):
            notes.append(f"augmentation is on: {', '.join(on)}")
        if self.standardise and images is not None:
            raise data_error(where["x"], "standardise = true for images", "false: each image is standardised by itself")
        standard = Standard.of(public_x) if self.standardise else None
        if standard is not None:
            notes.append(f"{where['x']}: {len(standard.means)} features are standardised by their means and deviations in the public rows")
        elif images is None and _uneven(public_x):
            notes.append(f"{where['x']}: features differ a hundredfold in size; standardise = true brings them to one scale")
        return Task(
            name=self.kind,
            objective=Classify(images, standard),
            clients=clients,
            public=Examples(public_x),
            held_out=_split(x, y, client, domain, rows["held_out"]),
            test=_split(x, y, client, domain, rows["test"]),
            classes=self.classes or len(labels) or int(y.max()) + 1,
            domains=domains,
            labels=labels if self.classes in (None, len(labels)) else (),
            attributes=attributes,
            notes=tuple(notes),
        )

    def _table(self) -> Table:
        """All columns that the settings refer to, from the path or the function."""
        wanted = {getattr(self, role) for role in ROLES} | {"public_x", *self._extra()}
        if coarse := getattr(self.partition, "column", None):
            wanted.add(coarse)
        wanted.discard("")
        if self.function is not None:
            return call_for_table(self.function, wanted)
        assert self.path is not None
        return read_table(str(_place(self.path)), wanted, self.split, self.x)

    def _extra(self) -> list[str]:
        """The columns that only the capacity refers to."""
        asked = (self.capacity.column, self.capacity.attribute)
        return [name for name in asked if name is not None and name not in DERIVED]

    def _named(self, table: Table) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """The columns by role, and the name of each in messages; DataError if a required one is missing."""
        names = {role: getattr(self, role) for role in ROLES} | {"public_x": "public_x"}
        named = {role: table.columns[name] for role, name in names.items() if name and name in table.columns}
        if self.partition is not None and "client" in named:
            raise data_error(
                f"{table.where}: {self.client}", "clients, and a partition", "one of the two", 'client = "" ignores the column'
            )
        needed = [names["x"], names["y"], *([] if self.partition is not None else [names["client"]]), *self._extra()]
        missing = [name for name in needed if name not in table.columns]
        if missing:
            there = [*table.columns, *table.others]
            hint = nearest(missing[0], there) or f"found: {show(', '.join(there)) if there else 'none'}"
            if missing == [names["client"]]:
                hint += "; a partition makes clients"
            raise data_error(table.where, f"no column {', '.join(missing)}", f"columns {', '.join(needed)}", hint)
        return named, {role: f"{table.where}: {name}" for role, name in names.items()}

    def _dealt(self, table: Table, y: np.ndarray, rows: np.ndarray, key: Key, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """By the partition: the client of each row ("" for none), and the rows that have one."""
        assert self.partition is not None
        coarse = table.columns.get(getattr(self.partition, "column", ""))
        if coarse is not None:
            checks.same_rows(f"{table.where}: {getattr(self.partition, 'column', '')}", coarse, len(y))
        hands = self.partition.deal(y[rows], key, None if coarse is None else coarse[rows])
        names = np.array(client_names(len(hands)))
        client = np.full(len(y), "", names.dtype)
        for name, hand in zip(names, hands, strict=True):
            client[rows[hand]] = name
        dealt = rows[client[rows] != ""]
        if len(dealt) < len(rows):
            notes.append(f"{len(rows) - len(dealt)} rows were dealt to no client and are left out")
        return client, dealt

    def _divide(self, rows: dict[str, np.ndarray], client: np.ndarray, named: Mapping[str, Any], key: Key, notes: list[str]) -> None:
        """Take whole clients for the parts that no row belongs to."""
        absent = [part for part in SPLITS[1:] if not len(rows[part]) and not (part == "public" and "public_x" in named)]
        if not absent:
            return
        train = rows["train"]
        names, codes = np.unique(client[train], return_inverse=True)
        parts = divide(names.tolist(), {part: getattr(self, part) for part in absent}, "train", key)
        for part in ("train", *absent):
            rows[part] = train[np.isin(names, parts[part])[codes]]
        if "split" in named:
            notes += [f"no row of split is {part}: {len(parts[part])} of the clients are taken for it" for part in absent]

    def _distinct(
        self, where: str, x: np.ndarray, public_x: np.ndarray, rows: dict[str, np.ndarray], notes: list[str]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The public data and the rows of each part, without the rows of earlier parts if `overlap` is drop."""
        known = digests(x)
        parts = {"clients": known[rows["train"]], "public": digests(public_x)}
        parts |= {part: known[rows[part]] for part in ("held_out", "test")}
        if self.overlap == "error":
            check_disjoint(where, parts, HINT)
            return public_x, rows
        kept = dict(rows)
        for part, again in repeated(parts).items():
            if not again.any():
                continue
            notes.append(
                f"{again.sum()} rows of {part} are in a part before it, and were {'dropped' if self.overlap == 'drop' else 'kept'}"
            )
            if self.overlap == "allow":
                continue
            if again.all():
                raise data_error(where, f"no row of {part} that is not in a part before it", "at least one")
            if part == "public":
                public_x = public_x[~again]
            if len(rows[part]):
                kept[part] = rows[part][~again]
        return public_x, kept

    def _rows_of(self, where: str, x: np.ndarray, notes: list[str]) -> np.ndarray:
        """Grey images with an axis of channels, and bytes that are no images as numbers from 0 to 1; notes say so."""
        if x.ndim == 3 and (self.images or (self.images is None and x.dtype == np.uint8)):
            notes.append(f"{where}: grey images of {x.shape[1]} x {x.shape[2]}: an axis of channels was added")
            return x[..., None]
        if x.dtype == np.uint8 and (x.ndim != 4 or self.images is False):
            notes.append(f"{where}: bytes were divided by 255")
            return x.astype(np.float32) / 255
        return x

    def _augmentation(self, images: Images, x: np.ndarray) -> list[str]:
        """What is done to images at random in training."""
        said = {f"crops of {images.size} x {images.size}": bool(self.pad) or (images.size, images.size) != x.shape[1:3]}
        said |= {"flips": self.flip, "flips both ways of public images": self.public_flips, "mixup of public images": self.mixup_beta > 0}
        return [what for what, on in said.items() if on]

    def _images(self, where: str, x: np.ndarray) -> Images | None:
        if not (x.ndim == 4 and x.dtype == np.uint8 if self.images is None else self.images):
            return None
        if x.ndim != 4:
            raise data_error(where, f"rows of {checks.describe(x)}", "[rows, height, width, channels] for images = true")
        height, width = x.shape[1:3]
        if self.size is None and height != width and self.pad:
            raise data_error(
                where, f"images of {height} x {width} and pad = {self.pad}", "pad = 0, or a size, for images that are not square"
            )
        if self.size is not None and self.size > min(height, width):
            raise data_error(where, f"images of {height} x {width}", f"at least {self.size} x {self.size}, the given size")
        return Images(self.size or height, self.pad, self.flip, self.public_flips, self.mixup_beta)


def _place(path: str) -> Path:
    """The path, or the store of this name if the path does not exist."""
    there = files.kind(path)
    return locate(path) if there == "nothing at this path" and (locate(path) / META).is_file() else Path(path)


def _rows_by_part(where: str, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """{part: rows} by the split column; without one all rows are for training."""
    if "split" not in named:
        return {part: np.arange(len(named["x"]) if part == "train" else 0) for part in SPLITS}
    return checks.splits(where, named["split"])


def _note_large(sizes: Mapping[str, int], notes: list[str]) -> None:
    """Add a note about a client that has far more examples than the others."""
    name, largest = max(sizes.items(), key=lambda item: item[1])
    if largest > LARGE * np.median(list(sizes.values())):
        notes.append(f"client {show(name)[1:-1]} has {largest} of {sum(sizes.values())} training examples")


def _uneven(x: np.ndarray) -> bool:
    """Whether some feature is a hundred times as large as another, or all are large: SGD hardly learns from such rows."""
    sizes = np.abs(x.reshape(-1, x.shape[-1])).mean(0, dtype=np.float64)
    sizes = sizes[sizes > 0]
    return len(sizes) > 0 and (sizes.max() > 100 * sizes.min() or sizes.max() > 50)


def _split(x: np.ndarray, y: np.ndarray, client: np.ndarray, domain: Any, rows: np.ndarray) -> Split:
    """Rows to evaluate on; they have no clients if some of them were never dealt to one."""
    whose = None if (client[rows] == "").any() else np.unique(client[rows], return_inverse=True)[1]
    return Split(x[rows], y[rows], whose, None if domain is None else domain[rows])
