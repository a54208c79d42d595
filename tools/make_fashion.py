"""Make fedcodist/tasks/fashion.npz, the small Fashion-MNIST that comes with the package, from the four original IDX files.

The first 500 training and 100 test images of each class, in the order of the files, without exact duplicates (the original has some, and
a copy of a test image among the clients would be a leak). The same files give the same bytes: Debian's dataset-fashion-mnist has them.

    python tools/make_fashion.py <directory with *-ubyte.gz> [output.npz]
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

CLASSES, TRAIN, TEST = 10, 500, 100  # images of each class
OUTPUT = Path(__file__).parent.parent / "fedcodist" / "tasks" / "fashion.npz"


def idx(path: Path) -> np.ndarray:
    """An IDX file of bytes: two zeros, type 8, the number of axes, their lengths in big-endian, the bytes."""
    raw = gzip.decompress(path.read_bytes())
    axes = raw[3]
    shape = np.frombuffer(raw, ">i4", axes, 4)
    if raw[:3] != b"\0\0\x08" or len(raw) != 4 + 4 * axes + shape.prod():
        raise SystemExit(f"{path.name}: got something else; allowed a whole IDX file of bytes")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def first(x: np.ndarray, y: np.ndarray, each: int, seen: set[bytes]) -> np.ndarray:
    """The first rows of each class whose image was not seen before, in the order of the file."""
    rows, left = [], [each] * CLASSES
    for row, label in enumerate(y):
        image = x[row].tobytes()
        if left[label] and image not in seen:
            seen.add(image)
            left[label] -= 1
            rows.append(row)
    return np.array(rows)


def main(source: Path, output: Path) -> None:
    """Read, choose, write."""
    seen: set[bytes] = set()
    arrays = {}
    for name, prefix, each in (("train", "train", TRAIN), ("test", "t10k", TEST)):
        x, y = idx(source / f"{prefix}-images-idx3-ubyte.gz"), idx(source / f"{prefix}-labels-idx1-ubyte.gz")
        rows = first(x, y, each, seen)
        arrays |= {f"{name}_x": x[rows], f"{name}_y": y[rows]}
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(output, **arrays)  # its members carry the date 1980-01-01, so the bytes do not change from day to day


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else OUTPUT)
