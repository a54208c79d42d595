"""Libraries that come with an extra of the package, such as `fedcodist[data]`: imported when they are needed, and asked for if absent."""

from __future__ import annotations

import importlib
from typing import Any

from fedcodist.errors import DataError, data_error


def library(name: str, where: str, got: str, allowed: str = "a file that this installation can read", extra: str = "data") -> Any:
    """A module of a library; if that is not installed, a DataError about `where` that says how to install it.

    >>> library("no_such_library", "a.xyz", "an XYZ file")
    Traceback (most recent call last):
    fedcodist.errors.DataError: a.xyz: got an XYZ file; allowed a file that this installation can read (pip install 'fedcodist[data]')
    """
    try:
        importlib.import_module(name.partition(".")[0])
        return importlib.import_module(name)
    except ImportError as error:
        raise data_error(where, got, allowed, f"pip install 'fedcodist[{extra}]'") from error


def text_library(name: str, where: str) -> Any:
    """A module of a library of the extra `text`, which is needed for the words and not for a file."""
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(f"{where}: needs the package {package}, which is not installed: pip install 'fedcodist[text]'") from error
