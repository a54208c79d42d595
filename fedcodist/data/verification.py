"""Reading prepared stores through, and comparing every digest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedcodist.data import store
from fedcodist.errors import DataError


def verify(names: Iterable[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each store, and a line for whatever is wrong with one. A store that cannot be opened does not hide the others."""
    rows, wrong = [], []
    for name in names:
        columns, found = {}, []
        try:
            opened = store.open_store(name)
            columns, found = opened.columns, [f"{line}; prepare it again" for line in store.verify(opened)]
        except DataError as error:
            found = error.lines
        wrong += found
        size = sum(column["bytes"] for column in columns.values())
        rows.append({"store": str(name), "columns": len(columns), "bytes": size, "verified": "no" if found else "yes"})
    return rows, wrong
