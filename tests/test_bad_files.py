"""Every kind of bad file through `fedcodist data prepare`: one line that says what is wrong, and nothing is changed, run or left behind.

The number before a name is the row of the catalogue of bad inputs. A maker writes its files into an empty directory and gives the path for
`--from`; the words have to be in the line.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
import shutil
import sqlite3
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
from PIL import Image
from test_prepare import (  # home is a fixture
    as_examples,
    dealt,
    example,
    fedjax_sqlite,
    files_under,
    home,  # noqa: F401
    overflow,
    records,
    release,
    sentences,
    tar,
    text_store,
    tff_hdf5,
    tff_sqlite,
    write_rows,
)
from test_store import write

from fedcodist.cli import main
from fedcodist.data import store

SECONDS = 20


class Case(NamedTuple):
    dataset: str
    make: Callable[[Path], Any]
    says: tuple[str, ...]
    settings: tuple[str, ...] = ()


# -- makers of parts of files --


class Evil:
    """A pickle that makes a file when it is opened."""

    def __init__(self, place: Path):
        self.place = place

    def __reduce__(self) -> Any:
        return open, (str(self.place / "ran"), "w")


def file(name: str, data: bytes | Callable[[Path], bytes]) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        (place / name).write_bytes(data(place) if callable(data) else data)
        return place / name

    return make


def short(make: Callable[[Path], Path], keep: float | int = 0.5) -> Callable[[Path], Path]:
    """A file of which only a part has come; the number of bytes may be negative, from the end."""

    def cut(place: Path) -> Path:
        path = make(place)
        size = path.stat().st_size
        os.truncate(path, int(size * keep) if isinstance(keep, float) else keep % size)
        return path

    return cut


def changed(name: str, at: int, byte: int, train: int = 12) -> Callable[[Path], Path]:
    """CIFAR-100's binary release with one byte of one file changed."""

    def make(place: Path) -> Path:
        raw = bytearray((release(place, train, 6) / name).read_bytes())
        raw[at] = byte
        (place / name).write_bytes(raw)
        return place

    return make


def instead(name: str, data: bytes | Callable[[Path], bytes]) -> Callable[[Path], Path]:
    """CIFAR-100's binary release with something else in the place of a file."""

    def make(place: Path) -> Path:
        release(place, 12, 6)
        return file(name, data)(place).parent

    return make


def archive(place: Path) -> Path:
    return tar(place / "cifar.tar.gz", {"train.bin": records(12), "test.bin": records(6)})


def zipped(place: Path, **other: bytes) -> Path:
    with zipfile.ZipFile(place / "cifar.zip", "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in {"train.bin": records(12), "test.bin": records(6), **other}.items():
            target.writestr(name, data)
    return place / "cifar.zip"


def member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"") -> Callable[[Path], Path]:
    """An archive with one odd member before the good ones."""

    def make(place: Path) -> Path:
        with tarfile.open(place / "cifar.tar.gz", "w:gz") as target:
            odd = tarfile.TarInfo(name)
            odd.type, odd.linkname, odd.size = kind, "/etc/passwd", len(content)
            target.addfile(odd, io.BytesIO(content))
            for good, data in (("train.bin", records(12)), ("test.bin", records(6))):
                info = tarfile.TarInfo(good)
                info.size = len(data)
                target.addfile(info, io.BytesIO(data))
        return place / "cifar.tar.gz"

    return make


def python_release(place: Path, evil: bool = False) -> Path:
    table = {"data": np.zeros((3, 3072), np.uint8), "fine_labels": [0, 1, 2], "coarse_labels": [0, 0, 0]}
    for name in ("train", "test"):
        (place / name).write_bytes(pickle.dumps(Evil(place) if evil else table, 2))
    return place


def hdf5(place: Path, **other: Any) -> Path:
    """TFF's HDF5 files with one client whose columns are others."""
    splits = dealt()
    splits["train"]["b"] = {**splits["train"]["b"], **other}
    for split, clients in splits.items():
        tff_hdf5(
            place / f"fed_cifar100_{split}.h5", {c: {n: v for n, v in columns.items() if v is not None} for c, columns in clients.items()}
        )
    return place


def without_examples(place: Path) -> Path:
    for split in ("train", "test"):
        with h5py.File(place / f"fed_cifar100_{split}.h5", "w") as opened:
            opened["something"] = np.arange(3)
    return place


def hdf5_cut(place: Path) -> Path:
    os.truncate(hdf5(place) / "fed_cifar100_train.h5", 20_000)
    return place


def sqlite(extra: str = "", **splits: Any) -> Callable[[Path], Path]:
    """TFF's SQLite file of images, with something done to it."""

    def make(place: Path) -> Path:
        rows = {split: {client: as_examples(columns) for client, columns in clients.items()} for split, clients in dealt().items()}
        return tff_sqlite(place / "cifar100.sqlite", {**rows, **splits}, extra)

    return make


def beside(ending: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        path = sqlite()(place)
        Path(f"{path}{ending}").write_bytes(b"\x37\x7f\x06\x82" + bytes(60))
        return path

    return make


def other_schema(place: Path) -> Path:
    with sqlite3.connect(place / "cifar100.sqlite") as db:
        db.execute("CREATE TABLE pictures (name TEXT)")
    db.close()
    return place / "cifar100.sqlite"


def packed(place: Path) -> Path:
    plain = sqlite()(place)
    (place / "cifar100.sqlite.lzma").write_bytes(lzma.compress(plain.read_bytes(), lzma.FORMAT_ALONE))
    plain.unlink()
    return place / "cifar100.sqlite.lzma"


def fedjax(place: Path) -> Path:
    for split, clients in dealt().items():
        fedjax_sqlite(place / f"federated_cifar100_{split}.sqlite", clients)
    with sqlite3.connect(place / "federated_cifar100_train.sqlite") as db:
        db.execute("UPDATE federated_data SET data = ? WHERE client_id = ?", (zlib.compress(b"hello"), b"b"))
    db.close()
    return place


def npz(**other: Any) -> Callable[[Path], Path]:
    columns = {"x": np.ones((10, 3), np.float32), "y": np.arange(10) % 2, "client": np.arange(10) % 5}

    def make(place: Path) -> Path:
        np.savez(place / "own.npz", **{name: value for name, value in {**columns, **other}.items() if value is not None})
        return place / "own.npz"

    return make


def npz_bomb(place: Path) -> Path:
    np.savez_compressed(place / "own.npz", x=np.zeros((80 * 2**20, 1), np.uint8))
    return place / "own.npz"


def npy(data: bytes | Callable[[Path], bytes]) -> Callable[[Path], Path]:
    """A directory of .npy files with an odd x."""

    def make(place: Path) -> Path:
        np.save(place / "y.npy", np.arange(10) % 2)
        return file("x.npy", data)(place).parent

    return make


def saved(array: np.ndarray, shape: str | None = None) -> bytes:
    """An array as numpy saves it, perhaps with another shape of the same length in its header."""
    held = io.BytesIO()
    np.save(held, array, allow_pickle=True)
    raw = held.getvalue()
    return raw if shape is None else raw.replace(f"{array.shape}".ljust(len(shape)).encode(), shape.encode(), 1)


def tera(place: Path) -> bytes:
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.ljust(117).encode() + b"\n" + bytes(400)


def pictures(data: bytes | Callable[[], bytes], name: str = "b.png") -> Callable[[Path], Path]:
    """A folder of images with an odd one among them."""

    def make(place: Path) -> Path:
        (place / "anna" / "cat").mkdir(parents=True)
        (place / "anna" / "cat" / "a.png").write_bytes(png())
        (place / "anna" / "cat" / name).write_bytes(data() if callable(data) else data)
        return place

    return make


def png(height: int = 4, width: int = 4) -> bytes:
    held = io.BytesIO()
    Image.fromarray(np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)).save(held, "PNG")
    return held.getvalue()


def huge_png() -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def leads_out(place: Path) -> Path:
    pictures(png())(place)
    (place / "anna" / "cat" / "c.png").symlink_to("/etc/passwd")
    return place


def table(*rows: tuple[str, ...], name: str = "t.tsv", header: tuple[str, ...] = ("client", "tokens")) -> Callable[[Path], Path]:
    return lambda place: write_rows(place / name, list(rows), header)


def tsv(line: bytes) -> Callable[[Path], Path]:
    return file("t.tsv", b"client\ttokens\na\tgood words\n" + line + b"\nb\tmore words\n")


def jsonl(line: bytes) -> Callable[[Path], Path]:
    return file("t.jsonl", b'{"client": "a", "tokens": "good words"}\n' + line + b'\n{"client": "b", "tokens": "more"}\n')


def jsonl_bomb(place: Path) -> Path:
    row = json.dumps({"client": "a", "tokens": "x" * 900_000}).encode() + b"\n"
    with gzip.open(place / "t.jsonl.gz", "wb") as target:
        for _ in range(90):
            target.write(row)
    return place / "t.jsonl.gz"


def tar_bomb(place: Path) -> Path:
    return tar(place / "cifar.tar.gz", {"readme": bytes(80 * 2**20), "train.bin": records(12), "test.bin": records(6)})


def fifo_inside(name: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        os.mkfifo(place / name)
        return place

    return make


def stack(**splits: Any) -> Callable[[Path], Path]:
    given = {split: rows for split, rows in {**overflow(), **splits}.items() if rows is not None}
    return lambda place: tff_sqlite(place / "stackoverflow.sqlite", given)


MANY = b"client\ttokens\n" + b"".join(b"%d\tw%d\n" % (k, k * k) for k in range(9999))
PAGES = b"".join(b'{"text": "it is %d."}\n' % (k * k) for k in range(3999))
FEW = ("clients=2", "public_size=3", "held_out_size=3", "test_size=3")

BAD = {
    # CIFAR's own files
    "41 truncated .bin": Case(
        "cifar100",
        short(lambda p: release(p, 12, 6) / "train.bin", -10),
        ("train.bin: got a file that begins with", "a directory, a .tar, .tar.gz or .zip file"),
    ),
    "41 truncated .bin in its folder": Case(
        "cifar100", instead("train.bin", records(12)[:-10]), ("train.bin: got 36878 bytes", "whole records of 3074", "truncated?")
    ),
    "41 truncated .tar.gz": Case("cifar100", short(archive), ("cifar.tar.gz", "truncated or damaged")),
    "41 .tar.gz without its end": Case("cifar100", short(archive, -3000), ("cifar.tar.gz", "truncated or damaged")),
    "41 truncated .zip": Case("cifar100", short(zipped), ("cifar.zip", "truncated or damaged")),
    "41 an empty .bin": Case("cifar100", instead("test.bin", b""), ("test.bin: got an empty file", "records of 3074 bytes")),
    "41 a file is missing": Case(
        "cifar100", lambda p: (release(p, 12, 6), (p / "test.bin").unlink(), p)[2], ("no file test.bin", "all files of cifar-100-binary")
    ),
    "41 nothing of it": Case("cifar100", file("readme", b"hello"), ("begins with b'hello'",)),
    "42 another md5": Case(
        "cifar100", python_release, ("train: got digest ", "16019d7e3df5f24257cddd939b257f8d", "a pickle from elsewhere is not opened")
    ),
    "49 malicious pickle": Case("cifar100", lambda p: python_release(p, evil=True), ("train: got digest ", "not opened")),
    "49 pickle as .bin": Case(
        "cifar100", instead("train.bin", lambda p: pickle.dumps(Evil(p), 4)), ("train.bin: got a pickle", "records of 3074")
    ),
    "38 fine label": Case("cifar100", changed("train.bin", 3 * 3074 + 1, 100), ("train.bin: got label 100 in record 3; allowed 0 to 99",)),
    "38 coarse label": Case("cifar100", changed("test.bin", 5 * 3074, 20), ("test.bin: got label 20 in record 5; allowed 0 to 19",)),
    "51 ../ in a .tar.gz": Case("cifar100", member("../train.bin"), ("a member named '../train.bin'", "names inside the archive")),
    "51 an absolute name": Case("cifar100", member("/tmp/train.bin"), ("a member named '/tmp/train.bin'",)),
    "51 a symbolic link": Case("cifar100", member("train.bin", tarfile.SYMTYPE), ("train.bin: got a link, a device or a sparse file",)),
    "51 a hard link": Case("cifar100", member("train.bin", tarfile.LNKTYPE), ("train.bin: got a link",)),
    "51 two of a name": Case("cifar100", member("other/train.bin", content=records(12)), ("two members train.bin; allowed each once",)),
    "51 ../ in a .zip": Case("cifar100", lambda p: zipped(p, **{"../x": b""}), ("a member named '../x'",)),
    "51 .tar.gz bomb": Case("cifar100", tar_bomb, ("bytes packed into", "at most 200 times the packed size")),
    "52 a FIFO in the folder": Case("cifar100", fifo_inside("train.bin"), ("train.bin: got a FIFO",)),
    "41 CIFAR-10 for CIFAR-100": Case("cifar10", lambda p: release(p, 12, 6), ("no file data_batch_1.bin",)),
    # files with clients
    "41 truncated .lzma": Case("cifar100", short(packed), ("cifar100.sqlite.lzma", "truncated or damaged")),
    "41 .lzma that is not": Case("cifar100", file("cifar100.sqlite.lzma", b"hello"), ("cifar100.sqlite", "SQLite or HDF5 file")),
    "48 not SQLite": Case("cifar100", file("cifar100.sqlite", b"hello"), ("cifar100.sqlite: got a file that begins with b'hello'",)),
    "48 truncated SQLite": Case("cifar100", short(sqlite(), 0.9), ("cifar100.sqlite: got a file that SQLite cannot read",)),
    "48 a trigger": Case("cifar100", sqlite("CREATE TRIGGER t AFTER INSERT ON examples BEGIN SELECT 1; END"), ("trigger", "plain tables")),
    "48 a view": Case(
        "cifar100", sqlite("ALTER TABLE examples RENAME TO e; CREATE VIEW examples AS SELECT * FROM e"), ("view", "plain tables")
    ),
    "48 another schema": Case("cifar100", other_schema, ("no table examples",)),
    "48 a column is missing": Case(
        "cifar100",
        sqlite("ALTER TABLE client_metadata RENAME COLUMN num_examples TO n"),
        ("no plain column num_examples in table client_metadata",),
    ),
    "48 -wal left": Case("cifar100", beside("-wal"), ("an unfinished change beside it (cifar100.sqlite-wal)", "a closed database")),
    "48 -journal left": Case("cifar100", beside("-journal"), ("an unfinished change beside it",)),
    "26 a client twice": Case(
        "cifar100", sqlite("INSERT INTO client_metadata VALUES ('b', 'train', 5)"), ("client 'b' twice in train", "each once")
    ),
    "26 a newline in a client": Case(
        "cifar100",
        sqlite("UPDATE client_metadata SET client_id = 'b' || char(10) WHERE client_id = 'b'"),
        (r"the client id", r"\n", "printable characters"),
    ),
    "26 .. as a client": Case(
        "cifar100",
        sqlite("UPDATE client_metadata SET client_id = '..' WHERE client_id = 'b'"),
        ("the client id", "..", "printable characters without /"),
    ),
    "41 fewer examples than said": Case(
        "cifar100",
        sqlite("UPDATE client_metadata SET num_examples = 9 WHERE client_id = 'b'"),
        ("client b: got 5 whole examples", "9, as client_metadata says"),
    ),
    "41 a broken example": Case(
        "cifar100",
        sqlite("UPDATE examples SET serialized_example_proto = x'ffff' WHERE client_id = 'b'"),
        ("client b: example 0", "no tf.train.Example"),
    ),
    "31 no test split": Case(
        "cifar100", sqlite("DELETE FROM client_metadata WHERE split_name = 'test'"), ("no split test", "train and test")
    ),
    "48 not HDF5": Case("cifar100", file("fed_cifar100_train.h5", b"hello"), ("begins with b'hello'",)),
    "41 truncated HDF5": Case("cifar100", hdf5_cut, ("fed_cifar100_train.h5: got a file that HDF5 cannot read",)),
    "48 HDF5 of something else": Case("cifar100", without_examples, ("no group 'examples'",)),
    "35 images of another size": Case(
        "cifar100",
        lambda p: hdf5(p, image=np.zeros((5, 16, 16, 3), np.uint8)),
        ("client b: got images of uint8 [16, 16, 3]; allowed bytes [32, 32, 3]",),
    ),
    "35 flat images": Case(
        "cifar100", lambda p: hdf5(p, image=np.zeros((5, 3072), np.uint8)), ("client b: got images of shape [3072]; allowed [32, 32, 3]",)
    ),
    "38 label of a client": Case(
        "cifar100", lambda p: hdf5(p, label=np.array([1, 2, 3, 100, 4])), ("client b: got label 100 in row 3; allowed 0 to 99",)
    ),
    "38 negative label": Case(
        "cifar100", lambda p: hdf5(p, coarse_label=np.array([1, -2, 3, 4, 4])), ("client b: got coarse_label -2 in row 1; allowed 0 to 19",)
    ),
    "35 labels of another length": Case("cifar100", lambda p: hdf5(p, label=np.arange(4)), ("client b", "rows")),
    "35 no labels": Case("cifar100", lambda p: hdf5(p, label=None), ("client b: got no feature label",)),
    "41 broken FedJAX": Case("cifar100", fedjax, ("client b", "no message")),
    "31 Stack Overflow without test": Case("stackoverflow", stack(test=None), ("no split test",), FEW),
    "31 more clients than there are": Case("stackoverflow", stack(), ("99; allowed at most the 10 training clients",), ("clients=99",)),
    "41 Stack Overflow without tokens": Case(
        "stackoverflow", stack(train={str(k): [example(words=b"a b")] for k in range(5)}), ("no feature tokens", "found: words"), FEW
    ),
    "47 Stack Overflow of no words": Case(
        "stackoverflow", stack(train={str(k): [example(tokens=b" ")] for k in range(5)}), ("no ", "federated client"), FEW
    ),
    # one's own numbers and images
    "39 NaN": Case(
        "own",
        npz(x=np.where(np.arange(30).reshape(10, 3) == 7, np.nan, 1.0)),
        ("own.npz: x: got NaN or infinity in row 2", "finite", "1 such rows"),
    ),
    "39 infinity": Case(
        "own", npz(x=np.where(np.arange(30).reshape(10, 3) > 25, np.inf, 1.0)), ("NaN or infinity in row 8", "2 such rows")
    ),
    "35 shape of y": Case("own", npz(y=np.arange(5)), ("own.npz: y: got shape [5]; allowed [10]",)),
    "35 shape of x": Case("own", npz(x=np.ones(10)), ("own.npz: x: got shape [10]",)),
    "35 x of words": Case("own", npz(x=np.full((10, 2), "a")), ("own.npz: x: got dtype <U1; allowed numbers",)),
    "41 truncated .npz": Case("own", short(npz()), ("own.npz: got a file that is truncated or damaged",)),
    "49 pickle as .npz": Case("own", file("own.npz", lambda p: pickle.dumps(Evil(p))), ("own.npz: got a pickle",)),
    "49 pickle as .npy": Case("own", npy(lambda p: pickle.dumps(Evil(p))), ("x.npy: got a pickle; allowed a .npy file",)),
    "50 objects in a .npz": Case(
        "own", lambda p: npz(x=np.array([[Evil(p)]] * 10, object))(p), ("x: got Python objects", "which runs code")
    ),
    "50 objects in a .npy": Case("own", npy(lambda p: saved(np.array([Evil(p)], object))), ("x.npy: got Python objects",)),
    "50 .npz as .npy": Case("own", npy(lambda p: (npz()(p).read_bytes(), (p / "own.npz").unlink())[0]), ("x.npy: got a zip or .npz file",)),
    "50 a header of 3.6 TiB": Case("own", npy(tera), ("x.npy: got 528 bytes", "4000000000128 bytes, as its header says")),
    "41 truncated .npy": Case("own", npy(saved(np.ones((10, 3)))[:-7]), ("x.npy: got 361 bytes, truncated or damaged",)),
    "45 .npz bomb": Case("own", npz_bomb, ("bytes packed into", "at most 200 times")),
    "45 a huge PNG": Case("own", pictures(huge_png), ("b.png: got an image of", "at most 67108864 pixels")),
    "41 a truncated PNG": Case("own", pictures(png()[:50]), ("b.png: got an image that is truncated or damaged",)),
    "35 another size": Case("own", pictures(png(5, 4)), ("b.png: got an image of [5, 4, 3]; allowed [4, 4, 3]",)),
    "49 pickle as .png": Case("own", pictures(pickle.dumps(1)), ("b.png: got a pickle; allowed a PNG or JPEG image",)),
    "45 text among images": Case("own", pictures(b"hello", "notes.txt"), ("notes.txt: got a file that is no image",)),
    "51 a link out of the folder": Case("own", leads_out, ("c.png: got a symbolic link that leads out of the folder",)),
    "41 truncated Parquet of numbers": Case("own", short(table(("a", "b"), name="t.parquet")), ("t.parquet: got", "truncated or damaged")),
    "41 neither": Case("own", file("own.txt", b"hello"), ("own.txt: got a file that begins with b'hello'",)),
    # text
    "46 TSV that is no UTF-8": Case("text", tsv(b"b\tbad \xff\xfe"), ("t.tsv: line 3: got the bytes", r"\xff", "UTF-8", "errors = skip")),
    "46 TSV with NUL": Case("text", tsv(b"b\tbad \0 word"), ("t.tsv: line 3: got a NUL; allowed text",)),
    "46 TSV with a line of 2 MB": Case("text", tsv(b"b\t" + b"ab " * 700_000), ("t.tsv: line 3: got more than 1048576 bytes",)),
    "46 TSV with an empty line": Case("text", tsv(b""), ("t.tsv: line 3: got an empty line",)),
    "46 TSV with a missing field": Case("text", tsv(b"hello"), ("t.tsv: line 3: got 1 fields; allowed 2, as in the header",)),
    "46 JSONL that is no UTF-8": Case("text", jsonl(b'{"client": "b", "tokens": "\xff"}'), ("t.jsonl: line 2: got the bytes", "UTF-8")),
    "46 JSONL with NUL": Case("text", jsonl(rb'{"client": "b", "tokens": "a \u0000"}'), ("t.jsonl: line 2: got a NUL",)),
    "46 JSONL with half a character": Case(
        "text", jsonl(rb'{"client": "b", "tokens": "a \ud83d"}'), ("t.jsonl: line 2: got half of a surrogate pair",)
    ),
    "46 JSONL with a line of 2 MB": Case(
        "text", jsonl(b'{"client": "b", "tokens": "' + b"ab " * 700_000 + b'"}'), ("t.jsonl: line 2: got more than 1048576 bytes",)
    ),
    "46 JSONL that is no JSON": Case("text", jsonl(b"hello"), ("t.jsonl: line 2: got no JSON object",)),
    "46 JSONL very deep": Case("text", jsonl(b"[" * 100_000), ("t.jsonl: line 2: got no JSON object",)),
    "26 a newline in a name": Case(
        "text", jsonl(rb'{"client": "b\nc", "tokens": "a"}'), ("t.jsonl: line 2: got ", r"\n", "printable characters without /")
    ),
    "26 .. as a name": Case("text", tsv(b"..\ta b"), ("t.tsv: line 3: got '..' for 'client'; allowed 1 to 200 printable",)),
    "26 ../ in a name": Case("text", tsv(b"../../etc/x\ta b"), ("t.tsv: line 3: got '../../etc/x' for 'client'",)),
    "26 4 kB of a name": Case("text", tsv(b"n" * 4096 + b"\ta b"), ("t.tsv: line 3: got", "1 to 200 printable")),
    "26 no name": Case("text", tsv(b"\ta b"), ("t.tsv: line 3: got '' for 'client'",)),
    "28 all rows empty": Case("text", table(("a", ""), ("b", " "), ("c", "  ")), ("got no sentence; allowed at least one (3 no words)",)),
    "28 only a header": Case("text", table(), ("got no sentence",)),
    "28 an empty file": Case("text", file("t.tsv", b""), ("t.tsv: got an empty file; allowed a first line",)),
    "28 nobody to train": Case(
        "text", table(("a", "public", "x"), header=("client", "split", "tokens")), ("no word of a federated client",)
    ),
    "28 too few clients": Case(
        "text", table(("a", "x y"), ("b", "y z")), ("clients: got 2; allowed more than 1 public + 1 held_out + 1 test",)
    ),
    "28 no client with enough": Case(
        "text", table(*[(f"c{k}", f"x{k}") for k in range(9)]), ("federated client", "at least one"), ("min_examples=2",)
    ),
    "33 a sentence twice": Case(
        "text", table(*[(f"c{k}", "x y") for k in range(9)]), ("rows of public that are also in federated", "overlap"), ("overlap=error",)
    ),
    "35 no column for the client": Case(
        "text", table(("a", "x"), header=("user", "tokens")), ("t.tsv: got no column 'client' for the client", "user, tokens")
    ),
    "35 no words": Case("text", table(("a", "x"), header=("client", "body")), ("neither column 'tokens' nor 'text'", "client, body")),
    "35 a split of another name": Case(
        "text", table(("a", "dev", "x"), header=("client", "split", "tokens")), ("got 'dev' for split; allowed train",)
    ),
    "35 the wrong column for the domain": Case(
        "text",
        table(*[(f"c{k}", f"d{k}", "x") for k in range(300)], header=("client", "type", "tokens")),
        ("domain: got more than 255 different values",),
    ),
    "41 truncated .tsv.gz": Case("text", short(file("t.tsv.gz", gzip.compress(MANY))), ("t.tsv.gz", "truncated or damaged")),
    "41 truncated .tsv.xz": Case("text", short(file("t.tsv.xz", lzma.compress(MANY))), ("t.tsv.xz", "truncated or damaged")),
    "41 truncated Parquet": Case("text", short(table(("a", "x"), name="t.parquet")), ("t.parquet", "truncated or damaged")),
    "41 Parquet that is not": Case(
        "text", file("t.parquet", b"hello"), ("t.parquet: got a file that begins with b'hello'; allowed a Parquet file",)
    ),
    "49 pickle as .tsv": Case("text", file("t.tsv", lambda p: pickle.dumps(Evil(p))), ("t.tsv: got a pickle; allowed text",)),
    "49 SQLite as .jsonl": Case("text", file("t.jsonl", b"SQLite format 3\0" + bytes(100)), ("t.jsonl: got an SQLite file; allowed text",)),
    "45 .jsonl.gz bomb": Case("text", jsonl_bomb, ("t.jsonl.gz", "more bytes than it may hold", "at most 200 times")),
    "52 another ending": Case("text", file("t.doc", b"hello"), ("t.doc: got a name that ends with '.doc'",)),
    "52 files of two kinds": Case(
        "text", lambda p: (table(("a", "x"))(p), jsonl(b"")(p), p)[2], ("files of JSONL and TSV; allowed files of one kind",)
    ),
    "52 a FIFO in the directory": Case("text", fifo_inside("t.tsv"), ("t.tsv: got a FIFO",)),
    "37 a vocabulary that is none": Case("text", table(("a", "x")), ("words.txt: got nothing at this path",), ("vocabulary=words.txt",)),
    # C4
    "46 C4 that is no JSON": Case("c4", file("c4.json", b"hello\n"), ("c4.json: line 1: got no JSON object",), ("errors=fail",)),
    "46 C4 of no sentences": Case("c4", file("c4.json", b"hello\n"), ("got no sentence",)),
    "41 truncated C4": Case("c4", short(file("c4.json.gz", gzip.compress(PAGES))), ("c4.json.gz", "truncated or damaged")),
    "52 C4 as TSV": Case("c4", table(("a", "x")), ("t.tsv: got a TSV file; allowed C4's own .json.gz, or .jsonl files",)),
}


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    """A text store, for C4 to be prepared for."""
    place = tmp_path_factory.mktemp("words")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDCODIST_DATA", str(place / "data"))
        return text_store(place, "stackoverflow", sentences()).path


@pytest.fixture
def prepare(tmp_path, home, words, capsys):  # noqa: F811
    """A function that prepares from a path and checks all that has to hold whatever is wrong: the line of the error."""
    shutil.copytree(words, home / "stackoverflow")
    place = tmp_path / "files"
    place.mkdir()

    def prepare(dataset: str, source: Path | str, *settings: str) -> str:
        if dataset != "stackoverflow":
            write(home / dataset, x=np.arange(3))
        before, names = (files_under(place), files_under(home)), sorted(map(str, place.rglob("*")))
        started = time.monotonic()
        argv = ["data", "prepare", dataset, "--from", str(source), "--quiet"]
        code = main.main([*argv, *(part for given in settings for part in ("--set", given))])
        taken, said = time.monotonic() - started, capsys.readouterr()
        lines = said.err.splitlines()
        assert code == 3 and len(lines) == 1 and lines[0].startswith("error: ") and lines[0].isprintable(), (code, said.err)
        assert "; allowed " in lines[0] and said.out == "" and len(lines[0]) < 1500
        assert taken < SECONDS
        assert not (place / "ran").exists(), "a pickle was run"
        assert files_under(place) == before[0] and sorted(map(str, place.rglob("*"))) == names, "the source was touched"
        after = files_under(home)
        assert {path: after.get(path) for path in before[1]} == before[1], "an older store was touched"
        assert set(store.stores()) == {dataset, "stackoverflow"}
        assert all(f"/{dataset}.partial/" in path for path in set(after) - set(before[1])), "something was left behind"
        return lines[0]

    return prepare


@pytest.mark.timeout(SECONDS + 40)
@pytest.mark.parametrize("name", BAD)
def test_bad_files(prepare, tmp_path, name):
    case = BAD[name]
    source = case.make(tmp_path / "files")
    said = prepare(case.dataset, source, *case.settings)
    for word in case.says:
        assert word in said, said


@pytest.mark.parametrize("dataset", ["c4", "cifar10", "cifar100", "own", "stackoverflow", "text"])
@pytest.mark.parametrize("kind", ["missing", "fifo", "device", "broken link", "loop", "empty directory", "socket"])
def test_what_is_no_file(prepare, tmp_path, dataset, kind):  # row 52
    import socket

    path, says = tmp_path / "files" / "x.tsv", ""
    match kind:
        case "missing":
            says = "got nothing at this path; allowed a file or a directory"
        case "fifo":
            os.mkfifo(path)
            says = "got a FIFO; allowed a file or a directory"
        case "device":
            path, says = Path("/dev/zero"), "/dev/zero: got a device; allowed a file or a directory"
        case "broken link":
            path.symlink_to("nowhere")
            says = "got a broken symbolic link; allowed"
        case "loop":
            path.symlink_to(path)
            says = "got Too many levels of symbolic links; allowed"
        case "empty directory":
            path.mkdir()
            says = "x.tsv: got "
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening:
                here = os.getcwd()
                os.chdir(path.parent)  # a socket's path may not be long
                listening.bind(path.name)
                os.chdir(here)
            says = "got a socket; allowed a file or a directory"
    assert says in prepare(dataset, path)


USELESS = {
    "31 nothing": (lambda p: p, "no column x"),
    "35 no x": (npz(x=None), "no column x"),
    "35 no y": (npz(y=None), "no column y"),
    "38 negative label": (npz(y=np.arange(10) - 3), "y: got -3 in row 0"),
    "38 label that is no whole number": (npz(y=np.arange(10) / 2), "y: got 0.5 in row 1"),
    "26 a newline in a client": (npz(client=np.array(["a", "b\n"] * 5)), "client: got"),
    "35 a split of another name": (npz(split=np.full(10, "dev")), "split: got 'dev' in row 0"),
}


@pytest.mark.parametrize("name", USELESS)
def test_own_columns_that_no_task_can_use(prepare, tmp_path, name):
    make, says = USELESS[name]
    assert says in prepare("own", make(tmp_path / "files"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("dataset", ["own", "text"])
def test_no_permission(prepare, tmp_path, dataset):
    path = tmp_path / "files" / "x.tsv"
    path.write_text("client\ttokens\n")
    path.chmod(0)
    assert "Permission denied" in prepare(dataset, path)


def test_a_preparation_that_failed_goes_on_when_the_file_is_mended(prepare, tmp_path, home):  # noqa: F811
    rows = [(client, tokens) for client, _, tokens in sentences()]
    path = table(*rows, ("user99", ""), ("", "bad"))(tmp_path / "files")
    prepare("text", path)
    write_rows(path, rows, ("client", "tokens"))
    assert main.main(["data", "prepare", "text", "--from", str(path), "--quiet"]) == 0
    made = store.open_store("text")
    assert made.facts["examples"] == {"federated": 40, "public": 10, "held_out": 5, "test": 5} and store.verify(made) == []
    assert sorted(path.name for path in home.iterdir()) == ["stackoverflow", "text"]
