"""C4: the first sentence of each page, from one file or many."""

import gzip
import json
from collections import Counter

import pytest

from fedcodist.errors import DataError
from fedcodist.readers.c4 import read_c4
from fedcodist.readers.rows import Row

pytest.importorskip("pysbd")
PAGES = [
    ("It doesn't rain. It pours, Dr. Foster.", ("it", "doesn't", "rain", ".")),
    ("\n  A Title Without End\nThen a sentence.", ("a", "title", "without", "end")),
    ("Dr. Foster's hat; lost? Yes.", ("dr", ".", "foster", "'s", "hat", ";", "lost", "?")),
    ("   \n ", None),
]


def page(text, i=0):
    return json.dumps({"text": text, "timestamp": f"2019-04-2{i}T00:00:00Z", "url": "https://example.org"}) + "\n"


@pytest.fixture
def shards(tmp_path):
    for shard in range(2):
        raw = "".join(page(text, i) for i, (text, _) in enumerate(PAGES)).encode()
        (tmp_path / f"c4-train.{shard:05}-of-00002.json.gz").write_bytes(gzip.compress(raw))
    return tmp_path


def test_first_sentences(shards):
    wanted = [Row("", "", f"2019-04-2{i}T00:00:00Z", "", words) for i, (_, words) in enumerate(PAGES) if words]
    counts = Counter()
    found = read_c4(shards, counts=counts)
    assert list(found) == 2 * wanted and found.done == 8 and counts == {"no words": 2}
    assert list(read_c4(shards / "c4-train.00001-of-00002.json.gz")) == wanted
    for start, left in ((3, wanted), (5, wanted[1:])):
        assert list(read_c4(shards, start=start)) == left


def test_only_the_beginning_of_a_page_is_divided(tmp_path, monkeypatch):
    from fedcodist.readers import sentences

    sizes = []

    class Counting:
        def segment(self, text):
            sizes.append(len(text))
            return [text]

    monkeypatch.setattr(sentences, "_segmenter", Counting)
    (tmp_path / "a.jsonl").write_text(page("1 word and more of it. " * 20_000))
    assert len(list(read_c4(tmp_path / "a.jsonl"))) == 1
    assert len(sizes) == 1 and sizes[0] <= sentences.BLOCK


@pytest.mark.parametrize(
    "name, raw, says",
    [
        ("a.jsonl", '{"txt": "a", "timestamp": "b"}\n', ["neither column '' nor 'text'", "did you mean txt?"]),
        ("a.jsonl", '{"text": "a"}\n', ["no column 'timestamp'"]),
        ("a.jsonl", page("fine.") + "[]\n", ["line 2", "one JSON object"]),
        ("a.tsv", "text\ttimestamp\na\tb\n", ["a TSV file"]),
    ],
)
def test_bad_pages(tmp_path, name, raw, says):
    (tmp_path / name).write_text(raw)
    with pytest.raises(DataError) as error:
        list(read_c4(tmp_path / name))
    assert all(part in str(error.value) for part in says), error.value


def test_unknown_splitter(shards):
    with pytest.raises(DataError, match="splitter: got 'spacy'; allowed pysbd or punkt"):
        read_c4(shards, splitter="spacy")  # type: ignore[arg-type]
