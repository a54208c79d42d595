"""Write docs/measured/privacy.json: the epsilon of a run of the paper's size, by noise and by what is assumed of the cohorts.

Nothing is measured: the accountant computes it (`pip install 'fedcodist[privacy]'`). The table in docs/privacy.md is made from the file.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from fedcodist import keys
from fedcodist.engines.accountant import Account, Charge, Privacy

FILE = Path(__file__).parent.parent / "docs/measured/privacy.json"
CLIENTS, COHORT, ROUNDS, DELTA = {"small": 315, "large": 47}, 20, 1500, 1e-5
NOISES = (1.0, 2.0, 4.0, 8.0)
SAMPLINGS = ("poisson", "without_replacement", "none")
UNLIMITED = 1e6


def cohorts(pool: str) -> list[tuple[str, ...]]:
    """Those of a run with seed 0; the larger model's clients are among the smaller one's."""
    rank, names = list(CLIENTS).index(pool), [f"{k:03}" for k in range(CLIENTS[pool])]
    draws = (keys.permutation(keys.derive(keys.root(0), "cohort", t, rank), len(names)) for t in range(1, ROUNDS + 1))
    return [tuple(names[i] for i in draw[:COHORT]) for draw in draws]


def epsilon(sampling: Any, noise: float, pools: list[str]) -> float:
    """What the client that paid most has paid, of those that are in all of these pools."""
    account = Account(Privacy(UNLIMITED, DELTA, sampling), dict.fromkeys(pools, noise))
    for pool in pools:
        account.pay([Charge(pool, t, cohort, CLIENTS[pool]) for t, cohort in enumerate(cohorts(pool), 1)])
    return round(account.epsilon(), 1)


def table() -> dict[str, Any]:
    """All of it."""
    groups = {"small": ["small"], "large": ["large"], "both": ["small", "large"]}
    rows = [
        {"noise": noise, "sampling": sampling, **{name: epsilon(sampling, noise, pools) for name, pools in groups.items()}}
        for sampling in SAMPLINGS
        for noise in NOISES
    ]
    return {
        "clients": CLIENTS,
        "cohort": COHORT,
        "rounds": ROUNDS,
        "delta": DELTA,
        "accountant": f"dp-accounting {metadata.version('dp-accounting')}",
        "rows": rows,
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(table(), indent=1) + "\n", "utf-8")
    sys.exit()
