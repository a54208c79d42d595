"""Next-word prediction on the standard library of the running Python: text by many authors, on every machine, without a download.

A client is a module. Its docstrings, written for users, and its comments, written for maintainers, are two domains, like the questions and
answers of the paper's Stack Overflow. Ids follow A6: PAD, BOS, EOS, the most frequent words of the federated clients, and OOV as the last.
Out-of-domain public data is the language reference that `help()` shows, which is in no module; the public clients then stay unused, so that
both runs have the same federated clients, held-out and test sentences. Other versions of Python give somewhat different data: `notes`
names the version.
"""

from __future__ import annotations

import ast
import inspect
import io
import os
import platform
import re
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from fedcodist import keys
from fedcodist.clients import Clients
from fedcodist.data.overlap import digests, repeated
from fedcodist.data.partition import owners
from fedcodist.data.splits import check_shares, divide, shuffled
from fedcodist.errors import data_error
from fedcodist.objectives.next_token import BOS, EOS, FIRST, PAD, NextToken
from fedcodist.settings import check, setting
from fedcodist.task import Task
from fedcodist.types import Examples, Split

DOMAINS = ("docstring", "comment")
OUTSIDE = {"in_domain": "", "out_of_domain": " of the language reference"}
FEWEST = 3  # words of a sentence; shorter ones are left out
LARGEST_BYTES = 2**16  # of a module: larger ones take long to parse, and give no more than `max_examples` anyway
# Tests quote code and each other; encodings are generated tables.
SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings"}
WORD = re.compile(r"[a-z]+(?:['_][a-z]+)*|\d+")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\s*\n\s*\n\s*")
NOT_PROSE = re.compile(
    r"#!|>>>|\.\.\. |.*(copyright|licen[sc]e|warrant|rights reserved|permission (is|to)|coding[:=]|vim:|pylint|noqa|type: )", re.I
)


class Sentence(NamedTuple):
    """Words, and the index of their domain."""

    words: tuple[str, ...]
    domain: int


class Rows(NamedTuple):
    """The sentences of some clients as ids, with the columns of a Split."""

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray
    domain: np.ndarray

    def only(self, rows: np.ndarray) -> Rows:
        """Some of the sentences, by index or by mask."""
        return Rows(*(column[rows] for column in self))


@dataclass(frozen=True)
class StdlibText:
    """Docstrings and comments of the standard library, a client for each module."""

    kind: ClassVar[str] = "stdlib_text"
    modules: int = setting(300, ge=4, le=100_000)  # modules that are read at most, chosen at random
    max_examples: int = setting(200, ge=1)  # sentences of a client at most
    min_examples: int = setting(10, ge=1)  # sentences that a module needs to be a client
    vocab: int = setting(1_000, ge=1, le=1_000_000)  # words that the model knows
    length: int = setting(20, ge=2, le=10_000)  # tokens of a sentence; longer ones are cut
    public_share: float = setting(0.2, gt=0, lt=1)  # share of the clients whose sentences become public data
    held_out_share: float = setting(0.1, gt=0, lt=1)  # share of the clients whose sentences are held out
    test_share: float = setting(0.1, gt=0, lt=1)  # share of the clients whose sentences become the test
    public: Literal["in_domain", "out_of_domain"] = "in_domain"  # public data of the same kind, or the language reference
    public_labels: bool = False  # whether public data keeps its next words, for methods that may use them
    split_seed: int = setting(0, ge=0, le=2**63 - 1)  # seed of the split into parts, the same for all seeds of a run

    def __post_init__(self) -> None:
        check(self)
        check_shares(self, "public_share", "held_out_share", "test_share")

    def load(self) -> Task:
        """Read the modules, divide them, and encode their sentences."""
        key = keys.derive(keys.root(self.split_seed), self.kind)
        modules = self._read(key)
        shares = {"public": self.public_share, "held_out": self.held_out_share, "test": self.test_share}
        parts = divide(modules, shares, "federated", keys.derive(key, "divide"))
        counts = Counter(word for name in parts["federated"] for sentence in modules[name] for word in sentence.words)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: self.vocab]
        ids = {word: FIRST + i for i, word in enumerate(ranked)}
        table = {part: self._encode([modules[name] for name in names], ids) for part, names in parts.items()}
        if self.public == "out_of_domain":
            found = self._encode([[Sentence(words[: self.length], 0) for words in reference()]], ids)
            table["reference"] = found.only(np.sort(np.unique(digests(found.x), return_index=True)[1]))
        # Different sentences may become equal once rare words are OOV: what an earlier part has is left out.
        again = repeated({part: digests(rows.x) for part, rows in table.items()})
        table = {part: rows.only(~again[part]) for part, rows in table.items()}
        federated, public = table["federated"], table["reference" if self.public == "out_of_domain" else "public"]
        ends = np.cumsum([len(modules[name]) for name in parts["federated"]])
        rows = dict(zip(parts["federated"], np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
        tokens, oov = int((federated.y != PAD).sum()), self.vocab + FIRST
        unknown = (federated.y == oov).sum() / ((federated.y != PAD) & (federated.y != EOS)).sum()
        return Task(
            name=self.kind,
            objective=NextToken(oov=oov, scale=round(tokens / len(federated.y), 1)),
            clients=Clients(federated.x, federated.y, rows, federated.domain),
            public=Examples(public.x, public.y if self.public_labels else None),
            held_out=Split(*table["held_out"]),
            test=Split(*table["test"]),
            classes=self.vocab + FIRST + 1,
            domains=DOMAINS,
            attributes={
                "package": {name: name.split(".")[0] for name in rows},
                "main_domain": {name: DOMAINS[int(np.bincount(federated.domain[r]).argmax())] for name, r in rows.items()},
            },
            notes=(
                f"the standard library of Python {platform.python_version()}",
                f"{len(rows)} clients, {len(federated.x)} sentences; {len(public.x)} public{OUTSIDE[self.public]}, "
                f"{len(table['held_out'].x)} held out, {len(table['test'].x)} test sentences",
                f"{100 * unknown:.1f} % of the clients' words are out of the vocabulary",
            ),
        )

    def _read(self, key: keys.Key) -> dict[str, list[Sentence]]:
        """{module: sentences}, no sentence twice."""
        root = Path(sysconfig.get_paths()["stdlib"])
        found = {_module(path.relative_to(root)): path for path in _files(root)}
        said: dict[str, list[Sentence]] = {}
        seen: set[tuple[str, ...]] = set()
        for name in sorted(shuffled(found, keys.derive(key, "modules"))[: self.modules]):
            new = []
            for sentence in read(found[name]):
                shown = sentence.words[: self.length]
                if shown not in seen:
                    seen.add(shown)
                    new.append(Sentence(shown, sentence.domain))
            if len(new) >= self.min_examples:
                chosen = keys.permutation(keys.derive(key, "sentences", name), len(new))[: self.max_examples]
                said[name] = [new[i] for i in np.sort(chosen)]
        if len(said) < 4:
            raise data_error(
                "stdlib_text", f"{len(said)} modules with at least {self.min_examples} sentences", "4 or more", f"read from {root}"
            )
        return said

    def _encode(self, clients: list[list[Sentence]], ids: dict[str, int]) -> Rows:
        """x = [BOS, w1, ...], y = [w1, ..., EOS], both cut or padded to `length`."""
        sentences = [sentence for client in clients for sentence in client]
        oov = self.vocab + FIRST
        line = np.full((len(sentences), self.length + 2), PAD, np.int32)
        for row, sentence in zip(line, sentences, strict=True):
            row[: len(sentence.words) + 2] = [BOS, *(ids.get(word, oov) for word in sentence.words), EOS]
        _, codes = owners([np.empty(len(client)) for client in clients])
        return Rows(line[:, : self.length], line[:, 1 : self.length + 1], codes, np.array([s.domain for s in sentences]))


def read(path: Path) -> list[Sentence]:
    """The sentences of a module, first of its docstrings, then of its comments; an empty list if it cannot be parsed."""
    try:
        source = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated escapes in strings
            docs = [inspect.cleandoc(text) for text in _docstrings(ast.parse(source))]
        comments = list(_comments(source))
    except (OSError, SyntaxError, ValueError, tokenize.TokenError, RecursionError):
        return []
    said = (docs, comments)
    return [Sentence(words, domain) for domain in range(len(DOMAINS)) for text in said[domain] for words in sentences(text)]


def reference() -> list[tuple[str, ...]]:
    """The sentences of the language reference that comes with Python for `help()`."""
    found: dict[str, str] = {}
    with suppress(ImportError):
        from pydoc_data.topics import topics

        found = topics
    said = [words for name in sorted(found) for words in sentences(found[name])]
    if not said:
        hint = "some systems pack it apart from Python: install Python's documentation topics, or take in_domain"
        raise data_error("task.public", "out_of_domain", "in_domain, as this Python has no pydoc_data.topics", hint)
    return said


def sentences(text: str) -> Iterator[tuple[str, ...]]:
    """The sentences of a text as lower-case words, without code, licences and rulers.

    >>> list(sentences("Return the sum.  It doesn't wait.\\n>>> f(1)\\n\\nCopyright 2001, all of us.\\n------"))
    [('return', 'the', 'sum'), ('it', "doesn't", 'wait')]
    """
    prose = "\n".join(line for line in text.splitlines() if not NOT_PROSE.match(line.strip()))
    for part in SENTENCE_END.split(prose):
        words = tuple(WORD.findall(part.lower()))
        if len(words) >= FEWEST:
            yield words


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Docstrings in the order of the file. Only statements are visited: expressions have none, and are most of the tree."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield text
    for block in ("body", "orelse", "handlers", "finalbody"):
        inner = getattr(node, block, [])
        if isinstance(inner, list):  # a lambda's body is an expression
            for child in inner:
                yield from _docstrings(child)


def _comments(source: bytes) -> Iterator[str]:
    """Comments; those on consecutive lines are joined."""
    lines: list[str] = []
    last = (-2, -1)
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if lines and (token.start[0] - 1, token.start[1]) != last:
            yield "\n".join(lines)
            lines = []
        last = token.start
        lines.append(token.string if token.string.startswith("#!") else token.string.lstrip("#: "))
    if lines:
        yield "\n".join(lines)


def _files(root: Path) -> Iterator[Path]:
    """The modules of a library, without tests and generated tables."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED)
        for path in (Path(folder) / name for name in sorted(names) if name.endswith(".py")):
            if path.is_file() and path.stat().st_size <= LARGEST_BYTES:
                yield path


def _module(path: Path) -> str:
    """json/decoder.py is json.decoder, and json/__init__.py is json."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
