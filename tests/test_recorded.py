"""Finding recorded runs."""

from __future__ import annotations

import pytest
from test_tidy import make

from fedcodist import runs


def test_each_run_is_found_once_in_the_order_of_the_paths(tmp_path):
    first, second = make(tmp_path, seed=0), make(tmp_path, seed=1)
    (tmp_path / "link").symlink_to(first)
    assert runs.find_all([second, tmp_path, tmp_path / "link", str(first)]) == [second, first]
    with pytest.raises(runs.NotARun, match="nothing: not a run; nearby: .*seed-0"):
        runs.find_all([first, tmp_path / "nothing"])
