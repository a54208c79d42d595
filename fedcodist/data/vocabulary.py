"""Vocabularies of whole words and of word pieces: from words to ids.

Ids follow A6: PAD, BOS, EOS, known words from 3 on, and OOV as the last. A vocabulary is fitted once, written to a file and identified by
the digest of its content, so that two runs cannot silently use different ids. Stemming and stop words are deliberately absent.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcodist.errors import DataError, data_error
from fedcodist.objectives.next_token import BOS, EOS, FIRST, PAD
from fedcodist.readers.files import sniff, unpacked
from fedcodist.readers.libraries import text_library
from fedcodist.settings import show
from fedcodist.storage.durable import replace_file

SPECIALS = FIRST + 1  # PAD, BOS, EOS and OOV
LARGEST_BYTES = 50 * 10**6  # of a vocabulary's file
MOST_LETTERS = 1_000  # different characters in pieces
MOST_WORDS = 20_000_000  # given to the trainer of pieces; larger counts are scaled down
PIECES = "fedcodist word pieces"  # the kind in a file of pieces
UNKNOWN = "[UNK]"  # never in lower-cased text
CACHED = 2**17  # words whose pieces are cached


@dataclass(frozen=True)
class Vocabulary:
    """Whole words; the most frequent first, if fitted.

    >>> known = Vocabulary.fit(Counter("the cat and the dog and the rain".split()), size=2)
    >>> known.words, known.size, known.encode(["the", "rain"])
    (('the', 'and'), 6, [3, 5])
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_words("vocabulary", self.words, "word")

    @classmethod
    def fit(cls, counts: Counter[str], size: int = 10_000) -> Vocabulary:
        """The `size` most frequent words, ties in alphabetical order."""
        _check_fit(counts, size)
        return cls(tuple(sorted(counts, key=lambda word: (-counts[word], word))[:size]))

    @property
    def size(self) -> int:
        """Of the output of a model: the words, and the four special tokens."""
        return len(self.words) + SPECIALS

    @property
    def oov(self) -> int:
        """The id of every unknown word: the last."""
        return self.size - 1

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: FIRST + i for i, word in enumerate(self.words)}

    def encode(self, words: Iterable[str]) -> list[int]:
        """An id for each word."""
        return list(map(self._ids.get, words, itertools.repeat(self.oov)))  # type: ignore[arg-type]  # with a default, never None

    @property
    def content(self) -> bytes:
        """The content of its file: one word per line."""
        return "".join(f"{word}\n" for word in self.words).encode()

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of its content."""
        return hashlib.sha256(self.content).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write it, as a .txt file; `open_vocabulary` reads it."""
        _save(path, ".txt", self.content)


@dataclass(frozen=True)
class WordPieces:
    """Pieces of words, as BERT has them: `##` marks those that continue a word. From the left, the longest piece that fits is taken.

    >>> known = WordPieces(("##ing", "##s", "rain"))
    >>> known.encode(["rain", "raining", "snow"]), known.size
    ([5, 5, 3, 6], 7)
    """

    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_words("word pieces", self.pieces, "piece")
        if list(self.pieces) != sorted(self.pieces):
            raise data_error("word pieces", "pieces in another order", "sorted pieces", "else the same pieces would have several ids")

    @property
    def size(self) -> int:
        """Of the output of a model: the pieces, and the four special tokens."""
        return len(self.pieces) + SPECIALS

    @property
    def oov(self) -> int:
        """The id of every word that cannot be composed of pieces: the last."""
        return self.size - 1

    @functools.cached_property
    def _of_word(self) -> Callable[[str], tuple[int, ...]]:
        models = text_library("tokenizers.models", "word pieces")
        ids = {piece: FIRST + i for i, piece in enumerate(self.pieces)} | {UNKNOWN: self.oov}
        model = models.WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=100, continuing_subword_prefix="##")
        return functools.lru_cache(CACHED)(lambda word: tuple(token.id for token in model.tokenize(word)))

    def encode(self, words: Iterable[str]) -> list[int]:
        """The ids of the pieces of all words, concatenated."""
        return list(itertools.chain.from_iterable(map(self._of_word, words)))

    @property
    def content(self) -> bytes:
        """The content of its file."""
        return json.dumps({"kind": PIECES, "pieces": self.pieces}, ensure_ascii=False, indent=0).encode() + b"\n"

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of its content."""
        return hashlib.sha256(self.content).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write it, as a .json file; `open_vocabulary` reads it."""
        _save(path, ".json", self.content)


def fit_pieces(counts: Counter[str], size: int = 4_000) -> WordPieces:
    """At most `size` pieces that spell these words in few pieces; the same counts give the same pieces in every process."""
    _check_fit(counts, size)
    tokenizers = text_library("tokenizers", "word pieces")
    lower: Counter[str] = Counter()
    letters: Counter[str] = Counter()
    for word, count in sorted(counts.items()):
        lower[word.lower()] += count
        for letter in word.lower():
            letters[letter] += count
    _check_words("vocabulary", tuple(lower), "word")
    # At most half of the pieces are single letters (each can begin and continue a word).
    known = set(sorted(letters, key=lambda letter: (-letters[letter], letter))[: min(MOST_LETTERS, max(1, size // 4))])
    usable = {word: count for word, count in lower.items() if known.issuperset(word)}
    # The trainer numbers letters in the random order of a hash table, and breaks ties between pairs by these numbers. Naming all letters
    # in advance, in order, makes every training learn the same pieces.
    going_on = {f"##{letter}" for word in usable for letter in word[1:]}
    alphabet = [UNKNOWN, *sorted(known), *sorted(going_on)]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size + 1, min_frequency=1, special_tokens=alphabet, show_progress=False, continuing_subword_prefix="##"
    )
    training = tokenizers.Tokenizer(tokenizers.models.WordPiece({UNKNOWN: 0}, unk_token=UNKNOWN))
    training.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    training.train_from_iterator(_repeated(usable), trainer=trainer)
    return WordPieces(tuple(sorted(set(training.get_vocab(with_added_tokens=False)) - {UNKNOWN})[:size]))


def open_vocabulary(path: str | Path) -> Vocabulary | WordPieces:
    """A vocabulary from its file: words from .txt, one per line, or pieces from .json. Anything malformed is a DataError."""
    kind = Path(path).suffix
    if kind not in (".txt", ".json"):
        raise data_error(str(path), f"a vocabulary named {show(Path(path).name)}", "a .txt file of words or a .json file of word pieces")
    with unpacked(path, LARGEST_BYTES) as file:
        raw = file.read()
    if not raw:
        raise data_error(str(path), sniff(raw), "at least one word")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise data_error(f"{path}: line {line}", f"the bytes {show(raw[error.start : error.end])}", "UTF-8") from error
    if kind == ".txt":
        words = tuple(text.removesuffix("\n").split("\n"))
        _check_words(str(path), words, "line")
        return Vocabulary(words)
    pieces = _pieces(str(path), text)
    _check_words(str(path), pieces, "piece")
    try:
        return WordPieces(pieces)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def line(ids: Sequence[int], length: int) -> np.ndarray:
    """[length + 1]: BOS, the ids, EOS if there is room, PAD. A model reads all but the last token and predicts all but the first.

    >>> line([7, 8], 4).tolist(), line([7, 8, 9, 7, 8], 4).tolist()
    ([1, 7, 8, 2, 0], [1, 7, 8, 9, 7])
    """
    return lines([ids], length)[0]


def lines(rows: Sequence[Sequence[int]], length: int, dtype: Any = np.int32) -> np.ndarray:
    """[rows, length + 1]: `line` for many sentences at once.

    >>> lines([[7, 8], [], [7, 8, 9]], 3, np.uint16).tolist()
    [[1, 7, 8, 2], [1, 2, 0, 0], [1, 7, 8, 9]]
    """
    shown = [row[:length] for row in rows]
    sizes = np.fromiter(map(len, shown), np.int64, len(shown))
    flat = np.fromiter(itertools.chain.from_iterable(shown), np.int64, int(sizes.sum()))
    if len(flat) and (flat.min() < 0 or flat.max() > np.iinfo(dtype).max):
        raise data_error("ids", f"{flat.min()} to {flat.max()}", f"0 to {np.iinfo(dtype).max}, the largest {np.dtype(dtype)}")
    table = np.full((len(shown), length + 1), PAD, dtype)
    table[:, 0] = BOS
    table[:, 1:][np.arange(length) < sizes[:, None]] = flat  # a mask is filled row by row, which is the order of `flat`
    short = np.flatnonzero(sizes < length)
    table[short, sizes[short] + 1] = EOS
    return table


def _repeated(counts: dict[str, int]) -> Iterator[str]:
    """Texts of bounded size in which each word occurs as often as it was counted."""
    scale = min(1.0, MOST_WORDS / max(1, sum(counts.values())))
    for word, count in counts.items():
        left = max(1, round(scale * count))
        while left > 0:
            yield " ".join([word] * min(left, 1_000))
            left -= 1_000


def _pieces(path: str, text: str) -> tuple[str, ...]:
    allowed = f'{{"kind": "{PIECES}", "pieces": [...]}}'
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise data_error(path, f"no JSON ({error})", allowed) from error
    if not isinstance(found, dict) or set(found) != {"kind", "pieces"} or found["kind"] != PIECES or not isinstance(found["pieces"], list):
        raise data_error(path, show(found), allowed)
    return tuple(found["pieces"])


def _check_words(where: str, words: tuple[Any, ...], what: str) -> None:
    """DataError unless these are different words that can be stored one per line."""
    if not words:
        raise data_error(where, "no words", "at least one")
    seen: dict[str, int] = {}
    for number, word in enumerate(words, 1):
        place = f"{where}: {what} {number}"
        if not isinstance(word, str):
            raise data_error(place, show(word), "a string")
        if word.split() != [word] or "\0" in word or any("\ud800" <= letter <= "\udfff" for letter in word):
            raise data_error(place, show(word) if word else "nothing", "a word without white space")
        if word in seen:
            raise data_error(place, f"{show(word)} for the second time", "each word once", f"first in {what} {seen[word]}")
        seen[word] = number


def _check_fit(counts: Counter[str], size: int) -> None:
    if size < 1:
        raise data_error("vocabulary", f"size {size}", "at least 1")
    if not counts:
        raise data_error("vocabulary", "no words", "at least one")


def _save(path: str | Path, suffix: str, content: bytes) -> None:
    if Path(path).suffix != suffix:
        raise data_error(str(path), f"a vocabulary named {show(Path(path).name)}", f"a name that ends with {suffix}")
    replace_file(Path(path), content)
