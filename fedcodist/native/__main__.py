"""`python -m fedcodist.native build` compiles the kernels into the package; without `build` it says what is in use."""

from __future__ import annotations

import sys

from fedcodist import native
from fedcodist.native.build import build


def main(args: list[str]) -> int:
    """The exit code."""
    if args == ["build"]:
        if why := build():
            print(f"native convolutions: not compiled ({why}); the portable form works without")
            return 1
    elif args:
        print("usage: python -m fedcodist.native [build]", file=sys.stderr)
        return 2
    print(f"native convolutions: {native.describe()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
