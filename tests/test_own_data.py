"""A user's own data in every form that it may have: the forms agree with each other, and every kind of bad input is one line."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import struct
import sys
import zlib

import numpy as np
import pytest

from fedcodist.data.capacity import Capacity
from fedcodist.data.overlap import digests
from fedcodist.data.partition import Dirichlet, Iid, Pachinko, Shards
from fedcodist.errors import DataError
from fedcodist.objectives.images import Images
from fedcodist.readers import arrays, columns, folders
from fedcodist.settings import Problem, SettingError, plain, read_kind
from fedcodist.tasks import TASKS, Arrays

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
Image = pytest.importorskip("PIL.Image")

N = 40
DRAW = np.random.Generator(np.random.PCG64(0))
PIXELS = DRAW.integers(0, 256, (N, 5, 4, 3), np.uint8)
GREY = PIXELS[..., :1]
LABELS = np.arange(N) % 3
CLIENTS = np.array([f"c{i % 10}" for i in range(N)])


PLAIN = Images(5, flip=False, public_flips=False, mixup_beta=0.0)  # augmentation is off unless it is asked for


def png(pixels, kind="PNG") -> bytes:
    held = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(held, kind)
    return held.getvalue()


def bomb(height: int, width: int) -> bytes:
    """A small PNG that says it is large: the header is right, the pixels are not there."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def table(**other):
    """An Arrow table of images, labels and clients."""
    made = {"x": [{"bytes": png(one), "path": None} for one in PIXELS], "y": LABELS, "client": CLIENTS}
    made = {name: value for name, value in {**made, **other}.items() if value is not None}
    return pa.table({name: value if isinstance(value, pa.Array | pa.ChunkedArray) else pa.array(value) for name, value in made.items()})


def parquet(tmp_path, name="some.parquet", **other) -> str:
    pq.write_table(table(**other), tmp_path / name)
    return str(tmp_path / name)


def saved(tmp_path, name="some", batch=7, **other) -> str:
    """A directory as `save_to_disk` leaves it: Arrow streams and two JSON files."""
    place = tmp_path / name
    place.mkdir(parents=True, exist_ok=True)
    whole = table(**other)
    halves = [whole.slice(0, N // 2), whole.slice(N // 2)]
    files = [f"data-{i:05d}-of-00002.arrow" for i in range(2)]
    for half, file in zip(halves, files, strict=True):
        with pa.OSFile(str(place / file), "wb") as sink, pa.ipc.new_stream(sink, half.schema) as writer:
            writer.write_table(half, max_chunksize=batch)
    (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": file} for file in files], "_split": None}))
    (place / "dataset_info.json").write_text(json.dumps({"features": {}, "license": ""}))
    return str(place)


def folder(tmp_path, name="pictures", pixels=PIXELS, deep=True) -> str:
    """Images by client and label, in the order of the rows of the others within each."""
    for i in range(N):
        place = tmp_path / name / CLIENTS[i] / (f"l{LABELS[i]}" if deep else "")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:03d}.png").write_bytes(png(pixels[i]))
    return str(tmp_path / name)


def npz(tmp_path, **other) -> str:
    made = {"x": PIXELS, "y": LABELS, "client": CLIENTS, **other}
    np.savez(tmp_path / "some.npz", **{name: value for name, value in made.items() if value is not None})
    return str(tmp_path / "some.npz")


def says(message, path=None, **settings):
    """Loading fails with one printable line that has the message in it."""
    with pytest.raises(DataError) as caught:
        Arrays(path, **settings).load()
    said = str(caught.value)
    assert message in said and said.isprintable() and "; allowed " in said and caught.value.code == 3
    return said


def content(task):
    """What a task holds, whatever the order of its rows."""
    clients = {name: sorted(zip(digests(task.clients[name].x).tolist(), task.clients[name].y.tolist())) for name in task.clients}
    parts = [sorted(digests(rows.x).tolist()) for rows in (task.public, task.held_out, task.test)]
    return clients, parts, task.classes, task.attributes["capacity"], task.objective


# -- all forms --


def test_all_forms_agree(tmp_path):
    wanted = content(Arrays(npz(tmp_path)).load())
    assert wanted[4].images == PLAIN
    (tmp_path / "parts").mkdir()
    pq.write_table(table().slice(0, 17), str(tmp_path / "parts" / "0.parquet"))
    pq.write_table(table().slice(17), str(tmp_path / "parts" / "1.parquet"))
    for path in (parquet(tmp_path), str(tmp_path / "parts"), saved(tmp_path), folder(tmp_path)):
        assert content(Arrays(path).load()) == wanted, path
    assert content(Arrays(function="test_own_data:given").load()) == wanted


def given():
    return {"x": PIXELS, "y": LABELS.tolist(), "client": CLIENTS.tolist(), "more": object()}


def test_rows_keep_their_order(tmp_path):
    for path in (parquet(tmp_path), saved(tmp_path)):
        found, others = columns.read(path, {"x", "y"})
        assert np.array_equal(found["x"], PIXELS) and np.array_equal(found["y"], LABELS) and others == ["client"]


def test_nothing_runs_and_nothing_is_imported(tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    path = saved(tmp_path)
    (tmp_path / "some" / "some.py").write_text("raise SystemExit")  # a loading script of old data sets
    Arrays(path).load()
    assert "datasets" not in sys.modules and all(path.read_bytes() == raw for path, raw in before.items())


def test_columns_by_other_names(tmp_path):
    wanted = content(Arrays(npz(tmp_path)).load())
    other = {"x": None, "y": None, "client": None, "img": [png(one) for one in PIXELS], "fine_label": LABELS, "user": CLIENTS}
    named = {"x": "img", "y": "fine_label", "client": "user"}
    assert content(Arrays(parquet(tmp_path, **other), **named).load()) == wanted
    says("no column x, y, client; allowed columns x, y, client (found: 'img, fine_label, user')", parquet(tmp_path, **other))
    says(
        "no column users; allowed columns img, fine_label, users (did you mean user?",
        parquet(tmp_path, **other),
        **named | {"client": "users"},
    )


def test_a_config_says_it(tmp_path):
    problems: list[Problem] = []
    part = {"kind": "dirichlet", "clients": 4}
    made = read_kind(TASKS, {"kind": "arrays", "path": "a", "partition": part, "capacity": {"column": "device"}}, "task", problems)
    assert made == Arrays("a", partition=Dirichlet(4), capacity=Capacity(column="device")) and not problems
    for task in (made, Arrays("a"), Arrays(function="a:b", overlap="drop")):
        assert read_kind(TASKS, json.loads(json.dumps(plain(task))), "task", problems) == task and not problems
    read_kind(TASKS, {"kind": "arrays", "path": "a", "partition": "dirichlets"}, "task", problems)
    read_kind(TASKS, {"kind": "arrays", "path": "a", "overlap": "keep"}, "task", problems)
    read_kind(TASKS, {"kind": "arrays", "path": "a", "function": "a:b"}, "task", problems)
    read_kind(TASKS, {"kind": "arrays", "function": "a"}, "task", problems)
    read_kind(TASKS, {"kind": "arrays", "path": "a", "client": ""}, "task", problems)
    assert [p.path for p in problems] == ["task.partition", "task.overlap", "task.path", "task.function", "task.client"]
    with pytest.raises(SettingError, match="Arrays.path: got nothing; allowed path or function"):
        Arrays()


# -- Parquet and saved data sets --


@pytest.mark.parametrize("make", [parquet, saved])
def test_numbers_and_nested_lists(tmp_path, make):
    x = DRAW.standard_normal((N, 2, 3)).astype(np.float32)
    flat = pa.array(x.reshape(-1))
    fixed = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, 3), 2)
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(x)
    for column in (x.tolist(), fixed, tensor, pa.array(x.tolist(), pa.large_list(pa.list_(pa.float32())))):
        task = Arrays(make(tmp_path, x=column)).load()
        assert np.allclose(task.clients.x, x) and task.clients.x.shape == (N, 2, 3)


@pytest.mark.parametrize("make", [parquet, saved])
@pytest.mark.parametrize("kind", ["int8", "uint16", "int64", "float16", "float64", "bool"])
def test_dtypes_are_kept(tmp_path, make, kind):
    y = LABELS.astype(kind) if kind != "bool" else LABELS % 2 == 1
    found, _ = columns.read(make(tmp_path, y=y), {"y"})
    assert found["y"].dtype == kind and np.array_equal(found["y"], y)


@pytest.mark.parametrize("make", [parquet, saved])
def test_text_of_any_kind(tmp_path, make):
    wanted = np.array(["ä" * (i % 30 + 1) for i in range(N)])  # later batches are wider
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        found, _ = columns.read(make(tmp_path, client=pa.array(wanted.tolist(), kind)), {"client"})
        assert np.array_equal(found["client"], wanted)


def test_splits_of_a_saved_dict(tmp_path):
    where = tmp_path / "dict"
    shift = PIXELS ^ 1
    saved(where, "train")
    saved(where, "validation", x=[{"bytes": png(one), "path": "../../secret.png"} for one in shift])
    (where / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    task = Arrays(str(where), public=0.2).load()
    assert len(task.held_out.x) == N and sorted(digests(task.held_out.x)) == sorted(digests(shift))
    assert "no row of split is public: 2 of the clients are taken for it" in task.notes and len(task.clients) == 7
    (where / "dataset_dict.json").write_text('{"splits": ["train", "dev"]}')
    says("a split 'dev'; allowed train, public, held_out, validation, test (or name the directory of one split)", str(where))
    assert len(Arrays(str(where / "train")).load().clients) == 5


def test_splits_of_parts_named_as_on_the_hub(tmp_path):
    for name, pixels in (("train", PIXELS), ("test", PIXELS ^ 1)):
        parquet(tmp_path, f"{name}-00000-of-00001.parquet", x=[png(one) for one in pixels])
    task = Arrays(str(tmp_path)).load()
    assert sorted(digests(task.test.x)) == sorted(digests(PIXELS ^ 1))
    parquet(tmp_path, "other.parquet")  # now names say nothing
    assert "split" not in columns.read(str(tmp_path))[0]


ONE = png(PIXELS[0])
BAD_COLUMNS = [
    ("y: got a missing value in row 33; allowed a value in every row (1 such", {"y": [None if i == 33 else i % 3 for i in range(N)]}),
    ("client: got a missing value in row 5", {"client": [None if i == 5 else "a" for i in range(N)]}),
    ("x: got a missing value in row 7", {"x": [None if i == 7 else [1.0, 2.0] for i in range(N)]}),
    ("x: got a missing value in row 8", {"x": [[1.0, None] if i == 8 else [1.0, 2.0] for i in range(N)]}),
    ("x: got a missing value in row 9", {"x": [None if i == 9 else png(PIXELS[0]) for i in range(N)]}),
    ("x: got a list of 3 in row 21; allowed lists of 2", {"x": [[1.0] * (3 if i == 21 else 2) for i in range(N)]}),
    ("x: got a list of 1 in row 22; allowed lists of 2", {"x": [[[1, 2], [3] if i == 22 else [3, 4]] for i in range(N)]}),
    ("x: got an empty list in row 0", {"x": [[]] * N}),
    ("x: got values of type 'struct", {"x": [{"a": 1}] * N}),
    ("y: got values of type 'decimal128", {"y": pa.array([1] * N, pa.decimal128(5))}),
    ("y: got values of type 'timestamp", {"y": pa.array([1] * N, pa.timestamp("s"))}),
    ("x: got an image without its bytes in row 4", {"x": [{"bytes": None if i == 4 else ONE, "path": "/etc/a"} for i in range(N)]}),
    ("x: row 3: got an image of [5, 4, 1]; allowed [5, 4, 3]", {"x": [png(GREY[i] if i == 3 else PIXELS[i]) for i in range(N)]}),
    ("x: row 30: got a file that begins with b'GIF89a'", {"x": [b"GIF89a" if i == 30 else png(PIXELS[i]) for i in range(N)]}),
    ("x: row 1: got a pickle", {"x": [pickle.dumps([i]) if i == 1 else png(PIXELS[i]) for i in range(N)]}),
    ("x: row 2: got an image of far too many pixels", {"x": [bomb(100_000, 100_000) if i == 2 else png(PIXELS[i]) for i in range(N)]}),
    ("client: got 'aaaa", {"client": ["a" * 5_000] * N}),
    ("client: got 'a\\x00' in row 2; allowed at most 256 characters, none", {"client": ["a\0" if i == 2 else "a" for i in range(N)]}),
    ("client: got dtype float64", {"client": np.zeros(N)}),
    ("y: got 3 in row 4; allowed whole numbers from 0 to 2", {"y": np.where(np.arange(N) == 4, 3, 1)}),
]  # fmt: skip


@pytest.mark.parametrize("make", [parquet, saved])
@pytest.mark.parametrize(("message", "other"), BAD_COLUMNS, ids=[message[:40] for message, _ in BAD_COLUMNS])
def test_bad_columns(tmp_path, make, message, other):
    if make is saved:  # a row is counted in its own file, of which there are two
        message = re.sub(r"row (\d+)", lambda found: f"row {int(found[1]) % (N // 2)}", message, count=1)
    says(message, make(tmp_path, **other), classes=3)


def test_shapes_that_differ_between_batches(tmp_path):
    x = [[1.0] * (2 if i < N // 2 else 3) for i in range(N)]
    says("x: got shape [3] in row 0; allowed [2], as in the rows before", saved(tmp_path, x=x))
    (tmp_path / "parts").mkdir()
    parquet(tmp_path / "parts", "0.parquet")
    parquet(tmp_path / "parts", "1.parquet", y=LABELS.astype(float))
    says("y: got float64 in row 0; allowed int64, as in the rows before", str(tmp_path / "parts"))
    parquet(tmp_path / "parts", "1.parquet", y=None)
    says("1.parquet: got columns ['x', 'client']; allowed ['x', 'y', 'client']", str(tmp_path / "parts"))


def test_odd_saved_directories(tmp_path):
    path = saved(tmp_path)
    state = tmp_path / "some" / "state.json"
    for text, message in {
        "{": "text that is no JSON",
        "[" * 100_000: "text that is no JSON",
        "[]": "_data_files = None; allowed a list",
        '{"_data_files": 3}': "_data_files = 3",
        '{"_data_files": []}': "no part; allowed at least one file",
        '{"_data_files": [{"filename": "../some/data-00000-of-00002.arrow"}]}': "the file '../some/data-00000-of-00002.arrow'",
        '{"_data_files": [{"filename": "/etc/passwd"}]}': "the file '/etc/passwd'; allowed names of files beside it",
        '{"_data_files": [{"filename": 3}]}': "the file 3",
        '{"_data_files": ["a"]}': "the file None",
        '{"_data_files": [{"filename": "gone.arrow"}]}': "gone.arrow: got nothing at this path",
        '{"_data_files": [{"filename": "state.json"}]}': "state.json: got a file that is truncated or damaged",
        '{"_data_files": [{"filename": "a"}], "_indices_data_files": [{}]}': "rows chosen by an index",
    }.items():
        state.write_text(text)
        says(message, path)
    state.unlink()
    os.mkfifo(state)
    says("state.json: got a FIFO", path)
    state.unlink()
    (tmp_path / "some" / "dataset_dict.json").write_text('{"splits": [{}]}')
    says("a split {}", path)
    (tmp_path / "some" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    says("state.json: got nothing at this path", path)


@pytest.mark.parametrize("form", ["parquet", "saved"])
def test_damage_is_always_a_data_error(tmp_path, form):
    """Bytes changed at random and files cut short: the data loads or there is a DataError, never anything else."""
    x = DRAW.integers(0, 9, (N, 3)).tolist()
    path = parquet(tmp_path, x=x) if form == "parquet" else saved(tmp_path, x=x)
    file = tmp_path / "some.parquet" if form == "parquet" else tmp_path / "some" / "data-00000-of-00002.arrow"
    whole, failed = file.read_bytes(), 0
    draw = np.random.Generator(np.random.PCG64(5))
    for turn in range(250):
        raw = bytearray(whole)
        for at in draw.integers(0, len(raw), draw.integers(1, 5)):
            raw[at] = draw.integers(0, 256)
        file.write_bytes(raw if turn % 5 else whole[: draw.integers(0, len(whole))])
        try:
            Arrays(path, images=False, overlap="allow").load()
        except DataError as error:
            assert str(error).isprintable()
            failed += 1
    assert failed > 100


def test_a_small_file_does_not_become_large(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "SMALL_BYTES", 2**16)
    zeros = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(N * 50_000, np.int8)), 50_000)
    path = parquet(tmp_path, x=zeros)
    assert os.path.getsize(path) < 20_000
    says("40 rows of 50015 bytes, more than its size can hold; allowed at most 200 times the packed size", path)
    pq.write_table(table(x=zeros.cast(pa.list_(pa.int64(), 50_000))), path, compression="zstd", use_dictionary=False)
    says("40 rows in ", path)  # what it says of itself is enough
    monkeypatch.undo()
    monkeypatch.setattr(folders, "MOST_BYTES", N * 60 - 1)
    for path in (parquet(tmp_path), folder(tmp_path)):
        says("40 images of 60 bytes; allowed at most 2399 bytes (save them as a directory of .npy files)", path)


def test_libraries_that_are_not_installed(tmp_path, monkeypatch):
    paths = {"PIL": folder(tmp_path), "pyarrow": saved(tmp_path), "pyarrow.parquet": parquet(tmp_path)}
    for module, path in paths.items():
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            says("a file that this installation can read (pip install 'fedcodist[data]')", path)


# -- folders of images --


def test_folder_with_a_table_of_labels(tmp_path):
    path = folder(tmp_path, deep=False)
    parts = np.array((["train"] * 7 + ["public", "held_out", "test"]) * 4)
    lines = [f"{CLIENTS[i]}/{i:03d}.png,{LABELS[i] + 4},d{i % 2},{parts[i]}" for i in range(N)]
    (tmp_path / "pictures" / "labels.csv").write_text("\n".join(["file,label,domain,split", *lines[::-1]]) + "\n")
    task = Arrays(path).load()
    assert (
        task.classes == 7
        and task.domains == ("d0", "d1")
        and len(task.test.x) == 4
        and task.clients.sizes() == {f"c{i}": 4 for i in range(7)}
    )
    assert sorted(digests(task.test.x)) == sorted(digests(PIXELS[parts == "test"]))
    order = np.argsort([f"{CLIENTS[i]}/{i:03d}" for i in range(N)])
    assert np.array_equal(task.clients.y, LABELS[order] + 4) and np.array_equal(task.clients.x, PIXELS[order])


def test_folder_without_clients_is_for_a_partition(tmp_path):
    for i in range(N):
        (tmp_path / "p" / f"l{LABELS[i]}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / f"l{LABELS[i]}" / f"{i}.jpg").write_bytes(png(PIXELS[i], "JPEG"))
    task = Arrays(str(tmp_path / "p"), partition=Iid(8), overlap="drop").load()
    assert len(task.clients) == 4 and task.classes == 3 and "labels from 0: l0, l1, l2" in task.notes
    says("no column client; allowed columns x, y, client (found: 'y, x'; a partition makes clients)", str(tmp_path / "p"))


def test_folder_labels_and_modes(tmp_path):
    assert folders.numbered(["b", "10", "9"])[1].tolist() == [2, 0, 1]  # names are sorted as text
    assert folders.numbered(["01", "1"])[1].tolist() == [0, 1]  # not both 1
    for mode, channels in {"1": 1, "L": 1, "LA": 1, "RGB": 3, "RGBA": 3, "P": 3}.items():
        held = io.BytesIO()
        Image.fromarray(PIXELS[0]).convert(mode).save(held, "PNG")
        assert folders.image("a.png", held.getvalue()).shape == (5, 4, channels)
    held = io.BytesIO()
    Image.fromarray(np.zeros((3, 3), np.uint16)).save(held, "PNG")
    with pytest.raises(DataError, match="pixels of mode I;16; allowed 8 bits a channel"):
        folders.image("a.png", held.getvalue())


def test_folder_without_some_images(tmp_path):
    path = folder(tmp_path)
    (tmp_path / "pictures" / "nobody" / "l0").mkdir(parents=True)
    (tmp_path / "pictures" / "void").mkdir()
    (tmp_path / "pictures" / ".hidden").write_text("")
    (tmp_path / "pictures" / "c0" / ".DS_Store").write_text("")
    task = Arrays(path).load()
    assert "2 clients have no image and are left out" in task.notes and len(task.clients) == 5


def link(target):
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("c0/l0/note.txt", lambda p: p.write_text("hi"), "note.txt: got a file that is no image; allowed only .png, .jpg, .jpeg files"),
        ("c0/l0/a.png", lambda p: p.write_text("hi"), "a.png: got a file that begins with b'hi'; allowed a PNG or JPEG image"),
        ("c0/l0/a.png", lambda p: p.write_bytes(b""), "a.png: got an empty file"),
        ("c0/l0/a.png", lambda p: p.write_bytes(pickle.dumps({})), "a.png: got a pickle"),
        ("c0/l0/a.png", lambda p: p.write_bytes(png(PIXELS[0])[:-60]), "a.png: got an image that is truncated or damaged"),
        ("c0/l0/a.png", lambda p: p.write_bytes(png(PIXELS[0])[:12]), "a.png: got an image that is truncated or damaged"),
        ("c0/l0/z.png", lambda p: p.write_bytes(png(GREY[0])), "z.png: got an image of [5, 4, 1]; allowed [5, 4, 3], as in 'c0/l0/000"),
        ("c0/l0/z.png", lambda p: p.write_bytes(png(PIXELS[0][:4])), "got an image of [4, 4, 3]; allowed [5, 4, 3]"),
        ("c0/l0/a.png", lambda p: p.write_bytes(bomb(8200, 8200)), "an image of 8200 x 8200 pixels; allowed at most 67108864 pixels"),
        ("c0/l0/a.png", lambda p: p.write_bytes(bomb(10_000, 10_000)), "an image of 10000 x 10000 pixels"),  # Pillow only warns
        ("c0/l0/a.png", lambda p: p.write_bytes(bomb(100_000, 100_000)), "pixels; allowed at most 67108864 pixels"),  # Pillow raises
        ("c0/l0/a.png", os.mkfifo, "a.png: got a FIFO"),
        ("c0/l0/deeper", os.mkdir, "deeper: got a directory; allowed only .png"),
        ("c0/l0/a.png", link("/etc/hostname"), "a.png: got a symbolic link that leads out of the folder"),
        ("c0/l0/a.png", link("../../../outside.png"), "a.png: got a symbolic link that leads out of the folder"),
        ("c0/l0/a.png", link("gone.png"), "a.png: got a broken symbolic link"),
        ("c0/l0/a.png", link("a.png"), "a.png: got"),
        ("c11", link("/"), "c11: got a symbolic link that leads out of the folder"),
        ("loop", link("."), "got"),
        ("c0/flat.png", lambda p: p.write_bytes(png(PIXELS[0])), "got folders in folders, and 'c0/flat.png'; allowed one layout"),
        ("stray.png", lambda p: p.write_bytes(png(PIXELS[0])), "stray.png: got a file; allowed root/<client>/<label>/<file>"),
        ("labels.csv", lambda p: p.write_text("file,label\n"), "got folders in folders, and 'labels.csv'"),
        ("c\n0/l0", lambda p: p.mkdir(parents=True) or (p / "a.png").write_bytes(png(PIXELS[0])), "client: got 'c\\n0' in row"),
    ],
)  # fmt: skip
def test_folder_bad_entries(tmp_path, name, make, message):
    path = folder(tmp_path)
    (tmp_path / "outside.png").write_bytes(png(PIXELS[0]))
    make(tmp_path / "pictures" / name)
    says(message, path)


def test_folder_links_that_stay_inside_are_followed(tmp_path):
    path = folder(tmp_path)
    (tmp_path / "pictures" / "c0" / "l0" / "same.png").symlink_to("000.png")
    assert len(folders.read(path).columns["x"]) == N + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "the columns ''; allowed file,label and perhaps domain,split"),
        (b"label,file\n", "the columns 'label,file'"),
        (b"file,label,file\n", "the columns 'file,label,file'"),
        (b"file,label,colour\n", "the columns 'file,label,colour'"),
        (b"\xff\xfe", "text that is no table"),
        (b'file,label\n"a', "text that is no table"),
        (b"file,label\nc0/000.png\n", "'c0/000.png' in row 2; allowed 2 values"),
        (b"file,label\nc0/000.png,\n", "'c0/000.png,' in row 2"),
        (b"file,label\nc0/000.png,1\nc0/000.png,2\n", "'c0/000.png' again in row 3; allowed each file once"),
        (b"file,label\n../outside.png,1\n", "'../outside.png' in row 2, which is not there"),
        (b"file,label\n/etc/passwd,1\n", "'/etc/passwd' in row 2, which is not there"),
        (b"file,label\nc0/000.png,1\n", "no row for 'c0/010.png'; allowed a row for each image (39 such images)"),
    ],
)
def test_folder_bad_tables(tmp_path, text, message):
    path = folder(tmp_path, deep=False)
    (tmp_path / "pictures" / "labels.csv").write_bytes(text)
    assert "labels.csv: got " in says(message, path)


def test_folder_without_any_image(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    says("got no image; allowed root/<client>/<label>/<file>", str(tmp_path))


def test_images_damaged_at_random_are_data_errors():
    draw = np.random.Generator(np.random.PCG64(3))
    for kind in ("PNG", "JPEG"):
        whole = png(PIXELS[0], kind)
        for _ in range(300):
            raw = bytearray(whole)
            for at in draw.integers(8, len(raw), draw.integers(1, 4)):
                raw[at] = draw.integers(0, 256)
            try:
                assert folders.image("a", bytes(raw)).dtype == np.uint8
            except DataError as error:
                assert str(error).isprintable()


# -- functions --

GIVEN: dict = {}


def gives():
    if isinstance(GIVEN.get("error"), Exception):
        raise GIVEN["error"]
    return GIVEN.get("all", {**given(), **GIVEN})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"all": 3}, "test_own_data:gives: got 'int'; allowed a mapping from the names of columns to arrays"),
        ({"all": {1: 2}}, "got 'dict'; allowed a mapping"),
        ({"all": {}}, "no column x, y, client; allowed columns x, y, client (found: none)"),
        ({"error": KeyError("a\nb")}, "function: got 'test_own_data:gives', which raised KeyError: 'a\\nb'"),
        ({"x": [[1, 2], [3]]}, "test_own_data:gives: x: got no array (ValueError"),
        ({"x": np.array([object()])}, "test_own_data:gives: x: got Python objects (dtype object)"),
        ({"x": np.zeros((0, 3))}, "x: got nothing (shape [0, 3])"),
        ({"x": np.zeros((N, 3), complex)}, "x: got dtype complex128"),
        ({"y": np.zeros(3, int)}, "y: got shape [3]; allowed [40]"),
        ({"y": LABELS - 1}, "y: got -1 in row 0"),
        ({"client": "a"}, "client: got shape []"),
    ],
)
def test_bad_functions(monkeypatch, other, message):
    monkeypatch.setitem(globals(), "GIVEN", other)
    monkeypatch.setattr(sys.modules["test_own_data"], "GIVEN", other)
    says(message, function="test_own_data:gives")


def test_functions_that_cannot_be_found(tmp_path, monkeypatch):
    said = says("function: got 'no_such_module:f', which cannot be imported", function="no_such_module:f")
    assert "distillation" not in said
    says("which cannot be imported", function="test_own_data:no_such")
    says("which is no function (but int)", function="test_own_data:N")
    (tmp_path / "broken_module.py").write_text("def (")
    monkeypatch.syspath_prepend(tmp_path)
    says("which raised SyntaxError", function="broken_module:f")
    with pytest.raises(SettingError, match="Arrays.function: got 'kl'; allowed module:function"):
        Arrays(function="kl")


# -- partitions and capacities --


def test_partition(tmp_path):
    path = npz(tmp_path, client=None)
    task = Arrays(path, partition=Shards(10, 2)).load()
    assert len(task.clients) == 5 and set(task.clients.sizes().values()) == {4} and min(task.clients).startswith("client-00")
    assert set(np.unique(task.held_out.client)) == {0} and content(task) == content(Arrays(path, partition=Shards(10, 2)).load())
    assert content(task) != content(Arrays(path, partition=Shards(10, 2), split_seed=1).load())
    says("no column client; allowed columns x, y, client (found: 'x, y'; a partition makes clients)", path)
    assert "1 rows were dealt to no client and are left out" in Arrays(path, partition=Dirichlet(13)).load().notes
    path = npz(tmp_path)
    says('client: got clients, and a partition; allowed one of the two (client = "" ignores the column)', path, partition=Iid(8))
    assert min(Arrays(path, partition=Iid(8), client="").load().clients).startswith("client-")
    says("partition: got 40 rows; allowed at least 41", path, partition=Iid(41), client="")


def test_partition_of_the_training_rows_only(tmp_path):
    split = np.array(["train"] * 30 + ["test"] * 10)
    task = Arrays(npz(tmp_path, client=None, split=split), partition=Iid(10)).load()
    assert sorted(digests(task.test.x)) == sorted(digests(PIXELS[30:])) and task.test.client is None
    assert len(task.clients) == 6 and len(task.public.x) == 9 and len(task.held_out.x) == 3 and task.held_out.client is not None


def test_partition_by_coarse_labels(tmp_path):
    path = npz(tmp_path, client=None, y=np.arange(N) % 4, coarse_label=np.arange(N) % 2)
    task = Arrays(path, partition=Pachinko(10, examples=4)).load()
    assert set(task.clients.sizes().values()) == {4} and not any("coarse_label" in note for note in task.notes)
    says("no coarse labels; allowed a column big", path, partition=Pachinko(10, examples=4, column="big"))
    says("coarse_label: got shape [3]", npz(tmp_path, client=None, coarse_label=np.arange(3)), partition=Pachinko(10, examples=4))


def test_capacity(tmp_path):
    device = np.array([f"tier{i % 10 % 2}" for i in range(N)])
    age = (np.arange(N) % 10).astype(float)
    path = npz(tmp_path, device=device, age=age)
    task = Arrays(path, capacity=Capacity(column="device")).load()
    assert all(tier == f"tier{int(name[1:]) % 2}" for name, tier in task.attributes["capacity"].items())
    assert "columns not used: age" in task.notes
    task = Arrays(path, capacity=Capacity({"high": 0.2, "low": 0.8}, attribute="age", rho=1.0)).load()
    assert [name for name, level in task.attributes["capacity"].items() if level == "high"] == [max(task.clients, key=lambda c: int(c[1:]))]
    assert task.attributes["age"][next(iter(task.clients))] == int(next(iter(task.clients))[1:])
    says("'examples', the same for all clients; allowed an attribute that differs", path, capacity=Capacity(attribute="examples", rho=1.0))
    says("no column devices; allowed columns x, y, client, devices (did you mean device?)", path, capacity=Capacity(column="devices"))
    device[39] = "tier0"
    seed = next(seed for seed in range(30) if "c9" in Arrays(path, split_seed=seed).load().clients)
    path = npz(tmp_path, device=device)
    said = says("for client 'c9'; allowed one value for each client", path, capacity=Capacity(column="device"), split_seed=seed)
    assert "'tier1' and 'tier0' (row 39)" in said


# -- what else may be wrong with data, one row of the catalogue after the other --


def names(**rows):
    return np.array([rows.get(f"r{i}", CLIENTS[i]) for i in range(N)])


@pytest.mark.parametrize(
    ("row", "other", "settings", "message"),
    [
        (26, {"client": names(r3="a\nb")}, {}, "client: got 'a\\nb' in row 3"),
        (26, {"client": names(r3="../a")}, {}, "client: got '../a' in row 3"),
        (26, {"client": names(r3="a" * 4096)}, {}, "in row 3; allowed 1 to 200 printable characters"),
        (28, {"split": np.array(["public", "test"] * 20)}, {}, "split: got no row that is train"),
        (31, {"public_x": PIXELS[:0]}, {}, "public_x: got nothing (shape [0, 5, 4, 3])"),
        (33, {"public_x": PIXELS}, {}, "rows of public that are also in clients"),
        (35, {"public_x": PIXELS[:, :4]}, {}, "public_x: got rows of [4, 4, 3] uint8; allowed [5, 4, 3] uint8, as in x"),
        (35, {}, {"size": 6}, "x: got images of 5 x 4; allowed at least 6 x 6"),
        (36, {"y": LABELS}, {"classes": 2}, "y: got 2 in row 2; allowed whole numbers from 0 to 1"),
        (38, {"y": -LABELS}, {}, "y: got -1 in row 1"),
        (39, {"x": np.where(np.arange(N)[:, None] == 3, np.nan, np.ones((N, 2)))}, {}, "x: got NaN or infinity in row 3"),
        (40, {"x": np.zeros_like(PIXELS)}, {}, "rows of public that are also in clients"),
        (40, {"x": np.zeros_like(PIXELS)}, {"overlap": "drop"}, "no row of public that is not in a part before it"),
        (50, {"client": CLIENTS.astype(object)}, {}, "got Python objects (dtype object)"),
    ],
)
def test_catalogue(tmp_path, row, other, settings, message):
    says(message, npz(tmp_path, **other), **settings)


def test_catalogue_of_what_is_allowed(tmp_path):
    split = np.array(["train"] * 37 + ["public", "held_out", "test"])
    task = Arrays(npz(tmp_path, client=names(r37="late"), split=split)).load()  # rows 27 and 34
    assert "1 clients have no training examples and are left out" in task.notes
    assert "the labels of 1 public rows were dropped" in task.notes and task.public.y is None
    client = np.array(["big"] * 30 + [f"s{i}" for i in range(10)])
    task = Arrays(npz(tmp_path, client=client)).load()  # row 29: clients with one example
    assert min(task.clients.sizes().values()) == 1
    x = np.arange(3000, dtype=np.float32)[:, None]
    client = np.array(["big"] * 2990 + [f"s{i}" for i in range(10)])
    np.savez(
        tmp_path / "some.npz", x=x, y=np.arange(3000) % 2, client=client, split=np.array(["train"] * 2997 + ["public", "held_out", "test"])
    )
    assert "client big has 2990 of 2997 training examples" in Arrays(str(tmp_path / "some.npz")).load().notes  # row 30
    x = np.zeros((N, 3), np.float32)
    task = Arrays(npz(tmp_path, x=x), overlap="allow").load()  # row 40
    assert sum("are in a part before it, and were kept" in note for note in task.notes) == 3


def test_odd_paths(tmp_path):  # rows 49 and 52
    for name, raw, message in (
        ("a.parquet", b"", "an empty file"),
        ("a.parquet", pickle.dumps([1]), "a pickle"),
        ("a.parquet", b"PAR1", "truncated or damaged"),
        ("a.parquet", b"PAR1" + b"\xff" * 4 + b"PAR1", "truncated or damaged"),
        ("a.parquet", b"ARROW1\0\0", "an Arrow file; allowed a .csv, .npz or Parquet file"),
        ("a.parquet", b"SQLite format 3\0", "an SQLite file"),
    ):
        (tmp_path / name).write_bytes(raw)
        says(message, str(tmp_path / name))
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "d" / "0.parquet")
    says("0.parquet: got a FIFO", str(tmp_path / "d"))
    (tmp_path / "d" / "0.parquet").unlink()
    (tmp_path / "d" / "0.parquet").write_bytes(b"PK\3\4")
    says("0.parquet: got a zip or .npz file; allowed a Parquet file", str(tmp_path / "d"))
    says("got a device", "/dev/zero")


def test_arrays_may_be_asked_for_by_name(tmp_path):
    found, others = arrays.read(npz(tmp_path), {"x"})
    assert list(found) == ["x"] and others == ["y", "client"]
