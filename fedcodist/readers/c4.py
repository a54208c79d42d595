"""C4 as the paper used it: the first sentence of every page, in lower-case words, with contractions repaired (C4-mod).

C4 comes as JSONL in many .json.gz files, one page per line with `text`, `timestamp` and `url`. Pages have no client, so the client of every
row is ""; the timestamp is the row's date. Only the beginning of a page is divided into sentences; the address is deliberately ignored.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from fedcodist.errors import data_error
from fedcodist.readers.rows import Columns, Errors, Rows
from fedcodist.readers.sentences import Splitter, first_sentence, tokenize

COLUMNS = Columns(client="", domain=None, date="timestamp", split=None, tokens="", text="text")


def read_c4(
    path: str | Path, errors: Errors = "fail", counts: Counter[str] | None = None, start: int = 0, splitter: Splitter = "pysbd"
) -> Rows:
    """A row for each page of a file, or of the files of a directory in the order of their names, after the first `start` pages.

    `errors` and `counts` are those of `read_rows`; `splitter` is that of `sentences.sentences`, where "punkt" is the paper's own.
    """
    first_sentence("", splitter)  # report a bad splitter before anything is read
    rows = Rows(path, COLUMNS, errors, counts, start, lambda text: [tokenize(first_sentence(text, splitter))])
    for name, form in rows.files:
        if form != "JSONL":
            raise data_error(name, f"a {form} file", "C4's own .json.gz, or .jsonl files")
    return rows
