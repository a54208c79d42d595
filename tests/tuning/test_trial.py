"""One training of a study: nobody looks at the test split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tuned import PERIODIC, Guarded, end_of, finish, searched

from fedcodist import config, keys
from fedcodist.errors import DataError
from fedcodist.evaluate import evaluate
from fedcodist.federation import params_of
from fedcodist.tasks import Toy
from fedcodist.tuning import trial, tune
from fedcodist.types import Split

pytestmark = pytest.mark.usefixtures("prepared")


@dataclass(frozen=True)
class Poisoned(Toy):
    """A toy task whose test rows are NaN."""

    def load(self) -> Any:
        task = super().load()
        return replace(task, test=Split(np.full_like(task.test.x, np.nan), task.test.y))


def test_nobody_looks_at_the_test_split(read, tmp_path, monkeypatch):
    base = replace(read(PERIODIC), task=Guarded())
    with pytest.raises(AssertionError, match="somebody looked"):
        config.digest(base.task.load())
    found = finish(searched(base), tmp_path)
    confirmed = end_of(tune.confirm([found[0].config], [1], tmp_path))
    assert len(found) == 3 and confirmed[0][1].accuracy
    poisoned = replace(base, task=Poisoned())
    assert [t.outcome.curve for t in finish(searched(poisoned), tmp_path / "b")] == [t.outcome.curve for t in found]
    assert trial.content(base.task.load()) == trial.content(poisoned.task.load()), "not even its digest"
    # And if somebody tried, there would be nothing to see.
    seen = []
    monkeypatch.setattr(trial, "train", lambda experiment, *given: seen.append(experiment) or iter(()))
    end_of(trial.perform(trial.Job(0, base, 7), base.task.load()))
    with pytest.raises(DataError, match="a split without rows"):
        evaluate(seen[0].federation, params_of(seen[0].federation.init(keys.root(0))), "test")
