"""The user's cache directory: compiled programs and times that were measured. Its contents may be lost at any time."""

from __future__ import annotations

import os
from pathlib import Path


def directory() -> Path | None:
    """FEDCODIST_CACHE, or a place in the user's own cache; None if FEDCODIST_CACHE is empty, or if there is no home."""
    place = os.environ.get("FEDCODIST_CACHE")
    if place is None:
        home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and os.path.join(os.environ["HOME"], ".cache"))
        place = os.path.join(home, "fedcodist") if home else ""
    return Path(place) if place else None


def writable() -> Path | None:
    """The same, made if it is not there; None as well if nothing can be written there."""
    place = directory()
    try:
        if place is not None:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return place if place is not None and os.access(place, os.W_OK) else None
