"""CIFAR's own files, in both releases; and pickles, of which nothing but data comes out."""

import hashlib
import io
import pickle
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedcodist.errors import DataError
from fedcodist.readers import cifar, unpickle

sys.path.insert(0, str(Path(__file__).parent / "fuzz"))
import fuzz

BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


def pixels(rows, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, 3072), np.uint8)


def hundred(rows, seed=0):
    """(records, images, coarse, fine) of CIFAR-100's binary release."""
    planes, draw = pixels(rows, seed), np.random.default_rng(seed + 1)
    coarse, fine = draw.integers(0, 20, rows, np.uint8), draw.integers(0, 100, rows, np.uint8)
    return np.column_stack([coarse, fine, planes]).tobytes(), planes, coarse, fine


def by_hand(planes, row, y, x):
    """The colour of one pixel, from where the publisher says that it is."""
    return [int(planes[row, channel * 1024 + y * 32 + x]) for channel in range(3)]


def archive(path, parts):
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
            for name, data in parts.items():
                target.writestr(name, data)
        return path
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as target:
        for name, data in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            target.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def folder(tmp_path):
    for name, rows in (("train.bin", 7), ("test.bin", 3)):
        (tmp_path / name).write_bytes(hundred(rows)[0])
    return tmp_path


@pytest.mark.parametrize("form", ["itself", "inside", "a.tar", "a.tar.gz", "a.zip"])
def test_cifar100_is_the_same_from_every_form(tmp_path, form):
    parts = {f"cifar-100-binary/{name}.bin": hundred(rows)[0] for name, rows in (("test", 3), ("train", 7))}
    if form in ("itself", "inside"):
        for name, data in parts.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
        path = tmp_path if form == "inside" else tmp_path / "cifar-100-binary"
    else:
        path = archive(tmp_path / form, parts)
    found = cifar.read_cifar100(path)
    assert list(found) == ["train", "test"]
    for split, rows in (("train", 7), ("test", 3)):
        _, planes, coarse, fine = hundred(rows)
        x, y, coarser = found[split]
        assert x.shape == (rows, 32, 32, 3) and x.dtype == np.uint8 and y.dtype == np.uint8 and x.flags.c_contiguous
        assert y.tolist() == fine.tolist() and coarser is not None and coarser.tolist() == coarse.tolist()
        for row, i, j in ((0, 0, 0), (rows - 1, 31, 5), (1, 2, 30)):
            assert x[row, i, j].tolist() == by_hand(planes, row, i, j)
    said = cifar.sources(path)
    assert {s["name"]: s["published"] for s in said if s["name"].endswith(".bin")} == {"train.bin": False, "test.bin": False}
    assert said[-1]["sha256"] in {hashlib.sha256(data).hexdigest() for data in parts.values()}
    assert len(said) == (3 if form.startswith("a.") else 2)


def test_cifar10_joins_its_batches_in_order(tmp_path):
    # The archive has them in another order.
    parts = {}
    for number, name in enumerate(["test_batch", *BATCHES[::-1]]):
        parts[f"cifar-10-batches-bin/{name}.bin"] = np.column_stack([np.full(2, number, np.uint8), pixels(2, number)]).tobytes()
    found = cifar.read_cifar10(archive(tmp_path / "a.tar.gz", parts))
    assert found["train"].y.tolist() == [5, 5, 4, 4, 3, 3, 2, 2, 1, 1] and found["test"].y.tolist() == [0, 0]
    assert found["train"].coarse is None
    assert found["train"].x[2, 3, 4].tolist() == by_hand(pixels(2, 4), 0, 3, 4)


def change(name, data):
    return lambda folder: (folder / name).write_bytes(data)


GOOD = hundred(2)[0]
BAD_BINARY = {
    "truncated": (change("train.bin", GOOD[:-1]), "train.bin: got 6147 bytes; allowed whole records of 3074, such as 3074 or 6148"),
    "short": (change("train.bin", GOOD[:100]), "got 100 bytes; allowed whole records of 3074, such as 3074"),
    "empty": (change("test.bin", b""), "test.bin: got an empty file; allowed records of 3074 bytes"),
    "fine label": (change("test.bin", GOOD[:3074] + b"\x13\x64" + bytes(3072)), "test.bin: got label 100 in record 1; allowed 0 to 99"),
    "coarse label": (change("test.bin", b"\x14\x00" + bytes(3072)), "test.bin: got label 20 in record 0; allowed 0 to 19"),
    "pickle": (change("train.bin", pickle.dumps({"data": 1}, 2)), "train.bin: got a pickle; allowed records"),
    "gzip": (change("train.bin", b"\x1f\x8b" + bytes(3072)), "train.bin: got a gzip file"),
    "missing": (lambda folder: (folder / "test.bin").unlink(), "got no file test.bin; allowed all files of cifar-100-binary"),
    "none": (lambda folder: [p.unlink() for p in folder.iterdir()], "got no file train.bin, test.bin; .*cifar-100-binary or .*python"),
}


@pytest.mark.parametrize("name", BAD_BINARY)
def test_bad_binary_files(folder, name):
    spoil, said = BAD_BINARY[name]
    spoil(folder)
    with pytest.raises(DataError, match=said):
        cifar.read_cifar100(folder)


def test_counts_and_digests_are_checked_when_they_are_given(folder):
    sha256 = hashlib.sha256((folder / "train.bin").read_bytes()).hexdigest()
    cifar.read_cifar100(folder, {"train.bin": sha256.upper()}, {"train": 7, "test": 3})
    with pytest.raises(DataError, match="train: got 7 images; allowed 50000"):
        cifar.read_cifar100(folder, records={"train": 50_000})
    with pytest.raises(DataError, match=f"test.bin: got digest .*; allowed digest {sha256}"):
        cifar.read_cifar100(folder, {"test.bin": sha256})
    with pytest.raises(DataError, match="the digest of test.bin: got 'abc'; allowed an md5 or a sha256"):
        cifar.read_cifar100(folder, {"test.bin": "abc"})


def test_a_file_that_is_larger_than_any_cifar(folder, monkeypatch):
    monkeypatch.setattr(cifar, "MOST_BYTES", 1000)
    with pytest.raises(DataError, match="more than 1000 bytes"):
        cifar.read_cifar100(folder)


def python_release(folder, table, protocol=2):
    """The files, and the digests that make them acceptable."""
    data = table if isinstance(table, bytes) else pickle.dumps(table, protocol)
    for name in ("train", "test"):
        (folder / name).write_bytes(data)
    return dict.fromkeys(("train", "test"), hashlib.md5(data).hexdigest())


TABLE = {"data": pixels(2), "fine_labels": [5, 99], "coarse_labels": [0, 19], "filenames": ["a.png", "b.png"], "batch_label": "x"}


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("keys", ["text", "bytes"])
def test_the_python_release_gives_the_same(tmp_path, protocol, keys):
    table = TABLE if keys == "text" else {key.encode(): value for key, value in TABLE.items()}
    digests = python_release(tmp_path, table, protocol)
    found = cifar.read_cifar100(tmp_path, digests)
    assert found["test"].y.tolist() == [5, 99] and found["test"].coarse is not None and found["test"].coarse.tolist() == [0, 19]
    assert found["train"].x[1, 4, 7].tolist() == by_hand(pixels(2), 1, 4, 7)


def test_the_publishers_own_form_of_pickle(tmp_path):
    # Protocol 2 of Python 2: strings are bytes, and the pixels are one string.
    path = fuzz.make_pickle(tmp_path)
    data = (path / "train").read_bytes()
    digests = dict.fromkeys(("train", "test"), hashlib.sha256(data).hexdigest())
    archived = archive(tmp_path / "a.tar.gz", {f"cifar-100-python/{name}": data for name in ("meta", "test", "train")})
    for place in (path, archived):
        found = cifar.read_cifar100(place, digests)
        assert found["train"].y.tolist() == [5, 99]
        assert found["train"].x[1, 0, 1].tolist() == [(3072 + channel * 1024 + 1) % 251 for channel in range(3)]


def test_a_pickle_from_elsewhere_is_not_even_looked_into(tmp_path, monkeypatch):
    python_release(tmp_path, TABLE)
    monkeypatch.setattr(unpickle, "read", lambda *_: pytest.fail("it was"))
    with pytest.raises(DataError, match="train: got digest .*; allowed digest 16019d7e.*not opened"):
        cifar.read_cifar100(tmp_path)


BAD_TABLES = {
    "list": ([1], "got a list; allowed a table"),
    "no data": ({**TABLE, "data": None}, "data: got 'NoneType'; allowed uint8"),
    "other shape": ({**TABLE, "data": pixels(2)[:, :-1]}, "data: got uint8 .2, 3071."),
    "numbers": ({**TABLE, "data": np.zeros((2, 3072), np.int64)}, "data: got int64"),
    "few labels": ({**TABLE, "fine_labels": [1]}, "fine_labels: got 'list'; allowed a list of 2"),
    "label": ({**TABLE, "fine_labels": [1, 100]}, "fine_labels: got label 100 in record 1; allowed 0 to 99"),
    "negative": ({**TABLE, "coarse_labels": [-1, 1]}, "label -1 in record 0; allowed 0 to 19"),
    "text label": ({**TABLE, "fine_labels": [1, "2"]}, "allowed a list of 2 whole numbers"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_python_files(tmp_path, name):
    table, said = BAD_TABLES[name]
    with pytest.raises(DataError, match=said):
        cifar.read_cifar100(tmp_path, python_release(tmp_path, table))


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, -2, 2**40, -(2**80), 1.5, True, False, None], b"b": (b"x\0\xff", "\u00e9\u4e2d", (), (1,), (1, 2, 3, 4))},
        [[], {}, "x" * 300, b"y" * 70_000][:3],
        "alone",
    ],
)
def test_plain_data_comes_back(protocol, value):
    assert unpickle.read("it", pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("order", "CF")
def test_arrays_come_back(protocol, order):
    arrays = [np.arange(6, dtype=np.int64).reshape(2, 3, order=order), np.arange(200, dtype=np.uint8).reshape(100, 2)]
    found = unpickle.read("it", pickle.dumps([*arrays, arrays[0]], protocol))
    assert found[2] is found[0]  # one array, twice
    for array, copy in zip(arrays, found):
        assert type(copy) is np.ndarray and copy.dtype == array.dtype and copy.tolist() == array.tolist()


class Evil:
    def __init__(self, *made):
        self.made = made

    def __reduce__(self):
        return self.made


ran = []


def run(*_):
    ran.append(1)


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
EVIL = {
    "call": (pickle.dumps(Evil(run, ())), "the name .*run"),
    "protocol 0": (b"cos\nsystem\n(S'touch /tmp/x'\ntR.", "the name os.system at byte 0"),
    "stack global": (pickle.dumps(Evil(print, (1,)), 4), "the name builtins.print"),
    "eval": (b"c__builtin__\neval\n(S'1'\ntR.", "the name __builtin__.eval"),
    "inst": (b"(S'x'\nios\nsystem\n.", "opcode INST"),
    "obj": (b"(cnumpy\nndarray\no.", "opcode OBJ"),
    "newobj": (b"\x80\x02cnumpy\nndarray\n)\x81.", "opcode NEWOBJ"),
    "persistent": (b"Pid\n.", "opcode PERSID"),
    "extension": (b"\x80\x02\x82\x01.", "opcode EXT1"),
    "protocol 5": (b"\x80\x05N.", "protocol 5"),
    "a dotted name": (b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.", "the name numpy.dtype.__init__"),
    "call of an array": (b"cnumpy\nndarray\n(I0\ntR.", "opcode REDUCE"),
    "encode with another codec": (b"c_codecs\nencode\n(Vx\nS'zip'\ntR.", "opcode REDUCE"),
    "call of data": (b"S'x'\n(tR.", "opcode REDUCE"),
    "build on data": (b"}(db.", "opcode BUILD"),
    "build on a name": (b"cnumpy\ndtype\n(db.", "opcode BUILD"),
    "dtype of objects": (b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.", "an array of 'O8'"),
    "only a name": (b"cnumpy\ndtype\n.", "something unfinished .name."),
    "a name in a list": (b"(lcnumpy\ndtype\na.", "something unfinished .name."),
    "an array that was never filled": (RECONSTRUCT + b".", "something unfinished .array."),
    "an array of another length": (
        RECONSTRUCT + b"(I1\n(I9\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntRI00\nS'abc'\ntb.",
        "an array of 3 bytes at byte .*; allowed 1 . .9. bytes",
    ),
    "an array of a negative length": (RECONSTRUCT + b"(I1\n(I-1\nI-3\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntRI00\nS'abc'\ntb.", "an array of 3"),
    "a string longer than the file": (b"\x80\x02T\xff\xff\xff\x7fabc.", "a string of 2147483647 bytes at byte 2; allowed at most the 4"),
    "bytes longer than the file": (b"\x80\x04\x8e" + b"\xff" * 8 + b"abc.", "a string of 18446744073709551615 bytes"),
    "a long string": (pickle.dumps(b"y" * 70_000, 3), "a string of 70000 bytes; allowed at most 65536"),
    "a long number": (b"I" + b"9" * 10_000 + b"\n.", "opcode INT at byte 0 without what it needs"),
    "a place far away": (b"Np99999999999\n.", "place 99999999999 of the memory"),
    "a place that is empty": (b"g7\n.", "opcode GET"),
    "deep lists": (b"]" * 40 + b"a" * 39 + b".", "more than 32 levels"),
    "deep tuples": (b"\x80\x02)" + b"\x85" * 100_000 + b".", "more than 32 levels"),
    "a tuple as a key": (b"\x80\x02})" + b"\x85" * 100_000 + b"Ns.", "a key of type tuple"),
    "numbers as keys": (pickle.dumps({1: 2}), "a key of type int"),
    "odd items": (b"(I1\nd.", "opcode DICT"),
    "no mark": (b"\x80\x02]e.", "opcode APPENDS"),
    "append to a dict": (b"}Na.", "opcode APPEND"),
    "too little": (b".", "opcode STOP"),
    "too much": (b"NN.", "opcode STOP"),
    "no end": (b"\x80\x02N", "no end of the pickle in 3 bytes"),
    "no opcode": (b"\xff.", "which is no opcode"),
    "empty": (b"", "no end"),
}


@pytest.mark.parametrize("name", EVIL)
def test_evil_pickles_are_refused_and_nothing_runs(name):
    data, said = EVIL[name]
    with pytest.raises(DataError, match=said) as error:
        unpickle.read("it", data)
    assert not ran and len(str(error.value).splitlines()) == 1


def test_a_list_that_holds_itself_ends():
    loop: list = []
    loop.append(loop)
    found = unpickle.read("it", pickle.dumps(loop))
    assert found[0] is found


def test_the_content_of_an_array_is_not_copied():
    data = pickle.dumps([np.zeros(10**6, np.uint8)], 3)
    (array,) = unpickle.read("it", data)
    assert np.shares_memory(array, np.frombuffer(data, np.uint8)) and not array.flags.writeable
