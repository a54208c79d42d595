"""Records: the client, domain, date, split, tokens and text of one row, picked from the columns of a file."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from fedcodist.errors import data_error
from fedcodist.readers.libraries import library
from fedcodist.readers.lines import Place, Trouble, mended
from fedcodist.settings import nearest, show

ABSENT = ("", None)  # appended to the fields of a row: the values of missing columns, of a name and of a text
Record = tuple[str, str, str, str, str | None, str | None]  # client, domain, date, split, tokens, text


@dataclass(frozen=True)
class Columns:
    """The names of the columns in a file; None for one that is not read. With client = "", every row's client is "".

    The columns `type`, `date` and `split` are optional under these names; any other name must be in the file.
    """

    client: str = "client"
    domain: str | None = "type"
    date: str | None = "date"
    split: str | None = "split"
    tokens: str = "tokens"
    text: str = "text"


USUAL = Columns()


def header_of(place: Place, records: Iterator[Any]) -> Any:
    """The header, which must be right whatever the setting of `errors`."""
    header = next(records, None)
    if not header:
        raise data_error(
            place.path, "an empty file" if header is None else "an empty first line", "a first line with the names of the columns"
        )
    if place.trouble is not None:
        raise data_error(str(place), place.trouble.got, place.trouble.allowed)
    return header


def _order(columns: Columns) -> tuple[str | None, ...]:
    """The names of the columns in the order of a record."""
    return columns.client, columns.domain, columns.date, columns.split, columns.tokens, columns.text


def fields_by_name(columns: Columns) -> dict[str, str]:
    """{name in the file: field of Columns} of all columns that are read."""
    return {name: field.name for field in fields(columns) if (name := getattr(columns, field.name))}


def picker(place: Place, header: list[str], columns: Columns) -> Callable[[Any], Record]:
    """A function from the fields of a row, with ABSENT appended, to a record; DataError for a missing or repeated column."""
    found = ", ".join(show(name)[1:-1] for name in header[:30]) + (", ..." if len(header) > 30 else "")
    optional = {"domain", "date", "split"}
    for name, field in fields_by_name(columns).items():
        if header.count(name) > 1:
            raise data_error(place.path, f"two columns {show(name)}", "each column once")
        if name not in header and (field == "client" or (field in optional and name != getattr(USUAL, field))):
            hint = nearest(name, header) or f"{field} = NAME says which one it is"
            raise data_error(place.path, f"no column {show(name)} for the {field}", f"one of the columns found: {found}", hint)
    at = [header.index(name) if name and name in header else absent for name, absent in zip(_order(columns), (-2, -2, -2, -2, -1, -1))]
    if at[4:] == [-1, -1]:
        hint = nearest(columns.tokens, header) or nearest(columns.text, header)
        raise data_error(
            place.path, f"neither column {show(columns.tokens)} nor {show(columns.text)}", f"one of the columns found: {found}", hint
        )
    return operator.itemgetter(*at)


def object_record(found: dict[str, Any], columns: Columns, place: Place) -> Record | Trouble:
    """A record from a JSON object. A missing or null name is ""; missing text is a Trouble, or a wrong column would go unnoticed."""
    names = []
    for name in _order(columns)[:4]:
        value = found.get(name) if name else None
        if isinstance(value, bool) or not (value is None or isinstance(value, str | int)):
            return Trouble("type", f"{show(value)} for {show(name)}", "a string or a whole number")
        names.append("" if value is None else mended(str(value), place))
    name = columns.tokens if columns.tokens and columns.tokens in found else columns.text
    if name not in found:
        return Trouble("fields", f"neither {show(columns.tokens)} nor {show(columns.text)}", "one of the two in each object")
    value = found[name]
    if not (value is None or isinstance(value, str)):
        return Trouble("type", f"{show(value)} for {show(name)}", "a string")
    said = mended(value or "", place)
    return (*names, said, None) if name == columns.tokens else (*names, None, said)  # type: ignore[return-value]


def arrow_rows(place: Place, batches: Iterable[Any], wanted: list[str], names: list[str]) -> Iterator[list[str] | Trouble]:
    """The fields of each row, in the order of the columns of the file; fields that are not wanted stay empty."""
    arrow = library("pyarrow", place.path, "a Parquet file")
    at = [names.index(name) for name in wanted]
    for batch in batches:
        table = [_column(place, arrow, name, batch.column(name)) for name in wanted]
        for values in zip(*table, strict=True):
            found = [""] * len(names)
            for i, value in zip(at, values, strict=True):
                if isinstance(value, bytes):
                    try:
                        value = value.decode()
                    except UnicodeDecodeError as error:
                        place.trouble = Trouble("not UTF-8", f"the bytes {show(value[error.start : error.end])}", "UTF-8")
                        value = value.decode("utf-8", "replace")
                found[i] = mended(value or "", place)
            yield found


def _column(place: Place, arrow: Any, name: str, column: Any) -> list[str | bytes | None]:
    """The values as strings, or as bytes if any in the batch is not UTF-8."""
    types = arrow.types
    given = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_binary(given) or types.is_large_binary(given):
        return column.cast(given).to_pylist()
    strings = types.is_string(given) or types.is_large_string(given)
    if not (strings or types.is_integer(given) or types.is_date(given) or types.is_timestamp(given)):
        raise data_error(
            place.path, f"column {show(name)} of {show(str(column.type))[1:-1]}", "strings, or whole numbers or dates for names"
        )
    try:
        return column.cast(given if strings else arrow.string()).to_pylist()
    except UnicodeDecodeError:
        return column.cast(given).cast(arrow.large_binary() if types.is_large_string(given) else arrow.binary()).to_pylist()


def wrong_width(found: list[str], width: int) -> Trouble:
    return Trouble("fields", f"{len(found)} fields", f"{width}, as in the header")
