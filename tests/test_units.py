"""Numbers as people read them."""

from __future__ import annotations

from fedcodist.reports.units import points


def test_points_never_hide_the_sign():
    assert [points(v) for v in (0.0192, 0.0004, -0.0004, -0.00001, 0.1)] == ["1.9", "0.04", "-0.04", "0.0", "10.0"]
