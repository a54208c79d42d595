"""One dotted key of a config, read and set."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fedcodist import config
from fedcodist.errors import ConfigError
from fedcodist.tuning import dotted


def test_put_and_get(read):
    base = read("method.alpha={ small = 0.5, large = { kind = 'every', k = 2, value = 0.25 } }")
    for key, value in {
        "pools.small.work.lr": 0.5,
        "pools.large.cohort": 2,
        "pools.large.clients.take": 3,
        "method.alpha.small": 0.125,
        "method.alpha.large.value": 0.75,
        "method.distill.loss": "js",
        "topology": "chain",
    }.items():
        changed = dotted.put(base, key, value)
        assert dotted.get(changed, key) == value and changed != base
        assert dotted.put(changed, key, dotted.get(base, key)) == base
    assert dotted.put(base, "pools.small.server", "momentum").pools["small"].server.kind == "momentum"
    points = replace(config.twin(base), pools={"v1": base.pools["small"], "v1.5": base.pools["large"]})
    assert dotted.put(points, "pools.v1.5.cohort", 2).pools["v1.5"].cohort == 2


@pytest.mark.parametrize(
    "key, value, words",
    [
        ("pools.smal.work.lr", 0.1, "pools.smal: got an unknown key; allowed small, large (did you mean small?)"),
        ("pools.small.work.rate", 0.1, "pools.small.work.rate: got an unknown key; allowed lr, epochs"),
        ("pools.small.work.lr", -1.0, "pools.small.work.lr: got -1.0; allowed a number > 0 and <= 1000"),
        ("pools.small.cohort", 1.5, "pools.small.cohort: got 1.5; allowed an integer >= 1"),
        ("method.alpha", 2.0, "method.alpha: got 2.0; allowed a number >= 0 and <= 1"),
        ("method.alpha.small", 0.5, "method.alpha.small: got an unknown key; allowed kind, value"),
        ("pools.small", 1, "pools.small: got a whole pool; allowed a key of it"),
        ("pools.large.clients.share", 0.5, "pools.large.clients: got more than one of them; allowed one of take, share, ids"),
        ("method.alpha", {"smal": 0.5}, "method.alpha.smal: got an unknown pool; allowed small | large (did you mean small?)"),
        ("topology", "chian", "topology: got 'chian'; allowed auto | "),
    ],
)
def test_put_is_as_strict_as_a_file(base, key, value, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        dotted.put(base, key, value)
