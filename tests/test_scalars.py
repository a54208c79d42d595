"""The names that trackers get."""

from __future__ import annotations

from test_tidy import line

from fedcodist.reports.scalars import scalars


def test_scalars_are_named_for_trackers():
    found = scalars(line(2, domains=("all", "in/out"), taught=True))
    assert found["train/train_loss/small"] == 0.5 and found["held_out/accuracy/large/in/out"] == 0.3125
    assert found["train/agreement_after/small"] == 0.5 and all(type(value) is float for value in found.values())
    assert not any("codistilled" in tag for tag in found)
