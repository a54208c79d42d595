"""The command line with marks: `python marked.py FD ARGS...` is `fedcodist ARGS...` that tells on file descriptor FD what it is doing.

One byte at every change of phase, written with os.write, so that whoever kills this process knows afterwards where the kill landed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

TRAINING, SAVE, DISTILLATION = b".", b"s", b"d"


def mark(fd: int, owner: Any, name: str, inside: bytes) -> None:
    """Let a method write `inside` before and TRAINING after itself."""
    original: Callable[..., Any] = getattr(owner, name)

    def marked(*args: Any, **kwargs: Any) -> Any:
        os.write(fd, inside)
        try:
            return original(*args, **kwargs)
        finally:
            os.write(fd, TRAINING)

    setattr(owner, name, marked)


def main(fd: int, argv: list[str]) -> int:
    """The real command line, marked. Every program goes to the compilation cache: a start should cost seconds, not a compilation."""
    import jax

    from fedcodist import federation, runs
    from fedcodist.cli import arguments
    from fedcodist.cli import main as main_cli

    prepare = arguments.prepare_jax

    def prepare_fully() -> None:
        prepare()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

    arguments.prepare_jax = prepare_fully
    mark(fd, runs.Run, "commit", SAVE)
    mark(fd, runs.Run, "finish", SAVE)
    mark(fd, federation.Federation, "codistill", DISTILLATION)
    return main_cli.main(argv)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
