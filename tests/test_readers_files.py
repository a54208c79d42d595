"""Opening what a user names: every odd kind of path and every hostile archive is one line, at once, and nothing is written."""

import gzip
import hashlib
import io
import lzma
import os
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from fedcodist.errors import DataError
from fedcodist.readers import files

sys.path.insert(0, str(Path(__file__).parent / "fuzz"))
import fuzz

WANTED = {"a.bin": 4, "b.bin": None}


def read_all(path, wanted=WANTED):
    return {name: stream.read() for name, stream in files.members(path, wanted)}


def tar(path, *parts, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, data, *change in parts:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in dict(*change).items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data))
    return path


def pack(path, *parts):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts:
            archive.writestr(name, data)
    return path


def snapshot(folder):
    return {
        p: (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns, p.stat().st_mode) for p in folder.rglob("*") if p.is_file()
    }


@pytest.mark.parametrize("kind", ["folder", "a.tar", "a.tar.gz", "a.zip"])
def test_members_are_the_same_from_a_folder_and_every_archive(tmp_path, kind):
    parts = [("top/b.bin", b"second"), ("top/other.txt", b"not asked for"), ("top/a.bin", b"four")]
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
        for name, data in parts:
            (path / Path(name).name).write_bytes(data)
    elif kind == "a.zip":
        pack(path, *parts)
    else:
        tar(path, *parts, mode="w" if kind == "a.tar" else "w:gz")
    before = snapshot(tmp_path)
    assert read_all(path) == {"a.bin": b"four", "b.bin": b"second"}
    assert read_all(path, {"missing": None}) == {}
    assert snapshot(tmp_path) == before


def odd_path(tmp_path, kind):
    path = tmp_path / "it"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "broken link":
            path.symlink_to(tmp_path / "gone")
        case "loop":
            path.symlink_to(path)
        case "directory":
            path.mkdir()
        case "device":
            path = Path("/dev/zero")
        case "NUL":
            path = "a\0b"
    return path


@pytest.mark.parametrize(
    "kind, said",
    [
        ("fifo", "a FIFO"),
        ("broken link", "a broken symbolic link"),
        ("loop", "Too many levels"),
        ("directory", "a directory"),
        ("device", "a device"),
        ("nothing", "nothing at this path"),
        ("NUL", "null byte"),
    ],
)
def test_what_is_no_file_is_named_and_nothing_waits(tmp_path, kind, said):
    path = odd_path(tmp_path, kind)
    start = time.monotonic()
    with pytest.raises(DataError, match=said):
        files.open_file(path)
    if kind != "directory":
        with pytest.raises(DataError, match=said):
            read_all(path)
    with pytest.raises(DataError, match=said):
        files.unpacked(path)
    assert time.monotonic() - start < 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path):
    path = tmp_path / "it"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(DataError, match="Permission denied"):
        files.open_file(path)


def test_a_folder_with_a_fifo_in_place_of_a_file(tmp_path):
    os.mkfifo(tmp_path / "a.bin")
    with pytest.raises(DataError, match="a.bin: got a FIFO"):
        read_all(tmp_path)


LONG = ("x" * 5000 + "/a.bin", b"four")
BAD_TARS = {
    "up": ([("../a.bin", b"four")], "a member named '../a.bin'"),
    "inside up": ([("x/../../a.bin", b"four")], "x/../../a.bin"),
    "absolute": ([("/etc/a.bin", b"four")], "/etc/a.bin"),
    "link": ([("a.bin", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})], "a link, a device or a sparse file"),
    "hard link": ([("x", b"four"), ("a.bin", b"", {"type": tarfile.LNKTYPE, "linkname": "x"})], "a link"),
    "device": ([("a.bin", b"", {"type": tarfile.CHRTYPE})], "a link, a device"),
    "fifo": ([("a.bin", b"", {"type": tarfile.FIFOTYPE})], "a link, a device"),
    "twice": ([("a.bin", b"four"), ("y/a.bin", b"four")], "two members a.bin"),
    "short": ([("a.bin", b"fou")], "a.bin: got 3 bytes; allowed 4 bytes .truncated"),
    "long": ([("a.bin", b"fours")], "a.bin: got 5 bytes; allowed 4 bytes"),
    "bomb": ([("a.bin", b"four"), ("zeros", bytes(80 * 2**20))], "packed into"),
    "long name": ([LONG], "a header of"),
}


@pytest.mark.parametrize("name", BAD_TARS)
def test_hostile_tars_are_refused(tmp_path, name):
    parts, said = BAD_TARS[name]
    path = tar(tmp_path / "a.tar.gz", *parts)
    before = snapshot(tmp_path)
    with pytest.raises(DataError, match=said):
        read_all(path)
    assert snapshot(tmp_path) == before


def test_a_tar_whose_header_would_take_all_memory_or_all_day(tmp_path, monkeypatch):
    # An extended header of digits costs the square of its length, and it is read whole.
    for size in (4097, 10**6):
        path = tar(tmp_path / "a.tar.gz", ("pax", b"1" * size, {"type": tarfile.XHDTYPE}))
        with pytest.raises(DataError, match=f"a header of {size} bytes"):
            read_all(path)
    monkeypatch.setattr(files, "MOST_HEADER_WORK", 3 * 1000**2)
    header = ("pax", b"13 comment=x\n".ljust(1000, b"1"), {"type": tarfile.XHDTYPE})
    assert read_all(tar(tmp_path / "a.tar.gz", *[header, ("a.bin", b"four")])) == {"a.bin": b"four"}
    with pytest.raises(DataError, match="a header of 1000 bytes"):
        read_all(tar(tmp_path / "a.tar.gz", *[header, ("x", b"")] * 4, ("a.bin", b"four")))


def test_a_tar_with_a_negative_size(tmp_path):
    path = tar(tmp_path / "a.tar", ("a.bin", b"four"), mode="w")
    data = bytearray(path.read_bytes())
    data[124:136] = b"\xff" * 12  # -1 in the binary form
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    path.write_bytes(data)
    with pytest.raises(DataError, match="a member of -1 bytes"):
        read_all(path)


BAD_ZIPS = {
    "up": ([("../a.bin", b"four")], "a member named '../a.bin'"),
    "absolute": ([("/a.bin", b"four")], "a member named '/a.bin'"),
    "twice": ([("x/a.bin", b"four"), ("y/a.bin", b"four")], "two members a.bin"),
    "short": ([("a.bin", b"fou")], "got 3 bytes; allowed 4"),
    "bomb": ([("b.bin", bytes(80 * 2**20))], "packed into"),
}


@pytest.mark.parametrize("name", BAD_ZIPS)
def test_hostile_zips_are_refused(tmp_path, name):
    parts, said = BAD_ZIPS[name]
    with pytest.raises(DataError, match=said):
        read_all(pack(tmp_path / "a.zip", *parts))


def test_members_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_MEMBERS", 3)
    parts = [(f"{i}", b"x") for i in range(4)]
    for path in (tar(tmp_path / "a.tar", *parts, mode="w"), pack(tmp_path / "a.zip", *parts)):
        with pytest.raises(DataError, match="members"):
            read_all(path)


@pytest.mark.parametrize("ending", ["tar.gz", "zip"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_damage_that_is_found_while_a_member_is_read_is_a_data_error(tmp_path, ending, part):
    noise = os.urandom(200_000)
    path = tmp_path / f"a.{ending}"
    if ending == "zip":
        pack(path, ("b.bin", noise))
        data = bytearray(path.read_bytes())
        data[int(len(noise) * part)] ^= 0xFF  # the directory at the end stays whole
        path.write_bytes(data)
    else:
        tar(path, ("b.bin", noise))
        path.write_bytes(path.read_bytes()[: int(len(noise) * part)])
    with pytest.raises(DataError, match="truncated or damaged"):
        read_all(path)


@pytest.mark.parametrize(
    "data, said", [(b"", "an empty file"), (b"\x80\x02}q", "a pickle"), (b"PAR1....", "a Parquet file"), (b"hi", "b'hi'")]
)
def test_what_is_no_archive_is_named(tmp_path, data, said):
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(DataError, match=f"got .*{said}"):
        read_all(tmp_path / "a.tar")


PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE), "": bytes}


@pytest.mark.parametrize("ending", PACKERS)
def test_unpacked_reads_it_all_and_lets_go(tmp_path, ending):
    data = os.urandom(100_000)
    path = tmp_path / f"a{ending}"
    path.write_bytes(PACKERS[ending](data))
    before = snapshot(tmp_path), len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    with files.unpacked(path) as stream:
        assert stream.read() == data
    assert before == (snapshot(tmp_path), len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0)
    if ending:
        path.write_bytes(path.read_bytes()[:-2000])
        with files.unpacked(path) as stream, pytest.raises(DataError, match="truncated or damaged"):
            stream.read()


@pytest.mark.parametrize("ending", [".gz", ".xz", ".lzma"])
def test_unpacked_stops_a_bomb(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(files, "SMALL_BYTES", 2**20)
    path = tmp_path / f"a{ending}"
    path.write_bytes(PACKERS[ending](bytes(8 * 2**20)))
    with files.unpacked(path) as stream, pytest.raises(DataError, match="more bytes than it may hold; .*at most 200 times"):
        stream.read()
    with files.unpacked(path, most=1000) as stream, pytest.raises(DataError, match="at most 1000 bytes"):
        stream.read()


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_damaged_files_give_a_data_error_and_nothing_else(tmp_path, name):
    if name == "tff-hdf5":
        pytest.importorskip("h5py")
    tried, findings = fuzz.run(name, 0.5, 7, tmp_path)
    assert tried and not findings, findings[:3]


def test_the_fuzzer_finds_what_is_there(tmp_path, monkeypatch):
    def careless(path):
        if path.read_bytes()[:4] != b"good":
            raise KeyError("damaged")

    monkeypatch.setitem(fuzz.TARGETS, "careless", fuzz.Target(fuzz.write("x", b"good morning"), careless))
    _, findings = fuzz.run("careless", 0.2, 0, tmp_path)
    assert findings and "KeyError" in findings[0].what and (findings[0].saved / "x").read_bytes()[:4] != b"good"
