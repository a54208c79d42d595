"""Rows of text as one stream, from TSV, CSV, JSONL (plain, .gz or .xz) or Parquet, a file or a directory of them, or from a data set saved
by Hugging Face `datasets`.

Each row of a file has words separated by spaces (`tokens`) or prose (`text`), which is divided into sentences here. Only the current row
is in memory, or a batch of a Parquet file. A row that is wrong stops the reading, is left out or is repaired, as `errors` says, and is
counted. Schemas, types of columns and joins of several files are deliberately absent.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from fedcodist.errors import data_error
from fedcodist.readers import sentences
from fedcodist.readers.columns import is_saved, parts
from fedcodist.readers.files import CHUNK, PARQUET, check_magic, check_ratio, kind, open_file
from fedcodist.readers.libraries import library
from fedcodist.readers.lines import EMPTY, LONGEST, Place, Trouble, csv_records, lines_of, plain_object, text_of
from fedcodist.readers.records import (
    ABSENT,
    USUAL,
    Columns,
    Record,
    arrow_rows,
    fields_by_name,
    header_of,
    object_record,
    picker,
    wrong_width,
)
from fedcodist.settings import show

LONGEST_NAME = 200  # characters of a client's, domain's or split's name
BATCH = 1_000  # rows of a Parquet file in memory
FORMATS = {".tsv": "TSV", ".csv": "CSV", ".jsonl": "JSONL", ".json": "JSONL", ".ndjson": "JSONL", ".parquet": "Parquet"}
PACKED = (".gz", ".xz", ".lzma")
NO_WORDS = "no words"  # the reason under which rows without words are counted; they are always left out
# What a damaged Parquet file may raise; pyarrow's own errors are subclasses of these.
_DAMAGED = (ValueError, OSError, KeyError, NotImplementedError, MemoryError)

Errors = Literal["replace", "skip", "fail"]
ToSentences = Callable[[str], Iterable[Sequence[str]]]  # from prose to sentences of words


class Row(NamedTuple):
    """A sentence and where it comes from; "" where the file does not say."""

    client: str
    domain: str
    date: str
    split: str
    words: tuple[str, ...]


class Rows(Iterator[Row]):
    """The rows at a path, to be iterated over once.

    `done` is the number of rows of the files that have been given completely, so that `start=done` continues from there. One row of prose
    may give several sentences; while `whole` is false, some of them are still to come, and continuing would repeat the others.
    """

    def __init__(
        self, path: str | Path, columns: Columns, errors: Errors, counts: Counter[str] | None, start: int, to_sentences: ToSentences
    ):
        if errors not in ("replace", "skip", "fail"):
            raise data_error("errors", show(errors), "replace, skip or fail")
        if start < 0:
            raise data_error("start", str(start), "0 or more")
        self.path, self.columns, self.errors, self.start, self.to_sentences = str(path), columns, errors, start, to_sentences
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.done, self.whole = 0, True
        self.files = _files(self.path)
        self._rows = self._give()

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    def __next__(self) -> Row:
        return next(self._rows)

    def _give(self) -> Iterator[Row]:
        for path, form in self.files:
            place = Place(path)
            try:
                with closing(_READERS[form](self, place)) as records:
                    yield from self._rows_of(place, records)
            except OSError as error:
                raise data_error(str(place), error.strerror or str(error), "a file that can be read") from error
        if self.done < self.start:
            raise data_error(self.path, f"{self.done} rows", f"at least {self.start}, to go on after them")

    def _rows_of(self, place: Place, records: Iterator[Record | Trouble]) -> Iterator[Row]:
        """The rows of one file. Reading tokens spends its time in this loop, so it is written for speed."""
        with_clients, counts = self.columns.client != "", self.counts
        for record in records:
            self.done += 1
            if place.trouble is not None:
                trouble, place.trouble = place.trouble, None
                if not self._replaced(place, trouble):
                    continue
            if type(record) is Trouble:
                self._leave_out(place, record)
                continue
            client, domain, date, split, tokens, text = record  # type: ignore[misc]
            if with_clients and (
                not client or len(client) > LONGEST_NAME or not client.isprintable() or "/" in client or client in (".", "..")
            ):
                got = f"{show(client)} for {show(self.columns.client)}"
                self._leave_out(place, Trouble("client", got, f"1 to {LONGEST_NAME} printable characters without /"))
                continue
            if len(domain) + len(date) + len(split) > LONGEST_NAME or not (domain + date + split).isprintable():
                got = f"{show(domain + date + split)} for domain, date and split"
                self._leave_out(place, Trouble("name", got, f"at most {LONGEST_NAME} printable characters"))
                continue
            if tokens is not None:
                found = tokens.lower().split()
                if found:
                    yield Row(client, domain, date, split, tuple(found))
                else:
                    counts[NO_WORDS] += 1
                continue
            several = [tuple(sentence) for sentence in self.to_sentences(text or "") if sentence]
            if not several:
                counts[NO_WORDS] += 1
                continue
            # A row is done with its last sentence: continuing before that repeats the others, and loses none.
            self.done, self.whole = self.done - 1, False
            for sentence in several[:-1]:
                yield Row(client, domain, date, split, sentence)
            self.done, self.whole = self.done + 1, True
            yield Row(client, domain, date, split, several[-1])

    def _replaced(self, place: Place, trouble: Trouble) -> bool:
        """Count a row that could be repaired; whether it is to be used."""
        self._leave_out(place, trouble)
        return self.errors == "replace"

    def _leave_out(self, place: Place, trouble: Trouble) -> None:
        if self.errors == "fail":
            self.done -= 1
            raise data_error(str(place), trouble.got, trouble.allowed, "errors = skip leaves such rows out")
        self.counts[trouble.reason] += 1

    # Each of these readers skips what is done already, then gives a record or a Trouble for each row of its file.

    def _tsv(self, place: Place) -> Iterator[Any]:
        with text_of(place) as stream:
            lines = lines_of(stream, place)
            header = header_of(place, lines).rstrip("\r\n").split("\t")
            take, width = picker(place, header, self.columns), len(header)
            self._skip(stream, place)
            for line in lines:
                found = line.rstrip("\r\n").split("\t")
                if len(found) == width:
                    found += ABSENT  # type: ignore[arg-type]
                    yield take(found)
                else:
                    yield wrong_width(found, width) if line.strip() else EMPTY

    def _csv(self, place: Place) -> Iterator[Any]:
        # The limit belongs to the whole process, so it is only ever increased.
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
        with text_of(place) as stream:
            records = csv_records(csv.reader(lines_of(stream, place), strict=True))
            header = header_of(place, records)
            if isinstance(header, Trouble):
                raise data_error(str(place), header.got, header.allowed)
            take, width = picker(place, header, self.columns), len(header)
            self.done += sum(1 for _ in islice(records, max(0, self.start - self.done)))
            place.trouble = None
            for found in records:
                if isinstance(found, Trouble):
                    yield found
                elif len(found) == width:
                    yield take([*found, *ABSENT])
                else:
                    yield wrong_width(found, width) if found else EMPTY

    def _jsonl(self, place: Place) -> Iterator[Any]:
        with text_of(place) as stream:
            self._skip(stream, place)
            decode = json.JSONDecoder(object_pairs_hook=plain_object).decode
            checked = False
            for line in lines_of(stream, place):
                if not line.strip():
                    yield EMPTY
                    continue
                try:
                    found = decode(line)
                except (ValueError, RecursionError) as error:
                    yield Trouble("JSON", f"no JSON object ({error})", "one JSON object a line")
                    continue
                if not isinstance(found, dict):
                    yield Trouble("JSON", f"{show(found)}", "one JSON object a line")
                    continue
                if not checked:
                    picker(place, list(found), self.columns)
                    checked = True
                yield object_record(found, self.columns, place)

    def _parquet(self, place: Place) -> Iterator[Any]:
        parquet = library("pyarrow.parquet", place.path, "a Parquet file")
        place.unit = "row"
        with open_file(place.path) as file:
            check_magic(place.path, file, (PARQUET,), "a Parquet file")
            try:
                opened = parquet.ParquetFile(file, buffer_size=CHUNK, page_checksum_verification=True)
                names = [field.name for field in opened.schema_arrow]
                take = picker(place, names, self.columns)
                wanted = [name for name in names if name in fields_by_name(self.columns)]
                groups = [opened.metadata.row_group(i) for i in range(opened.metadata.num_row_groups)]
                # By row group, not by column: asking a damaged file for columns ends the process, as pyarrow leaves an exception uncaught.
                check_ratio(place.path, sum(group.total_byte_size for group in groups), os.fstat(file.fileno()).st_size)
                first = 0  # the first row group to read
                while first < len(groups) and self.done + groups[first].num_rows <= self.start:
                    self.done += groups[first].num_rows
                    place.at += groups[first].num_rows
                    first += 1
                batches = opened.iter_batches(BATCH, list(range(first, len(groups))), wanted)
                rows = arrow_rows(place, batches, wanted, names)
                gone = sum(1 for _ in islice(rows, max(0, self.start - self.done)))
                self.done, place.at, place.trouble = self.done + gone, place.at + gone, None
                for found in rows:
                    place.at += 1
                    yield found if isinstance(found, Trouble) else take([*found, *ABSENT])
            except _DAMAGED as error:
                what = (str(error).splitlines() or [type(error).__name__])[0][:120]
                raise data_error(str(place), f"a file that is truncated or damaged ({what})", "a whole Parquet file") from error

    def _saved(self, place: Place) -> Iterator[Any]:
        place.unit = "row"
        names, split = set(fields_by_name(self.columns)), self.columns.split
        with ExitStack() as stack:
            for part in parts(place.path, names, stack):
                named = (
                    [part.split] if part.split and split and split not in part.names else []
                )  # the split that its directory is named after
                take = picker(place, [*part.names, *([split] if named else [])], self.columns)  # type: ignore[list-item]
                rows = arrow_rows(place, part.batches, [name for name in part.names if name in names], part.names)
                gone = sum(1 for _ in islice(rows, max(0, self.start - self.done)))
                self.done, place.at, place.trouble = self.done + gone, place.at + gone, None
                for found in rows:
                    place.at += 1
                    yield found if isinstance(found, Trouble) else take([*found, *named, *ABSENT])

    def _skip(self, stream: IO[bytes], place: Place) -> None:
        """Skip the lines that are already done, without parsing them."""
        inside = False
        while self.done < self.start and (raw := stream.readline(CHUNK)):
            inside = not raw.endswith(b"\n")
            if not inside:
                self.done += 1
                place.at += 1
        if inside:  # the last line of a file may lack a line break
            self.done += 1
            place.at += 1


_READERS: dict[str, Callable[[Rows, Place], Any]] = {
    "TSV": Rows._tsv,
    "CSV": Rows._csv,
    "JSONL": Rows._jsonl,
    "Parquet": Rows._parquet,
    "saved": Rows._saved,
}


def read_rows(
    path: str | Path, columns: Columns = USUAL, errors: Errors = "fail", counts: Counter[str] | None = None, start: int = 0
) -> Rows:
    """The rows of a file, or of the files of a directory in the order of their names, after the first `start` rows.

    `errors` says what happens to a row that is wrong: "fail" raises DataError; "skip" leaves the row out; "replace" puts U+FFFD for what
    cannot be read, cuts off what is too long, and leaves out what cannot be repaired. `counts` counts these rows by reason.
    """
    return Rows(path, columns, errors, counts, start, lambda text: map(sentences.tokenize, sentences.sentences(text)))


def _files(path: str) -> list[tuple[str, str]]:
    """(path, format) of each file; hidden files of a directory, and those of an unknown format, are ignored."""
    known = ", ".join(FORMATS)
    if kind(path) != "a directory":
        form = _format(path)
        if form is None:
            open_file(path).close()  # something that is not a file gets its own message
            raise data_error(path, f"a name that ends with {show(Path(path).suffix)}", f"{known}, also with {', '.join(PACKED)}")
        return [(path, form)]
    if is_saved(path):
        return [(path, "saved")]
    try:
        names = sorted(name for name in os.listdir(path) if not name.startswith((".", "_")))
    except OSError as error:
        raise data_error(path, f"{error.strerror}", "a directory that can be read") from error
    files = [(str(Path(path) / name), form) for name in names if (form := _format(name))]
    forms = sorted({form for _, form in files})
    if len(forms) != 1:
        raise data_error(path, f"files of {' and '.join(forms)}" if forms else "no file of rows", f"files of one kind: {known}")
    return files


def _format(path: str) -> str | None:
    name = Path(path)
    packed = name.suffix in PACKED
    form = FORMATS.get(name.with_suffix("").suffix if packed else name.suffix)
    return None if packed and form == "Parquet" else form  # Parquet is compressed inside
