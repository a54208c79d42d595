"""CIFAR-10 and CIFAR-100 as published: the binary release or the Python release, from a directory or an archive.

A record of the binary release is its labels (CIFAR-100: coarse, then fine) and 3,072 bytes of pixels, channel by channel. The Python
release consists of pickles; the digest of each file is compared with the publisher's before it is opened, and then only its data is read
(see `unpickle`). Deliberately absent: downloading, the names of the labels, and any change to the pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fedcodist.errors import data_error
from fedcodist.readers import unpickle
from fedcodist.readers.files import CHUNK, kind, members, open_file, sniff
from fedcodist.settings import show

PIXELS = 3 * 32 * 32
MOST_BYTES = 2**30  # of one file: seven times the largest published one
# MD5 of the published files, to recognise them: nobody can make another file with a given digest, not even with MD5.
PUBLISHED = {
    "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
    "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
    "test.bin": "4499cfba6c016c1be1438163640a0898",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


class Labelled(NamedTuple):
    """The images of one split and their labels."""

    x: np.ndarray  # uint8 [rows, 32, 32, 3]
    y: np.ndarray  # uint8 [rows]
    coarse: np.ndarray | None


class _Release(NamedTuple):
    """One of the two data sets in one of its two releases."""

    folder: str
    splits: Mapping[str, tuple[str, ...]]  # the files of each split, in order
    binary: bool
    classes: tuple[int, ...]  # of each label of a record, in order; the last is the one to predict
    keys: tuple[str, ...]  # the labels' names in a pickle

    @property
    def files(self) -> list[str]:
        return [name for names in self.splits.values() for name in names]


CIFAR100 = (
    _Release("cifar-100-binary", {"train": ("train.bin",), "test": ("test.bin",)}, True, (20, 100), ()),
    _Release("cifar-100-python", {"train": ("train",), "test": ("test",)}, False, (20, 100), ("coarse_labels", "fine_labels")),
)
CIFAR10 = (
    _Release("cifar-10-batches-bin", {"train": tuple(f"{b}.bin" for b in BATCHES), "test": ("test_batch.bin",)}, True, (10,), ()),
    _Release("cifar-10-batches-py", {"train": BATCHES, "test": ("test_batch",)}, False, (10,), ("labels",)),
)


def read_cifar100(
    path: str | Path, digests: Mapping[str, str] | None = None, records: Mapping[str, int] | None = None
) -> dict[str, Labelled]:
    """The splits train and test of CIFAR-100.

    `digests` maps names of files to the MD5 or SHA-256 that they must have, in either release, instead of the publisher's. `records` maps
    splits to the number of images that they must have; the published ones have 50,000 and 10,000.
    """
    return _read(path, CIFAR100, digests, records)


def read_cifar10(
    path: str | Path, digests: Mapping[str, str] | None = None, records: Mapping[str, int] | None = None
) -> dict[str, Labelled]:
    """The splits train (five batches, in order) and test of CIFAR-10. Arguments as for `read_cifar100`."""
    return _read(path, CIFAR10, digests, records)


def sources(path: str | Path) -> list[dict[str, Any]]:
    """What would be read at this path: {name, bytes, sha256, published} of each file, preceded by those of the archive, if it is one.

    `published` says whether the digest is the publisher's; it is None where that one is not known.
    """
    found: list[dict[str, Any]] = []
    if kind(path) == "a file":
        with open_file(path) as file:
            found.append(_source(Path(path).name, file))
    for _, name, stream in _files(path, (*CIFAR100, *CIFAR10)):
        found.append(_source(name, stream))
    return found


def _source(name: str, stream: IO[bytes]) -> dict[str, Any]:
    size, sha256, md5 = 0, hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    while chunk := stream.read(CHUNK):
        size += len(chunk)
        sha256.update(chunk)
        md5.update(chunk)
    published = PUBLISHED[name] == md5.hexdigest() if name in PUBLISHED else None
    return {"name": name, "bytes": size, "sha256": sha256.hexdigest(), "published": published}


def _files(path: str | Path, releases: tuple[_Release, ...]) -> Iterator[tuple[_Release, str, IO[bytes]]]:
    """(release, name, stream) of each file of the first release that is found."""
    if kind(path) == "a directory":
        for release in releases:
            for folder in (Path(path), Path(path) / release.folder):
                if any(kind(folder / name) != "nothing at this path" for name in release.files):
                    for name, stream in members(folder, dict.fromkeys(release.files)):
                        yield release, name, stream
                    return
        return
    owner = {name: release for release in releases for name in release.files}
    first: _Release | None = None
    for name, stream in members(path, dict.fromkeys(owner)):
        first = first or owner[name]
        if owner[name] is first:
            yield first, name, stream


def _read(
    path: str | Path, releases: tuple[_Release, ...], digests: Mapping[str, str] | None, records: Mapping[str, int] | None
) -> dict[str, Labelled]:
    parts: dict[str, Labelled] = {}
    release = releases[0]
    for release, name, stream in _files(path, releases):
        where = f"{path}: {name}"
        data = _bytes(where, stream)
        _check_digest(where, name, data, release, digests)
        parts[name] = _binary(where, data, release) if release.binary else _python(where, data, release)
        del data  # free the memory before the next file is read
    missing = [name for name in release.files if name not in parts]
    if missing:
        wanted = " or ".join(f"those of {r.folder}" for r in releases) if not parts else f"all files of {release.folder}"
        raise data_error(str(path), f"no file {', '.join(missing)}", wanted)
    found = {split: _join([parts.pop(name) for name in names]) for split, names in release.splits.items()}
    for split, count in (records or {}).items():
        if len(found[split].y) != count:
            raise data_error(f"{path}: {split}", f"{len(found[split].y)} images", f"{count}")
    return found


def _bytes(where: str, stream: IO[bytes]) -> bytearray:
    data = bytearray()
    while chunk := stream.read(CHUNK):
        data += chunk
        if len(data) > MOST_BYTES:
            raise data_error(where, f"more than {MOST_BYTES} bytes", "a file of CIFAR")
    return data


def _check_digest(where: str, name: str, data: bytearray, release: _Release, digests: Mapping[str, str] | None) -> None:
    """DataError unless the file has the right digest. Binary files are checked on request, pickles always."""
    wanted = (digests or {}).get(name) or (None if release.binary else PUBLISHED.get(name))
    if wanted is None:
        return
    if len(wanted) not in (32, 64):
        raise data_error(f"the digest of {name}", show(wanted), "an md5 or a sha256")
    found = (hashlib.sha256(data) if len(wanted) == 64 else hashlib.md5(data, usedforsecurity=False)).hexdigest()
    if found != wanted.lower():
        hint = "" if release.binary else "a pickle from elsewhere is not opened; the binary release needs no digest"
        raise data_error(where, f"digest {found}, {len(data)} bytes", f"digest {wanted}", hint)


def _binary(where: str, data: bytearray, release: _Release) -> Labelled:
    labels = len(release.classes)
    size = labels + PIXELS
    if not data or data[0] >= release.classes[0]:  # no known kind of file begins like a record
        known = sniff(bytes(data[:16]))
        if "begins with" not in known:
            raise data_error(where, known, f"records of {size} bytes")
    if len(data) % size:
        whole = len(data) // size * size
        raise data_error(
            where, f"{len(data)} bytes", f"whole records of {size}, such as {whole or size} or {whole + size} bytes", "truncated?"
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, size)
    columns = [_labels(where, rows[:, i].copy(), classes) for i, classes in enumerate(release.classes)]
    return Labelled(_images(rows[:, labels:]), columns[-1], columns[0] if labels > 1 else None)


def _python(where: str, data: bytearray, release: _Release) -> Labelled:
    table = unpickle.read(where, data)
    if not isinstance(table, dict):
        raise data_error(where, f"a {type(table).__name__}", "a table with data and labels")
    table = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in table.items()}
    pixels = table.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != PIXELS or not len(pixels):
        got = f"{pixels.dtype} {list(pixels.shape)}" if isinstance(pixels, np.ndarray) else show(type(pixels).__name__)
        raise data_error(f"{where}: data", got, f"uint8 [images, {PIXELS}]")
    columns = []
    for key, classes in zip(release.keys, release.classes, strict=True):
        labels = table.get(key)
        if isinstance(labels, np.ndarray) and labels.ndim == 1:
            labels = labels.tolist()
        if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(label) is int for label in labels):
            raise data_error(f"{where}: {key}", show(type(labels).__name__), f"a list of {len(pixels)} whole numbers")
        wrong = next((i for i, label in enumerate(labels) if not 0 <= label < classes), None)
        if wrong is not None:
            raise data_error(f"{where}: {key}", f"label {show(labels[wrong])} in record {wrong}", f"0 to {classes - 1}")
        columns.append(np.array(labels, np.uint8))
    return Labelled(_images(pixels), columns[-1], columns[0] if len(columns) > 1 else None)


def _labels(where: str, labels: np.ndarray, classes: int) -> np.ndarray:
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        raise data_error(where, f"label {labels[wrong[0]]} in record {wrong[0]}", f"0 to {classes - 1}", f"{len(wrong)} such records")
    return labels


def _images(pixels: np.ndarray) -> np.ndarray:
    """From [channel, row, column] to [row, column, channel]; a copy, so that the bytes of the file can be freed."""
    return np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _join(parts: list[Labelled]) -> Labelled:
    if len(parts) == 1:
        return parts[0]
    coarse = None if parts[0].coarse is None else np.concatenate([part.coarse for part in parts if part.coarse is not None])
    return Labelled(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]), coarse)
