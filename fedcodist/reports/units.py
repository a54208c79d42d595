"""Numbers as people read them: bytes, seconds, counts, and shares in percent or percentage points."""

from __future__ import annotations


def si(value: float, unit: str = "") -> str:
    """A number of three digits with an SI prefix; counts below 10,000 in full.

    >>> si(1.64e9, "B"), si(0, "B"), si(1280), si(2.5e12, "FLOP")
    ('1.64 GB', '0 B', '1,280', '2.5 TFLOP')
    """
    if abs(value) < 1e4 and not unit:
        return f"{value:,.0f}"
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power:
            return f"{value / 10**power:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".strip()


def size(count: float) -> str:
    """A number of bytes.

    >>> size(1_640_000)
    '1.64 MB'
    """
    return si(count, "B")


def duration(seconds: float) -> str:
    """How long something takes, at least a second.

    >>> duration(42.2), duration(223), duration(4000), duration(100_000)
    ('42 s', '3 min 40 s', '67 min', '28 h')
    """
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    minutes, tens = divmod(round(seconds / 10), 6)
    if minutes < 10:
        return f"{minutes} min" + (f" {10 * tens} s" if tens else "")
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def remaining(seconds: float) -> str:
    """The time that is left, which may be none; of hours a decimal.

    >>> remaining(0.1), remaining(600), remaining(20_000)
    ('0 s', '10 min', '5.6 h')
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def percent(share: float) -> str:
    """A share in percent.

    >>> percent(0.7123)
    '71.2%'
    """
    return f"{100 * share:.1f}%"


def points(share: float, sign: bool = False) -> str:
    """A share in percentage points. One decimal, or two where one would hide on which side of zero it is.

    >>> points(0.0192, sign=True), points(0.0004), points(-0.00001)
    ('+1.9', '0.04', '0.0')
    """
    value = 100 * share
    digits = 2 if 0.005 <= abs(value) < 0.05 else 1
    value = round(value, digits) + 0.0  # no minus zero
    return f"{value:{'+' if sign else ''}.{digits}f}"


def interval(low: float | None, high: float | None) -> str:
    """An interval of shares in points; empty where there is none.

    >>> interval(-0.01, 0.05), interval(None, None)
    ('[-1.0, 5.0]', '')
    """
    return "" if low is None or high is None else f"[{points(low)}, {points(high)}]"


def gain(difference: float | None, low: float | None, high: float | None) -> str:
    """A difference of two shares in points, with its interval; empty where there is none.

    >>> gain(0.02, -0.01, 0.05), gain(0.02, None, None), gain(None, None, None)
    ('+2.0 [-1.0, 5.0]', '+2.0', '')
    """
    return "" if difference is None else f"{points(difference, sign=True)} {interval(low, high)}".strip()


def plural(count: int, what: str) -> str:
    """A count with its noun.

    >>> plural(1, "run"), plural(3, "run")
    ('1 run', '3 runs')
    """
    return f"{count} {what}{'' if count == 1 else 's'}"
