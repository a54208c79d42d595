"""From sentences to a text store, in one pass over any number of sentences.

Reading writes each sentence as codes of its words, numbered in the order of their first occurrence, with its client and domain, and saves
its progress. Finishing decides the part of each client, fits the vocabulary on the federated clients alone, maps codes to ids (A6), leaves
out what would leak from one part into another, and writes the rows of each client together. Only the first `length` words of a sentence are
kept: a model sees no more (A8), and the vocabulary is fitted on what it sees (DEVIATION D10).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedcodist import keys
from fedcodist.data.overlap import drop_shared
from fedcodist.data.store import Writer
from fedcodist.data.vocabulary import Vocabulary, WordPieces, fit_pieces, lines
from fedcodist.errors import data_error
from fedcodist.objectives.next_token import BOS, EOS, FIRST, PAD
from fedcodist.types import Key

PARTS = ("federated", "public", "held_out", "test")
UNKNOWN = 255  # a part that is decided at the end, or none
BUFFER = 20_000  # sentences that are written at once, after which progress may be saved
CHUNK = 200_000  # rows mapped to ids at once
Tokens = Vocabulary | WordPieces


class Scratch:
    """Sentences as word codes, in columns that survive an interruption."""

    def __init__(self, writer: Writer, length: int):
        self.writer, self.length = writer, length
        self.codes: dict[str, int] = {}
        self.clients: dict[tuple[int, str], int] = {}
        self.domains: dict[str, int] = {}
        self.counts: Counter[str] = Counter(writer.state.get("counts", {}))  # what was left out, by reason
        self._new_words: list[str] = []
        self._new_clients: list[str] = []
        self._rows: list[list[int]] = []
        self._tags: list[tuple[int, int]] = []
        if writer.state:
            for word in writer.read_text("_words"):
                self.codes[word] = len(self.codes) + FIRST
            for line in writer.read_text("_clients"):
                part, _, client = line.partition("\t")
                self.clients[int(part), client] = len(self.clients)
            self.domains = {name: k for k, name in enumerate(writer.state["domains"])}

    @property
    def done(self) -> Any:
        """The position in the source that was saved with the last mark."""
        return self.writer.state.get("done")

    def add(self, part: int, client: str, domain: str, words: Sequence[str]) -> bool:
        """Add one sentence; True when enough were written since the last mark to make another one worthwhile."""
        codes, row = self.codes, []
        for word in words[: self.length]:
            code = codes.get(word)
            if code is None:
                code = codes[word] = len(codes) + FIRST
                self._new_words.append(word)
            row.append(code)
        who = self.clients.get((part, client))
        if who is None:
            who = self.clients[part, client] = len(self.clients)
            self._new_clients.append(f"{part}\t{client}")
        what = self.domains.setdefault(domain, len(self.domains))
        if what == UNKNOWN:
            raise data_error("domain", f"more than {UNKNOWN} different values", f"at most {UNKNOWN}", "is this the right column?")
        self._rows.append(row)
        self._tags.append((who, what))
        if len(self._rows) >= BUFFER:
            self._write()
            return True
        return False

    def mark(self, done: Any, finished: bool = False) -> None:
        """Save all sentences so far, with `done`, the position in the source from which to continue."""
        self._write()
        self.writer.mark(done=done, domains=list(self.domains), counts=dict(self.counts), finished=finished)

    def _write(self) -> None:
        if not self._rows:
            return
        self.writer.append("_line", lines(self._rows, self.length, np.dtype(np.uint32)))
        who, what = (np.array(column) for column in zip(*self._tags, strict=True))
        self.writer.append("_client", who.astype(np.int32))
        self.writer.append("_domain", what.astype(np.uint8))
        self.writer.write_text("_words", self._new_words)
        self.writer.write_text("_clients", self._new_clients)
        self._rows, self._tags, self._new_words, self._new_clients = [], [], [], []


class Sizes(NamedTuple):
    """The largest number of rows of each part, chosen at random; None for all."""

    public: int | None = None
    held_out: int | None = None
    test: int | None = None


@dataclass(frozen=True)
class Finish:
    """How scratch columns become a store; calling it writes the columns of the store and returns its facts."""

    key: Key
    vocabulary: Tokens | None = None  # given, or fitted
    vocab: int = 10_000
    pieces: bool = False
    max_examples: int | None = None
    sizes: Sizes = Sizes()
    overlap: str = "drop"

    def __call__(self, scratch: Scratch, part_of_client: np.ndarray, names: Sequence[str]) -> Mapping[str, Any]:
        """Write all parts; `part_of_client` has the part of each client (UNKNOWN: none), `names` its name."""
        writer = scratch.writer
        line, client, domain = (writer.rows(f"_{name}") for name in ("line", "client", "domain"))
        client, part = np.asarray(client), part_of_client[np.asarray(client)]
        draw = keys.bits(keys.derive(self.key, "rows"), len(part))
        part = self._cap(client, part, draw)
        counts = _word_counts(line, part == 0, len(scratch.codes))
        tokens = self.vocabulary or self._fit(scratch, counts)
        to_ids = _Ids(tokens, list(scratch.codes))
        dtype = np.dtype(np.uint16 if tokens.size <= 2**16 else np.int32)
        part, notes = self._disjoint(line, part, to_ids)
        part = self._limit(part, draw)
        if self.vocabulary is None and not (part == 0).any():
            raise data_error("clients", "no sentence for a federated client", "at least one")
        domains, place = np.unique(np.array([str(name) for name in scratch.domains] or [""]), return_inverse=True)
        facts: dict[str, Any] = {"examples": {}, "tokens": {}, "unknown_tokens": {}, "clients": {}}
        for k, name in enumerate(PARTS):
            rows = np.flatnonzero(part == k)
            rows = rows[np.lexsort((rows, client[rows]))]
            owner, sizes = np.unique(client[rows], return_counts=True)
            alphabetical = np.argsort(np.array([names[c] for c in owner])) if len(owner) else np.zeros(0, np.int64)
            starts = np.cumsum(sizes) - sizes
            rows = np.concatenate([rows[starts[c] : starts[c] + sizes[c]] for c in alphabetical]) if len(owner) else rows
            words = unknown = 0
            for start in range(0, len(rows), CHUNK):
                ids = to_ids(line[rows[start : start + CHUNK]], scratch.length).astype(dtype)
                real = ids[:, 1:]
                words += int(((real != PAD) & (real != EOS)).sum())
                unknown += int((real == tokens.oov).sum())
                writer.append(f"{name}_line", ids)
            if not len(rows):
                writer.append(f"{name}_line", np.zeros((0, scratch.length + 1), dtype))
            writer.append(f"{name}_domain", place.astype(np.uint8)[np.asarray(domain[rows])] if len(rows) else np.zeros(0, np.uint8))
            writer.append(f"{name}_ends", np.cumsum(sizes[alphabetical]).astype(np.int64) if len(owner) else np.zeros(0, np.int64))
            writer.write_text(f"{name}_clients", (str(names[owner[c]]) for c in alphabetical))
            facts["examples"][name], facts["clients"][name] = len(rows), len(owner)
            facts["tokens"][name], facts["unknown_tokens"][name] = words, unknown
        for column in ("_line", "_client", "_domain", "_words", "_clients"):
            writer.drop(column)
        writer.write_text("vocabulary", tokens.content.decode().split("\n")[:-1])
        left_out = [f"{count} {reason}" for reason, count in sorted(scratch.counts.items())]
        return facts | {
            "kind": "text",
            "domains": domains.tolist(),
            "length": scratch.length,
            "vocabulary": {"kind": "words" if to_ids.words else "pieces", "size": tokens.size, "oov": tokens.oov, "sha256": tokens.digest},
            "notes": notes + ([f"left out: {', '.join(left_out)}"] if left_out else []),
        }

    def _cap(self, client: np.ndarray, part: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """Keep at most `max_examples` sentences of each federated client, chosen at random."""
        if self.max_examples is None:
            return part
        order = np.lexsort((draw, client))
        ordered = client[order]
        first = np.r_[True, ordered[1:] != ordered[:-1]]
        rank = np.arange(len(order)) - np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
        late = order[rank >= self.max_examples]
        part = part.copy()
        part[late[part[late] == 0]] = UNKNOWN
        return part

    def _limit(self, part: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """Keep at most `sizes` rows of each other part, chosen at random."""
        part = part.copy()
        for k, most in enumerate(self.sizes, start=1):
            rows = np.flatnonzero(part == k)
            if most is not None and len(rows) > most:
                part[rows[np.argsort(draw[rows], kind="stable")[most:]]] = UNKNOWN
        return part

    def _fit(self, scratch: Scratch, counts: np.ndarray) -> Tokens:
        said = {word: int(n) for word, n in zip(scratch.codes, counts, strict=True) if n}
        if not said:
            raise data_error("clients", "no word of a federated client", "at least one, to fit the vocabulary on")
        return fit_pieces(Counter(said), self.vocab) if self.pieces else Vocabulary.fit(Counter(said), self.vocab)

    def _disjoint(self, line: np.ndarray, part: np.ndarray, to_ids: _Ids) -> tuple[np.ndarray, list[str]]:
        """Leave out (or keep, or refuse) sentences that an earlier part has as well, word for word, and notes about them."""
        rows = {name: np.flatnonzero(part == k) for k, name in enumerate(PARTS)}
        hashes = {name: _hash_rows(line, rows[name], to_ids) for name in PARTS if len(rows[name])}
        kept, notes = drop_shared("text", hashes, self.overlap)
        part = part.copy()
        for name, mask in kept.items():
            part[rows[name][~mask]] = UNKNOWN
        return part, notes


class _Ids:
    """From word codes to ids: one table look-up for whole words, one per word for word pieces."""

    def __init__(self, tokens: Tokens, words: list[str]):
        self.words = isinstance(tokens, Vocabulary)
        encoded = [tokens.encode([word]) for word in words]
        if self.words:
            self.table = np.array([PAD, BOS, EOS, *(ids[0] for ids in encoded)], np.int32)
        else:
            lengths = np.array([0, 0, 0, *map(len, encoded)])
            self.lengths, self.starts = lengths, np.cumsum(lengths) - lengths
            self.flat = np.array([piece for ids in encoded for piece in ids], np.int32)

    def __call__(self, line: np.ndarray, length: int) -> np.ndarray:
        if self.words:
            return self.table[np.asarray(line)]
        rows = []
        for codes in np.asarray(line):
            spelt = [self.flat[self.starts[c] : self.starts[c] + self.lengths[c]] for c in codes[codes >= FIRST]]
            rows.append(np.concatenate([*spelt, np.zeros(0, np.int32)])[:length].tolist())
        return lines(rows, length, np.dtype(np.int32))


def _word_counts(line: np.ndarray, chosen: np.ndarray, words: int) -> np.ndarray:
    """How often each word occurs in the chosen rows."""
    total = np.zeros(words + FIRST, np.int64)
    for start in range(0, len(line), CHUNK):
        picked = line[start : start + CHUNK][chosen[start : start + CHUNK]]
        total += np.bincount(picked.ravel(), minlength=len(total))
    return total[FIRST:]


def _hash_rows(line: np.ndarray, rows: np.ndarray, to_ids: _Ids) -> np.ndarray:
    """A 64-bit hash of what a model reads of each sentence: the sum of its ids times a random odd number per position, mixed."""
    length = line.shape[1] - 1
    odd = keys.bits(keys.derive(keys.root(0), "sentence hash"), length) | np.uint64(1)
    found = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), CHUNK):
        ids = to_ids(line[rows[start : start + CHUNK]], length)[:, :-1].astype(np.uint64)
        total = ((ids + np.uint64(1)) * odd).sum(1, dtype=np.uint64)
        total ^= total >> np.uint64(29)
        total *= np.uint64(0xBF58476D1CE4E5B9)
        found[start : start + CHUNK] = total ^ (total >> np.uint64(32))
    return found
