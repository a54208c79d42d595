"""Tasks: sizes and disjointness of their splits, what a split seed changes, and every kind of file that is not data."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import zipfile
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedcodist import keys
from fedcodist.config import digest
from fedcodist.data.overlap import digests
from fedcodist.errors import DataError
from fedcodist.objectives.images import Images
from fedcodist.objectives.next_token import BOS, EOS, PAD
from fedcodist.settings import Problem, SettingError, read_kind
from fedcodist.tasks import TASKS, Arrays, FashionImages, StdlibText, Toy
from fedcodist.tasks.arrays import SPLITS

MODULES = 80  # enough text for a test


def parts(task):
    """{part: digests of its rows}."""
    clients = np.concatenate([digests(task.clients[name].x) for name in task.clients])
    return {"clients": clients, "public": digests(task.public.x), "held_out": digests(task.held_out.x), "test": digests(task.test.x)}


def disjoint(task) -> bool:
    found = [set(part.tolist()) for part in parts(task).values()]
    return len(set().union(*found)) == sum(map(len, found))


def same(one, other) -> bool:
    a, b = parts(one), parts(other)
    return list(one.clients) == list(other.clients) and all(np.array_equal(a[k], b[k]) for k in a) and one.attributes == other.attributes


@pytest.fixture(scope="module")
def fashion():
    return FashionImages().load()


@pytest.fixture(scope="module")
def text():
    return StdlibText(modules=MODULES).load()


# -- every task --


def test_registry_reads_tables():
    problems: list[Problem] = []
    assert read_kind(TASKS, {"kind": "toy", "clients": 3}, "task", problems) == Toy(clients=3) and not problems
    assert read_kind(TASKS, "fashion", "task", problems) == FashionImages() and not problems
    read_kind(TASKS, {"kind": "fashion", "public_share": 0.6, "held_out_share": 0.4}, "task", problems)
    read_kind(TASKS, {"kind": "arrays"}, "task", problems)
    assert [p.path for p in problems] == ["task.public_share", "task.path"]


@pytest.mark.parametrize("make", [FashionImages, Toy, lambda split_seed: StdlibText(modules=30, split_seed=split_seed)])
def test_split_seed_decides(make):
    zero = make(split_seed=0).load()
    assert same(zero, make(split_seed=0).load())
    assert not same(zero, make(split_seed=1).load())


def test_global_random_state_is_neither_used_nor_changed():
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    one = Toy().load()
    np.random.seed(2)
    assert same(one, Toy().load())
    np.random.seed(1)
    Toy().load()
    assert np.array_equal(before, np.random.get_state()[1])


# -- fashion --


def test_fashion_sizes(fashion):
    assert len(fashion.clients) == 63 and set(fashion.clients.sizes().values()) == {50}
    assert fashion.public.x.shape == (27 * 50, 28, 28, 1) and fashion.public.x.dtype == np.uint8 and fashion.public.y is None
    assert len(fashion.held_out.x) == 500 and len(np.unique(fashion.held_out.client)) == 10
    assert len(fashion.test.x) == 1000 and Counter(fashion.test.client.tolist()) == dict.fromkeys(range(20), 50)
    assert np.bincount(fashion.test.y).tolist() == [100] * 10 and fashion.test.y.dtype == np.int32
    assert fashion.objective.images == Images(24) and fashion.classes == 10 and not fashion.notes
    assert all(name.startswith("client-") and len(name) == 10 for name in fashion.clients)


def test_fashion_parts_are_disjoint_and_without_duplicates(fashion):
    assert disjoint(fashion)
    assert sum(len(np.unique(part)) for part in parts(fashion).values()) == 6000


def test_fashion_labels_are_skewed(fashion):
    def top(task):
        return np.mean([np.bincount(task.clients[name].y).max() for name in task.clients]) / 50

    assert top(fashion) > 0.35 > 0.2 > top(FashionImages(dirichlet=1e4).load())
    assert all(np.bincount(fashion.clients[n].y).argmax() == int(v) for n, v in fashion.attributes["main_class"].items())


def test_fashion_capacity(fashion):
    assert Counter(fashion.attributes["capacity"].values()) == {"low": 44, "mid": 13, "high": 6}


def test_fashion_out_of_domain_keeps_the_clients(fashion):
    task = FashionImages(public="out_of_domain", public_size=1100).load()
    assert list(task.clients) == list(fashion.clients) and disjoint(task)
    assert task.public.x.shape == (1100, 28, 28, 1) and task.public.x.dtype == np.uint8 and task.public.y is None
    assert len(np.unique(digests(task.public.x))) == 1100 and task.public.x.std() > 30


def test_fashion_public_labels():
    assert len(FashionImages(public_labels=True).load().public.y) == 1350
    with pytest.raises(SettingError, match="public_labels"):
        FashionImages(public_labels=True, public="out_of_domain")


def test_fashion_public_size(fashion):
    some, fewer = (FashionImages(public_size=n, public_labels=True).load() for n in (300, 60))
    labels = FashionImages(public_labels=True).load().public.y
    place = {row: i for i, row in enumerate(digests(fashion.public.x).tolist())}
    for task, n in ((some, 300), (fewer, 60)):
        rows = [place[row] for row in digests(task.public.x).tolist()]  # all are of the whole
        assert len(set(rows)) == len(rows) == n and rows == sorted(rows) and task.public.y.tolist() == labels[rows].tolist()
        assert max(rows) > 1000  # not the first ones
        others = {**parts(task), "public": 0}, {**parts(fashion), "public": 0}
        assert all(np.array_equal(others[0][part], others[1][part]) for part in others[0]) and task.attributes == fashion.attributes
    assert set(digests(fewer.public.x).tolist()) < set(digests(some.public.x).tolist())  # nested
    assert same(fashion, FashionImages(public_size=1350).load())
    with pytest.raises(DataError, match="^task.public_size: got 1351; allowed at most the 1350 public images$"):
        FashionImages(public_size=1351).load()
    assert len(FashionImages(public="out_of_domain").load().public.x) == 1350
    with pytest.raises(SettingError, match="FashionImages.public_size: got 0; allowed an integer >= 1"):
        FashionImages(public_size=0)


def test_fashion_as_given_is_the_data_that_it_always_was(fashion):
    # Written down once: another digest would make strangers of all runs on this data.
    assert digest(fashion).startswith("600ed8eccaeb")


def test_fashion_leaves_out_what_does_not_divide():
    task = FashionImages(clients=30).load()
    assert set(task.clients.sizes().values()) == {166} and task.notes == ("20 images left out so that clients are of equal size",)


@pytest.mark.parametrize("dirichlet", [1e-3, 1e6])
def test_fashion_extreme_skew(dirichlet):
    assert disjoint(FashionImages(dirichlet=dirichlet).load())


def test_too_few_clients():
    with pytest.raises(DataError, match="^clients: got 4; allowed more than 2 public . 2 held_out$"):
        FashionImages(clients=4, public_share=0.49, held_out_share=0.5).load()


# -- text --


def test_text_ids(text):
    x, y = text.clients.x, text.clients.y
    oov = text.objective.oov
    assert x.dtype == y.dtype == np.int32 and x.shape[1] == y.shape[1] == 20 and text.classes == oov + 1 == 1004
    for rows in (text.clients, text.held_out, text.test):
        assert (rows.x[:, 0] == BOS).all() and rows.y.min() >= PAD and rows.y.max() <= oov and not (rows.y == BOS).any()
        inside = rows.y[:, :-1]
        assert np.array_equal(rows.x[:, 1:][inside != EOS], inside[inside != EOS])  # shifted by one
        assert ((rows.y == EOS).sum(1) <= 1).all() and (rows.y[:, 0] >= 3).all()
        assert (np.diff((rows.y == PAD).astype(int), axis=1) >= 0).all()  # PAD only at the end
    assert text.objective.scale == round(float((y != PAD).sum(1).mean()), 1)


def test_text_vocabulary_is_that_of_the_federated_clients_in_order(text):
    counts = np.bincount(text.clients.y.ravel(), minlength=text.classes)[3:-1]
    assert (np.diff(counts) <= 0).all() and counts[-1] > 0


def test_text_clients_and_domains(text):
    assert text.domains == ("docstring", "comment") and disjoint(text)
    assert min(text.clients.sizes().values()) >= 10 and max(text.clients.sizes().values()) <= 200
    for rows in (text.clients, text.held_out, text.test):
        assert set(rows.domain.tolist()) == {0, 1} and len(rows.domain) == len(rows.x)
    assert len(text.held_out.client) == len(text.held_out.x)
    assert all(name.split(".")[0] == package for name, package in text.attributes["package"].items())
    name, main = next(iter(text.attributes["main_domain"].items()))
    assert text.domains[np.bincount(text.clients.domain[text.clients.rows[name]]).argmax()] == main
    assert text.public.y is None and f"{len(text.clients)} clients" in text.notes[1] and "vocabulary" in text.notes[2]


def test_text_public_labels():
    public = StdlibText(modules=30, public_labels=True).load().public
    assert public.y.shape == public.x.shape


def test_text_out_of_domain_is_the_language_reference(text):
    other = StdlibText(modules=MODULES, public="out_of_domain").load()
    assert list(other.clients) == list(text.clients) and disjoint(other) and other.attributes == text.attributes
    ours, theirs = parts(text), parts(other)
    assert all(np.array_equal(ours[part], theirs[part]) for part in ("clients", "held_out", "test"))  # only the public data is another
    assert len(theirs["public"]) == len(set(theirs["public"].tolist())) > 1000 and not np.isin(theirs["public"], ours["public"]).any()
    assert other.public.x.dtype == text.public.x.dtype and other.public.x.shape[1:] == text.public.x.shape[1:] and other.public.y is None
    assert f"{len(theirs['public'])} public of the language reference, " in other.notes[1] and "reference" not in text.notes[1]


def test_text_out_of_domain_is_cut_the_same_way(monkeypatch):
    topics = {"b": "It says what it says.  Really not!\n\n>>> f(1)\nThe the the.", "a": "It says what it says.  And the\nrest of it."}
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", SimpleNamespace(topics=topics))
    task = StdlibText(modules=30, length=4, public="out_of_domain", public_labels=True).load()
    # By topic, each once, cut to four words and without code; two words are no sentence.
    first, second, third = task.public.y.tolist()  # it says what it; and the rest of; the the the
    the = third[0]
    assert third == [the, the, the, EOS] and the != task.objective.oov and second[1] == the
    assert first[0] == first[3] and EOS not in (*first, *second) and (task.public.x[:, 0] == BOS).all()


def test_text_out_of_domain_has_no_sentence_of_a_client(monkeypatch):
    from fedcodist.tasks import stdlib_text as module

    plain = StdlibText(modules=30)
    mine = {name: sentences[0].words for name, sentences in plain._read(keys.derive(keys.root(0), plain.kind)).items()}
    mine["another"] = ("words", "that", "nobody", "wrote", "so", "far")
    monkeypatch.setattr(module, "reference", lambda: list(mine.values()))
    assert len(StdlibText(modules=30, public="out_of_domain").load().public.x) == 1


@pytest.mark.parametrize("there", [None, SimpleNamespace(topics={}), SimpleNamespace()])
def test_text_out_of_domain_needs_the_reference(monkeypatch, there):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", there)
    with pytest.raises(DataError, match=r"^task.public: got out_of_domain; allowed in_domain, as this Python has no pydoc_data.topics \("):
        StdlibText(modules=30, public="out_of_domain").load()


def test_text_reads_docstrings_and_comments_only(tmp_path):
    from fedcodist.tasks.stdlib_text import read

    path = tmp_path / "m.py"
    path.write_text(
        '#!/usr/bin/env python\n# Copyright of the whole world.\n"""First one here.  Second one is here."""\n'
        's = "# not a comment at all"\n# A comment on\n# two lines here.\n# ------\ndef f():\n    "Inner doc string."\n'
    )
    assert [(" ".join(s.words), s.domain) for s in read(path)] == [
        ("first one here", 0), ("second one is here", 0), ("inner doc string", 0), ("a comment on two lines here", 1)
    ]  # fmt: skip
    path.write_text("def (:")
    assert read(path) == []
    path.write_bytes(b"\xff\x00\xfe")
    assert read(path) == []


def test_text_too_little():
    with pytest.raises(DataError, match="stdlib_text: got 0 modules"):
        StdlibText(modules=4, min_examples=100_000).load()


# -- toy --


def test_toy():
    task = Toy().load()
    sizes = task.clients.sizes().values()
    assert len(sizes) == 12 and min(sizes) >= 13 and max(sizes) <= 27 and len(set(sizes)) > 1
    assert len(task.public.x) == len(task.held_out.x) == len(task.test.x) == 200 and task.public.y is None and disjoint(task)
    second = task.clients.domain == 1
    assert 0.3 < second.mean() < 0.7 and set(task.attributes["capacity"].values()) <= {"low", "mid", "high"}
    far = Toy(shift=50.0).load().clients
    assert far.x[far.domain == 1].min() > far.x[far.domain == 0].max()
    assert set(Toy(examples=1, clients=1, public=1, held_out=1, test=1).load().clients.sizes().values()) == {1}


# -- arrays --


def columns(n=40, clients=10, **other):
    draw = np.random.Generator(np.random.PCG64(0))
    client = np.array([f"c{i % clients}" for i in range(n)])
    made = {"x": draw.standard_normal((n, 3)).astype(np.float32), "y": np.arange(n) % 3, "client": client}
    return {name: value for name, value in {**made, **other}.items() if value is not None}


def npz(tmp_path, **other):
    path = tmp_path / "some.npz"
    np.savez(path, **columns(**other))
    return str(path)


def folder(tmp_path, **other):
    path = tmp_path / "some"
    path.mkdir()
    for name, value in columns(**other).items():
        np.save(path / f"{name}.npy", value)
    return str(path)


def says(path, message, **settings):
    """Loading fails with one printable line that names the file and has the message in it."""
    with pytest.raises(DataError) as caught:
        Arrays(path, **settings).load()
    said = str(caught.value)
    assert message in said and said.isprintable() and "; allowed " in said and caught.value.code == 3
    return said


@pytest.mark.parametrize("make", [npz, folder])
def test_arrays_divided_by_client(tmp_path, make):
    path = make(tmp_path)
    task = Arrays(path).load()
    assert len(task.clients) == 5 and set(task.clients.sizes().values()) == {4}
    assert len(task.public.x) == 12 and task.public.y is None and len(task.held_out.x) == len(task.test.x) == 4
    assert disjoint(task) and task.classes == 3 and task.domains == ("all",) and task.objective.images is None
    assert task.notes == ("the labels of 12 public rows were dropped",)
    assert same(task, Arrays(path).load()) and not same(task, Arrays(path, split_seed=1).load())
    assert set(np.unique(task.held_out.client)) == {0}


def test_arrays_layouts_agree(tmp_path):
    assert same(Arrays(npz(tmp_path)).load(), Arrays(folder(tmp_path)).load())


def test_arrays_of_a_directory_are_mapped(tmp_path):
    x = Arrays(folder(tmp_path)).load().clients.x
    assert isinstance(x.base, np.memmap)


def test_arrays_split_column_and_domains(tmp_path):
    split = np.array((["train"] * 3 + ["public"]) * 8 + ["held_out"] * 4 + ["test"] * 4)
    domain = np.arange(40) % 2 + 7
    client = np.array([0] * 16 + [1] * 16 + [2] * 8)
    task = Arrays(npz(tmp_path, split=split, domain=domain, client=client, extra=np.zeros(3))).load()
    assert task.clients.sizes() == {"0": 12, "1": 12} and len(task.public.x) == 8 and task.domains == ("7", "8")
    assert task.held_out.domain.tolist() == [0, 1, 0, 1] and task.attributes["main_domain"]["0"] in task.domains
    assert "columns not used: extra" in task.notes and "1 clients have no training examples and are left out" in task.notes


def test_arrays_public_x(tmp_path):
    task = Arrays(npz(tmp_path, public_x=np.full((5, 3), 9, np.float32))).load()
    assert len(task.public.x) == 5 and len(task.clients) == 8 and not task.notes


def test_arrays_images(tmp_path):
    x = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (40, 9, 9, 1), np.uint8)
    path = npz(tmp_path, x=x)
    plain = Images(9, flip=False, public_flips=False, mixup_beta=0.0)
    assert Arrays(path).load().objective.images == plain
    cropped = Arrays(path, size=5, flip=True).load()
    assert cropped.objective.images == replace(plain, size=5, flip=True) and "augmentation is on: crops of 5 x 5, flips" in cropped.notes
    assert Arrays(path, images=False).load().objective.images is None
    says(path, "images of 9 x 9; allowed at least 10 x 10", size=10)
    says(npz(tmp_path), "for images = true", images=True)


def test_arrays_orders_are_converted(tmp_path):
    plain = Arrays(npz(tmp_path)).load()
    x = columns()["x"]
    for name, other in {"big": x.astype(">f4"), "fortran": np.asfortranarray(x)}.items():
        for make in (npz, folder):
            (tmp_path / f"{name}{make.__name__}").mkdir()
            task = Arrays(make(tmp_path / f"{name}{make.__name__}", x=other, y=columns()["y"].astype(">i8"))).load()
            assert same(plain, task) and task.clients.x.dtype.isnative and task.clients.x.flags.c_contiguous


def test_arrays_whole_float_labels_are_labels(tmp_path):
    assert Arrays(npz(tmp_path, y=(np.arange(40) % 3).astype(float))).load().test.y.dtype == np.int32


def test_arrays_bytes_are_names(tmp_path):
    client = np.array([f"ä{i % 10}".encode() for i in range(40)])
    assert all(name.startswith("ä") for name in Arrays(npz(tmp_path, client=client)).load().clients)
    says(npz(tmp_path, client=np.array([b"\xff"] * 40)), "allowed UTF-8")


@pytest.mark.parametrize(
    ("message", "other"),
    [
        ("no column y, client; allowed columns x, y, client (found: 'x')", {"y": None, "client": None}),
        ("client: got shape [39]; allowed [40]", {"client": np.arange(39)}),
        ("y: got shape [40, 1]; allowed [40]", {"y": np.zeros((40, 1), int)}),
        ("domain: got shape [3]", {"domain": np.arange(3)}),
        ("y: got -1 in row 2; allowed whole numbers from 0", {"y": np.array([0, 1, -1, -1] * 10)}),
        ("y: got 1.5 in row 1", {"y": np.array([0, 1.5] * 20)}),
        ("y: got nan in row 1", {"y": np.array([0, np.nan] * 20)}),
        ("y: got 4000000000 in row 1", {"y": np.array([0, 4_000_000_000] * 20)}),
        ("y: got 1 different labels; allowed 2", {"y": np.array(["a"] * 40)}),
        ("y: got 0 in every row", {"y": np.zeros(40, int)}),
        ("x: got dtype <U1; allowed numbers", {"x": np.array([["a"]] * 40)}),
        ("x: got shape [40]; allowed [rows, ...]", {"x": np.arange(40)}),
        (": got nothing (shape [0, 3])", {"x": np.zeros((0, 3))}),
        (": got nothing (shape [40, 0])", {"x": np.zeros((40, 0))}),
        ("x: got 0 to 4294967296", {"x": np.array([[0], [2**32]] * 20)}),
        (": got dtype complex128", {"x": np.zeros((40, 2), complex)}),
        ("client: got 'a\\nb' in row 0", {"client": np.array(["a\nb"] * 40)}),
        ("client: got 'a\\x00b' in row 0", {"client": np.array(["a\0b"] * 40)}),
        ("client: got '../a' in row 0", {"client": np.array(["../a"] * 40)}),
        ("client: got '..' in row 0", {"client": np.array([".."] * 40)}),
        ("client: got '' in row 0", {"client": np.array([""] * 40)}),
        ("in row 3; allowed 1 to 200 printable characters", {"client": np.array(["a", "b", "c", "d" * 201] * 10)}),
        ("client: got dtype float64", {"client": np.zeros(40)}),
        ("domain: got 'all'", {"domain": np.array(["all", "b"] * 20)}),
        ("split: got 'tset' in row 1; allowed train, public, held_out, test (20 such rows)", {"split": np.array(["train", "tset"] * 20)}),
        ("split: got no row that is train", {"split": np.array(["public", "test"] * 20)}),
        ("public_x: got rows of [4] float64; allowed [3] float32, as in x", {"public_x": np.zeros((5, 4))}),
        ("public_x: got public data, and 10 rows of split", {"public_x": np.ones((5, 3), "f4"), "split": np.array(SPLITS * 10)}),
        ("clients: got 3; allowed more than 1 public + 1 held_out + 1 test", {"client": np.arange(40) % 3}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("make", [npz, folder])
def test_arrays_bad_columns(tmp_path, make, message, other):
    says(make(tmp_path, **other), message)


def test_arrays_not_finite(tmp_path):
    x = columns()["x"].astype(float)
    x[5, 1], x[9, 0], x[11, 2] = np.nan, np.inf, 1e300  # the last is infinite in 32 bits
    says(npz(tmp_path, x=x), "x: got NaN or infinity in row 5; allowed finite 32-bit numbers (3 such rows)")


def test_arrays_label_of_too_few_classes(tmp_path):
    says(npz(tmp_path), "y: got 2 in row 2; allowed whole numbers from 0 to 1", classes=2)
    assert Arrays(npz(tmp_path), classes=7).load().classes == 7


def test_arrays_overlap(tmp_path):
    x = columns()["x"]
    split = np.array(["train"] * 30 + ["public"] * 4 + ["held_out"] * 3 + ["test"] * 3)
    x[39], x[38], x[33] = x[0], x[1], x[34]
    path = npz(tmp_path, x=x, split=split)
    said = says(path, "2 rows of test that are also in clients")
    assert "1 rows of held_out that are also in public" in said and 'overlap = "drop"' in said
    task = Arrays(path, overlap="allow").load()
    assert len(task.test.x) == 3 and "2 rows of test are in a part before it, and were kept" in task.notes
    task = Arrays(path, overlap="drop").load()
    assert len(task.test.x) == 1 and len(task.held_out.x) == 2 and len(task.public.x) == 4 and disjoint(task)
    assert "2 rows of test are in a part before it, and were dropped" in task.notes
    assert np.array_equal(task.test.x[0], x[37]) and "1 rows of held_out are in a part before it, and were dropped" in task.notes


def test_arrays_overlap_of_public_x(tmp_path):
    path = npz(tmp_path, public_x=columns()["x"][:40])
    says(path, "rows of held_out that are also in public")
    says(path, "got no row of held_out that is not in a part before it", overlap="drop")
    path = npz(tmp_path, public_x=np.concatenate([columns()["x"][:20], np.ones((2, 3), np.float32)]), client=np.arange(40))
    task = Arrays(path, overlap="drop", held_out=0.3, test=0.3).load()
    assert disjoint(task) and len(task.public.x) + len(task.held_out.x) + len(task.test.x) + len(task.clients) == 42


def test_arrays_parts_that_split_does_not_name_are_whole_clients(tmp_path):
    path = npz(tmp_path, split=np.array((["train"] * 9 + ["test"]) * 4))
    task = Arrays(path, public=0.4, held_out=0.2).load()
    assert len(task.test.x) == 4 and disjoint(task) and len(task.clients) == 3
    assert len(task.public.x) == 16 and len(task.held_out.x) == 8  # c9 has only test rows, so nine clients are divided
    assert "no row of split is public: 4 of the clients are taken for it" in task.notes


def test_arrays_odd_paths(tmp_path):
    says(str(tmp_path / "none.npz"), "got nothing at this path")
    (tmp_path / "dir.npz").mkdir()
    says(str(tmp_path / "dir.npz"), "got a directory; allowed a .npz file")
    (tmp_path / "link.npz").symlink_to(tmp_path / "gone")
    says(str(tmp_path / "link.npz"), "got a broken symbolic link")
    os.mkfifo(tmp_path / "fifo.npz")
    says(str(tmp_path / "fifo.npz"), "got a FIFO")
    says("/dev/zero", "got a device")
    says(str(tmp_path / "a\nb"), "a\\nb: got nothing")
    says("a\0b", "got embedded null byte")
    (tmp_path / "void").mkdir()
    says(str(tmp_path / "void"), "no column x, y, client; allowed columns x, y, client (found: none)")


def test_arrays_odd_files_in_a_directory(tmp_path):
    path = folder(tmp_path)
    x = tmp_path / "some" / "x.npy"
    for make, message in ((x.mkdir, "x.npy: got a directory"), (lambda: os.mkfifo(x), "x.npy: got a FIFO")):
        x.unlink() if x.is_file() else None
        make()
        says(path, message)
        x.rmdir() if x.is_dir() else x.unlink()
    np.savez(x.with_suffix(".npz"), x=1)
    x.with_suffix(".npz").rename(x)
    says(path, "x.npy: got a zip or .npz file; allowed a .npy file")


class Trap:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_pickles_are_never_read(tmp_path, protocol, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "some.npz"
    for thing in ({"x": 1}, [1, 2], np.zeros(3)):
        path.write_bytes(pickle.dumps(thing, protocol))
        says(str(path), "got a pickle")
    path.write_bytes(pickle.dumps(Trap(), protocol))
    says(str(path), "got a")
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("make", [npz, folder])
def test_arrays_objects_are_never_read(tmp_path, make, monkeypatch):
    monkeypatch.chdir(tmp_path)
    says(make(tmp_path, client=np.array([Trap()] * 40, object)), "got Python objects (dtype object)")
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"", "an empty file"),
        (b"\x1f\x8b123", "a gzip file"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"x,y\n1,2", "begins with b'x,y\\\\n1,2'"),
        (b"\x93NUMPY\1\0", "a .npy file; allowed a .csv, .npz or Parquet file"),
        (b"PK\5\6" + bytes(18), "no column x, y, client"),
        (b"PK\3\4", "truncated or damaged"),
    ],
)
def test_arrays_other_files(tmp_path, start, message):
    path = tmp_path / "some.npz"
    path.write_bytes(start)
    says(str(path), message.replace("\\\\", "\\"))


def test_arrays_truncated(tmp_path):
    path = npz(tmp_path)
    whole = (tmp_path / "some.npz").read_bytes()
    for end in (30, len(whole) // 2, len(whole) - 1):
        (tmp_path / "some.npz").write_bytes(whole[:end])
        says(path, "truncated or damaged")
    path = folder(tmp_path)
    x = tmp_path / "some" / "x.npy"
    whole = x.read_bytes()
    for wrong in (whole[:-1], whole + b"\0"):
        x.write_bytes(wrong)
        says(path, f"x.npy: got {len(wrong)} bytes, truncated or damaged; allowed {len(whole)} bytes")
    x.write_bytes(whole[:20])
    says(path, "a header that is no header")


def claim(shape, descr="<f4"):
    """A .npy file that says it has a shape, and has four bytes."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(4)


@pytest.mark.parametrize("shape", [(10**12, 1), (-1, 4), (10**30, 10**30)])
def test_arrays_headers_that_claim_too_much(tmp_path, shape):
    path = folder(tmp_path)
    (tmp_path / "some" / "x.npy").write_bytes(claim(shape))
    says(path, "bytes, as its header says")
    with zipfile.ZipFile(tmp_path / "some.npz", "w") as archive:
        for name in ("x", "y", "client"):
            archive.writestr(f"{name}.npy", claim(shape))
    says(str(tmp_path / "some.npz"), "bytes, as its header says")


def test_arrays_bombs_and_odd_archives(tmp_path, monkeypatch):
    from fedcodist.readers import files

    monkeypatch.setattr(files, "SMALL_BYTES", 2**16)
    path = tmp_path / "some.npz"
    np.savez_compressed(path, **columns(x=np.zeros((40, 10_000))))
    says(str(path), "at most 200 times the packed size")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as archive:
        for name in ("x", "y", "client", "x"):
            archive.writestr(f"{name}.npy", claim((1,)))
    says(str(path), "two members of the same name")
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(1001):
            archive.writestr(f"{i}.npy", b"")
    says(str(path), "1001 members; allowed at most 1000")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        for name in ("x", "y", "client"):
            archive.writestr(f"{name}.npy", claim((1,)))
    says(str(path), "packing 12")


def test_arrays_damage_is_always_a_data_error(tmp_path):
    """Bytes changed at random: the data loads or there is a DataError, never anything else."""
    draw = np.random.Generator(np.random.PCG64(1))
    held = io.BytesIO()
    np.savez(held, **columns())
    whole = held.getvalue()
    path = tmp_path / "some.npz"
    failed = 0
    for _ in range(300):
        raw = bytearray(whole)
        for at in draw.integers(0, len(raw), draw.integers(1, 4)):
            raw[at] = draw.integers(0, 256)
        path.write_bytes(raw)
        try:
            Arrays(str(path)).load()
        except DataError as error:
            assert str(error).isprintable()
            failed += 1
    assert failed > 200


def test_arrays_damaged_headers_are_always_data_errors(tmp_path):
    draw = np.random.Generator(np.random.PCG64(2))
    path = folder(tmp_path)
    x = tmp_path / "some" / "x.npy"
    whole = x.read_bytes()
    for _ in range(300):
        raw = bytearray(whole)
        for at in draw.integers(6, 70, draw.integers(1, 4)):
            raw[at] = draw.integers(0, 128)
        x.write_bytes(raw)
        try:
            Arrays(path).load()
        except DataError as error:
            assert str(error).isprintable()
