"""Text with authors: Stack Overflow from TFF's and FedJAX's files, sentences of one's own from a table, and C4 as public text.

All three go through the same encoder and become the same kind of store: federated, public, held-out and test sentences as ids, with their
clients and domains, and the vocabulary. Public text from elsewhere (C4, or a table without clients) uses the vocabulary of the store for
which it is meant. Words are separated by spaces; prose is divided into sentences and words as the paper does with C4 (A36).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedcodist import keys
from fedcodist.data.encode import PARTS, UNKNOWN, Finish, Scratch, Sizes
from fedcodist.data.published import Progress, Published
from fedcodist.data.splits import check_shares, divide, shuffled
from fedcodist.data.store import Store, Writer, open_store
from fedcodist.data.vocabulary import Vocabulary, WordPieces, open_vocabulary
from fedcodist.errors import DataError, data_error
from fedcodist.readers import c4, files, rows
from fedcodist.readers.federated import open_federated
from fedcodist.settings import Problem, SettingError, check, setting, show

SPLITS = {"train": 0, "federated": 0, "public": 1, "held_out": 2, "heldout": 2, "validation": 2, "test": 3}
WORD_FILES = (".txt", ".json", ".word_count")  # a vocabulary whose name ends so is a file, any other is a store
EVERY = 2_000  # rows between two reports of progress


@dataclass(frozen=True)
class TextFiles:
    """Your own sentences: a table with a client, if you like a type and a split, and words (`tokens`) or prose (`text`).

    Without a `split` column whole clients are public, held out or for the test, by these shares. With `client = ""` everything is public
    text for another store, whose `vocabulary` it takes.
    """

    kind: ClassVar[str] = "text"
    published: ClassVar[tuple[Published, ...]] = ()
    wants: ClassVar[str] = "a .tsv, .csv, .jsonl (also .gz, .xz) or .parquet file, a directory of them, or a saved Hugging Face data set"
    client: str = "client"  # the column of authors
    domain: str = "type"  # the column of domains, if there is one
    date: str = "date"  # the column of dates, for `test_from`
    split: str = "split"  # the column that says train, public, held_out or test, if there is one
    tokens: str = "tokens"  # the column of words with spaces between them
    text: str = "text"  # the column of prose, cut into sentences if there are no tokens
    test_from: str | None = None  # rows of this date or later are the test, whoever wrote them, as in Stack Overflow (2018-01-01)
    domains: tuple[str, ...] = ()  # only rows of these domains; of all, if none is named
    min_examples: int = setting(1, ge=1)  # sentences that an author needs to be a client
    max_examples: int | None = setting(None, ge=1)  # sentences of a federated client at most
    public: float = setting(0.2, gt=0, lt=1)  # share of the clients whose sentences become public data
    held_out: float = setting(0.1, gt=0, lt=1)  # share of the clients whose sentences are held out
    test: float = setting(0.1, gt=0, lt=1)  # share of the clients whose sentences become the test
    public_size: int | None = setting(None, ge=1)  # only so many public sentences, chosen at random
    held_out_size: int | None = setting(100_000, ge=1)  # only so many held-out sentences, chosen at random
    test_size: int | None = setting(100_000, ge=1)  # only so many test sentences, chosen at random
    vocab: int = setting(10_000, ge=1, le=1_000_000)  # words in the vocabulary
    tokenizer: Literal["words", "pieces"] = "words"  # whole words, or pieces of words (WordPiece)
    vocabulary: str | None = None  # a store, or a file of words, instead of fitting a vocabulary
    length: int = setting(20, ge=2, le=1_000)  # tokens of a sentence; longer ones are cut
    overlap: Literal["error", "drop", "allow"] = "drop"  # what to do with sentences that are in two parts
    errors: Literal["fail", "skip", "replace"] = "fail"  # what to do with rows that are broken
    split_seed: int = setting(0, ge=0, le=2**63 - 1)  # seed of the split into parts

    def __post_init__(self) -> None:
        check(self)
        check_shares(self, "public", "held_out", "test")
        if not self.client and self.vocabulary is None:
            raise SettingError([Problem("TextFiles.vocabulary", "nothing", 'a store or a file, with client = ""')])

    def prepare(self, source: Path, writer: Writer, progress: Progress) -> Mapping[str, Any]:
        scratch = Scratch(writer, self.length)
        if not writer.state.get("finished"):
            columns = rows.Columns(self.client, self.domain or None, self.date or None, self.split or None, self.tokens, self.text)
            stream = rows.read_rows(source, columns, self.errors, scratch.counts, start=scratch.done or 0)
            _read(stream, scratch, progress, lambda row: self._part(f"{source}: row {stream.done}", row), self.domains)
        key = keys.derive(keys.root(self.split_seed), "text")
        part, names, notes = self._divide(source, scratch, key)
        sizes = Sizes(self.public_size, self.held_out_size, self.test_size)
        vocabulary = _vocabulary(self.vocabulary, self.vocab)
        finish = Finish(key, vocabulary, self.vocab, self.tokenizer == "pieces", self.max_examples, sizes, self.overlap)
        facts = finish(scratch, part, names)
        return {**facts, "notes": notes + facts["notes"]}

    def _part(self, where: str, row: rows.Row) -> int:
        if not self.client:
            return PARTS.index("public")
        if self.test_from is not None:
            if row.split:
                raise data_error(
                    where, f"{show(row.split)} for {self.split}, and test_from", "one of the two", 'split = "" ignores the column'
                )
            if not row.date:
                raise data_error(where, f"nothing for {self.date or 'date'}", "a date in each row, for test_from")
            return PARTS.index("test") if row.date >= self.test_from else UNKNOWN
        if not row.split:
            return UNKNOWN
        if row.split not in SPLITS:
            raise data_error(where, f"{show(row.split)} for {self.split}", ", ".join(SPLITS))
        return SPLITS[row.split]

    def _divide(self, source: Path, scratch: Scratch, key: keys.Key) -> tuple[np.ndarray, list[str], list[str]]:
        """The part of each client, its name, and notes for the user."""
        sizes = np.bincount(scratch.writer.rows("_client"), minlength=len(scratch.clients)) if scratch.clients else np.zeros(0, int)
        part = np.array([part for part, _ in scratch.clients], np.int64)
        names = [name for _, name in scratch.clients]
        if not len(part):
            raise data_error(str(source), "no sentence", "at least one", ", ".join(f"{n} {reason}" for reason, n in scratch.counts.items()))
        notes = []
        asked = (part == UNKNOWN) | (part == 0)
        few = asked & (sizes < self.min_examples)
        if few.any():
            notes.append(
                f"{int(few.sum())} clients with fewer than {self.min_examples} sentences are left out, {int((asked & ~few).sum())} stay"
            )
        open_clients = {names[c]: c for c in np.flatnonzero((part == UNKNOWN) & ~few)}
        part[few] = UNKNOWN
        if open_clients:
            shares = {"public": self.public, "held_out": self.held_out} | ({} if self.test_from else {"test": self.test})
            try:
                divided = divide(open_clients, shares, "federated", keys.derive(key, "divide"))
            except DataError as error:
                raise DataError(f"{source}: {error}") from error
            for name, members in divided.items():
                part[[open_clients[member] for member in members]] = PARTS.index(name)
        return part, names, notes


@dataclass(frozen=True)
class StackOverflowFiles:
    """Stack Overflow: 342,477 users' questions and answers, from TFF's SQLite or HDF5, or FedJAX's SQLite.

    Of the training users `clients` are federated, and others give the public sentences; the rest is never read. Held-out and test sentences
    are drawn from all users of the publisher's own splits. The paper's 122 million public sentences are more than 1,500 rounds can read:
    32 steps of 128 a round see 6.1 million, so `public_size` as given loses nothing (DEVIATION D9).
    """

    kind: ClassVar[str] = "stackoverflow"
    published: ClassVar = (Published("https://storage.googleapis.com/tff-datasets-public/stackoverflow.sqlite.lzma"),)
    wants: ClassVar[str] = "TFF's stackoverflow.sqlite(.lzma) or stackoverflow_*.h5, or a directory of FedJAX's stackoverflow_*.sqlite"
    clients: int = setting(34_248, ge=1)  # federated clients; the default is a tenth of the training users
    max_examples: int | None = setting(None, ge=1)  # sentences of a federated client at most
    public_size: int = setting(6_500_000, ge=1)  # public sentences
    held_out_size: int = setting(100_000, ge=1)  # held-out sentences
    test_size: int = setting(100_000, ge=1)  # test sentences
    vocab: int = setting(10_000, ge=1, le=1_000_000)  # words in the vocabulary
    tokenizer: Literal["words", "pieces"] = "words"  # whole words, or pieces of words (WordPiece)
    vocabulary: str | None = None  # a store, or a file of words such as the publisher's word count, instead of fitting a vocabulary
    length: int = setting(20, ge=2, le=1_000)  # tokens of a sentence; longer ones are cut
    # what to do with sentences that are in two parts; the paper's draws have short ones twice
    overlap: Literal["error", "drop", "allow"] = "allow"
    split_seed: int = setting(0, ge=0, le=2**63 - 1)  # seed of the split into parts

    def __post_init__(self) -> None:
        check(self)

    def prepare(self, source: Path, writer: Writer, progress: Progress) -> Mapping[str, Any]:
        key = keys.derive(keys.root(self.split_seed), "stackoverflow")
        scratch = Scratch(writer, self.length)
        if not writer.state.get("finished"):
            with ExitStack() as stack:
                splits = open_federated(source, writer.scratch(), progress)
                for split in splits.values():
                    stack.callback(split.close)
                missing = [name for name in ("train", "held_out", "test") if name not in splits]
                if missing:
                    raise data_error(
                        str(source), f"no split {', '.join(missing)}", "train, held_out and test", f"found: {', '.join(splits)}"
                    )
                work = list(self._work(source, splits, key))
                self._read(source, splits, work, scratch, progress)
        part = np.array([part for part, _ in scratch.clients], np.int64)
        names = [name for _, name in scratch.clients]
        vocabulary = _vocabulary(self.vocabulary, self.vocab)
        finish = Finish(key, vocabulary, self.vocab, self.tokenizer == "pieces", self.max_examples, Sizes(self.public_size), self.overlap)
        return finish(scratch, part, names)

    def _work(self, source: Path, splits: Mapping[str, Any], key: keys.Key) -> Iterator[tuple[str, int, str, np.ndarray | None]]:
        """(split, part, client, rows) of all that is to be read; rows = None means all rows."""
        sizes = {client: n for client, n in splits["train"].clients().items() if n}
        if self.clients > len(sizes):
            raise data_error(f"{source}: clients", str(self.clients), f"at most the {len(sizes)} training clients")
        order = shuffled(sizes, keys.derive(key, "clients"))
        for client in order[: self.clients]:
            yield "train", 0, client, None
        left = self.public_size
        for client in order[self.clients :]:
            if left <= 0:
                break
            left -= sizes[client]
            yield "train", 1, client, None
        for part, name, most in ((2, "held_out", self.held_out_size), (3, "test", self.test_size)):
            sizes = {client: n for client, n in splits[name].clients().items() if n}
            if not sizes:
                raise data_error(f"{source}: {name}", "no client with a sentence", "at least one")
            ids, counts = list(sizes), np.array(list(sizes.values()), np.int64)
            ends = np.cumsum(counts)
            chosen = np.sort(_sample(keys.derive(key, name), int(ends[-1]), most))
            owner = np.searchsorted(ends, chosen, side="right")
            for k in np.unique(owner):
                yield name, part, ids[k], chosen[owner == k] - (ends[k] - counts[k])

    def _read(self, source: Path, splits: Mapping[str, Any], work: list, scratch: Scratch, progress: Progress) -> None:
        start = scratch.done or 0
        for k, (split, part, client, chosen) in enumerate(work[start:], start=start + 1):
            columns = splits[split].read(client)
            if "tokens" not in columns:
                raise data_error(
                    f"{source}: {split}: client {client}", "no feature tokens", "tokens and type", f"found: {', '.join(columns)}"
                )
            tokens, types = columns["tokens"], columns.get("type", [b""] * len(columns["tokens"]))
            enough = False
            for row in range(len(tokens)) if chosen is None else chosen.tolist():
                words = _decode(tokens[row]).split()
                if not words:
                    scratch.counts["empty sentences"] += 1
                    continue
                enough |= scratch.add(part, client, _decode(types[row]), words)
            if enough:
                scratch.mark(k)
            if k % 100 == 0 or k == len(work):
                progress(k, len(work), "clients")
        scratch.mark(len(work), finished=True)


@dataclass(frozen=True)
class C4Files:
    """C4-MOD: the first sentence of each C4 text, cut into words as Stack Overflow has them, as out-of-domain public text (A36)."""

    kind: ClassVar[str] = "c4"
    published: ClassVar = (Published("https://huggingface.co/datasets/allenai/c4"),)
    wants: ClassVar[str] = "a .json, .jsonl or .json.gz file of C4, or a directory of them"
    vocabulary: str = "stackoverflow"  # the store whose vocabulary it uses
    size: int = setting(4_488_694, ge=1)  # sentences: the first so many
    splitter: Literal["pysbd", "punkt"] = "pysbd"  # what finds the first sentence (DEVIATION D11)
    errors: Literal["fail", "skip", "replace"] = "skip"  # what to do with rows that are broken

    def __post_init__(self) -> None:
        check(self)

    def prepare(self, source: Path, writer: Writer, progress: Progress) -> Mapping[str, Any]:
        store = open_store(self.vocabulary, "text")
        scratch = Scratch(writer, store.facts["length"])
        if not writer.state.get("finished"):
            stream = c4.read_c4(source, self.errors, scratch.counts, start=scratch.done or 0, splitter=self.splitter)
            _read(stream, scratch, progress, lambda row: PARTS.index("public"), (), self.size)
        part = np.full(len(scratch.clients), PARTS.index("public"))
        if not len(part):
            raise data_error(str(source), "no sentence", "at least one")
        finish = Finish(keys.root(0), vocabulary_of(store), sizes=Sizes(self.size), overlap="allow")
        return finish(scratch, part, [name for _, name in scratch.clients])


def vocabulary_of(store: Store) -> Vocabulary | WordPieces:
    """The vocabulary of a text store."""
    lines = store.text("vocabulary")
    return (
        Vocabulary(tuple(lines))
        if store.facts["vocabulary"]["kind"] == "words"
        else WordPieces(tuple(json.loads("\n".join(lines))["pieces"]))
    )


def _vocabulary(given: str | None, size: int) -> Vocabulary | WordPieces | None:
    """The vocabulary of a store, of a file, or of the first words of a word count."""
    if given is None:
        return None
    if not given.endswith(WORD_FILES):
        return vocabulary_of(open_store(given, "text"))
    return Vocabulary(_word_count(given, size)) if given.endswith(".word_count") else open_vocabulary(given)


def _word_count(path: str, size: int) -> tuple[str, ...]:
    """The first words of a publisher's word count, whose lines are a word and its count, the most frequent first."""
    words = []
    with files.unpacked(path, 2**28) as stream:
        for number, line in enumerate(stream, start=1):
            pair = line.decode("utf-8", "replace").split()
            if len(pair) != 2 or not pair[1].isdecimal():
                raise data_error(f"{path}: line {number}", repr(line[:40]), "a word and a number")
            words.append(pair[0])
            if len(words) == size:
                break
    return tuple(words)


def _read(stream: rows.Rows, scratch: Scratch, progress: Progress, part: Any, domains: tuple[str, ...], most: int | None = None) -> None:
    """Write all rows of a stream, or the first `most`, to the scratch columns."""
    allowed, seen = set(domains), len(scratch.writer.rows("_client")) if scratch.clients else 0
    enough = False
    for row in stream:
        if allowed and row.domain not in allowed:
            scratch.counts["rows of other domains"] += 1
            continue
        enough |= scratch.add(part(row), row.client, row.domain, row.words)
        if enough and stream.whole:  # between two rows of the file: after an interruption exactly what follows the mark is read again
            scratch.mark(stream.done)
            enough = False
        seen += 1
        if seen % EVERY == 0:
            progress(seen, most, "sentences")
        if most is not None and seen >= most:
            break
    scratch.mark(stream.done, finished=True)
    progress(seen, seen, "sentences")


def _sample(key: keys.Key, n: int, most: int) -> np.ndarray:
    """`most` different numbers below n, in the order of the draws; repeated ones are drawn again, which needs no permutation of n."""
    if most >= n:
        return np.arange(n)
    found = np.zeros(0, np.int64)
    draw = 0
    while len(found) < most:
        more = (keys.bits(keys.derive(key, draw), most) % np.uint64(n)).astype(np.int64)
        both = np.concatenate([found, more])
        found = both[np.sort(np.unique(both, return_index=True)[1])][:most]  # in the order of the draws
        draw += 1
    return found


def _decode(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
