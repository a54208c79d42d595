"""Whose fault an exception is that no part of this package expects: the user's own code, the machine's, or a bug of ours."""

from __future__ import annotations

import errno
import os
import re
import sysconfig
import traceback
from pathlib import Path

from fedcodist.settings import one_line, show

OURS = Path(__file__).resolve().parent.parent
LIBRARIES = tuple(
    Path(path).resolve() for name, path in sysconfig.get_paths().items() if name in ("stdlib", "platstdlib", "purelib", "platlib")
)
MOST = 400  # characters of a message
MEMORY = re.compile(r"RESOURCE_EXHAUSTED|can't start new thread|[Cc]annot allocate memory|[Oo]ut of memory|failed to map segment")
ARITY = re.compile(r"(\w+)\(\) (takes|missing|got an unexpected)")


def cause(error: BaseException) -> tuple[str, int] | None:
    """A line for the user and the exit code; None if it is a bug of this package."""
    told = said(error)
    if "nable to initialize backend" in told or "Unknown backend" in told:
        return (
            f"JAX_PLATFORMS: got {show(os.environ.get('JAX_PLATFORMS', ''))}; allowed a platform that JAX finds here, such as cpu ({told})",
            2,
        )
    if MEMORY.search(told) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return f"memory: not enough, or a limit on it is too low; smaller models or batches, or fewer --workers, need less ({told})", 9
    if (frame := _of_user(error)) is not None:
        what = "ends the program" if isinstance(error, SystemExit) else "raises"
        return one_line(f"{frame.filename}:{frame.lineno}: your function {frame.name} {what}: {told}"), _code(frame.filename)
    if isinstance(error, TypeError) and (match := ARITY.search(told)) and _foreign(error, match[1]):
        return f"your function {match[1]} cannot be called as it must be: {told}", 2
    return None


def said(error: BaseException) -> str:
    """The exception in one line of a bounded length."""
    text = str(error).strip()
    line = one_line(f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__)
    return line if len(line) <= MOST else line[: MOST - 3] + "..."


def _of_user(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of a file that is neither this package's nor a library's, if the exception came from there."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    inside = [n for n, frame in enumerate(frames) if _inside(frame.filename, OURS)]
    after = frames[inside[0] + 1 :] if inside else []  # those before it called us
    theirs = [frame for frame in after if not any(_inside(frame.filename, place) for place in (OURS, *LIBRARIES))]
    return theirs[-1] if theirs else None


def _inside(file: str, place: Path) -> bool:
    return Path(file).resolve().is_relative_to(place)


def _foreign(error: TypeError, name: str) -> bool:
    """Whether the function of this name was called by another one, as those are that a user gives."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and _inside(frames[-1].filename, OURS) and f"{name}(" not in (frames[-1].line or "")


def _code(file: str) -> int:
    """3 for code that reads data, which is a task's, else 2."""
    try:
        return 3 if re.search(r"\bTask\b", Path(file).read_text("utf-8", "replace")) else 2
    except OSError:
        return 2
