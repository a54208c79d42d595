"""Lines of text from arbitrary bytes, with a report of what had to be replaced in them, and where.

Every line that comes out is valid UTF-8, without NUL and at most LONGEST bytes long. Where it had to be changed for that, the `Place` says
so, and the caller decides whether to use the row. Errors of CSV and JSON become a `Trouble` in the place of a row.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from fedcodist.errors import data_error
from fedcodist.readers.files import CHUNK, NAMES, sniff, unpacked
from fedcodist.settings import show

LONGEST = 2**20  # bytes of a line, characters of a text
_UNREADABLE = re.compile("[\0\ud800-\udfff]")


class Trouble(NamedTuple):
    """What is wrong with a row: the reason under which it is counted, and the parts of the message."""

    reason: str
    got: str
    allowed: str


@dataclass
class Place:
    """The current position in a file, and what is wrong with the current row, if anything."""

    path: str
    unit: str = "line"
    at: int = 0
    trouble: Trouble | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.unit} {self.at}"


EMPTY = Trouble("empty row", "an empty line", "a row on every line")
TOO_LONG = Trouble("too long", f"more than {LONGEST} bytes", f"at most {LONGEST}")
NUL = Trouble("NUL", "a NUL", "text")
SURROGATE = Trouble("surrogate", "half of a surrogate pair", "whole characters")


def text_of(place: Place) -> IO[bytes]:
    """The decompressed file; DataError if it is obviously not text."""
    stream = unpacked(place.path)
    start = stream.peek(16)[:16]  # type: ignore[attr-defined]  # a BufferedReader, always
    if start.startswith((*NAMES, b"\x80")):
        stream.close()
        raise data_error(place.path, sniff(start), "text")
    return stream


def lines_of(stream: IO[bytes], place: Place) -> Iterator[str]:
    """Lines as text, at most LONGEST bytes each; what had to be replaced in a line is noted in `place`."""
    readline = stream.readline
    while raw := readline(LONGEST + 1):
        place.at += 1
        if len(raw) > LONGEST and not raw.endswith(b"\n"):
            raw = raw[:LONGEST]
            while (rest := readline(CHUNK)) and not rest.endswith(b"\n"):
                pass
            place.trouble = TOO_LONG
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            # The cut may have divided a character, which is no second trouble.
            place.trouble = place.trouble or Trouble("not UTF-8", f"the bytes {show(raw[error.start : error.end])}", "UTF-8")
            line = raw.decode("utf-8", "replace")
        if "\0" in line:
            place.trouble = place.trouble or NUL
            line = line.replace("\0", "\ufffd")
        yield line if place.at > 1 else line.removeprefix("\ufeff")


def csv_records(reader: Iterator[list[str]]) -> Iterator[list[str] | Trouble]:
    """The records of a CSV reader; one that cannot be parsed is a Trouble."""
    while True:
        try:
            found = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Trouble("CSV", str(error), "fields as in RFC 4180")
            continue
        yield found


def plain_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict; ValueError for a repeated key, of which one value would silently win."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {show(twice)} twice")
    return found


def mended(text: str, place: Place) -> str:
    """The text without NUL, lone surrogates and excess length, which JSON escapes and Parquet files may hold; noted in `place`."""
    if len(text) > LONGEST:
        place.trouble = TOO_LONG
        text = text[:LONGEST]
    if not text.isprintable() and (odd := _UNREADABLE.search(text)):
        place.trouble = NUL if odd[0] == "\0" else SURROGATE
        text = _UNREADABLE.sub("\ufffd", text)
    return text
