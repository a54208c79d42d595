"""Stores: what comes out is what went in, whatever happens on the way; and what is no store is said to be none."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_prepare import files_under, home, sentences, text_store, write_rows  # noqa: F401  # home is a fixture

from fedcodist.cli import main
from fedcodist.data import store
from fedcodist.data.store import Writer, open_store
from fedcodist.errors import DataError
from fedcodist.storage import lock, sealed

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = {
    "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2),
    "numbers": np.array([[0.1, -0.0], [np.nan, np.inf], [5e-324, 1e308]]),
    "halves": np.array([0.5, 65504, 6e-8], np.float16),
    "whole": np.array([-(2**63), 2**63 - 1]),
    "truth": np.array([True, False, True]),
    "words": np.array(["a", "bcd", "\u00e9"]),
    "raw": np.array([b"ab", b"c"]),
    "big_endian": np.array([1, 2, 3], ">i4"),
    "none": np.zeros((0, 4), np.int32),
    "one": np.array([7], np.uint16),
}


def write(path: Path, plan: Any = None, **columns: np.ndarray) -> store.Store:
    with Writer(path, plan or {}) as writer:
        for name, rows in columns.items():
            writer.append(name, rows)
        return writer.finish(kind="example", options={"a": 1})


# -- columns --


def test_columns_come_back_bit_for_bit_and_mapped(home):  # noqa: F811
    made = write(home / "mine", **COLUMNS)
    for name, rows in COLUMNS.items():
        found = made[name]
        assert found.dtype == rows.dtype and found.shape == rows.shape and found.tobytes() == rows.tobytes()
        assert np.load(home / "mine" / f"{name}.npy").tobytes() == rows.tobytes(), "numpy alone reads it too"
        if len(rows):
            assert isinstance(found, np.memmap) and not found.flags.writeable
    assert store.verify(made) == [] and "one" in made and "two" not in made and made.options == {"a": 1}


def test_rows_of_a_slice_and_of_another_order_are_written_as_they_are(home):  # noqa: F811
    whole = np.arange(60).reshape(5, 4, 3)
    made = write(home / "mine", cut=whole[::2, 1:3], turned=np.asfortranarray(whole))
    assert np.array_equal(made["cut"], whole[::2, 1:3]) and np.array_equal(made["turned"], whole)


def test_columns_of_names(home):  # noqa: F811
    names = ["", "a", "\u00e9\u4e2d\U0001f600", " b ", "c\td", "\x85\u2028"]
    with Writer(home / "mine", {}) as writer:
        assert writer.read_text("names") == []
        writer.write_text("names", names[:2])
        assert writer.read_text("names") == names[:2]
        writer.write_text("names", names[2:])
        writer.write_text("none", [])
        made = writer.finish(kind="example")
    assert made.text("names") == names and made.text("none") == []
    assert made.columns["names"]["shape"] == [6] and store.verify(made) == []


@pytest.mark.parametrize("rows", [0, 1, 9, 10, 99, 100, 12_345, 100_000])
@pytest.mark.parametrize("shape", [(), (3,), (1, 1, 2)])
def test_the_header_has_room_for_any_number_of_rows(home, rows, shape):  # noqa: F811
    whole = np.arange(rows * int(np.prod(shape, dtype=int)), dtype=np.int32).reshape(rows, *shape)
    with Writer(home / "mine", {}) as writer:
        for part in np.array_split(whole, 3):
            writer.append("x", part)
            assert len(writer.rows("x")) <= rows
        assert np.array_equal(writer.rows("x"), whole)
        writer.finish(kind="example")
    assert np.array_equal(np.load(home / "mine" / "x.npy"), whole)


def test_the_header_of_a_column_larger_than_any_disk():
    for shape in ([], [32, 32, 3], [10**6] * 12):
        small, large = (store._header("<f4", shape, rows) for rows in (0, 2**62))
        assert len(small) == len(large) and len(small) % 64 == 0 and small.endswith(b"\n") and large.endswith(b"\n")


def test_rows_of_another_type_or_shape_are_refused(home):  # noqa: F811
    with Writer(home / "mine", {}) as writer:
        writer.append("x", np.zeros((2, 3), np.float32))
        for wrong in (np.zeros((2, 3)), np.zeros((2, 4), np.float32), np.zeros(2, np.float32)):
            with pytest.raises(ValueError, match="x: rows of .* after rows of"):
                writer.append("x", wrong)


# -- resuming --


def unfinished(path: Path, plan: Any) -> None:
    """Marked after three rows and two names, and written on behind the mark."""
    with Writer(path, plan) as writer:
        writer.append("x", np.arange(6).reshape(3, 2))
        writer.write_text("names", ["a", "b"])
        writer.mark(done=3, names=["a", "b"])
        writer.append("x", np.full((500, 2), 9))
        writer.write_text("names", ["c"] * 5000)
        writer.append("later", np.zeros(7))


def test_a_writer_goes_on_from_its_mark(home):  # noqa: F811
    unfinished(home / "mine", {"seed": 0})
    with Writer(home / "mine", {"seed": 0}) as writer:
        assert writer.state == {"done": 3, "names": ["a", "b"]}
        assert writer.rows("x").tolist() == [[0, 1], [2, 3], [4, 5]] and writer.read_text("names") == ["a", "b"]
        assert sorted(path.name for path in writer.partial.iterdir()) == ["names.txt", "prepare.lock", "progress.json", "x.npy"]
        writer.append("x", np.array([[6, 7]]))
        made = writer.finish(kind="example")
    assert made["x"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]] and made.text("names") == ["a", "b"] and "later" not in made
    assert sorted(path.name for path in home.iterdir()) == ["mine"]
    assert sorted(path.name for path in (home / "mine").iterdir()) == ["names.txt", "store.json", "x.npy"]


def spoil(what: str, partial: Path) -> None:
    if what == "short":
        os.truncate(partial / "x.npy", 140)
    elif what == "gone":
        (partial / "names.txt").unlink()
    elif what == "flipped":
        raw = bytearray((partial / "progress.json").read_bytes())
        raw[raw.index(b"3")] ^= 1
        (partial / "progress.json").write_bytes(raw)
    elif what == "empty":
        os.truncate(partial / "progress.json", 0)


@pytest.mark.parametrize("what", ["another plan", "short", "gone", "flipped", "empty"])
def test_a_writer_begins_anew_when_it_cannot_trust_what_is_there(home, what):  # noqa: F811
    unfinished(home / "mine", {"seed": 0})
    (home / "mine.partial" / "scratch").mkdir()
    (home / "mine.partial" / "scratch" / "copy").write_text("of something")
    spoil(what, home / "mine.partial")
    with Writer(home / "mine", {"seed": 1 if what == "another plan" else 0}) as writer:
        assert writer.state == {} and writer.read_text("names") == []
        assert sorted(path.name for path in writer.partial.iterdir()) == ["prepare.lock", "progress.json"]
        writer.append("x", np.array([[6, 7]]))
        assert writer.finish(kind="example")["x"].tolist() == [[6, 7]]


def test_scratch_files_stay_for_the_same_plan_and_go_at_the_end(home):  # noqa: F811
    for _ in range(2):
        with Writer(home / "mine", {"seed": 0}) as writer:
            there = list(writer.scratch().iterdir())
            (writer.scratch() / "copy").write_text("of something")
    assert [path.name for path in there] == ["copy"]
    with Writer(home / "mine", {"seed": 0}) as writer:
        writer.scratch()
        made = writer.finish(kind="example")
    assert sorted(path.name for path in made.path.iterdir()) == ["store.json"]


KILLS = """
import contextlib, io, json, os, shutil, signal, sys
from pathlib import Path

from fedcodist.cli import main
from fedcodist.data import encode, store
from fedcodist.storage import durable

encode.BUFFER, encode.MARK, encode.CHUNK = 200, 2, 500
source, older, home = sys.argv[1:]
count, last = 0, 0
os.fsync = lambda file: None  # what is written survives the process; what the process itself still holds does not


def watch(owner, name):
    whole = getattr(owner, name)

    def counted(*args, **kwargs):
        global count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*args, **kwargs)

    setattr(owner, name, counted)


for owner, name in (
    *((store.Writer, name) for name in ("append", "write_text", "mark", "drop", "finish")),
    (durable, "replace_file"), (durable, "sync_directory"), (Path, "rename"), (Path, "unlink"), (os, "fsync"), (os, "replace"),
):
    watch(owner, name)


def run(place, when, table=source, *more):
    # A child that is killed before this event, or lives: whether it was killed, and what it said, the exit code and the number of events.
    global last, count
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.environ["FEDCODIST_DATA"] = place
        last, count = when, 0
        with contextlib.redirect_stdout(io.StringIO()):
            code = main.main(["data", "prepare", "text", "--from", table, "--quiet", *more])
        os.write(writer, f"{code} {count}".encode())
        os._exit(0)
    os.close(writer)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(reader) as pipe:
        return os.WIFSIGNALED(status), pipe.read()


def there(place):
    os.environ["FEDCODIST_DATA"] = place
    try:
        return store.open_store("text").facts["vocabulary"]["size"]
    except store.DataError:
        return "-"


assert run(home + "/old", -1, older, "--set", "vocab=3") [1].startswith("0 ")
shutil.copytree(home + "/old", home + "/whole")
killed, said = run(home + "/whole", -1)
code, total = map(int, said.split())
assert code == 0 and not killed
for when in sorted({1 + k * (total - 9) // 9 for k in range(10)} | set(range(total - 7, total + 1))):
    place = f"{home}/{when}"
    shutil.copytree(home + "/old", place)
    killed, said = run(place, when)
    assert killed, (when, total, said)
    kept, done, partial = there(place), 0, Path(place, "text.partial")
    if (partial / "progress.json").is_file():
        progress = json.loads((partial / "progress.json").read_bytes())
        done = progress["state"].get("done") or 0
        for file in partial.glob("_*.npy"):
            column = progress["columns"].get(file.stem, {"bytes": 0})
            assert file.stat().st_size >= column["bytes"], "marked before it was written"
    print("killed", when, run(place, -1)[1].split()[0], kept, done, sep="\\t")
"""


def test_killed_at_any_point_and_started_again_it_is_the_same_store(tmp_path):
    """SIGKILL at moments spread over all writes and marks, and at each of the last steps; what a buffer holds is lost each time."""
    table, older = write_rows(tmp_path / "t.tsv", sentences(100, 20)), write_rows(tmp_path / "old.tsv", sentences())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLS, str(table), str(older), str(tmp_path / "homes")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("killed\t")]
    assert len(said) >= 15
    whole = {path.name: path.read_bytes() for path in (tmp_path / "homes" / "whole" / "text").iterdir()}
    large = str(open_store(tmp_path / "homes" / "whole" / "text").facts["vocabulary"]["size"])
    for when, code, *_ in said:
        there = tmp_path / "homes" / when
        assert code == "0" and {path.name: path.read_bytes() for path in (there / "text").iterdir()} == whole, f"killed at event {when}"
        assert [path.name for path in there.iterdir()] == ["text"], f"killed at event {when}"
    kept = [size for _, _, size, _ in said]
    old, new = kept.count("7"), kept.count(large)
    assert kept in (["7"] * old + [large] * new, ["7"] * old + ["-"] + [large] * new), "the old store, but for one moment, then the new"
    assert old >= 10 and new >= 1
    assert len({done for *_, done in said} - {"0", "2000"}) >= 2, "no kill met a preparation that had come half of its way"


# -- an older store, another writer, a full disk --


def test_an_older_store_stays_until_the_new_one_is_whole(home):  # noqa: F811
    old = write(home / "mine", x=np.arange(3))
    before = files_under(home / "mine")

    def break_off() -> None:
        with Writer(home / "mine", {"seed": 1}) as writer:
            writer.append("x", np.arange(5))
            writer.mark()
            assert open_store("mine").digest == old.digest
            raise DataError("a bad row")

    with pytest.raises(DataError, match="a bad row"):
        break_off()
    assert files_under(home / "mine") == before and store.verify(open_store("mine")) == []
    mapped = old["x"]
    new = write(home / "mine", {"seed": 1}, x=np.arange(5))
    assert open_store("mine").digest == new.digest != old.digest and mapped.tolist() == [0, 1, 2], "a reader keeps what it has mapped"
    assert [path.name for path in home.iterdir()] == ["mine"]


def test_a_store_set_aside_by_a_killed_process_comes_back(home):  # noqa: F811
    old = write(home / "mine", x=np.arange(3))
    (home / "mine").rename(home / "mine.old")
    with Writer(home / "mine", {"seed": 1}):
        assert open_store("mine").digest == old.digest


def test_two_writers_at_once(tmp_path, home, capsys):  # noqa: F811
    table = write_rows(tmp_path / "t.tsv", sentences())
    with Writer(home / "text", {}) as writer:
        writer.append("x", np.arange(3))
        with pytest.raises(lock.Busy, match=f"busy: pid {os.getpid()} on .* is writing this store"):
            Writer(home / "text", {})
        assert main.main(["data", "prepare", "text", "--from", str(table), "--quiet"]) == 5
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1 and f"pid {os.getpid()}" in said[0] and said[0].startswith("error: ")
        assert writer.finish(kind="example")["x"].tolist() == [0, 1, 2], "the first one is not disturbed"
    assert main.main(["data", "prepare", "text", "--from", str(table), "--quiet"]) == 0


def test_the_lock_is_held_until_the_store_has_its_name(home, monkeypatch):  # noqa: F811
    seen = []
    rename = Path.rename

    def look(self: Path, target: Path) -> Path:
        with pytest.raises(lock.Busy):
            Writer(home / "mine", {})
        seen.append(target.name)
        return rename(self, target)

    write(home / "mine", x=np.arange(3))
    monkeypatch.setattr(Path, "rename", look)
    made = write(home / "mine", x=np.arange(4))
    assert seen == ["mine.old", "mine"] and made["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["no room before", "no room on the way"])
def test_a_full_disk(tmp_path, home, how, capsys, monkeypatch):  # noqa: F811
    old = text_store(tmp_path, "text")
    table = write_rows(tmp_path / "t.tsv", sentences(40, 20))
    call = ["data", "prepare", "text", "--from", str(table), "--quiet"]
    if how == "no room before":
        from test_prepare import release

        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 2**20, 2**20))  # type: ignore[attr-defined]
        assert main.main(["data", "prepare", "cifar100", "--from", str(release(tmp_path / "files")), "--quiet"]) == 6
        said = capsys.readouterr().err
        assert re.fullmatch(r"error: .*: 1 MiB free; this needs about 400 MiB\n", said)
    else:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # the kernel's own refusal, in the middle of a column
        try:
            assert main.main(call) == 6
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        said = capsys.readouterr().err
        assert re.fullmatch(r"error: .*text\.partial/.*: .* \(EFBIG\)\n", said)
    assert open_store("text").digest == old.digest and store.verify(open_store("text")) == []
    monkeypatch.undo()
    monkeypatch.setenv("FEDCODIST_DATA", str(home))
    assert main.main(call) == 0 and open_store("text").facts["examples"]["federated"] > 40


# -- damage, and what is no store --


def test_verify_finds_a_flipped_byte_anywhere(tmp_path, capsys):
    made = text_store(tmp_path)
    names = sorted(path.name for path in made.path.iterdir())
    assert len(names) == len(made.columns) + 1
    for name in names:
        raw = (made.path / name).read_bytes()
        if not raw:
            continue
        for at in {0, len(raw) // 2, len(raw) - 1}:
            changed = bytearray(raw)
            changed[at] ^= 1
            (made.path / name).write_bytes(changed)
            if name == "store.json" and json.loads(raw) == _json(changed):
                continue  # a space or the last newline, which people may change
            assert main.main(["data", "verify", "mine"]) == 3, f"byte {at} of {name}"
            said = capsys.readouterr()
            assert name in said.err and "prepare it again" in said.err and "error: " in said.err
        (made.path / name).write_bytes(raw)
    assert main.main(["data", "verify", "mine"]) == 0


def _json(raw: bytes | bytearray) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def test_a_flipped_byte_in_a_name_is_one_line_and_no_traceback(tmp_path):
    made = text_store(tmp_path)
    (made.path / "vocabulary.txt").write_bytes(b"\xff" + (made.path / "vocabulary.txt").read_bytes()[1:])
    with pytest.raises(DataError, match=r"vocabulary\.txt: got bytes that are no UTF-8 at 0; allowed .*prepare it again"):
        made.text("vocabulary")


def odd(what: str, home: Path) -> None:  # noqa: F811
    place = home / "mine"
    if what not in ("nothing", "a file", "half-written"):
        write(place, x=np.arange(3))
    match what:
        case "a file":
            home.mkdir()
            place.write_text("hello")
        case "a directory":
            (place / "store.json").unlink()
        case "half-written":
            unfinished(place, {})
        case "newer format":
            meta = {key: value for key, value in json.loads((place / "store.json").read_bytes()).items() if key not in ("digest", "format")}
            body = {**meta, "format": 99}
            (place / "store.json").write_text(json.dumps({**body, "digest": sealed.digest(body)}))
        case "without a column":
            (place / "x.npy").unlink()
        case "a short column":
            os.truncate(place / "x.npy", 130)
        case "a link for its record":
            (place / "store.json").rename(home / "elsewhere")
            (place / "store.json").symlink_to(home / "elsewhere")
        case "no JSON":
            (place / "store.json").write_text("hello")
        case "JSON of something else":
            (place / "store.json").write_bytes(sealed.seal({"columns": 3}))


@pytest.mark.parametrize(
    "what, says",
    {
        "nothing": "data mine: got nothing at this path; allowed a prepared store: none yet "
        "(fedcodist data prepare; a config's header says how)",
        "a file": "data mine: got a file; allowed a prepared store",
        "a directory": "data mine: got no store; allowed a prepared store",
        "half-written": "data mine: got a preparation that is not finished; allowed a prepared store",
        "another kind": "data mine: got a store of example; allowed one of text",
        "newer format": "format 99; this version reads format 1; allowed a whole store of this version (prepare it again)",
        "without a column": "got x.npy: missing, not 152 bytes; allowed a whole store of this version (prepare it again)",
        "a short column": "got x.npy: 130 bytes, not 152 bytes; allowed a whole store",
        "a link for its record": "got store.json: ",
        "no JSON": "got store.json: not JSON; allowed a whole store of this version (prepare it again)",
        "JSON of something else": "allowed a whole store of this version (prepare it again)",
    }.items(),
)
def test_what_is_no_store(home, what, says):  # noqa: F811
    odd(what, home)
    with pytest.raises(DataError) as caught:
        open_store("mine", "text")
    said = str(caught.value)
    assert says in said and said.isprintable() and caught.value.code == 3 and "; allowed " in said


def test_a_column_that_is_no_longer_what_the_record_says(home):  # noqa: F811
    made = write(home / "mine", x=np.arange(3))
    whole = (home / "mine" / "x.npy").read_bytes()
    for other in (np.arange(3.0), np.arange(4), np.arange(3).reshape(3, 1)):
        np.save(home / "mine" / "x.npy", other)
        with pytest.raises(
            DataError, match=r"x\.npy: got another header; allowed <i8 \[3\], as in store\.json \(fedcodist data verify mine\)"
        ):
            made["x"]
    for raw in (b"hello", b"", whole[:-1]):
        (home / "mine" / "x.npy").write_bytes(raw)
        with pytest.raises(DataError, match=r"x\.npy: got .*; allowed "):
            made["x"]


def test_the_digest_is_of_content_and_options_and_not_of_the_place(home, tmp_path):  # noqa: F811
    def digest(place: Path, rows: Any = (1, 2), plan: Any = None, **options: Any) -> str:
        with Writer(place, plan or {}) as writer:
            writer.append("x", np.array(rows))
            return writer.finish(kind="example", options=options, sources=[str(place)]).digest

    first = digest(home / "a", seed=1)
    assert digest(tmp_path / "else" / "where", seed=1, plan={"other": 1}) == first
    shutil.copytree(home / "a", tmp_path / "copy")
    assert open_store(tmp_path / "copy").digest == first
    assert len({first, digest(home / "b", rows=(1, 3), seed=1), digest(home / "c", seed=2), digest(home / "d", rows=[[1, 2]], seed=1)}) == 4


def test_where_stores_are_kept(tmp_path, monkeypatch, home):  # noqa: F811
    assert store.home() == home and store.locate("a") == home / "a" and store.locate("./a") == Path("a")
    monkeypatch.delenv("FEDCODIST_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert store.home() == tmp_path / "xdg" / "fedcodist"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.home() == tmp_path / ".local" / "share" / "fedcodist"
    monkeypatch.delenv("HOME")
    with pytest.raises(DataError, match="FEDCODIST_DATA: got nothing, and no HOME"):
        store.home()
    assert store.stores() == {}


def test_an_interrupted_writer_lets_go_of_its_lock(home):  # noqa: F811
    script = f"""
import time
from pathlib import Path
from fedcodist.data.store import Writer
writer = Writer(Path({str(home / "mine")!r}), {{}})
print("taken", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"taken\n"
    with pytest.raises(lock.Busy, match=f"pid {child.pid} on "):
        Writer(home / "mine", {})
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    Writer(home / "mine", {}).close()
