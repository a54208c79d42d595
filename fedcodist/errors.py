"""Failures that a user can act on: one line each, and the exit code of the command line.

2 usage or config, 3 data, 4 checkpoint or resume, 5 run directory busy, 6 input or output, 7 diverged, 8 too few clients, 9 memory, 10
network. Any other exception is a bug in this package (70).
"""

from __future__ import annotations

from fedcodist.settings import Problem


class Failure(Exception):
    """A failure with an exit code. Its message has one line for each problem."""

    code = 70

    @property
    def lines(self) -> list[str]:
        """The lines to print, without the word error."""
        return str(self).splitlines() or [type(self).__name__]


class Interrupted(BaseException):
    """A signal asked the run to stop. Not an Exception, so that nothing but the command line swallows it."""

    def __init__(self, signum: int):
        self.code = 128 + signum
        super().__init__(signum)


class ConfigError(Failure):
    """The config or the command line asks for something that is not allowed."""

    code = 2


class DataError(Failure):
    """The data is missing, broken, or not what the task needs."""

    code = 3


def data_error(where: str, got: str, allowed: str, hint: str = "") -> DataError:
    """The error that says where, what was found and what is allowed; file names are escaped.

    >>> print(data_error("a\\nb.npz", "a directory", "a .npz file"))
    a\\nb.npz: got a directory; allowed a .npz file
    """
    return DataError(str(Problem(where, got, allowed, hint)))
