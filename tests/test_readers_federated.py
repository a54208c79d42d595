"""The federated files of TensorFlow Federated and of FedJAX, made small here: who is in them, what each has, and every way to be wrong."""

import hashlib
import lzma
import os
import signal
import sqlite3
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from fedcodist.errors import DataError
from fedcodist.readers import fedjax, sqlite, tff
from fedcodist.storage.durable import StorageError

sys.path.insert(0, str(Path(__file__).parent / "fuzz"))
import fuzz

pytest.importorskip("google.protobuf")
h5py = pytest.importorskip("h5py")
msgpack = pytest.importorskip("msgpack")

EXAMPLES = "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL);"
METADATA = "CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);"
INDEX = "CREATE INDEX idx ON examples (split_name, client_id);"
FEDERATED = "CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY, data BLOB NOT NULL, num_examples INTEGER NOT NULL);"


def varint(n):
    n %= 2**64
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(**features):
    """A serialized tf.train.Example by the rules of the wire format, without any library."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = field(1, field(1, value))
        elif isinstance(value[0], float):
            feature = field(2, field(1, np.array(value, "<f4").tobytes()))
        else:
            feature = field(3, field(1, b"".join(map(varint, value))))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def database(path, script, *rows):
    connection = sqlite3.connect(path)
    connection.executescript(script)
    for table, *values in rows:
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
    connection.commit()
    connection.close()
    return path


def posts(*clients, script=EXAMPLES + INDEX + METADATA, split="train"):
    """Rows of client_metadata and examples: each client's posts in an order that is not theirs alone."""
    meta = [("client_metadata", client, split, len(texts)) for client, texts in clients]
    rows = [("examples", split, c, example(tokens=text, score=[-i])) for c, texts in clients for i, text in enumerate(texts)]
    return [*meta, *rows[::2], *rows[1::2]]


@pytest.mark.parametrize("index", [INDEX, "", "CREATE INDEX i ON examples (client_id);"])
def test_tff_sqlite_lists_clients_and_reads_each(tmp_path, index):
    rows = [
        *posts(("b", [b"one", b"two\0"]), ("a", [b"three"])),
        *posts(("a", [b"four"]), split="test"),
        *posts(("c", []), split="heldout"),
    ]
    path = database(tmp_path / "s.sqlite", EXAMPLES + index + METADATA, *rows)
    before = path.read_bytes(), sorted(os.listdir(tmp_path))
    sources = tff.open_tff(tmp_path)
    assert {split: source.clients() for split, source in sources.items()} == {
        "train": {"a": 1, "b": 2},
        "held_out": {"c": 0},
        "test": {"a": 1},
    }
    assert list(sources["train"].clients()) == ["a", "b"]
    found = sources["train"].read("b")
    assert found["tokens"] == [b"one", b"two\0"] and np.asarray(found["score"]).tolist() == [0, -1]
    assert sources["test"].read("a")["tokens"] == [b"four"] and sources["held_out"].read("c") == {}
    with pytest.raises(DataError, match="client c: got nothing; allowed a client of train"):
        sources["train"].read("c")
    sources["test"].close()
    assert sources["train"].read("a")["tokens"] == [b"three"]
    for source in sources.values():
        source.close()
        source.close()
    assert (path.read_bytes(), sorted(os.listdir(tmp_path))) == before


def test_tff_images_are_pixels(tmp_path):
    image = [(3 * i) % 256 for i in range(3072)]
    rows = [("client_metadata", "0", "train", 2)]
    rows += [("examples", "train", "0", example(image=image[k:] + image[:k], label=[99 - k], coarse_label=[k])) for k in range(2)]
    with tff.open_tff(database(tmp_path / "cifar100.sqlite", EXAMPLES + INDEX + METADATA, *rows), quick_check=True)["train"] as source:
        found = source.read("0")
    assert isinstance(found["image"], np.ndarray) and found["image"].shape == (2, 32, 32, 3) and found["image"].dtype == np.uint8
    assert found["image"][0, 1, 2, 1] == image[1 * 96 + 2 * 3 + 1] and found["image"][1, 0, 0, 0] == image[1]
    assert isinstance(found["label"], np.ndarray) and found["label"].dtype == np.int64 and found["label"].tolist() == [99, 98]


def test_floats_and_lists_keep_their_form():
    found = tff.parse("it", [example(weights=[0.5, 1.5], ids=[1, 2, -(2**63)]), example(weights=[2.5, 0.0], ids=[4, 5, 2**63 - 1])])
    assert np.asarray(found["weights"]).tolist() == [[0.5, 1.5], [2.5, 0.0]] and found["weights"].dtype == np.float32
    assert np.asarray(found["ids"])[:, 2].tolist() == [-(2**63), 2**63 - 1]


BAD_EXAMPLES = {
    "noise": ([b"\xff\xff\xff"], "example 0: got 3 bytes that are no tf.train.Example"),
    "cut": ([example(a=[1]), example(a=[1])[:-1]], "example 1: .* no tf.train.Example"),
    "other features": ([example(a=[1]), example(b=[1])], r"example 1: got features that differ in \['a', 'b'\]"),
    "other length": ([example(a=[1, 2]), example(a=[1])], "example 1: got 1 ints of 'a'; allowed 2 ints"),
    "other type": ([example(a=[1]), example(a=b"x")], "example 1: got 1 bytes of 'a'; allowed 1 ints"),
    "nothing": ([field(1, field(1, field(1, b"a") + field(2, b"")))], "got 0 values of 'a'"),
    "two strings": ([field(1, field(1, field(1, b"a") + field(2, field(1, field(1, b"x") * 2))))], "got 2 bytes of 'a'"),
    "dark pixels": ([example(image=[-1] + [0] * 3071)], "image: got -1 to 0; allowed 0 to 255"),
}


@pytest.mark.parametrize("name", BAD_EXAMPLES)
def test_bad_examples(name):
    blobs, said = BAD_EXAMPLES[name]
    with pytest.raises(DataError, match=said):
        tff.parse("it", blobs)


GOOD = posts(("a", [b"x"]))
META = ("client_metadata", "a", "train", 1)
POST = ("examples", "train", "a", example(tokens=b"x"))
BAD_TFF = {
    "view": (EXAMPLES + METADATA + "CREATE VIEW v AS SELECT 1;", GOOD, "'view' 'v'"),
    "view for a table": (
        EXAMPLES + "CREATE VIEW client_metadata AS SELECT client_id, split_name, 1 AS num_examples FROM examples;",
        [POST],
        "view",
    ),
    "trigger": (EXAMPLES + METADATA + "CREATE TRIGGER t INSERT ON examples BEGIN SELECT 1; END;", GOOD, "'trigger' 't'"),
    "virtual table": (EXAMPLES + METADATA + "CREATE VIRTUAL TABLE f USING fts5(x);", GOOD, "virtual table"),
    "no table": (EXAMPLES, [POST], "no table client_metadata; .*found: 'examples'"),
    "nothing": ("", [], "got an empty file; allowed an SQLite"),
    "other columns": (
        EXAMPLES + "CREATE TABLE client_metadata (client_id TEXT, n INTEGER);",
        [POST],
        "no plain column split_name, num_examples",
    ),
    "computed column": (
        EXAMPLES + "CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER AS (abs(-9)));",
        [POST],
        "no plain column num_examples",
    ),
    "no clients": (EXAMPLES + METADATA, [], "no clients"),
    "other split": (EXAMPLES + METADATA, [("client_metadata", "a", "validation", 1)], "the split b'validation'"),
    "both held out": (EXAMPLES + METADATA, [("client_metadata", "a", s, 1) for s in ("heldout", "held_out")], "each once"),
    "twice": (EXAMPLES + METADATA, [META, META, POST], "client 'a' twice in train"),
    "negative": (EXAMPLES + METADATA, [("client_metadata", "a", "train", -1)], "client a: got -1 examples"),
    "no number": (EXAMPLES + METADATA, [("client_metadata", "a", "train", "many")], "client a: got b'many' examples"),
    "fewer": (
        EXAMPLES + METADATA,
        [("client_metadata", "a", "train", 2), POST],
        "got 1 whole examples .*; allowed 2, as client_metadata says",
    ),
    "more": (EXAMPLES + METADATA, [META, POST, POST], "got 1 whole examples and what follows; allowed 1"),
    "text": (EXAMPLES + METADATA, [META, ("examples", "train", "a", 7)], "got 0 whole examples"),
    "newline": (EXAMPLES + METADATA, [("client_metadata", "a\nb", "train", 1)], "the client id"),
    "slash": (EXAMPLES + METADATA, [("client_metadata", "../x", "train", 1)], "printable characters without /"),
    "long": (EXAMPLES + METADATA, [("client_metadata", "x" * 4096, "train", 1)], "1 to 200 printable"),
    "empty id": (EXAMPLES + METADATA, [("client_metadata", "", "train", 1)], "the client id"),
    "no UTF-8": (EXAMPLES + METADATA, [("client_metadata", b"\xff", "train", 1)], "allowed UTF-8"),
}


def drain(sources):
    for source in sources.values():
        with source:
            for client in source.clients():
                source.read(client)


@pytest.mark.parametrize("name", BAD_TFF)
def test_bad_tff_databases(tmp_path, name):
    script, rows, said = BAD_TFF[name]
    path = database(tmp_path / "s.sqlite", script, *rows)
    with pytest.raises(DataError, match=said) as error:
        drain(tff.open_tff(path))
    assert len(str(error.value).splitlines()) == 1 and "s.sqlite" in str(error.value)


@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_an_unfinished_change_beside_it_is_named(tmp_path, ending):
    path = database(tmp_path / "s.sqlite", EXAMPLES + METADATA, *GOOD)
    (tmp_path / f"s.sqlite{ending}").write_bytes(b"")
    drain(tff.open_tff(path))
    (tmp_path / f"s.sqlite{ending}").write_bytes(b"x")
    with pytest.raises(DataError, match=f"an unfinished change beside it .s.sqlite{ending}.; allowed a closed database"):
        tff.open_tff(path)


def test_names_with_odd_characters_are_quoted(tmp_path):
    folder = tmp_path / "a?mode=rwc&x#y%41 'z"
    folder.mkdir()
    drain(tff.open_tff(database(folder / "s.sqlite", EXAMPLES + METADATA, *GOOD)))
    assert os.listdir(folder) == ["s.sqlite"]


def test_only_questions_about_the_named_columns_are_answered(tmp_path):
    path = database(tmp_path / "s.sqlite", EXAMPLES + METADATA + "CREATE TABLE secret (x);", *GOOD)
    with sqlite.Database(path, {"client_metadata": ("client_id",)}) as found:
        assert list(found.rows("SELECT client_id FROM client_metadata")) == [(b"a",)]
        for question in (
            "SELECT x FROM secret",
            "SELECT num_examples FROM client_metadata",
            "SELECT abs(1)",
            "DELETE FROM client_metadata",
            "ATTACH 'x' AS y",
            "PRAGMA query_only=OFF",
        ):
            with pytest.raises(DataError, match="SQLite cannot read"):
                list(found.rows(question))


def test_a_question_without_an_end_is_stopped(tmp_path, monkeypatch):
    path = database(tmp_path / "s.sqlite", EXAMPLES + METADATA, *[("client_metadata", f"c{i}", "train", 1) for i in range(5000)])
    monkeypatch.setattr(sqlite, "STEPS", -(10**9))
    monkeypatch.setattr(sqlite, "CHECK_EVERY", 1000)
    with pytest.raises(DataError, match="a question without an end"):
        tff.open_tff(path)["train"].clients()


def test_quick_check_finds_what_lists_do_not_touch(tmp_path):
    path = database(tmp_path / "s.sqlite", EXAMPLES + INDEX + METADATA, *posts(*[(f"c{i}", [b"x" * 300] * 5) for i in range(40)]))
    data = bytearray(path.read_bytes())
    data[-4096:] = bytes(4096)
    path.write_bytes(data)
    with tff.open_tff(path)["train"] as source:
        assert len(source.clients()) == 40
    with pytest.raises(DataError, match="damaged database|SQLite cannot read"):
        tff.open_tff(path, quick_check=True)


def test_a_database_that_is_cut_off(tmp_path):
    path = database(tmp_path / "s.sqlite", EXAMPLES + INDEX + METADATA, *posts(*[(f"c{i}", [b"x" * 300] * 5) for i in range(40)]))
    path.write_bytes(path.read_bytes()[:8192])
    with pytest.raises(DataError, match="s.sqlite"):
        drain(tff.open_tff(path))


def hdf5(path, clients):
    with h5py.File(path, "w") as file:
        file.create_group("examples")
        for client, features in clients.items():
            group = file.create_group(f"examples/{client}")
            for name, values in features.items():
                if isinstance(values, list):
                    group.create_dataset(name, data=np.array(values, object), dtype=h5py.string_dtype())
                else:
                    group.create_dataset(name, data=values)
    return path


def test_hdf5_lists_clients_and_reads_each(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    for split in ("train", "test"):
        one = {"image": images, "label": np.array([1, 2, 3]), "tokens": [b"a b", b"", "\u00e9".encode()]}
        hdf5(tmp_path / f"fed_cifar100_{split}.h5", {"b": one, "a": {"label": np.array([7], ">i4")}})
    before = {p: hashlib.sha256(p.read_bytes()).digest() for p in tmp_path.iterdir()}
    sources = tff.open_tff(tmp_path)
    assert list(sources) == ["train", "test"]
    with sources["train"] as source, sources["test"]:
        assert source.clients() == {"a": 1, "b": 3} and list(source.clients()) == ["a", "b"]
        found = source.read("b")
        assert np.array_equal(np.asarray(found["image"]), images) and found["tokens"] == [b"a b", b"", "\u00e9".encode()]
        assert np.asarray(source.read("a")["label"]).tolist() == [7]
        for client, said in (("c", "no group 'c'"), ("../b", "the client id"), ("b/label", "the client id")):
            with pytest.raises(DataError, match=said):
                source.read(client)
        assert found == {**found} and len(source.read("b")) == 3  # an error does not end it
    with pytest.raises(DataError, match="closed"):
        source.read("a")
    assert {p: hashlib.sha256(p.read_bytes()).digest() for p in tmp_path.iterdir()} == before


def external_link(file):
    file["examples/a/x"] = h5py.ExternalLink("/etc/passwd", "/")


def soft_link(file):
    file["examples/b"] = h5py.SoftLink("/examples/a")


def external_data(file):
    file["examples/a"].create_dataset("x", (1,), "u1", external=[("/etc/passwd", 0, 1)])


def virtual(file):
    layout = h5py.VirtualLayout((1,), "u1")
    layout[:] = h5py.VirtualSource("other.h5", "x", (1,))
    file["examples/a"].create_virtual_dataset("x", layout)


def huge(file):
    file["examples/a"].create_dataset("x", (2**40,), "f8", chunks=(2**10,))


def huge_chunk(file):
    file["examples/a"].create_dataset("x", (1,), "f8", maxshape=(None,), chunks=(2**23 + 1,), compression=1, data=[1.0])


def objects(file):
    file["examples/a"].create_dataset("x", data=np.array([file["examples"].ref], h5py.ref_dtype), dtype=h5py.ref_dtype)


def other_length(file):
    file["examples/a/x"] = np.arange(2)


def one_value(file):
    file["examples/a/x"] = 5


def group(file):
    file.create_group("examples/a/x")


def data_for_client(file):
    file["examples/b"] = np.arange(2)


def no_examples(file):
    del file["examples"]


BAD_HDF5 = {
    external_link: "a link b'x'",
    soft_link: "a link b'b'",
    external_data: "data in another file",
    virtual: "data in another file",
    huge: "(1099511627776,) of float64 in 0 bytes",
    huge_chunk: "(1,) of float64",
    objects: "object .1,.; allowed numbers",
    other_length: "features of .* rows; allowed as many of each",
    one_value: "numbers .n, ....",
    group: "b'x' that is a group",
    data_for_client: "b'b' that is a dataset",
    no_examples: "no group 'examples'",
}


@pytest.mark.parametrize("spoil", BAD_HDF5, ids=lambda spoil: spoil.__name__)
def test_bad_hdf5_files(tmp_path, spoil):
    path = hdf5(tmp_path / "s_train.h5", {"a": {"label": np.array([1])}})
    with h5py.File(path, "a") as file:
        spoil(file)
    with pytest.raises(DataError, match=BAD_HDF5[spoil].replace("(", r"\(").replace(")", r"\)")):
        drain(tff.open_tff(path))


def test_a_crash_of_the_child_is_a_data_error(tmp_path):
    source = tff.open_tff(hdf5(tmp_path / "s_train.h5", {"a": {"label": np.array([1])}}))["train"]
    os.kill(source.child.pid, signal.SIGSEGV)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="crashed, or found no end"):
        source.clients()
    source.close()


@pytest.mark.parametrize(
    "names, said",
    [
        ([], "0 .sqlite files and no .h5 file"),
        (["a.sqlite", "b.sqlite"], "2 .sqlite files"),
        (["a_train.h5", "b_train.h5"], "a_train.h5 and b_train.h5, both train"),
    ],
)
def test_which_files_of_a_folder(tmp_path, names, said):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=said):
        tff.open_tff(tmp_path)


def test_a_file_of_another_kind_is_named(tmp_path):
    (tmp_path / "s.sqlite.lzma").write_bytes(lzma.compress(b"x", lzma.FORMAT_ALONE))
    (tmp_path / "s_train.sqlite").write_bytes(b"\x80\x02}.")
    with pytest.raises(DataError, match="s.sqlite.lzma: .*unpack it first"):
        tff.open_tff(tmp_path / "s.sqlite.lzma")
    for read in (tff.open_tff, fedjax.open_fedjax):
        with pytest.raises(DataError, match="got a pickle; allowed an SQLite"):
            read(tmp_path / "s_train.sqlite")
    with pytest.raises(DataError, match="a name without a split"):
        tff.open_tff(hdf5(tmp_path / "latest.h5", {}))


def test_decompress_makes_a_whole_file_once(tmp_path):
    path = database(tmp_path / "s.sqlite", EXAMPLES + METADATA, *GOOD)
    packed, target = tmp_path / "s.sqlite.lzma", tmp_path / "out"
    packed.write_bytes(lzma.compress(path.read_bytes(), lzma.FORMAT_ALONE))
    target.mkdir()
    (target / "s.sqlite.partial").write_bytes(b"left by one that was killed" * 10**4)
    before, told = packed.read_bytes(), []
    found = tff.decompress(packed, target, told.append)
    assert found.read_bytes() == path.read_bytes() and os.listdir(target) == ["s.sqlite"] and told[-1] == path.stat().st_size
    assert packed.read_bytes() == before
    written = found.stat().st_mtime_ns
    assert tff.decompress(packed, target) == found and found.stat().st_mtime_ns == written
    drain(tff.open_tff(found))


def test_decompress_leaves_nothing_that_looks_whole(tmp_path, monkeypatch):
    packed, target = tmp_path / "s.sqlite.lzma", tmp_path / "out"
    target.mkdir()
    packed.write_bytes(lzma.compress(os.urandom(10**5), lzma.FORMAT_ALONE)[:-5000])
    with pytest.raises(DataError, match="truncated or damaged"):
        tff.decompress(packed, target)
    assert os.listdir(target) == []
    packed.write_bytes(lzma.compress(os.urandom(10**5), lzma.FORMAT_ALONE))
    with pytest.raises(DataError, match="No such file"):
        tff.decompress(packed, tmp_path / "nowhere")
    with pytest.raises(DataError, match="allowed a .lzma, .xz or .gz file"):
        tff.decompress(tmp_path / "s.sqlite", target)
    (target / "s.sqlite.partial").symlink_to(packed)  # following it would destroy the source
    with pytest.raises(DataError, match="s.sqlite.partial"):
        tff.decompress(packed, target)
    assert packed.stat().st_size > 10**5
    (target / "s.sqlite.partial").unlink()
    held = tff._take(target / "s.sqlite.partial")
    with pytest.raises(DataError, match="no other process"):
        tff.decompress(packed, target)
    os.close(held)
    monkeypatch.setattr(tff, "MARGIN", 2**80)
    with pytest.raises(StorageError, match="a full disk"):
        tff.decompress(packed, target)


def client(**columns):
    return zlib.compress(fuzz.pack(columns))


def test_fedjax_lists_clients_and_reads_each(tmp_path):
    images = np.arange(2 * 48, dtype=np.uint8).reshape(2, 4, 4, 3)
    for split in ("train", "held_out"):
        rows = [
            ("federated_data", b"b", client(image=images, label=np.array([5, -6]), tokens=[b"x", b"y\0"]), 2),
            ("federated_data", "a", client(label=np.array([0.5], np.float32), yes=np.array([True])), 1),
        ]
        database(tmp_path / f"stackoverflow_{split}.sqlite", FEDERATED, *rows)
    sources = fedjax.open_fedjax(tmp_path)
    assert list(sources) == ["train", "held_out"]
    with sources["train"] as source, sources["held_out"]:
        assert source.clients() == {"a": 1, "b": 2} and list(source.clients()) == ["a", "b"]
        found = source.read("b")
        assert np.array_equal(np.asarray(found["image"]), images) and found["tokens"] == [b"x", b"y\0"]
        assert np.asarray(found["label"]).tolist() == [5, -6] and np.asarray(source.read("a")["label"]).tolist() == [0.5]
        with pytest.raises(DataError, match="client c: got nothing"):
            source.read("c")


def ext(code, *content):
    return zlib.compress(msgpack.packb({"x": msgpack.ExtType(code, msgpack.packb(content))}))


BAD_CLIENTS = {
    "noise": (b"noise", "5 bytes that zlib cannot unpack"),
    "cut": (client(x=np.arange(2))[:-3], "more or fewer bytes"),
    "more": (client(x=np.arange(2)) + b"x", "more or fewer bytes"),
    "number for data": (7, "got a value of type int; allowed packed bytes"),
    "bomb": (zlib.compress(bytes(70 * 2**20)), "more than .* bytes packed into"),
    "no message": (zlib.compress(b"\xc1"), "1 bytes that are no message"),
    "two messages": (zlib.compress(b"\x80\x80"), "no message .ExtraData"),
    "list": (zlib.compress(b"\x90"), "got a value of type list; allowed a table"),
    "list of claims": (zlib.compress(b"\xdd\xff\xff\xff\xff"), "no message"),
    "deep": (zlib.compress(b"\x81\xa1x" * 5000), "no message"),
    "number": (zlib.compress(msgpack.packb({"x": 5})), "'x': got a value of type int; allowed an array"),
    "number as a name": (zlib.compress(msgpack.packb({5: 5})), "no message"),
    "scalar": (ext(3, (), "int64", bytes(8)), "extension 3"),
    "complex": (ext(2, 1.0, 2.0), "extension 2"),
    "rows": (client(x=np.arange(3)), "'x': got 3 rows; allowed 2, as num_examples says"),
    "no axis": (ext(1, (), "int64", bytes(8)), "shape .. *; allowed at least one axis"),
    "short": (ext(1, (2,), "int64", bytes(15)), "got 15 bytes; allowed 8 . .2. bytes"),
    "huge": (ext(1, (2**39, 2**39), "int64", bytes(16)), "got 16 bytes"),
    "negative": (ext(1, (-2, -1), "int64", bytes(16)), "shape"),
    "object": (ext(1, (2,), "object", bytes(16)), "dtype b'object'"),
    "structure": (ext(1, (2,), "i4,i4", bytes(16)), "dtype b'i4,i4'"),
    "truth": (ext(1, (2,), "bool", b"\1\2"), "neither 0 nor 1"),
    "strings": (ext(4, (3,), [b"a", b"b"]), "2 values for .3."),
    "no strings": (ext(4, (2,), [b"a", 5]), "one string for each"),
    "other": (ext(1, "x"), "another message"),
}


@pytest.mark.parametrize("name", BAD_CLIENTS)
def test_bad_fedjax_clients(tmp_path, name):
    data, said = BAD_CLIENTS[name]
    path = database(tmp_path / "s_train.sqlite", FEDERATED, ("federated_data", b"a", data, 2))
    with pytest.raises(DataError, match=said) as error:
        drain(fedjax.open_fedjax(path))
    assert "s_train.sqlite: client a" in str(error.value)


def test_bad_fedjax_files(tmp_path):
    with pytest.raises(DataError, match="no .sqlite file named after its split"):
        fedjax.open_fedjax(tmp_path)
    good = database(tmp_path / "latest.sqlite", FEDERATED)
    with pytest.raises(DataError, match="a name without a split"):
        fedjax.open_fedjax(good)
    with pytest.raises(DataError, match="no table federated_data; .*found: 'examples, client_metadata'"):
        fedjax.open_fedjax(database(tmp_path / "tff_train.sqlite", EXAMPLES + METADATA))
    rows = [("federated_data", client, b"", 1) for client in ("a", b"a")]
    with pytest.raises(DataError, match="client 'a' twice"):
        fedjax.open_fedjax(database(tmp_path / "twice_test.sqlite", FEDERATED, *rows))["test"].clients()
