"""Freed memory is kept: what was cleared once is not cleared again."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fedcodist.runs import memory

BLOCK, TIMES = 48 * 2**20, 10
PROGRAM = f"""
import resource
from fedcodist.runs import memory
said = memory.keep()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
b"x" * {BLOCK}
before = faults()
for _ in range({TIMES}):
    b"x" * {BLOCK}  # every page of it is written
print(int(said), faults() - before)
"""


def counted(**given: str) -> tuple[bool, int]:
    """Whether memory is kept, and the pages that the system had to clear for blocks that were there before."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))} | given
    said, faults = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True).stdout.split()
    return said == "1", int(faults)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="glibc only")
def test_a_block_that_was_freed_is_not_cleared_again():
    kept, few = counted()
    assert kept and few < TIMES  # not even a huge page each time
    kept, many = counted(MALLOC_ARENA_MAX="8")  # whoever sets limits knows better
    assert not kept and many >= 10 * TIMES


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *_: 1))
    monkeypatch.setattr(os, "environ", {})
    assert memory.keep() is False
