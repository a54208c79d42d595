"""Vocabularies of words and of word pieces: ids that stay what they are, and files that are not believed."""

import importlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcodist.data import vocabulary
from fedcodist.data.vocabulary import Vocabulary, WordPieces, fit_pieces, line, lines, open_vocabulary
from fedcodist.errors import DataError
from fedcodist.objectives.next_token import BOS, EOS, PAD

SPOKEN = Counter(
    {"low": 50, "lower": 20, "lowest": 20, "new": 60, "newer": 20, "newest": 30, "wide": 20, "wider": 20, "widest": 20, "we're": 5}
)


def test_missing_library(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for ask in (lambda: fit_pieces(SPOKEN), lambda: WordPieces(("a",)).encode(["a"])):
        with pytest.raises(DataError, match=r"needs the package tokenizers.*pip install 'fedcodist\[text\]'"):
            ask()


def test_vocabulary(tmp_path):
    known = Vocabulary.fit(Counter({"b": 2, "a": 2, "the": 9, "z": 1}), 3)
    assert known.words == ("the", "a", "b") and known.size == 7 and known.oov == 6
    assert known.encode(["b", "z", "the", "The"]) == [5, 6, 3, 6] and known.encode([]) == []
    known.save(tmp_path / "v.txt")
    assert (tmp_path / "v.txt").read_bytes() == b"the\na\nb\n"
    again = open_vocabulary(tmp_path / "v.txt")
    assert again == known and again.digest == known.digest == "f9071dff365255f50aed055e42d63dad451712172085a28f0394b5db2f6584b6"
    assert Vocabulary(("a", "the", "b")).digest != known.digest
    assert Vocabulary.fit(Counter(str(i) for i in range(20_000))).size == 10_004


def test_word_pieces(tmp_path):
    pytest.importorskip("tokenizers")
    known = fit_pieces(SPOKEN, 60)
    assert known.pieces == tuple(sorted(known.pieces)) and len(known.pieces) <= 60 and known.size == len(known.pieces) + 4
    pieces = dict(enumerate(known.pieces, 3))
    for word in SPOKEN:
        ids = known.encode([word])
        assert "".join(pieces[i].removeprefix("##") for i in ids) == word and not pieces[ids[0]].startswith("##")
        assert all(pieces[i].startswith("##") for i in ids[1:])
    assert len(known.encode(["new"])) == 1  # the most frequent word is a piece
    assert known.encode(["new", "東京", "new"])[1] == known.oov == known.size - 1
    known.save(tmp_path / "v.json")
    again = open_vocabulary(tmp_path / "v.json")
    assert again == known and again.digest == known.digest and again.encode(["newest", "low"]) == known.encode(["newest", "low"])


def test_word_pieces_are_the_same_in_every_training_and_process():
    # Without naming the letters first the trainer learns other pieces nearly every time: its hash tables are seeded at random.
    pytest.importorskip("tokenizers")
    program = """
import random
from collections import Counter
from fedcodist.data.vocabulary import fit_pieces
draw = random.Random(0)
counts = Counter("".join(draw.choices("abcdefgh", k=5)) for _ in range(3_000))
print({fit_pieces(counts, 1_500).digest for _ in range(4)})
"""
    here = Path(vocabulary.__file__).parents[2]
    runs = [subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, text=True, check=True) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout and len(runs[0].stdout.split()) == 1


def test_pieces_of_rare_letters_and_large_counts(monkeypatch):
    pytest.importorskip("tokenizers")
    known = fit_pieces(Counter({"aa": 10, "ab": 10, "a": 10, "xyz": 1}), 8)  # two letters at most
    assert known.encode(["xyz"]) == [known.oov] and known.oov not in known.encode(["aba"])
    monkeypatch.setattr(vocabulary, "MOST_WORDS", 100)
    shown = Counter(word for text in vocabulary._repeated({"a": 9 * 10**12, "b": 10**12, "c": 1}) for word in text.split())
    assert shown == {"a": 90, "b": 10, "c": 1}


@pytest.mark.parametrize(
    "name, raw, says",
    [
        ("v.txt", b"", ["empty"]),
        ("v.txt", b"the\n\na\n", ["line 2", "nothing"]),
        ("v.txt", b"the\na\nthe\n", ["line 3", "'the' for the second time", "first in line 1"]),
        ("v.txt", b"the\r\na\r\n", ["line 1", r"'the\r'"]),
        ("v.txt", b"the cat\n", ["line 1", "without white space"]),
        ("v.txt", b"the\n\xff\n", ["line 2", r"b'\xff'", "UTF-8"]),
        ("v.txt", b"th\0e\n", ["line 1"]),
        ("v.txt", b"a" * 50_000_001, ["more bytes than it may hold", "50000000"]),
        ("v.csv", b"the\n", ["'v.csv'", ".txt", ".json"]),
        ("v.json", b"{", ["no JSON"]),
        ("v.json", b"[" * 100_000, ["no JSON"]),
        ("v.json", b'["a"]', ["word pieces"]),
        ("v.json", b'{"kind": "fedcodist word pieces", "pieces": []}', ["no words"]),
        ("v.json", b'{"kind": "fedcodist word pieces", "pieces": ["a", 1]}', ["piece 2", "a string"]),
        ("v.json", b'{"kind": "fedcodist word pieces", "pieces": ["b", "a"]}', ["v.json", "another order"]),
        ("v.json", b'{"kind": "fedcodist word pieces", "pieces": ["a", "a"]}', ["piece 2", "second time"]),
        ("v.json", b'{"kind": "fedcodist word pieces", "pieces": ["\\ud800"]}', ["piece 1"]),
        ("v.json", b'{"kind": "other", "pieces": ["a"]}', ["allowed"]),
    ],
)
def test_vocabulary_files_are_not_believed(tmp_path, name, raw, says):
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(DataError) as error:
        open_vocabulary(path)
    assert "\n" not in str(error.value) and all(part in str(error.value) for part in [str(path), *says]), error.value


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: Vocabulary(("a b",)), "without white space"),
        (lambda: Vocabulary(("a", "a")), "second time"),
        (lambda: Vocabulary.fit(Counter()), "no words"),
        (lambda: Vocabulary.fit(SPOKEN, 0), "size 0"),
        (lambda: fit_pieces(Counter({"a\ud800": 1})), "without white space"),
        (lambda: Vocabulary(("a",)).save("v.json"), ".txt"),
        (lambda: WordPieces(("a",)).save("v.txt"), ".json"),
        (lambda: lines([[300]], 3, np.uint8), "0 to 255"),
        (lambda: lines([[-1]], 3), "-1 to -1"),
    ],
)
def test_bad_vocabularies(make, says):
    pytest.importorskip("tokenizers")
    with pytest.raises(DataError, match=says):
        make()


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.integers(3, 60_000), max_size=9)), st.integers(1, 7))
def test_lines_are_what_one_would_write_by_hand(rows, length):
    found = lines(rows, length, np.uint16)
    by_hand = [([BOS, *row, EOS] + [PAD] * length)[: length + 1] for row in rows]
    assert found.dtype == np.uint16 and found.shape == (len(rows), length + 1)
    assert found.tolist() == by_hand
    assert [line(row, length).tolist() for row in rows] == by_hand


def test_lines_of_arrays():
    assert lines([np.array([5, 6]), np.array([7])], 2).tolist() == [[BOS, 5, 6], [BOS, 7, EOS]]


def test_digest_is_that_of_the_file(tmp_path):
    import hashlib

    for known, name in ((Vocabulary(("ü", "a")), "v.txt"), (WordPieces(("##b", "ü")), "v.json")):
        known.save(tmp_path / name)
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == known.digest
    assert json.loads((tmp_path / "v.json").read_bytes())["pieces"] == ["##b", "ü"]
