"""A cell's numbers as the results page writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedcodist.reproduce import claims

DASH = "–"
LINE = 140  # characters of a line of text


def show_accuracy(told: Mapping[str, Any]) -> str:
    """Percent, with the spread over seeds."""
    return f"{100 * told['mean']:.2f}" + ("" if told["spread"] is None else f" ± {100 * told['spread']:.2f}")


def show_gain(gain: Mapping[str, Any] | None) -> str:
    """Points, with their interval; nothing if there is none."""
    if gain is None:
        return ""
    interval = "" if gain["low"] is None else f" [{100 * gain['low']:.2f}, {100 * gain['high']:.2f}]"
    return f"{100 * gain['difference']:+.2f}{interval}"


def show_difference(difference: claims.Difference | None) -> str:
    """A difference as a gain is shown."""
    return show_gain(difference._asdict() | {"difference": difference.mean}) if difference else DASH


def show_seeds(cell: Mapping[str, Any]) -> str:
    """Which seeds a cell has, and of which if some are missing: means over other seeds are not to be compared.

    >>> show_seeds({"seeds": [0, 1, 2], "state": "done"}), show_seeds({"seeds": [0], "wanted": [0, 1, 2], "state": "partly"})
    ('0-2', '0 (of 0-2)')
    """
    return show_ids(cell["seeds"]) + ("" if cell["state"] in ("done", "none") else f" (of {show_ids(cell['wanted'])})")


def show_ids(seeds: Sequence[int]) -> str:
    """Seeds, as a range where they are one."""
    whole = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else ", ".join(map(str, seeds)) or DASH
