"""A folder of images for each client, and the decoding of one image.

`root/<client>/<label>/<file>`, or `root/<client>/<file>` with a `labels.csv` at the root (`file,label` and perhaps `domain,split`), or
`root/<label>/<file>` for images without clients. Only PNG and JPEG are decoded, by Pillow, and only after the size in the header was
checked; a link that leads out of the root is refused. All images must have the same shape: nothing is resized or rotated here.
"""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedcodist.errors import DataError, data_error
from fedcodist.readers.files import kind, open_file, sniff
from fedcodist.readers.libraries import library
from fedcodist.settings import show

MOST_PIXELS = 64 * 2**20  # of one image
MOST_BYTES = 16 * 2**30  # of all images once decoded
MOST_FILE_BYTES = 256 * 2**20  # of one image, and of labels.csv
SUFFIXES = (".png", ".jpg", ".jpeg")
STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
GREY, COLOUR = (
    ("1", "L", "LA"),
    ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"),
)  # modes that convert to L and to RGB without losing anything but alpha
LABELS = "labels.csv"
LAYOUT = f"root/<client>/<label>/<file>, or root/<client>/<file> and {LABELS}"


class Folder(NamedTuple):
    """The columns of a folder, the names of its labels in order, and the number of clients without images."""

    columns: dict[str, np.ndarray]
    labels: list[str]
    empty: int


class _Found(NamedTuple):
    path: str  # relative to the root
    client: str
    label: str


def read(root: str) -> Folder:
    """x [rows, height, width, channels] uint8, y and, where known, client, domain and split; rows in the order of paths."""
    found, empty = _walk(root)
    table = _table(root)
    if not found:
        raise data_error(root, "no image", LAYOUT)
    columns: dict[str, np.ndarray] = {}
    deep = sum(bool(one.label) for one in found)
    if deep and (deep < len(found) or table is not None):
        flat = next((one.path for one in found if not one.label), LABELS)
        raise data_error(root, f"folders in folders, and {show(flat)}", "one layout", LAYOUT)
    if table is not None:
        told = _match(root, table, found)
        said = [row["label"] for row in told]
        columns |= {name: np.array([row[name] for row in told]) for name in ("domain", "split") if name in told[0]}
    else:
        said = [one.label if deep else one.client for one in found]
    if deep or table is not None:
        columns["client"] = np.array([one.client for one in found])
    labels, columns["y"] = numbered(said)
    columns["x"] = images(root, [one.path for one in found])
    return Folder(columns, labels, empty)


def numbered(labels: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The sorted names of labels and the index of each row's label; if all names are whole numbers, they are the labels themselves.

    >>> numbered(["dog", "cat", "dog"])[1].tolist(), numbered(["3", "1"])[1].tolist()
    ([1, 0, 1], [3, 1])
    """
    names = sorted(set(labels))
    values = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 10]
    if len(set(values)) == len(names):
        known = dict(zip(names, values, strict=True))
        return [], np.array([known[label] for label in labels])
    known = {name: i for i, name in enumerate(names)}
    return names, np.array([known[label] for label in labels])


def images(root: str, paths: Sequence[str]) -> np.ndarray:
    """The images at these paths in one array; DataError unless they have the same shape."""
    x = np.empty(0)
    for i, path in enumerate(paths):
        where = str(Path(root) / path)
        with open_file(where, "a PNG or JPEG image") as file:
            raw = file.read(MOST_FILE_BYTES + 1)
        one = image(where, raw)
        if not i:
            x = room(root, len(paths), one)
        elif one.shape != x.shape[1:]:
            raise data_error(
                where, f"an image of {list(one.shape)}", f"{list(x.shape[1:])}, as in {show(paths[0])}", "make them of one size first"
            )
        x[i] = one
    return x


def room(where: str, rows: int, one: np.ndarray) -> np.ndarray:
    """An empty array for this many images like `one`; DataError if it would be too large."""
    if rows * one.nbytes > MOST_BYTES:
        raise data_error(
            where, f"{rows} images of {one.nbytes} bytes", f"at most {MOST_BYTES} bytes", "save them as a directory of .npy files"
        )
    return np.empty((rows, *one.shape), one.dtype)


def image(where: str, raw: bytes) -> np.ndarray:
    """One PNG or JPEG as uint8 [height, width, 1 or 3]; alpha is dropped."""
    if not raw.startswith(STARTS):
        raise data_error(where, sniff(raw[:16]), "a PNG or JPEG image")
    if len(raw) > MOST_FILE_BYTES:
        raise data_error(where, f"more than {MOST_FILE_BYTES} bytes", "a smaller image")
    pillow = library("PIL.Image", where, "an image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images; they are refused below
            with pillow.open(io.BytesIO(raw), formats=("PNG", "JPEG")) as opened:
                width, height = opened.size
                if width * height > MOST_PIXELS:
                    raise data_error(where, f"an image of {height} x {width} pixels", f"at most {MOST_PIXELS} pixels")
                if opened.mode not in (*GREY, *COLOUR):
                    raise data_error(where, f"pixels of mode {opened.mode}", "8 bits a channel, grey or colour")
                pixels = np.asarray(opened.convert("L" if opened.mode in GREY else "RGB"))
    except DataError:
        raise
    except pillow.DecompressionBombError as error:  # so large that Pillow does not give the size
        raise data_error(where, "an image of far too many pixels", f"at most {MOST_PIXELS} pixels") from error
    except Exception as error:  # whatever a decoder raises, the image is to blame
        raise data_error(
            where, f"an image that is truncated or damaged ({str(error)[:80] or type(error).__name__})", "a whole image"
        ) from error
    return pixels.reshape(height, width, -1)


def _walk(root: str) -> tuple[list[_Found], int]:
    """All images under a root in the order of paths, and the number of folders without images."""
    inside, found, empty = os.path.realpath(root), [], 0
    for top in _names(root, root, inside):
        if top == LABELS:
            continue
        first = Path(root) / top
        if kind(first) != "a directory":
            raise data_error(str(first), kind(first), LAYOUT)
        before = len(found)
        for name in _names(root, str(first), inside):
            second = first / name
            if kind(second) != "a directory":
                found.append(_Found(_image_name(root, second), top, ""))
                continue
            for last in _names(root, str(second), inside):
                found.append(_Found(_image_name(root, second / last), top, name))
        empty += len(found) == before
    return found, empty


def _names(root: str, place: str, inside: str) -> list[str]:
    """The sorted names in a folder, without hidden ones; DataError for a link that leads out of the root."""
    try:
        with os.scandir(place) as entries:
            there = sorted((entry.name, entry.is_symlink()) for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise data_error(place, f"{error.strerror}", "a directory that can be read") from error
    for name, link in there:
        path = os.path.join(place, name)
        if link and os.path.commonpath((inside, os.path.realpath(path))) != inside:
            raise data_error(path, "a symbolic link that leads out of the folder", f"links that stay in {show(root)}")
    return [name for name, _ in there]


def _image_name(root: str, path: Path) -> str:
    found = kind(path)
    if found != "a file" or path.suffix.lower() not in SUFFIXES:
        raise data_error(str(path), found if found != "a file" else "a file that is no image", f"only {', '.join(SUFFIXES)} files", LAYOUT)
    return path.relative_to(root).as_posix()


def _table(root: str) -> list[dict[str, str]] | None:
    """The rows of labels.csv, or None if there is no such file."""
    place = Path(root) / LABELS
    if kind(place) == "nothing at this path":
        return None
    with open_file(place) as file:
        raw = file.read(MOST_FILE_BYTES + 1)
    try:
        text = raw.decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True)) if len(raw) <= MOST_FILE_BYTES else []
    except (UnicodeDecodeError, csv.Error) as error:
        raise data_error(str(place), f"text that is no table ({str(error)[:80]})", "comma-separated values in UTF-8") from error
    head = rows[0] if rows else []
    if head[:2] != ["file", "label"] or not set(head[2:]) <= {"domain", "split"} or len(set(head)) < len(head):
        raise data_error(str(place), f"the columns {show(','.join(head))}", "file,label and perhaps domain,split")
    table = []
    for line, row in enumerate(rows[1:], 2):
        if len(row) != len(head) or not row[0] or not row[1]:
            raise data_error(str(place), f"{show(','.join(row))} in row {line}", f"{len(head)} values: {','.join(head)}")
        table.append(dict(zip(head, row, strict=True)))
    return table


def _match(root: str, table: list[dict[str, str]], found: list[_Found]) -> list[dict[str, str]]:
    """The row of labels.csv for each image; DataError unless files and rows match one to one."""
    place, paths = str(Path(root) / LABELS), {one.path for one in found}
    known: dict[str, dict[str, str]] = {}
    for line, row in enumerate(table, 2):
        name = row["file"]
        if name in known:
            raise data_error(place, f"{show(name)} again in row {line}", "each file once")
        if name not in paths:
            raise data_error(place, f"{show(name)} in row {line}, which is not there", "files under the root, as client/file")
        known[name] = row
    missing = [one.path for one in found if one.path not in known]
    if missing:
        raise data_error(place, f"no row for {show(missing[0])}", "a row for each image", f"{len(missing)} such images")
    return [known[one.path] for one in found]
