"""A park of devices: what each class of them has, and its share of all devices. From the table of this package or a CSV of the user's.

The shipped table is for orientation: peaks are computed from the cores and clock rates that its column `source` names, and not measured;
links are world-wide figures of Ookla's Speedtest as others have quoted them, down from 2024 and up from 2020; shares are an assumption.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from fedcodist.errors import ConfigError
from fedcodist.settings import nearest, one_line, show

NUMBERS = ("share", "memory_mb", "gflops", "down_mbps", "up_mbps")
COLUMNS = ("device", *NUMBERS)
MOST_BYTES = 10**6


@dataclass(frozen=True)
class Device:
    """A class of devices."""

    device: str
    share: float  # of all devices
    memory_mb: float  # that the device has
    gflops: float  # operations a second at its peak, in thousands of millions
    down_mbps: float  # millions of bits a second, to the device
    up_mbps: float
    source: str = ""


def shipped() -> tuple[Device, ...]:
    """The table of this package."""
    file = resources.files("fedcodist.runs") / "devices.csv"
    return parse(file.read_text("utf-8"), "devices.csv")


def read(path: str | Path) -> tuple[Device, ...]:
    """The table in a file; ConfigError with everything that is wrong with it."""
    try:
        data = Path(path).read_bytes()[: MOST_BYTES + 1]
    except OSError as error:
        raise ConfigError(one_line(f"--devices: got {show(str(path))}; allowed a CSV file ({error.strerror})")) from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"--devices: got more than {MOST_BYTES:,} bytes; allowed a table of classes of devices")
    try:
        return parse(data.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: got a byte that is not UTF-8 at offset {error.start}; allowed UTF-8 text") from None


def parse(text: str, name: str) -> tuple[Device, ...]:
    """The rows of a table as devices, their shares brought to a sum of 1.

    >>> parse("device,share,memory_mb,gflops,down_mbps,up_mbps\\nphone,3,4096,100,50,10\\nboard,1,512,30,50,10", "mine.csv")[1].share
    0.25
    """
    try:
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise ConfigError(one_line(f"{name}: got no CSV ({error}); allowed a header and a row for each class of devices")) from None
    given = list(rows[0]) if rows else []
    missing = [column for column in COLUMNS if column not in given]
    if missing:
        hint = nearest(missing[0], [str(column) for column in given])
        tail = f" ({hint})" if hint else ""
        raise ConfigError(one_line(f"{name}: got no column {missing[0]}; allowed the columns {', '.join(COLUMNS)}, and source{tail}"))
    problems, found = [], []
    for line, row in enumerate(rows, 2):
        numbers = {}
        for column in NUMBERS:
            value = _number(row[column])
            least = "a number >= 0" if column == "share" else "a number > 0"
            if value is None or value < 0 or (value == 0 and column != "share"):
                problems.append(f"{name}:{line}: {column}: got {show(row[column])}; allowed {least}")
            numbers[column] = value or 0.0
        label = (row["device"] or "").strip()
        if not label or label in (device.device for device in found):
            problems.append(f"{name}:{line}: device: got {show(label)}; allowed a name that no other row has")
        found.append(Device(label, source=(row.get("source") or "").strip(), **numbers))
    total = sum(device.share for device in found)
    if not problems and total == 0:
        problems.append(f"{name}: share: got 0 in every row; allowed a share above 0 in one of them at least")
    if problems:
        raise ConfigError("\n".join(one_line(problem) for problem in problems[:20]))
    return tuple(Device(d.device, d.share / total, d.memory_mb, d.gflops, d.down_mbps, d.up_mbps, d.source) for d in found)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
