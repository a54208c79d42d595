"""Numbers as people read them."""

from __future__ import annotations

from fedcodist.reports.units import duration, points, remaining, si, size


def test_points_never_hide_the_sign():
    assert [points(v) for v in (0.0192, 0.0004, -0.0004, -0.00001, 0.1)] == ["1.9", "0.04", "-0.04", "0.0", "10.0"]


def test_durations_change_their_unit_where_numbers_would_be_long():
    assert [duration(v) for v in (0.1, 119, 120, 7199, 7200)] == ["1 s", "119 s", "2 min", "120 min", "2 h"]
    assert [remaining(v) for v in (0.1, 99, 100, 5999, 6000)] == ["0 s", "99 s", "2 min", "100 min", "1.7 h"]


def test_bytes_and_counts_have_three_digits_and_a_prefix():
    assert [size(v) for v in (0, 999, 1000, 1_640_000, 2e15)] == ["0 B", "999 B", "1 kB", "1.64 MB", "2 PB"]
    assert [si(v) for v in (1280, 12_800, -2.5e9)] == ["1,280", "12.8 k", "-2.5 G"]
