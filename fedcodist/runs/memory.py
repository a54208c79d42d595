"""Freed memory is kept by the process, not given back to the system at once.

glibc maps large blocks anew for every allocation, and the system clears each page of them: a compiled program over a vocabulary of 10,000
words asks for such blocks at every call, and a third of its time went into clearing them. Here large blocks come from one heap that never
shrinks: peak memory was a quarter more or a seventh less, and what was once needed stays with the process. Other systems, and programs that
set their own limits (MALLOC_...), are left alone.
"""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8  # glibc's numbers of what mallopt sets
SETTINGS = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: 64 * 2**20, ARENA_MAX: 1}  # threads' own heaps shrink whatever is said


def keep() -> bool:
    """Set it for this process; whether it could be done. To be called before there are threads."""
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 another C library may have a mallopt of another meaning
        return all(libc.mallopt(what, value) == 1 for what, value in SETTINGS.items())
    except (AttributeError, OSError, TypeError):  # no glibc
        return False
