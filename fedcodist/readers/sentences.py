"""From English prose to sentences of lower-case words, with the contractions of the paper's appendix repaired (A36)."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

from fedcodist.errors import data_error
from fedcodist.readers.libraries import text_library
from fedcodist.settings import show

BLOCK = 2_000  # characters that are divided into sentences at once: the time of pysbd grows faster than linearly

Splitter = Literal["pysbd", "punkt"]
# Tokenizing cuts words at every apostrophe; the paper repairs exactly these, listed in its appendix.
CONTRACTIONS = tuple(
    """
    aren't can't couldn't didn't doesn't don't hadn't hasn't haven't he'd he'll he's i'd it's i'll i'm i've isn't let's mightn't mustn't
    shan't she'd she'll she's shouldn't that's there's they'd they'll they're they've we'd we're we've weren't what'll what're what's
    what've where's who'd who'll who're who's who've won't wouldn't you'd you'll you're you've 's
    """.split()  # noqa: SIM905  # quoted, they would fill a page
)
_CONTRACTIONS = frozenset(CONTRACTIONS)
# All that NLTK's wordpunct_tokenize does; importing NLTK takes more than a second.
_WORD = re.compile(r"\w+|[^\w\s]+")
# Text that is certainly one sentence: calling pysbd is slow.
_ONE_SENTENCE = re.compile(r"[^\W\d_](?:[^\W\d_]|[ ,'-])*[.!?]?")


def tokenize(text: str) -> list[str]:
    """The lower-case words and punctuation of a text, with the paper's contractions repaired.

    >>> tokenize("It doesn't rain; Anna's umbrella...")
    ['it', "doesn't", 'rain', ';', 'anna', "'s", 'umbrella', '...']
    """
    return repair(_WORD.findall(text.lower()))


def repair(words: list[str]) -> list[str]:
    """Words with the contractions that the paper lists joined again.

    >>> repair(["we", "'", "re", "and", "we", "'", "ll"])
    ["we're", 'and', 'we', "'", 'll']
    """
    if "'" not in words:
        return words
    whole: list[str] = []
    i = 0
    while i < len(words):
        three = words[i : i + 3]
        if three[1:2] == ["'"] and "".join(three) in _CONTRACTIONS:
            whole.append("".join(three))
            i += 3
        elif three[:2] == ["'", "s"]:
            whole.append("'s")
            i += 2
        else:
            whole.append(words[i])
            i += 1
    return whole


def sentences(text: str, splitter: Splitter = "pysbd") -> list[str]:
    """The sentences of a text.

    The paper used NLTK's punkt, a model that has to be downloaded; `splitter="punkt"` does the same where it is installed. The default is
    pysbd, whose rules need no download (DEVIATION D11): they also end a sentence at the end of a line, and differ in rare abbreviations.
    """
    if splitter == "punkt":
        return [found for part in _punkt()(text) if (found := part.strip())]
    _check_splitter(splitter)
    return [sentence for block in _blocks(text) for sentence in _divide(block)]


def first_sentence(text: str, splitter: Splitter = "pysbd") -> str:
    """The first sentence of a text, or ""; only the beginning of the text is processed."""
    if splitter == "punkt":
        return next(iter(sentences(text.lstrip()[:BLOCK], splitter)), "")
    _check_splitter(splitter)
    return next((sentence for block in _blocks(text) for sentence in _divide(block)), "")


def _blocks(text: str) -> Iterator[str]:
    """The lines of a text, long ones cut between words: a sentence ends with its line, and processing time stays bounded."""
    for paragraph in text.splitlines():
        rest = paragraph.strip()
        while len(rest) > BLOCK:
            end = rest.rfind(" ", 1, BLOCK)
            end = end if end > 0 else BLOCK
            yield rest[:end]
            rest = rest[end:].lstrip()
        if rest:
            yield rest


def _divide(block: str) -> list[str]:
    if _ONE_SENTENCE.fullmatch(block):
        return [block]
    parts = _segmenter().segment(block)
    if sum(map(len, parts)) != len(block):  # pysbd uses rare characters as marks, and loses text that contains them
        return [block]
    return [found for part in parts if (found := part.strip())]


@functools.cache
def _segmenter() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn about escapes in its source
        return text_library("pysbd", "sentences").Segmenter(language="en", clean=False)


@functools.cache
def _punkt() -> Callable[[str], list[str]]:
    found = text_library("nltk.tokenize", "sentences").sent_tokenize
    try:
        found("A sentence.")
    except LookupError as error:
        raise data_error(
            "sentences", "splitter punkt, whose model is not installed", "pysbd", "python -m nltk.downloader punkt_tab"
        ) from error
    return found


def _check_splitter(splitter: str) -> None:
    if splitter != "pysbd":
        raise data_error("splitter", show(splitter), "pysbd or punkt")
