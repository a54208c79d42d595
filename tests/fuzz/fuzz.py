"""A mutation fuzzer for whatever reads a file: damaged files give a DataError, quickly and in little memory, or it is a finding.

`python tests/fuzz/fuzz.py --seconds 60 [TARGET ...]`. Each target runs in a process of its own, so that a crash or a hang of a C library
is a finding too; what caused it is kept. To add a reader, add a line to TARGETS: how to make a valid file, and how to read it.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import resource
import shutil
import sqlite3
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fedcodist.data import store, vocabulary
from fedcodist.errors import DataError
from fedcodist.readers import arrays, c4, cifar, columns, fedjax, files, folders, rows, tff, unpickle

SLOW, MOST_GROWTH = 5.0, 300 * 2**20  # seconds and bytes for one file
ODD = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1]


class Target(NamedTuple):
    """A reader: `make` puts a valid file or directory into an empty directory and says where, `run` reads it wholly."""

    make: Callable[[Path], Path]
    run: Callable[[Path], Any]


class Finding(NamedTuple):
    """What went wrong, and the file that did it."""

    target: str
    what: str
    saved: Path | None


def mutate(data: bytes, draw: random.Random) -> bytes:
    """The bytes with a few changes of the kinds that break readers: flipped, cut, doubled, moved, and lengths that lie."""
    for _ in range(draw.choice([1, 1, 1, 2, 4, 16])):
        if not data:
            return draw.randbytes(draw.randrange(64))
        at = draw.randrange(len(data)) if draw.random() < 0.5 else draw.randrange(min(len(data), 512))  # headers more often
        size = min(len(data) - at, draw.choice([1, 2, 4, 8, 16, 512, 4096]))
        match draw.randrange(7):
            case 0:
                data = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
            case 1:
                data = data[: draw.choice([at, len(data) - size])]
            case 2:
                data = data[: at + size] + data[at : at + size] * draw.choice([1, 1, 7]) + data[at + size :]
            case 3:
                other = draw.randrange(len(data))
                data = data[:at] + data[other : other + size] + data[at + size :]
            case 4:
                width = draw.choice([1, 2, 4, 8])
                number = (draw.choice([*ODD, len(data), len(data) + 1, draw.getrandbits(64)])) % 2 ** (8 * width)
                data = data[:at] + number.to_bytes(width, draw.choice(["little", "big"])) + data[at + width :]
            case 5:
                data = data[:at] + draw.randbytes(size) + data[at + size :]
            case 6:
                data = data[:at] + data[at + size :]
    return data


def peak() -> int:
    """The most memory that this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run(name: str, seconds: float, seed: int, folder: Path) -> tuple[int, list[Finding]]:
    """(number of files tried, findings) of one target in this process. `folder` is for its files; `case` in it is the one at work."""
    target, draw, findings = TARGETS[name], random.Random(seed), []
    seeds, case = folder / "seed", folder / "case"
    seeds.mkdir(parents=True, exist_ok=True)
    valid = target.make(seeds)
    target.run(valid)  # what is valid is read without an error, or everything after it would mean nothing
    place = case / valid.relative_to(seeds)
    parts = sorted(p for p in ([valid] if valid.is_file() else valid.rglob("*")) if p.is_file())
    originals = {part: part.read_bytes() for part in parts}
    end, tried, before = time.monotonic() + seconds, 0, peak()
    while time.monotonic() < end:
        shutil.rmtree(case, ignore_errors=True)
        chosen = draw.choice(parts)
        for part in parts:
            (case / part.relative_to(seeds)).parent.mkdir(parents=True, exist_ok=True)
            (case / part.relative_to(seeds)).write_bytes(mutate(originals[part], draw) if part == chosen else originals[part])
        start, what = time.monotonic(), ""
        try:
            target.run(place)
        except DataError as error:
            what = f"a message of {len(str(error).splitlines())} lines: {error}" if len(str(error).splitlines()) != 1 else ""
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
        tried += 1
        took, grown = time.monotonic() - start, peak() - before
        if took > SLOW:
            what = what or f"{took:.1f} s"
        if grown > MOST_GROWTH:
            what, before = what or f"{grown / 2**20:.0f} MB", peak()
        if what:
            findings.append(keep(name, what, case, folder, len(findings)))
    return tried, findings


def keep(name: str, what: str, case: Path, folder: Path, number: int) -> Finding:
    saved = folder / f"found-{name}-{number}"
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(case, saved)
    return Finding(name, what, saved)


def watch(name: str, seconds: float, seed: int, folder: Path) -> tuple[int, list[Finding]]:
    """As `run`, in processes of their own: one that crashes or hangs is a finding, and the next goes on."""
    end, tried, findings = time.monotonic() + seconds, 0, []
    while (left := end - time.monotonic()) > 0:
        inside = folder / f"{name}-{seed}"
        inside.mkdir(parents=True, exist_ok=True)
        told = inside / "told.txt"
        told.unlink(missing_ok=True)
        shutil.rmtree(inside / "case", ignore_errors=True)
        command = [sys.executable, __file__, "--inside", str(inside), "--seconds", str(left), "--seed", str(seed), name]
        child = subprocess.Popen(command, stdout=told.open("w"))
        hung = False
        while child.poll() is None:
            time.sleep(0.2)
            with contextlib.suppress(FileNotFoundError):  # between two files
                hung = time.time() - (inside / "case").stat().st_mtime > 4 * SLOW
            if hung:
                child.kill()
                child.wait()
        lines = told.read_text("utf-8", "replace").splitlines()
        if child.returncode or hung:
            findings.append(keep(name, "a hang" if hung else f"the process died with {child.returncode}", inside / "case", inside, 999))
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "tried":
                tried += int(rest)
            elif word == "found":
                findings.append(Finding(name, rest, inside))
        seed += 1
    return tried, findings


def _drain(sources: dict[str, Any]) -> None:
    for source in sources.values():
        with source:
            for client in list(source.clients())[:20]:
                source.read(client)


def _drain_lists(path: Path, wanted: dict[str, int | None]) -> None:
    for _, stream in files.members(path, wanted):
        while stream.read(2**16):
            pass


def _records(rows: int, *labels: int) -> bytes:
    return b"".join(bytes(labels) + bytes((i + j) % 256 for j in range(3072)) for i in range(rows))


def make_cifar(folder: Path) -> Path:
    (folder / "train.bin").write_bytes(_records(2, 3, 70))
    (folder / "test.bin").write_bytes(_records(1, 3, 70))
    return folder


def make_archive(folder: Path, name: str) -> Path:
    parts = {"train.bin": _records(2, 3, 70), "notes.txt": b"hello", "test.bin": _records(1, 3, 70)}
    path = folder / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for part, data in parts.items():
                archive.writestr(f"cifar-100-binary/{part}", data)
        return path
    with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as archive:
        for part, data in parts.items():
            info = tarfile.TarInfo(f"cifar-100-binary/{part}")
            info.size, info.mtime = len(data), 1.5  # a time that needs an extended header
            archive.addfile(info, io.BytesIO(data))
    return path


def make_pickle(folder: Path) -> Path:
    """As the publisher's: Python 2, protocol 2."""
    pixels = bytes(i % 251 for i in range(2 * 3072))
    data = (
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
        b"(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", len(pixels))
        + pixels
        + b"tbU\x0bfine_labelsq\x08]q\x09(K\x05K\x63eU\x0dcoarse_labelsq\x0a]q\x0b(K\x05K\x13eu."
    )
    for name in ("train", "test"):
        (folder / name).write_bytes(data)
    return folder


def read_pickled(path: Path) -> None:
    cifar.read_cifar100(path, {name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in ("train", "test")})


def make_protocol_0(folder: Path) -> Path:
    path = folder / "labels"
    path.write_bytes(b"(dp0\nS'labels'\np1\n(lp2\nI1\naI2\naL3L\naF1.5\nasVtext\np3\n(I01\nNg1\ntp4\nsS'again'\ng2\ns.")
    return path


def make_tff(folder: Path) -> Path:
    path = folder / "small.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        """PRAGMA page_size = 1024;
        CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL);
        CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id);
        CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);
        CREATE INDEX idx_metadata_client_id ON client_metadata (client_id);"""
    )
    for split in ("train", "heldout", "test"):
        for client in range(3):
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, 2)", [f"c{client}", split])
            for i in range(2):
                connection.execute("INSERT INTO examples VALUES (?, ?, ?)", [split, f"c{client}", make_example(i)])
    connection.commit()
    connection.close()
    return path


def make_example(i: int) -> bytes:
    example = tff._example()()
    example.features.feature["tokens"].bytes.value.append(b"how do i read this " * 5)
    example.features.feature["score"].ints.value.append(i - 1)
    example.features.feature["image"].ints.value.extend((i + j) % 256 for j in range(3072))
    example.features.feature["weights"].floats.value.extend([0.5, i])
    return example.SerializeToString(deterministic=True)


def make_hdf5(folder: Path) -> Path:
    import h5py

    path = folder / "small_train.h5"
    with h5py.File(path, "w") as file:
        for client in ("a", "b"):
            group = file.create_group(f"examples/{client}")
            group.create_dataset("image", data=np.arange(2 * 32 * 32 * 3, dtype=np.uint8).reshape(2, 32, 32, 3), compression="gzip")
            group.create_dataset("label", data=np.array([3, 4]))
            group.create_dataset("tokens", data=np.array([b"how do i", b"read this"], dtype=object), dtype=h5py.string_dtype())
    return path


def pack(columns: dict[str, Any]) -> bytes:
    """A client's examples as FedJAX writes them."""
    import msgpack

    def one(x: Any) -> msgpack.ExtType:
        if isinstance(x, list):
            return msgpack.ExtType(4, msgpack.packb(((len(x),), x)))
        return msgpack.ExtType(1, msgpack.packb((x.shape, x.dtype.name, x.tobytes())))

    return msgpack.packb({name: one(x) for name, x in columns.items()})


def make_fedjax(folder: Path) -> Path:
    path = folder / "small_train.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY, data BLOB NOT NULL, num_examples INTEGER NOT NULL)"
    )
    for client in (b"a", b"b"):
        data = pack({"image": np.arange(2 * 48, dtype=np.uint8).reshape(2, 4, 4, 3), "label": np.arange(2), "tokens": [b"how", b"do i"]})
        connection.execute("INSERT INTO federated_data VALUES (?, ?, 2)", [client, zlib.compress(data)])
    connection.commit()
    connection.close()
    return path


def make_packed(folder: Path) -> Path:
    path = folder / "client.msgpack"
    path.write_bytes(pack({"x": np.arange(6, dtype=np.float32).reshape(2, 3), "label": np.arange(2), "tokens": [b"how", b"do i"]}))
    return path


def write(name: str, data: bytes) -> Callable[[Path], Path]:
    """A `make` for a file with these bytes."""

    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return make


def make_columns(folder: Path, npz: bool) -> Path:
    columns = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "y": np.array([0, 1, 0, 1]), "client": np.array(["a", "a", "b", "b"])}
    if npz:
        np.savez_compressed(folder / "own.npz", **columns)
        return folder / "own.npz"
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column)
    return folder


def read_unpacked(path: Path) -> None:
    with files.unpacked(path) as stream:
        while stream.read(2**16):
            pass


WANTED: dict[str, int | None] = {"train.bin": None, "test.bin": None}
TEXT = b"how do i read this file\n" * 200


def own_table() -> Any:
    """Two images, a list of numbers, labels and names: the columns that somebody's own table may have."""
    import pyarrow as pa

    picture = [{"bytes": make_png(i), "path": None} for i in range(6)]
    made = {"x": [[i, i + 1.5] for i in range(6)], "img": picture, "y": list(range(6)), "client": list("aabbcc"), "split": ["train"] * 6}
    return pa.table(made)


def make_png(level: int) -> bytes:
    from PIL import Image

    held = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), level, np.uint8)).save(held, "PNG")
    return held.getvalue()


def make_parquet(folder: Path) -> Path:
    import pyarrow.parquet as pq

    pq.write_table(own_table(), folder / "a.parquet")
    return folder / "a.parquet"


def make_saved(folder: Path) -> Path:
    import pyarrow as pa

    table = own_table()
    with pa.OSFile(str(folder / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    return folder


def make_pictures(folder: Path) -> Path:
    for client in "ab":
        (folder / client).mkdir()
        (folder / client / "0.png").write_bytes(make_png(ord(client)))
    (folder / "labels.csv").write_text("file,label\na/0.png,cat\nb/0.png,dog\n")
    return folder


def text_rows() -> list[dict[str, str]]:
    said = ["how do i sort a list ?", "use sorted ( ) .", "naïve “quotes” and 日本"]
    return [{"client": f"c{k % 2}", "type": "question", "date": "2018", "split": "train", "tokens": words} for k, words in enumerate(said)]


def make_rows(folder: Path, form: str) -> Path:
    rows, path = text_rows(), folder / f"a.{form}"
    if form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        between = "\t" if form == "tsv" else ","
        path.write_text("".join(between.join(line) + "\n" for line in [list(rows[0]), *(row.values() for row in rows)]), "utf-8")
    return path


def read_text_rows(path: Path) -> None:
    for errors in ("replace", "skip", "fail"):
        list(rows.read_rows(path, errors=errors))


def make_c4(folder: Path) -> Path:
    texts = ["It rains. Anna doesn't go out.", "Dr. Who arrived at 5 p.m. yesterday. He left."]
    packed = "".join(json.dumps({"text": text, "timestamp": "2019", "url": "u"}) + "\n" for text in texts).encode()
    (folder / "a.json.gz").write_bytes(gzip.compress(packed))
    return folder / "a.json.gz"


def make_store(folder: Path) -> Path:
    with store.Writer(folder / "made", {}) as writer:
        writer.append("x", np.arange(12, dtype=np.int32).reshape(3, 4))
        writer.write_text("names", ["a", "b"])
        writer.finish(kind="own", options={"seed": 0})
    return folder / "made"


def read_store(path: Path) -> None:
    found = store.open_store(path)
    store.verify(found)
    for name, column in found.columns.items():
        _ = found.text(name) if column["dtype"] == "text" else found[name].sum()


PIECES = json.dumps({"kind": vocabulary.PIECES, "pieces": ["##ing", "rain"]}).encode()
OWN = {"x", "img", "y", "client", "split"}
TARGETS: dict[str, Target] = {
    "tar": Target(lambda folder: make_archive(folder, "a.tar"), lambda path: _drain_lists(path, WANTED)),
    "tar.gz": Target(lambda folder: make_archive(folder, "a.tar.gz"), lambda path: _drain_lists(path, WANTED)),
    "zip": Target(lambda folder: make_archive(folder, "a.zip"), lambda path: _drain_lists(path, WANTED)),
    "gz": Target(write("a.gz", gzip.compress(TEXT)), read_unpacked),
    "xz": Target(write("a.xz", lzma.compress(TEXT)), read_unpacked),
    "lzma": Target(write("a.lzma", lzma.compress(TEXT, lzma.FORMAT_ALONE)), read_unpacked),
    "cifar-binary": Target(make_cifar, cifar.read_cifar100),
    "cifar-archive": Target(lambda folder: make_archive(folder, "a.tar.gz"), cifar.read_cifar100),
    "cifar-python": Target(make_pickle, read_pickled),
    "pickle": Target(make_protocol_0, lambda path: unpickle.read(path.name, path.read_bytes())),
    "tff-sqlite": Target(make_tff, lambda path: _drain(tff.open_tff(path))),
    "tff-example": Target(lambda folder: write("example", make_example(1))(folder), lambda path: tff.parse("example", [path.read_bytes()])),
    "tff-hdf5": Target(make_hdf5, lambda path: _drain(tff.open_tff(path))),
    "fedjax": Target(make_fedjax, lambda path: _drain(fedjax.open_fedjax(path))),
    "fedjax-client": Target(make_packed, lambda path: fedjax.unpack("client", zlib.compress(path.read_bytes()), 2)),
    "npz": Target(lambda folder: make_columns(folder, True), lambda path: arrays.read(str(path))),
    "npy": Target(lambda folder: make_columns(folder, False), lambda path: arrays.read(str(path))),
    "parquet": Target(make_parquet, lambda path: columns.read(str(path), OWN)),
    "saved": Target(make_saved, lambda path: columns.read(str(path), OWN)),
    "pictures": Target(make_pictures, lambda path: folders.read(str(path))),
    **{f"rows-{form}": Target(partial(make_rows, form=form), read_text_rows) for form in ("tsv", "csv", "jsonl", "parquet")},
    "c4": Target(make_c4, lambda path: list(c4.read_c4(path, "skip"))),
    "vocabulary": Target(write("a.txt", "the\ncat\nnaïve\n".encode()), vocabulary.open_vocabulary),
    "pieces": Target(write("a.json", PIECES), vocabulary.open_vocabulary),
    "store": Target(make_store, read_store),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all if none is named")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to keep what was found; a new temporary directory if not given")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if options.inside:
        tried, findings = run(options.targets[0], options.seconds, options.seed, options.inside)
        for finding in findings:
            print("found", ascii(f"{finding.what} in {finding.saved}"))
        print("tried", tried)
        return 0
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
    total = 0
    for name in options.targets or TARGETS:
        tried, findings = watch(name, options.seconds, options.seed, folder)
        print(f"{name}: {tried} files, {len(findings)} findings", flush=True)
        for finding in findings[:20]:
            print(f"  {finding.what} ({finding.saved})", flush=True)
        total += len(findings)
    print(f"kept in {folder}" if total else "nothing found")
    if not total:
        shutil.rmtree(folder, ignore_errors=True)
    return int(total > 0)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
