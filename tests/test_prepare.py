"""From publishers' files, and from one's own, to stores and tasks: what is kept, what is left out, and what is the same from every form.

The makers of small files in the publishers' formats are here too; other tests of stores import them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedcodist.data import prepare, store
from fedcodist.data.datasets import DATASETS
from fedcodist.data.partition import Pachinko
from fedcodist.errors import ConfigError, DataError
from fedcodist.objectives.next_token import EOS, FIRST, PAD
from fedcodist.readers import tff
from fedcodist.storage.durable import StorageError
from fedcodist.tasks import Arrays, Cifar100, Text

HEADER = ("client", "type", "tokens")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """The directory of stores of one test."""
    monkeypatch.setenv("FEDCODIST_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def make(kind: str, source: Path | str, name: str | None = None, **given: Any) -> store.Store:
    """A store, as `data prepare` makes it; it is made now, or the test says so."""
    dataset = prepare.read(kind, json.loads(json.dumps(given)))
    made, now = prepare.prepare(dataset, Path(source), lambda done, total, what: None, name)
    assert now
    return made


def files_under(place: Path) -> dict[str, Any]:
    """{path: (digest, time)} of all files at or under a path."""
    found = [place] if place.is_file() else [path for path in sorted(place.rglob("*")) if path.is_file()]
    return {str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in found}


# -- makers --


def images(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, 32, 32, 3), np.uint8)


def records(rows: int, seed: int = 0) -> bytes:
    """CIFAR-100's binary records: coarse, fine, the planes of an image. Row i is of class i % 100, and class k of group k // 5."""
    fine = np.arange(rows) % 100
    planes = images(rows, seed).transpose(0, 3, 1, 2).reshape(rows, 3072)
    return np.column_stack([fine // 5, fine, planes]).astype(np.uint8).tobytes()


def release(place: Path, train: int = 250, test: int = 120) -> Path:
    """The binary release of CIFAR-100 in a directory."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "train.bin").write_bytes(records(train))
    (place / "test.bin").write_bytes(records(test, 1))
    return place


def tar(path: Path, parts: Mapping[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def _varint(n: int) -> bytes:
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + _varint(n >> 7)


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def example(**features: bytes | list[int]) -> bytes:
    """A tf.train.Example by hand: bytes are a list of one string, numbers a list of integers."""
    said = b""
    for name, value in features.items():
        feature = _field(1, _field(1, value)) if isinstance(value, bytes) else _field(3, _field(1, b"".join(map(_varint, value))))
        said += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, said)


def tff_sqlite(path: Path, splits: Mapping[str, Mapping[str, list[bytes]]], extra: str = "") -> Path:
    """{split: {client: examples}} as TFF's SQLite file."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        db.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        db.execute("CREATE INDEX place ON examples (split_name, client_id)")
        for split, clients in splits.items():
            for client, rows in clients.items():
                db.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(rows)))
                db.executemany("INSERT INTO examples VALUES (?, ?, ?)", [(split, client, row) for row in rows])
        db.executescript(extra)
    db.close()
    return path


def tff_hdf5(path: Path, clients: Mapping[str, Mapping[str, Any]]) -> Path:
    """{client: {feature: values}} as one of TFF's HDF5 files."""
    with h5py.File(path, "w") as file:
        group = file.create_group("examples")
        for client, columns in clients.items():
            for name, values in columns.items():
                group.create_dataset(f"{client}/{name}", data=values)
    return path


def fedjax_sqlite(path: Path, clients: Mapping[str, Mapping[str, np.ndarray]]) -> Path:
    """{client: {feature: array}} as one of FedJAX's SQLite files."""

    def array(a: np.ndarray) -> msgpack.ExtType:
        if a.dtype.kind == "S":
            return msgpack.ExtType(4, msgpack.packb([list(a.shape), a.tolist()]))
        return msgpack.ExtType(1, msgpack.packb([list(a.shape), a.dtype.name, a.tobytes()]))

    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY, data BLOB, num_examples INTEGER)")
        for client, columns in clients.items():
            data = zlib.compress(msgpack.packb({name: array(a) for name, a in columns.items()}))
            db.execute("INSERT INTO federated_data VALUES (?, ?, ?)", (client.encode(), data, len(next(iter(columns.values())))))
    db.close()
    return path


def dealt() -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """CIFAR-100 with the publisher's clients: {split: {client: columns}}; clients are of different sizes and in no order."""
    found: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for split, sizes, seed in (("train", {"c": 4, "a": 3, "b": 5, "e": 2, "d": 6}, 0), ("test", {"z": 3, "y": 2}, 1)):
        x, start, found[split] = images(sum(sizes.values()), seed), 0, {}
        for client, n in sizes.items():
            fine = (np.arange(start, start + n) * 7) % 100
            found[split][client] = {"image": x[start : start + n], "label": fine, "coarse_label": fine // 5}
            start += n
    return found


def as_examples(columns: Mapping[str, np.ndarray]) -> list[bytes]:
    return [
        example(**{name: values[i].ravel().tolist() if values.ndim > 1 else [int(values[i])] for name, values in columns.items()})
        for i in range(len(columns["label"]))
    ]


def write_rows(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = HEADER) -> Path:
    """The same rows as TSV, JSONL or Parquet, by the name's ending."""
    if path.suffix == ".tsv":
        path.write_text("".join("\t".join(row) + "\n" for row in [header, *rows]))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(header, row, strict=True))) + "\n" for row in rows))
    else:
        pq.write_table(pa.table({name: [row[k] for row in rows] for k, name in enumerate(header)}), path)
    return path


def sentences(clients: int = 12, each: int = 5) -> list[tuple[str, ...]]:
    """Sentences that are all different in words that everybody uses (a number in binary); each client has a word of its own, too."""
    return [
        (
            f"user{k:02d}",
            "question" if i % 2 else "answer",
            " ".join(f"{k * each + i:08b}".replace("0", "no ").replace("1", "yes ").split()) + f" of k{k}",
        )
        for k in range(clients)
        for i in range(each)
    ]


def text_store(place: Path, name: str = "mine", rows: list[tuple[str, ...]] | None = None, **given: Any) -> store.Store:
    """A small text store; the table lies beside it."""
    place.mkdir(parents=True, exist_ok=True)
    return make("text", write_rows(place / f"{name}.tsv", rows or sentences()), name, **given)


def lines_of(made: store.Store, part: str) -> dict[str, list[list[str]]]:
    """{client: sentences as words}, from the ids of a store: OOV is `?`, and the end of a sentence is left out."""
    known, oov = made.text("vocabulary"), made.facts["vocabulary"]["oov"]
    rows = [["?" if i == oov else known[i - FIRST] for i in row[1:] if i not in (PAD, EOS)] for row in made[f"{part}_line"].tolist()]
    ends = made[f"{part}_ends"].tolist()
    return {
        client: rows[start:end]
        for client, start, end in zip(made.text(f"{part}_clients"), [0, *ends[:-1]] if ends else [], ends, strict=True)
    }


# -- images --


def test_cifar100_from_a_directory_and_an_archive_is_the_same_store_and_nothing_is_unpacked(tmp_path, home):
    folder = release(tmp_path / "cifar-100-binary")
    packed = tar(tmp_path / "release.tar.gz", {f"cifar-100-binary/{p.name}": p.read_bytes() for p in folder.iterdir()})
    before = files_under(tmp_path)
    one, two = make("cifar100", folder, "one"), make("cifar100", packed, "two")
    assert one.digest == two.digest
    assert {name: found["sha256"] for name, found in one.columns.items()} == {name: found["sha256"] for name, found in two.columns.items()}
    assert np.array_equal(one["train_x"], images(250)) and np.array_equal(one["test_x"], images(120, 1))
    assert one["train_fine"].tolist() == [i % 100 for i in range(250)] and one["train_coarse"].tolist() == [
        i % 100 // 5 for i in range(250)
    ]
    after = files_under(tmp_path)
    assert {path: after.get(path) for path in before} == before
    assert {Path(path).relative_to(home).parts[0] for path in set(after) - set(before)} == {"one", "two"}
    assert sorted(path.name for path in (home / "two").iterdir()) == sorted([f"{name}.npy" for name in two.columns] + ["store.json"])


def test_cifar100_task_on_dealt_clients(tmp_path):
    made = make("cifar100", release(tmp_path / "files"))
    task = Cifar100(partition=Pachinko(clients=20, examples=10), public_clients=5, held_out_clients=3).load()
    assert len(task.clients) == 12 and len(task.public.x) == 50 and len(task.held_out.x) == 30 and len(task.test.x) == 120
    assert all(len(task.clients[client].x) == 10 for client in task.clients)
    x, fine = made["train_x"], made["train_fine"]
    where = {row.tobytes(): int(label) for row, label in zip(np.asarray(x), fine, strict=True)}
    seen = [row for client in task.clients for row in zip(task.clients[client].x, task.clients[client].y, strict=True)]
    seen += list(zip(task.held_out.x, task.held_out.y, strict=True))
    assert all(where[np.asarray(row).tobytes()] == label for row, label in seen)
    images_seen = [np.asarray(row).tobytes() for row, _ in seen] + [np.asarray(row).tobytes() for row in task.public.x]
    assert len(set(images_seen)) == 200, "an image is in two places"
    assert task.digest == made.digest
    with pytest.raises(DataError, match=r"20 clients; allowed more than 15 public \+ 5 held out"):
        Cifar100(partition=Pachinko(clients=20, examples=10), public_clients=15, held_out_clients=5).load()


@pytest.mark.parametrize("form", ["tff hdf5", "tff sqlite", "tff sqlite.lzma", "fedjax"])
def test_the_publishers_clients_are_kept(tmp_path, form):
    place = tmp_path / "files"
    place.mkdir()
    if form == "tff hdf5":
        for split, clients in dealt().items():
            tff_hdf5(place / f"fed_cifar100_{split}.h5", clients)
    elif form == "fedjax":
        for split, clients in dealt().items():
            fedjax_sqlite(place / f"federated_cifar100_{split}.sqlite", clients)
    else:
        rows = {split: {client: as_examples(columns) for client, columns in clients.items()} for split, clients in dealt().items()}
        plain = tff_sqlite(tmp_path / "cifar100.sqlite", rows)
        if form.endswith("lzma"):
            import lzma

            (place / "cifar100.sqlite.lzma").write_bytes(lzma.compress(plain.read_bytes(), lzma.FORMAT_ALONE))
            plain.unlink()
        else:
            plain.rename(place / plain.name)
    before = files_under(place)
    made = make("cifar100", place)
    for split, clients in dealt().items():
        assert made.text(f"{split}_clients") == sorted(clients)
        ends = made[f"{split}_ends"].tolist()
        for client, start, end in zip(sorted(clients), [0, *ends[:-1]], ends, strict=True):
            assert np.array_equal(made[f"{split}_x"][start:end], clients[client]["image"])
            assert made[f"{split}_fine"][start:end].tolist() == clients[client]["label"].tolist()
            assert made[f"{split}_coarse"][start:end].tolist() == clients[client]["coarse_label"].tolist()
    assert files_under(place) == before and not (made.path / "scratch").exists()
    task = Cifar100(public_clients=1, held_out_clients=1).load()
    assert len(task.clients) == 3 and len(task.test.x) == 5 and np.bincount(task.test.client).tolist() == [2, 3]
    for client in task.clients:
        assert np.array_equal(task.clients[client].x, dealt()["train"][client]["image"])


def test_cifar10_gives_out_of_domain_public_images(tmp_path):
    place = tmp_path / "ten"
    place.mkdir()
    for k, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        planes = images(4, 100 + k).transpose(0, 3, 1, 2).reshape(4, 3072)
        (place / f"{name}.bin").write_bytes(np.column_stack([np.full(4, k % 10), planes]).astype(np.uint8).tobytes())
    make("cifar10", place)
    make("cifar100", release(tmp_path / "files"))
    settings: dict[str, Any] = {"partition": Pachinko(clients=20, examples=10), "public_clients": 5, "held_out_clients": 3}
    task, usual = Cifar100(public="cifar10", **settings).load(), Cifar100(**settings).load()
    assert np.array_equal(np.asarray(task.public.x), np.concatenate([images(4, 100 + k) for k in range(5)]))
    assert list(task.clients) == list(usual.clients) and task.digest != usual.digest
    with pytest.raises(DataError, match="data cifar10: got 10 classes; allowed CIFAR-100's 100"):
        Cifar100(data="cifar10").load()


def test_a_test_image_that_is_a_training_image_is_refused_dropped_or_allowed(tmp_path):
    folder = release(tmp_path / "files", test=100)
    raw = bytearray((folder / "test.bin").read_bytes())
    raw[: 3 * 3074] = records(250)[: 3 * 3074]
    (folder / "test.bin").write_bytes(raw)
    make("cifar100", folder)
    # Every training image has a client, and every test image is tested.
    settings: dict[str, Any] = {"partition": Pachinko(clients=50, examples=5), "public_clients": 1, "held_out_clients": 1}
    with pytest.raises(DataError, match=r"rows of test that are also in .*allowed none"):
        Cifar100(**settings).load()
    dropped, kept = Cifar100(overlap="drop", **settings).load(), Cifar100(overlap="allow", **settings).load()
    assert len(kept.test.x) == 100 and len(dropped.test.x) == 97 and any("dropped" in note for note in dropped.notes)
    assert not {row.tobytes() for row in np.asarray(dropped.test.x)} & {row.tobytes() for row in images(250)[:3]}


# -- text --


def test_every_format_gives_the_same_lines(tmp_path):
    made = {ending: make("text", write_rows(tmp_path / f"t.{ending}", sentences()), ending) for ending in ("tsv", "jsonl", "parquet")}
    assert len({one.digest for one in made.values()}) == 1
    found = {part: lines_of(made["tsv"], part) for part in ("federated", "public", "held_out", "test")}
    assert {part: len(clients) for part, clients in found.items()} == {"federated": 8, "public": 2, "held_out": 1, "test": 1}
    everyone = {client: rows for part in found.values() for client, rows in part.items()}
    assert len(everyone) == 12 and all(len(rows) == 5 for rows in everyone.values())
    for client, rows in found["federated"].items():
        assert rows == [tokens.split() for name, _, tokens in sentences() if name == client]
    assert all(clients == dict(sorted(clients.items())) for clients in found.values())


def test_domains_are_kept_and_may_be_chosen(tmp_path):
    made = text_store(tmp_path)
    assert made.facts["domains"] == ["answer", "question"]
    assert made["federated_domain"].tolist() == [0, 1, 0, 1, 0] * 8
    task = Text(data="mine").load()
    assert task.domains == ("answer", "question") and set(task.attributes["main_domain"].values()) == {"answer"}
    only = text_store(tmp_path, "only", domains=["question"])
    assert only.facts["domains"] == ["question"] and only.facts["examples"]["federated"] == 16
    assert "left out: 36 rows of other domains" in only.facts["notes"]


def test_the_split_column_is_respected(tmp_path):
    split = {0: "train", 1: "public", 2: "held_out", 3: "test", 4: "train", 5: "validation"}
    rows = [(f"u{k}", part, f"words of {k} number {i}") for k, part in split.items() for i in range(k + 1)]
    made = make("text", write_rows(tmp_path / "t.tsv", rows, ("client", "split", "tokens")))
    clients = {part: made.text(f"{part}_clients") for part in ("federated", "public", "held_out", "test")}
    assert clients == {"federated": ["u0", "u4"], "public": ["u1"], "held_out": ["u2", "u5"], "test": ["u3"]}
    assert made["held_out_ends"].tolist() == [3, 9] and made.facts["examples"]["test"] == 4
    with pytest.raises(DataError, match=r"other.tsv: row 1: got 'dev' for split; allowed train, "):
        make("text", write_rows(tmp_path / "other.tsv", [("a", "dev", "x")], ("client", "split", "tokens")), "other")


def test_clients_with_few_or_many_sentences(tmp_path):
    rows = [row for k in range(12) for row in sentences()[5 * k : 5 * k + (2 if k < 3 else 5)]]
    made = text_store(tmp_path, rows=rows, min_examples=3, max_examples=4)
    names = {name for part in ("federated", "public", "held_out", "test") for name in made.text(f"{part}_clients")}
    assert names == {f"user{k:02d}" for k in range(3, 12)}
    assert "3 clients with fewer than 3 sentences are left out, 9 stay" in made.facts["notes"]
    assert set(np.diff(made["federated_ends"], prepend=0)) == {4} and set(np.diff(made["public_ends"], prepend=0)) == {5}
    whole = {name: [tokens.split() for client, _, tokens in rows if client == name] for name in names}
    for client, found in lines_of(made, "federated").items():
        assert len(found) == 4 and all(sentence in whole[client] for sentence in found)


def test_sizes_of_the_parts(tmp_path):
    made = text_store(tmp_path, public_size=7, held_out_size=2, test_size=3)
    assert made.facts["examples"] == {"federated": 40, "public": 7, "held_out": 2, "test": 3}
    again, other = (
        text_store(tmp_path / "again", "again", public_size=7),
        text_store(tmp_path / "other", "other", public_size=7, split_seed=1),
    )
    assert np.array_equal(made["public_line"], again["public_line"])
    assert other.text("federated_clients") != made.text("federated_clients")


@pytest.mark.parametrize("overlap", ["drop", "allow", "error"])
def test_a_sentence_in_two_parts(tmp_path, overlap):
    rows = [("a", "train", "one two"), ("a", "train", "one two"), ("b", "public", "one two"), ("b", "public", "three")]
    rows += [("c", "held_out", "three"), ("c", "held_out", "four"), ("d", "test", "one two"), ("d", "test", "five six")]
    table = write_rows(tmp_path / "t.tsv", rows, ("client", "split", "tokens"))
    if overlap == "error":
        with pytest.raises(DataError, match=r"1 rows of public that are also in federated"):
            make("text", table, overlap=overlap)
        assert not store.stores()
        return
    made = make("text", table, overlap=overlap)
    dropped = {"federated": 2, "public": 1, "held_out": 2, "test": 1}  # "three" and "four" are both the unknown word
    counts = made.facts["examples"]
    if overlap == "allow":
        assert counts == {"federated": 2, "public": 2, "held_out": 2, "test": 2}
        assert any("kept" in note for note in made.facts["notes"])
    else:
        assert counts["federated"] == dropped["federated"] and counts["public"] == 1 and counts["test"] == 1
        assert any("rows of public are also in federated: dropped" in note for note in made.facts["notes"])


def test_the_vocabulary_is_fitted_on_federated_rows_alone(tmp_path):
    rows = [
        ("a", "train", "red red blue"),
        ("b", "public", "green green green red"),
        ("c", "held_out", "red"),
        ("d", "test", "yellow red blue"),
    ]
    made = make("text", write_rows(tmp_path / "t.tsv", rows, ("client", "split", "tokens")), overlap="allow")
    assert made.text("vocabulary") == ["red", "blue"]
    assert lines_of(made, "test") == {"d": [["?", "red", "blue"]]} and lines_of(made, "public") == {"b": [["?", "?", "?", "red"]]}
    assert made.facts["unknown_tokens"] == {"federated": 0, "public": 3, "held_out": 0, "test": 1}
    small = make("text", tmp_path / "t.tsv", "small", overlap="allow", vocab=1)
    assert small.text("vocabulary") == ["red"] and small.facts["unknown_tokens"]["federated"] == 1
    assert small["federated_line"].dtype == np.uint16 and small.facts["vocabulary"]["size"] == 5


def test_long_sentences_are_cut_to_what_a_model_sees(tmp_path):
    made = text_store(tmp_path, length=3, overlap="allow")
    assert made["federated_line"].shape == (40, 4)
    assert all(len(rows[0]) == 3 for rows in lines_of(made, "federated").values())
    assert made.text("vocabulary") == ["no", "yes"], "the fourth word and later ones are not seen"


def test_word_pieces(tmp_path):
    rows = [("a", "train", "snow rain raining"), ("b", "public", "rain now"), ("c", "held_out", "snowing"), ("d", "test", "rainow zzz")]
    made = make("text", write_rows(tmp_path / "t.tsv", rows, ("client", "split", "tokens")), tokenizer="pieces", vocab=100)
    assert made.facts["vocabulary"]["kind"] == "pieces"
    pieces = json.loads("\n".join(made.text("vocabulary")))["pieces"]
    spelt = {
        part: [([*pieces, "?"])[i - FIRST] for i in made[f"{part}_line"][0][1:] if i not in (PAD, EOS)] for part in ("federated", "test")
    }
    assert spelt["federated"] == ["snow", "rain", "raining"]
    assert spelt["test"][0] == "rain" and spelt["test"][-1] == "?", "a word of unseen letters is unknown"
    assert all(piece.startswith("##") for piece in spelt["test"][1:-1]) and "".join(spelt["test"]).replace("##", "") == "rainow?"
    assert Text(data="text").load().classes == made.facts["vocabulary"]["size"] == len(pieces) + 4


def test_public_text_with_the_vocabulary_of_another_store(tmp_path):
    mine = text_store(tmp_path)
    table = write_rows(tmp_path / "news.tsv", [("no unheard yes",), ("of of",)], ("tokens",))
    with pytest.raises(ConfigError, match=r"vocabulary: got nothing; allowed a store or a file"):
        prepare.read("text", {"client": ""})
    news = make("text", table, "news", client="", vocabulary="mine")
    assert lines_of(news, "public") == {"": [["no", "?", "yes"], ["of", "of"]]}
    assert news.text("vocabulary") == mine.text("vocabulary") and news.facts["examples"]["federated"] == 0
    task = Text(data="mine", public="news").load()
    assert len(task.public.x) == 2 and task.digest == mine.digest + news.digest
    assert len(Text(data="mine", public="news", public_size=1).load().public.x) == 1
    with pytest.raises(DataError, match="no federated sentence; allowed at least one .*public text"):
        Text(data="news").load()


def test_stores_of_different_vocabularies_do_not_meet(tmp_path):  # row 37
    mine, other = text_store(tmp_path), text_store(tmp_path, "other", vocab=5)
    with pytest.raises(DataError) as caught:
        Text(data="mine", public="other").load()
    for word in (
        "data other: got a vocabulary of 9",
        mine.facts["vocabulary"]["sha256"][:8],
        other.facts["vocabulary"]["sha256"][:8],
        "prepare it with vocabulary = mine",
    ):
        assert word in str(caught.value)
    text_store(tmp_path, "short", length=10, vocabulary="mine")
    with pytest.raises(DataError, match="data short: .*, 10 tokens a sentence; allowed .* 20 tokens"):
        Text(data="mine", public="short").load()


def test_public_text_is_prepared_again_when_the_vocabulary_is_another(tmp_path):
    text_store(tmp_path)
    table = write_rows(tmp_path / "news.tsv", [("no yes",)], ("tokens",))
    make("text", table, "news", client="", vocabulary="mine")
    text_store(tmp_path, vocab=5)
    news = make("text", table, "news", client="", vocabulary="mine")  # which says that it is made now
    assert len(Text(data="mine", public="news").load().public.x) == len(news["public_line"])


def test_a_file_of_words_as_vocabulary(tmp_path):
    (tmp_path / "words.txt").write_text("so\nthe\n")
    made = text_store(tmp_path, vocabulary=str(tmp_path / "words.txt"))
    assert made.text("vocabulary") == ["so", "the"]
    (tmp_path / "so.word_count").write_text("the 9\nso 7\nword 3\n")
    made = text_store(tmp_path, "counted", vocabulary=str(tmp_path / "so.word_count"), vocab=2)
    assert made.text("vocabulary") == ["the", "so"]
    (tmp_path / "bad.word_count").write_text("the 9\nso\n")
    with pytest.raises(DataError, match=r"bad\.word_count: line 2: got b'so\\n'; allowed a word and a number"):
        text_store(tmp_path, "bad", vocabulary=str(tmp_path / "bad.word_count"))


def test_prose_is_cut_into_sentences_and_rows_without_words_are_counted(tmp_path):
    rows = [(f"u{k}", f"It's client {k}. It doesn't rain today, said number {k}!") for k in range(6)] + [("u0", " "), ("u9", "")]
    made = make("text", write_rows(tmp_path / "t.jsonl", rows, ("client", "text")), overlap="allow")
    assert lines_of(made, "federated")["u1"] == [
        ["it's", "client", "1", "."],
        ["it", "doesn't", "rain", "today", ",", "said", "number", "1", "!"],
    ]
    assert "left out: 2 no words" in made.facts["notes"] and "u9" not in made.text("federated_clients")


# -- Stack Overflow and C4 --


def overflow(clients: int = 10, each: int = 4) -> dict[str, dict[str, list[bytes]]]:
    return {
        split: {
            f"{first + k}": [
                example(tokens=f"word{i} of {split} {k}".encode(), type=b"question" if i % 2 else b"answer", score=[i]) for i in range(each)
            ]
            for k in range(n)
        }
        for split, n, first in (("train", clients, 100), ("heldout", 3, 200), ("test", 3, 300))
    }


def test_stack_overflow_reads_only_whom_it_needs(tmp_path, monkeypatch):
    reads: list[str] = []
    read = tff._Rows.read
    monkeypatch.setattr(tff._Rows, "read", lambda self, client: reads.append(client) or read(self, client))
    place = tff_sqlite(tmp_path / "stackoverflow.sqlite", overflow())
    sizes = {"clients": 3, "public_size": 7, "held_out_size": 5, "test_size": 12}
    made = make("stackoverflow", place, **sizes)
    assert made.facts["examples"] == {"federated": 12, "public": 7, "held_out": 5, "test": 12}
    federated, public = made.text("federated_clients"), made.text("public_clients")
    train = [client for client in reads if client.startswith("1")]
    assert len(federated) == 3 and len(train) == len(set(train)) == 5 and set(federated) | set(public) <= set(train)
    assert not set(federated) & set(public) and len([client for client in reads if client.startswith("3")]) == 3
    assert made.facts["domains"] == ["answer", "question"]
    for client, rows in lines_of(made, "federated").items():
        assert rows == [f"word{i} of train {int(client) - 100}".split() for i in range(4)]
    same, other = make("stackoverflow", place, "same", **sizes), make("stackoverflow", place, "other", split_seed=1, **sizes)
    assert {n: c["sha256"] for n, c in same.columns.items()} == {n: c["sha256"] for n, c in made.columns.items()}
    assert other.text("federated_clients") != federated
    assert len(Text(data="stackoverflow").load().clients) == 3
    limited = make("stackoverflow", place, "limited", max_examples=2, **sizes)
    assert limited.facts["examples"]["federated"] == 6 and limited.text("federated_clients") == federated
    with pytest.raises(DataError, match="11; allowed at most the 10 training clients"):
        make("stackoverflow", place, "many", **{**sizes, "clients": 11})
    tff_sqlite(tmp_path / "less.sqlite", {"train": overflow()["train"]})
    with pytest.raises(DataError, match="no split held_out, test; allowed train, held_out and test"):
        make("stackoverflow", tmp_path / "less.sqlite", "less", **sizes)


def test_stack_overflow_is_the_same_from_hdf5_and_fedjax(tmp_path):
    names = {"train": "train", "heldout": "held_out", "test": "test"}

    def columns(n: int, split: str, k: int) -> dict[str, list[bytes]]:
        said = [f"word{i} of {split} {k}".encode() for i in range(n)]
        return {"tokens": said, "type": [b"question" if i % 2 else b"answer" for i in range(n)]}

    for form in ("h5", "jax"):
        (tmp_path / form).mkdir()
    for split, clients in overflow().items():
        made = {client: columns(4, split, k) for k, client in enumerate(clients)}
        tff_hdf5(tmp_path / "h5" / f"stackoverflow_{names[split]}.h5", made)
        packed = {client: {name: np.array(values) for name, values in one.items()} for client, one in made.items()}
        fedjax_sqlite(tmp_path / "jax" / f"stackoverflow_{names[split]}.sqlite", packed)
    sources = {"sql": tff_sqlite(tmp_path / "stackoverflow.sqlite", overflow()), "hdf": tmp_path / "h5", "jax": tmp_path / "jax"}
    sizes = {"clients": 3, "public_size": 7, "held_out_size": 5, "test_size": 12}
    assert len({make("stackoverflow", place, name, **sizes).digest for name, place in sources.items()}) == 1


def test_c4_takes_first_sentences_for_the_store_that_it_is_for(tmp_path):
    text_store(tmp_path, "stackoverflow")
    (tmp_path / "c4").mkdir()
    for k in range(2):
        pages = [{"text": f"No yes is of. It goes on {i}.", "timestamp": "2019", "url": "x"} for i in range(3)]
        (tmp_path / "c4" / f"c4-train.{k}.json").write_text("".join(json.dumps(page) + "\n" for page in pages) + "{broken\n")
    made = make("c4", tmp_path / "c4", size=5)
    assert lines_of(made, "public") == {"": [["no", "yes", "?", "of", "?"]] * 5}
    assert any("1 JSON" in note for note in made.facts["notes"])
    assert len(Text(data="stackoverflow", public="c4").load().public.x) == 5
    with pytest.raises(DataError, match="data nowhere: got nothing at this path; allowed a prepared store"):
        make("c4", tmp_path / "c4", "other", vocabulary="nowhere")


# -- one's own --


def test_own_data_from_a_store_is_the_same_task(tmp_path):
    draw = np.random.default_rng(0)
    n = 60
    columns = {
        "pixels": draw.integers(0, 256, (n, 5, 4, 3), np.uint8),
        "y": np.arange(n) % 3,
        "client": np.array([f"c{i % 10}" for i in range(n)]),
        "strength": np.array([f"{'high' if i % 10 < 3 else 'low'}" for i in range(n)]),
    }
    np.savez(tmp_path / "own.npz", **columns)
    made = make("own", tmp_path / "own.npz", x="pixels", also=["strength"])
    assert sorted(made.columns) == ["client", "strength", "x", "y"] and np.array_equal(made["x"], columns["pixels"])
    direct, stored = Arrays(path=str(tmp_path / "own.npz"), x="pixels").load(), Arrays(path=str(made.path)).load()
    assert list(direct.clients) == list(stored.clients)
    for client in direct.clients:
        assert np.array_equal(direct.clients[client].x, stored.clients[client].x)
        assert np.array_equal(direct.clients[client].y, stored.clients[client].y)
    for part in ("public", "held_out", "test"):
        assert np.array_equal(getattr(direct, part).x, getattr(stored, part).x)
    assert direct.objective == stored.objective and direct.classes == stored.classes


# -- once, and again when something has changed --


def nothing(done: int, total: int | None, what: str) -> None:
    """No progress is shown."""


def test_the_usual_names_of_stores_are_those_of_the_datasets():
    assert sorted(store.USUAL_NAMES) == sorted(DATASETS)


def test_prepared_once_and_again_when_files_or_settings_change(tmp_path):
    table = write_rows(tmp_path / "t.tsv", sentences())

    def now(again: bool = False, **settings: Any) -> bool:
        return prepare.prepare(prepare.read("text", settings), table, nothing, again=again)[1]

    assert [now(), now(), now(again=True), now(vocab=7), now(vocab=7), now()] == [True, False, True, True, False, True]
    before = store.open_store("text").digest
    raw = table.read_bytes()
    table.write_bytes(raw.replace(b" of ", b" if "))  # of the same size
    os.utime(table, ns=(1, 1))
    assert now() and store.open_store("text").digest != before


def test_a_damaged_store_is_prepared_again_without_being_asked_to(tmp_path):
    made = text_store(tmp_path)
    for damage in ("missing", "short", "json"):
        if damage == "missing":
            (made.path / "public_line.npy").unlink()
        else:
            os.truncate(made.path / ("public_line.npy" if damage == "short" else "store.json"), 100)
        assert text_store(tmp_path).digest == made.digest


def test_what_was_unpacked_of_another_file_is_not_taken_for_this_one(tmp_path, monkeypatch):
    """A preparation that stops after unpacking leaves the copy for the same file, and only for it."""
    import lzma

    def stop(self: Any, client: str) -> None:
        raise StorageError("stop")

    places = []
    for k, clients in enumerate((10, 8)):
        (tmp_path / f"{k}").mkdir()
        plain = tff_sqlite(tmp_path / "stackoverflow.sqlite", overflow(clients))
        places.append(tmp_path / f"{k}" / "stackoverflow.sqlite.lzma")
        places[k].write_bytes(lzma.compress(plain.read_bytes(), lzma.FORMAT_ALONE))
        plain.unlink()
    sizes = {"clients": 7, "public_size": 99, "held_out_size": 5, "test_size": 5}
    with monkeypatch.context() as patch:
        patch.setattr(tff._Rows, "read", stop)
        with pytest.raises(StorageError, match="stop"):
            make("stackoverflow", places[0], **sizes)
    copy = tmp_path / "data" / "stackoverflow.partial" / "scratch" / "stackoverflow.sqlite"
    assert copy.is_file()
    with monkeypatch.context() as patch:
        patch.setattr(tff._Rows, "read", stop)
        patch.setattr(tff, "unpacked", lambda path: pytest.fail("unpacked again"))
        with pytest.raises(StorageError, match="stop"):
            make("stackoverflow", places[0], **sizes)
    made = make("stackoverflow", places[1], **sizes)
    assert made.facts["clients"] == {"federated": 7, "public": 1, "held_out": 3, "test": 3}
