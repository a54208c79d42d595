"""Own data without traps: CSV, labels by name, grey images, bytes."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from fedcodist import settings
from fedcodist.errors import DataError
from fedcodist.objectives import OBJECTIVES
from fedcodist.objectives.classify import Classify, Standard
from fedcodist.readers import csv_table
from fedcodist.tasks import Arrays

ROWS = [(f"c{i % 5}", "ab"[i % 2] * 2, i, i / 4) for i in range(30)]
TEXT = "user,label,height,width\n" + "".join(f"{','.join(map(str, row))}\n" for row in ROWS)
NAMED = {"y": "label", "client": "user", "public": 0.2, "held_out": 0.2, "test": 0.2}


def csv(tmp_path, text=TEXT, name="a.csv") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_numbers_of_a_csv_file_are_x_and_labels_keep_their_names(tmp_path):
    task = Arrays(csv(tmp_path), **NAMED).load()
    assert task.labels == ("aa", "bb") and task.classes == 2 and task.notes[0] == "labels from 0: aa, bb"
    held = task.held_out.x
    assert held.dtype == np.float32 and held.shape[1:] == (2,) and np.array_equal(held[:, 0], 4 * held[:, 1])
    assert np.array_equal(task.held_out.y, held[:, 0] % 2)  # as the rows were made
    assert set(task.clients) < {"c0", "c1", "c2", "c3", "c4"}


def test_csv_by_other_signs(tmp_path):
    wanted, others = csv_table.read(csv(tmp_path), {"x", "user"}, "x")
    assert others == ["label"] and wanted["user"][:2].tolist() == ["c0", "c1"]
    for sign, name in (("\t", "a.tsv"), (";", "b.csv")):
        found, _ = csv_table.read(csv(tmp_path, TEXT.replace(",", sign), name), {"x", "user"}, "x")
        assert np.array_equal(found["x"], wanted["x"])
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert np.array_equal(csv_table.read(str(tmp_path / "c.csv.gz"), {"x"}, "x")[0]["x"], wanted["x"])
    assert csv_table.read(csv(tmp_path, "client,x,z\n7,1.5,2\n"), {"x", "client"}, "x")[0]["client"].tolist() == [7]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT.replace("c1,bb,1,", "c1,bb,,", 1), "height: got no value in row 1; allowed a value in every row"),
        (TEXT + "c1,aa,3\n", "got 3 values in row 30; allowed 4, as in the header"),
        ("a,a\n1,2\n", "got the header 'a,a'; allowed a header that names each column once"),
        ("a,b\n", "got a header alone; allowed at least one row"),
        ("", "got the header ''"),
    ],
)
def test_broken_csv_is_one_line(tmp_path, text, said):
    with pytest.raises(DataError) as caught:
        csv_table.read(csv(tmp_path, text), {"x"}, "x")
    assert said in str(caught.value) and str(caught.value).isprintable()


def columns(tmp_path, **given) -> str:
    rows = {"y": np.arange(30) % 2, "client": np.array([f"c{i % 5}" for i in range(30)])} | given
    np.savez(tmp_path / "a.npz", **rows)
    return str(tmp_path / "a.npz")


def test_grey_images_get_their_axis_and_bytes_are_scaled(tmp_path):
    draw = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (30, 4, 4), np.uint8)
    grey = Arrays(columns(tmp_path, x=draw), **{**NAMED, "y": "y", "client": "client"}).load()
    assert grey.held_out.x.shape[1:] == (4, 4, 1) and grey.objective.images is not None
    assert any("grey images of 4 x 4: an axis of channels was added" in note for note in grey.notes)
    assert not any("augmentation" in note for note in grey.notes)
    flat = Arrays(columns(tmp_path, x=draw.reshape(30, 16)), **{**NAMED, "y": "y", "client": "client"}).load()
    assert flat.held_out.x.dtype == np.float32 and 0.9 < flat.held_out.x.max() <= 1 and flat.objective.images is None
    assert any("bytes were divided by 255" in note for note in flat.notes)


def test_labels_by_name_must_be_printable(tmp_path):
    with pytest.raises(DataError, match="1 to 200 printable characters"):
        Arrays(columns(tmp_path, x=np.ones((30, 2)), y=np.array(["a\n", "b"] * 15)), overlap="allow").load()
    with pytest.raises(DataError, match="got 1 different labels; allowed 2 to"):
        Arrays(columns(tmp_path, x=np.ones((30, 2)), y=np.array(["a"] * 30)), overlap="allow").load()


def test_features_are_standardised_by_the_public_rows(tmp_path):
    task = Arrays(csv(tmp_path), **NAMED, standardise=True).load()
    inputs = np.asarray(task.objective.inputs(task.public.x))
    assert np.allclose(inputs.mean(0), 0, atol=1e-5) and np.allclose(inputs.std(0), 1, atol=1e-5)
    assert np.array_equal(np.asarray(task.objective.public_inputs(task.public.x, np.zeros(2, np.uint32))), inputs)
    table = settings.plain(task.objective)
    assert settings.read_kind(OBJECTIVES, table, "objective", []) == task.objective  # as a result, a file and a device have it
    assert any("2 features are standardised" in note for note in task.notes)
    assert settings.plain(Classify()) == {"kind": "classify", "images": None}  # so results without it keep their bytes
    assert Standard.of(np.array([[3.0, 1.0], [3.0, 2.0]])) == Standard((3.0, 1.5), (1.0, 0.5))  # a constant is only centred
    np.savez(tmp_path / "a.npz", x=np.zeros((30, 4, 4, 1), np.uint8), y=np.arange(30) % 2, client=np.arange(30) % 6)
    with pytest.raises(DataError, match="standardise = true for images; allowed false"):
        Arrays(str(tmp_path / "a.npz"), standardise=True, overlap="allow").load()


def test_a_note_on_features_of_very_different_size(tmp_path):
    wide = TEXT.replace("height,width", "height,width").splitlines()
    text = "\n".join([wide[0], *(f"{line.rsplit(',', 1)[0]},{1000 + i}" for i, line in enumerate(wide[1:]))]) + "\n"
    assert any("standardise = true brings them to one scale" in note for note in Arrays(csv(tmp_path, text), **NAMED).load().notes)
    assert not any("standardise" in note for note in Arrays(csv(tmp_path), **NAMED).load().notes)
