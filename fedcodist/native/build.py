"""Compiles the kernels. Standard library only, because the build hook runs it where neither this package nor JAX can be imported.

Nothing is compiled behind a user's back: a wheel or an editable install tries it (hatch_build.py), and `python -m fedcodist.native build`
does it for a checkout, or after JAX has come. XLA's headers are those of the jaxlib that is installed; there is no copy of them here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("conv.cc", "kernels.h", "winograd.h")
LIBRARY = "_conv.so"
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-Wno-psabi", "-Wno-attributes")
MOST_SECONDS = 600


def build(to: Path = HERE / LIBRARY, extra: Sequence[str] = ()) -> str:
    """Compile to a file. Returns why it could not, in one line, or nothing."""
    if not supported():
        return f"no kernels for {platform.system()} on {platform.machine()}"
    compiler = find_compiler()
    if not compiler:
        return "no C++ compiler: CXX, g++ and clang++ were tried"
    headers = find_headers()
    if not headers:
        return "no headers of jaxlib here yet"
    part = to.with_name(f"{to.name}.{os.getpid()}.part")  # a process that has the old file open keeps it
    command = [
        *compiler,
        *FLAGS,
        *extra,
        f'-DFEDCODIST_SOURCE="{digest()}"',
        "-isystem",
        str(headers),
        str(HERE / SOURCES[0]),
        "-o",
        str(part),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"code {done.returncode}"]
            return f"{compiler[0]} failed: {next((line for line in said if 'error' in line), said[-1])}"
        part.replace(to)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{compiler[0]} failed: {error}"
    finally:
        part.unlink(missing_ok=True)
    return ""


def supported() -> bool:
    """Whether the kernels are written for this kind of machine."""
    return platform.machine().lower() in ("x86_64", "amd64") and sys.platform in ("linux", "darwin")


def digest() -> str:
    """What the sources are, so that a library of other sources is not used by accident."""
    return hashlib.sha256(b"\0".join((HERE / name).read_bytes() for name in SOURCES)).hexdigest()[:16]


def find_compiler() -> list[str]:
    """The command of a C++ compiler, or nothing. CXX may hold options too."""
    for command in filter(None, (shlex.split(os.environ.get("CXX", "")), ["g++"], ["clang++"])):
        if shutil.which(command[0]):
            return command
    return []


def find_headers() -> Path | None:
    """The directory with XLA's headers, from jaxlib."""
    return next((path for path in _include_dirs() if (path / "xla/ffi/api/ffi.h").is_file()), None)


def _include_dirs() -> Iterator[Path]:
    spec = importlib.util.find_spec("jaxlib")  # found, not imported
    if spec and spec.origin:
        yield Path(spec.origin).parent / "include"
    # pip hides the packages of an environment while it builds for it, but runs that environment's Python; uv tells where it is.
    yield Path(sysconfig.get_path("platlib")) / "jaxlib/include"
    if venv := os.environ.get("VIRTUAL_ENV"):
        yield from Path(venv).glob(f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/jaxlib/include")
