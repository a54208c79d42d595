"""Untrusted SQLite files: opened read-only and immutable, and read by fixed queries on tables that were checked first.

A database can contain code: views, triggers and virtual tables run when they are queried. So a file with any of them is refused, only
reading the named tables is permitted, and a query may take no more steps than the size of the file can explain. Deliberately absent:
writing, waiting for a lock, and a write-ahead log (a file that still has one is refused, as its newest rows would be missing).
"""

from __future__ import annotations

import os
import sqlite3
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedcodist.errors import data_error
from fedcodist.readers.files import SQLITE, check_magic, kind, open_file
from fedcodist.settings import show

LONGEST_ID = 200  # characters of a client's name
MOST_BLOB = 2**30
STEPS, STEPS_PER_BYTE = 50_000_000, 8  # of SQLite's virtual machine for one query: a scan of the whole file, with a wide margin
CHECK_EVERY = 100_000
TRICKS = "type IN ('view', 'trigger') OR sql LIKE 'create virtual%' OR sql LIKE 'create view%' OR sql LIKE 'create trigger%'"


class Database:
    """One file, for one thread; a context manager."""

    def __init__(self, path: str | Path, tables: Mapping[str, Iterable[str]], quick_check: bool = False):
        """Open the file; DataError unless it has these tables with these columns. `quick_check` verifies the whole file first."""
        self.path, self.tables = str(path), {table: tuple(columns) for table, columns in tables.items()}
        with open_file(path, "an SQLite file") as file:
            check_magic(path, file, (SQLITE,), "an SQLite file")
            self.size = os.fstat(file.fileno()).st_size
        for ending in ("-wal", "-journal"):
            left = self.path + ending
            if kind(left) != "nothing at this path" and os.path.getsize(left):
                raise data_error(
                    self.path, f"an unfinished change beside it ({Path(left).name})", "a closed database", "open it once with sqlite3"
                )
        quoted = urllib.parse.quote(os.path.abspath(path))
        try:
            self.connection = sqlite3.connect(f"file:{quoted}?mode=ro&immutable=1", uri=True, isolation_level=None)
        except (sqlite3.Error, UnicodeError) as error:
            raise self._broken(error) from error
        try:
            self._set_up(quick_check)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self.connection.close()

    def rows(self, question: str, values: Iterable[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a query's result; text is given as bytes."""
        self.left = STEPS + STEPS_PER_BYTE * self.size
        try:
            yield from self.connection.execute(question, tuple(values))
        except (sqlite3.Error, UnicodeError, OverflowError, MemoryError) as error:
            raise self._broken(error) from error

    def indexed(self, table: str, *columns: str) -> bool:
        """Whether the table has an index that begins with these columns, in any order."""
        self.connection.set_authorizer(None)
        try:
            names = [row[1].decode("utf-8", "replace") for row in self.rows("SELECT 0, name FROM pragma_index_list(?)", [table])]
            heads = [[row[0] for row in self.rows("SELECT name FROM pragma_index_info(?)", [name])] for name in names]
        finally:
            self.connection.set_authorizer(self._allowed)
        return any({column.encode() for column in columns} == set(head[: len(columns)]) for head in heads)

    def _set_up(self, quick_check: bool) -> None:
        connection = self.connection
        connection.text_factory = bytes  # text need not be UTF-8
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(2**20, min(MOST_BLOB, self.size)))
        connection.set_progress_handler(self._step, CHECK_EVERY)
        # These come first, since they apply to reading the schema as well.
        for setting in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "query_only=ON", "temp_store=MEMORY"):
            list(self.rows(f"PRAGMA {setting}"))
        for name, what in self.rows(f"SELECT name, type FROM sqlite_master WHERE {TRICKS}"):  # noqa: S608
            raise data_error(self.path, f"{_show(what)} {_show(name)} that is a view, a trigger or a virtual table", "plain tables")
        for table, wanted in self.tables.items():
            columns = {row[0]: row[1] for row in self.rows("SELECT name, hidden FROM pragma_table_xinfo(?)", [table])}
            missing = [name for name in wanted if columns.get(name.encode(), 1) != 0]
            if missing:
                found = [name.decode("utf-8", "replace") for name in columns]
                what = f"no table {table}" if not columns else f"no plain column {', '.join(missing)} in table {table}"
                raise data_error(self.path, what, f"columns {', '.join(wanted)}", f"found: {show(found)}" if columns else self._others())
        if quick_check:
            for (answer,) in self.rows("PRAGMA quick_check(1)"):
                if answer != b"ok":
                    raise data_error(self.path, f"a damaged database ({_show(answer)})", "a whole SQLite file")
        connection.set_authorizer(self._allowed)

    def _others(self) -> str:
        names = [row[0].decode("utf-8", "replace") for row in self.rows("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 9")]
        return f"found: {show(', '.join(names))}" if names else "it has none"

    def _step(self) -> int:
        self.left -= CHECK_EVERY
        return int(self.left < 0)

    def _allowed(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        if action == sqlite3.SQLITE_SELECT:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ and first in self.tables and (second in (*self.tables[first], "ROWID", "")):
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _broken(self, error: BaseException) -> Exception:
        if str(error) == "interrupted":
            return data_error(self.path, "a question without an end", "tables that the size of the file explains", "damaged?")
        return data_error(self.path, f"a file that SQLite cannot read ({error})", "a whole SQLite file")


def client_name(path: str, raw: Any) -> str:
    """A client's id as text; DataError unless it is safe in a file, a path and a message."""
    try:
        name = raw.decode("utf-8") if isinstance(raw, bytes) else str(raw)
    except UnicodeDecodeError as error:
        raise data_error(path, f"the client id {show(raw)}", "UTF-8") from error
    if (
        not isinstance(raw, bytes | str | int)
        or not name
        or len(name) > LONGEST_ID
        or not name.isprintable()
        or "/" in name
        or name in (".", "..")
    ):
        raise data_error(path, f"the client id {show(raw)}", f"1 to {LONGEST_ID} printable characters without /")
    return name


def count(path: str, client: str, raw: Any) -> int:
    """A number of examples; DataError unless it is one."""
    if type(raw) is not int or raw < 0:
        raise data_error(f"{path}: client {client}", f"{show(raw)} examples", "a whole number from 0")
    return raw


def _show(raw: Any) -> str:
    return show(raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw)
