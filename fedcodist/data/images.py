"""CIFAR-100 and CIFAR-10 from their publishers' files.

The store has all images with their fine and coarse labels and content hashes. Clients that come with the files (TFF's HDF5 and SQLite,
FedJAX's SQLite) are kept: the rows of a client are contiguous, `<split>_clients.txt` has the names and `<split>_ends.npy` where each ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedcodist.data.overlap import digests
from fedcodist.data.published import Progress, Published
from fedcodist.data.store import Writer, check_room, file_facts
from fedcodist.errors import data_error
from fedcodist.readers import cifar
from fedcodist.readers.federated import federated_files, open_federated

TORONTO = "https://www.cs.toronto.edu/~kriz/"
TFF = "https://storage.googleapis.com/tff-datasets-public/"
CIFAR_BYTES = 400 * 2**20  # of a store, with a margin


@dataclass(frozen=True)
class Cifar100Files:
    """CIFAR-100: 50,000 training and 10,000 test images of 100 classes in 20 groups; the publisher's, TFF's or FedJAX's files."""

    kind: ClassVar[str] = "cifar100"
    published: ClassVar = (
        Published(TORONTO + "cifar-100-binary.tar.gz", 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
        Published(TFF + "cifar100.sqlite.lzma", 153_019_920, "23d3916c9caa33395737ee560cc7cb77bbd05fc7b73647ee7be3a7e764172939"),
    )
    wants: ClassVar[str] = (
        "cifar-100-binary or cifar-100-python (directory or .tar.gz), fed_cifar100_*.h5, cifar100.sqlite, FedJAX's .sqlite"
    )

    def prepare(self, source: Path, writer: Writer, progress: Progress) -> Mapping[str, Any]:
        check_room(writer.partial, CIFAR_BYTES)
        federated = federated_files(source)
        if federated:
            return {"kind": "labelled_images", "clients": "publisher", "classes": 100, **self._with_clients(source, writer, progress)}
        splits = cifar.read_cifar100(source)
        for split, rows in splits.items():
            _write(writer, split, rows.x, rows.y, rows.coarse, progress)
        facts = {"kind": "labelled_images", "clients": None, "classes": 100, "notes": _incomplete(splits)}
        return {**facts, "sources": cifar.sources(source)}

    def _with_clients(self, source: Path, writer: Writer, progress: Progress) -> Mapping[str, Any]:
        """Write the publisher's own clients, one after the other."""
        with ExitStack() as stack:
            splits = open_federated(source, writer.scratch(), progress)
            for split in splits.values():
                stack.callback(split.close)
            for needed in ("train", "test"):
                if needed not in splits:
                    raise data_error(str(source), f"no split {needed}", "train and test", f"found: {', '.join(splits) or 'none'}")
                clients = {client: n for client, n in splits[needed].clients().items() if n}
                if not clients:
                    raise data_error(str(source), f"no client with an image in {needed}", "at least one")
                sizes = []
                for k, client in enumerate(clients):
                    rows = splits[needed].read(client)
                    x, y, coarse = (_column(source, client, rows, name) for name in ("image", "label", "coarse_label"))
                    _check(source, client, x, y, coarse)
                    _write(writer, needed, x.astype(np.uint8), y, coarse, None)
                    sizes.append(len(y))
                    progress(k + 1, len(clients), f"{needed} clients")
                writer.write_text(f"{needed}_clients", clients)
                writer.append(f"{needed}_ends", np.cumsum(sizes).astype(np.int64))
        return {"sources": [file_facts(path) for path in federated_files(source)]}


@dataclass(frozen=True)
class Cifar10Files:
    """CIFAR-10: 50,000 training images, for out-of-domain public data, and 10,000 test images."""

    kind: ClassVar[str] = "cifar10"
    published: ClassVar = (
        Published(TORONTO + "cifar-10-binary.tar.gz", 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    )
    wants: ClassVar[str] = "cifar-10-batches-bin or cifar-10-batches-py (directory or .tar.gz)"

    def prepare(self, source: Path, writer: Writer, progress: Progress) -> Mapping[str, Any]:
        check_room(writer.partial, CIFAR_BYTES)
        splits = cifar.read_cifar10(source)
        for split, rows in splits.items():
            _write(writer, split, rows.x, rows.y, None, progress)
        facts = {"kind": "labelled_images", "clients": None, "classes": 10, "notes": _incomplete(splits)}
        return {**facts, "sources": cifar.sources(source)}


def _incomplete(splits: Mapping[str, cifar.Labelled]) -> list[str]:
    """Notes for splits of the wrong size: a truncated file may end between two images."""
    whole, found = {"train": 50_000, "test": 10_000}, {split: len(rows.x) for split, rows in splits.items()}
    return [f"{n:,} {split} images; the published files have {whole[split]:,}" for split, n in found.items() if n != whole[split]]


def _write(writer: Writer, split: str, x: np.ndarray, y: np.ndarray, coarse: np.ndarray | None, progress: Progress | None) -> None:
    writer.append(f"{split}_x", x)
    writer.append(f"{split}_fine", y.astype(np.int32))
    if coarse is not None:
        writer.append(f"{split}_coarse", coarse.astype(np.int32))
    writer.append(f"{split}_hash", digests(x))
    if progress is not None:
        progress(len(x), len(x), f"{split} images")


def _column(source: Path, client: str, rows: Mapping[str, Any], name: str) -> np.ndarray:
    if name not in rows:
        raise data_error(f"{source}: client {client}", f"no feature {name}", "image, label and coarse_label", f"found: {', '.join(rows)}")
    return np.asarray(rows[name])


def _check(source: Path, client: str, x: np.ndarray, y: np.ndarray, coarse: np.ndarray) -> None:
    where = f"{source}: client {client}"
    if x.ndim == 2 and x.shape[1] == 3072:
        raise data_error(where, f"images of shape {list(x.shape[1:])}", "[32, 32, 3]")
    if x.shape[1:] != (32, 32, 3) or x.dtype.kind not in "iu" or (x.dtype != np.uint8 and len(x) and (x.min() < 0 or x.max() > 255)):
        raise data_error(where, f"images of {x.dtype} {list(x.shape[1:])}", "bytes [32, 32, 3]")
    for name, column, top in (("label", y, 100), ("coarse_label", coarse, 20)):
        if column.shape != (len(x),) or column.dtype.kind not in "iu":
            raise data_error(where, f"{name} of {column.dtype} {list(column.shape)}", f"a whole number for each of {len(x)} images")
        wrong = np.flatnonzero((column < 0) | (column >= top))
        if len(wrong):
            raise data_error(where, f"{name} {column[wrong[0]]} in row {wrong[0]}", f"0 to {top - 1}")
