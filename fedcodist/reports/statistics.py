"""Means, spreads and intervals over seeds, and differences between two arms taken seed by seed.

A run and its FedAvg twin share the seed, and with it the initial models, the cohorts and the batches, so differences are taken seed by
seed and only then averaged; most of what varies between seeds cancels. Intervals are Student's t over these paired differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from fedcodist.reports.arms import by_seed, cost_of, dig, domains_of, metric_of, number, pools_of

ONE_SEED = "one seed: no interval"


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None; None if all are."""
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def spread(values: Sequence[float]) -> float | None:
    """The sample standard deviation; of one value there is none."""
    return stdev(values) if len(values) > 1 else None


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean by Student's t; of one value there is none.

    >>> low, high = t_interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # jax brings scipy; loaded only here to keep the command line quick

    half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def paired(a_runs: Iterable[Any], b_runs: Iterable[Any], split: str = "test", metric: str = "") -> list[dict[str, Any]]:
    """b against a, for each pool and domain: means over the seeds that both have, and the mean difference with its 95 % interval.
    The metric is the split's accuracy unless another is named."""
    metric = metric or metric_of(split)
    both = _pairs(a_runs, b_runs)
    everyone = [run for pair in both for run in pair]
    rows = []
    for pool in pools_of(everyone):
        for domain in domains_of(everyone):
            values = [tuple(number(dig(run.result, split, pool, domain, metric)) for run in pair) for pair in both]
            known = [(x, y) for x, y in values if x is not None and y is not None]
            if not known:
                continue
            gains = [y - x for x, y in known]
            low, high = t_interval(gains) or (None, None)
            rows.append(
                {"pool": pool, "domain": domain, "metric": metric, "a": fmean(x for x, _ in known), "b": fmean(y for _, y in known)}
                | {"difference": fmean(gains), "spread": spread(gains), "low": low, "high": high, "seeds": len(known)}
                | {"note": ONE_SEED if len(known) == 1 else ""}
            )
    return rows


def extra_cost(a_runs: Iterable[Any], b_runs: Iterable[Any], what: str) -> tuple[float, float] | None:
    """What b costs more than a, as the mean over the seeds that both have, and the mean cost of a."""
    pairs = [(cost_of(a, what), cost_of(b, what)) for a, b in _pairs(a_runs, b_runs)]
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    if not known:
        return None
    more, base = fmean(y - x for x, y in known), fmean(x for x, _ in known)
    return (0.0 if abs(more) <= 1e-9 * base else more), base  # sums of many floats: equal work may differ in the last bits


def _pairs(a_runs: Iterable[Any], b_runs: Iterable[Any]) -> list[tuple[Any, Any]]:
    """The finished runs of a and b, for each seed that both have."""
    a, b = by_seed(a_runs), by_seed(b_runs)
    return [(a[seed], b[seed]) for seed in a if seed in b]
