"""From prose to sentences and words: lower case, English, with the contractions of the paper's appendix repaired (A36)."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

from fedcodist.errors import data_error
from fedcodist.readers.libraries import text_library
from fedcodist.settings import show

BLOCK = 2_000  # characters that are divided into sentences at once: the time of pysbd grows faster than its text

Splitter = Literal["pysbd", "punkt"]
# What the paper repairs after C4's words were cut at every apostrophe; its appendix lists exactly these.
CONTRACTIONS = tuple(
    """
    aren't can't couldn't didn't doesn't don't hadn't hasn't haven't he'd he'll he's i'd it's i'll i'm i've isn't let's mightn't mustn't
    shan't she'd she'll she's shouldn't that's there's they'd they'll they're they've we'd we're we've weren't what'll what're what's
    what've where's who'd who'll who're who's who've won't wouldn't you'd you'll you're you've 's
    """.split()  # noqa: SIM905  # quoted, they would fill a page
)
_CONTRACTIONS = frozenset(CONTRACTIONS)
# The whole of NLTK's wordpunct_tokenize; importing it from there takes more than a second.
_WORD = re.compile(r"\w+|[^\w\s]+")
# Text in which pysbd cannot find an end but the last character; asking it is slow.
_ONE_SENTENCE = re.compile(r"[^\W\d_](?:[^\W\d_]|[ ,'-])*[.!?]?")


def tokenize(text: str) -> list[str]:
    """The lower-cased words and punctuation of a text, with the paper's contractions whole again.

    >>> tokenize("It doesn't rain; Anna's umbrella...")
    ['it', "doesn't", 'rain', ';', 'anna', "'s", 'umbrella', '...']
    """
    return repair(_WORD.findall(text.lower()))


def repair(words: list[str]) -> list[str]:
    """Words with the paper's contractions put together; those that it does not list stay apart.

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

    The paper took NLTK's punkt, a model that has to be downloaded; `splitter="punkt"` does the same where it is installed. The default
    are the rules of pysbd, which need no download (DEVIATION D11): they also end a sentence at the end of a line, and differ at rare
    abbreviations.
    """
    if splitter == "punkt":
        return [found for part in _punkt()(text) if (found := part.strip())]
    _check_splitter(splitter)
    return [sentence for block in _blocks(text) for sentence in _divide(block)]


def first_sentence(text: str, splitter: Splitter = "pysbd") -> str:
    """The first of the sentences, or nothing; only the beginning of a text is looked at."""
    if splitter == "punkt":
        return next(iter(sentences(text.lstrip()[:BLOCK], splitter)), "")
    _check_splitter(splitter)
    return next((sentence for block in _blocks(text) for sentence in _divide(block)), "")


def _blocks(text: str) -> Iterator[str]:
    """The lines of a text, the long ones cut between words: no sentence goes on behind a line, and no text takes for ever."""
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
    if sum(map(len, parts)) != len(block):  # pysbd marks places with rare characters, and loses text that has them itself
        return [block]
    return [found for part in parts if (found := part.strip())]


@functools.cache
def _segmenter() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons complain, once, about escapes in its source
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
