"""Timing the parts of a run before it, by its very programs: a few rounds of each kind, evaluations and checkpoints, on a state that is
thrown away. Of the test split only the number of rows is used.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import jax

from fedcodist import keys
from fedcodist.evaluate import ensemble, evaluate
from fedcodist.runs import checkpoint, clock, cost
from fedcodist.runs.clock import Span, Times
from fedcodist.storage import cache
from fedcodist.train import Experiment
from fedcodist.types import Info

ROUNDS, SECONDS, LEAST, MOST = 4, 4.0, 1.0, 20  # of each kind: this many rounds, more for `LEAST` seconds, fewer after `SECONDS`
MATTERS = 0.2  # the share of a run above which its start is timed again, with its programs compiled
ENSEMBLE, COUNT = "ensemble", "count"  # parts of the result


def measure(experiment: Experiment, tell: Callable[[int], object] = lambda rounds: None) -> Times:
    """Time a few rounds of each kind, an evaluation of held-out data and a checkpoint, on a state that is thrown away, and keep that.
    `tell` hears how many rounds there were."""
    config, fed, method = experiment.config, experiment.federation, experiment.method
    watch, key = clock.Watch(), keys.root(experiment.seed)
    rounds: dict[str, list[int]] = {}
    for t in range(1, config.rounds + 1):
        rounds.setdefault(clock.kind(method.students(fed.names, t)), []).append(t)
    with watch.part(clock.START):
        state = jax.block_until_ready(method.init(fed, key))
    scales, done = {}, 0
    for name, those in rounds.items():
        infos: list[Mapping[str, Info]] = []
        while not _is_enough(len(infos) - 1, watch.spent(name) if infos else 0.0):
            t = those[len(infos) * max(1, len(those) // MOST) % len(those)]  # from all of the run: cohorts differ in their clients
            with watch.part(name):
                state, info = jax.block_until_ready(method.round(fed, state, t, key))
            infos.append(info)
            tell(done := done + 1)
        scales[name] = _to_average(experiment, those[0], infos[1:])
    for _ in range(2):
        with watch.part(clock.EVALUATE):
            evaluate(fed, method.models(fed, state), "held_out")
        with watch.part(ENSEMBLE):
            _together(experiment, state)
        with watch.part(COUNT):
            cost.of_average(fed, method, 1)
    with tempfile.TemporaryDirectory(dir=cache.writable()) as directory:
        for n in (1, 2):
            with watch.part(clock.CHECKPOINT):
                checkpoint.write(Path(directory), n, state, {})
    times = watch.times()
    found = {name: (scales.get(name, 1.0) * wall, scales.get(name, 1.0) * cpu) for name, (wall, cpu) in times.parts.items()}
    rows = len(fed.task.test.x) / len(fed.task.held_out.x)
    one, together, counted = found[clock.EVALUATE], found.pop(ENSEMBLE), found.pop(COUNT)  # the ensemble is evaluated on both splits
    found[clock.RESULT] = tuple(rows * one[i] + (1 + rows) * together[i] + counted[i] for i in (0, 1))
    times = Times(found, times.rounds, times.busy)
    whole = times.total(clock.parts(config))
    if whole and found[clock.START][0] > MATTERS * whole[0]:
        times = Times({**found, clock.START: _start(experiment, rounds, found)}, times.rounds, times.busy)
    clock.remember(config, times)
    return times


def _together(experiment: Experiment, state: Any) -> None:
    """What the result of a run asks of several models as one."""
    fed = experiment.federation
    models = experiment.method.models(fed, state)
    if len(fed.names) > 1 and set(fed.names) <= set(models):
        ensemble(fed, models, "held_out")


def _is_enough(timed: int, seconds: float) -> bool:
    return timed >= 1 and (seconds >= SECONDS or timed >= MOST or (timed >= ROUNDS and seconds >= LEAST))


def _start(experiment: Experiment, rounds: Mapping[str, Sequence[int]], found: Mapping[str, Span]) -> Span:
    """What the first of everything takes longer where programs need only be read from the compilation cache, as a run finds them."""
    jax.clear_caches()
    watch, fed, method, key = clock.Watch(), experiment.federation, experiment.method, keys.root(experiment.seed)
    with watch.part(clock.START):
        state = jax.block_until_ready(method.init(fed, key))
        for those in rounds.values():
            state, _ = jax.block_until_ready(method.round(fed, state, those[0], key))
        evaluate(fed, method.models(fed, state), "held_out")
        _together(experiment, state)
    wall, cpu = watch.times().parts[clock.START]
    once = [found[name] for name in (*rounds, clock.EVALUATE)]
    return max(0.0, wall - sum(span[0] for span in once)), max(0.0, cpu - sum(span[1] for span in once))


def _to_average(experiment: Experiment, t: int, infos: Sequence[Mapping[str, Info]]) -> float:
    """How much more a round of average clients computes than these did: clients of text have anything from ten examples to hundreds."""
    average = cost.of_average(experiment.federation, experiment.method, t)
    server, clients, found = sum(average["server_flops"].values()), sum(average["client_flops"].values()), 0.0
    for pool, examples in average["examples"].items():
        seen = fmean(info.get(pool, {}).get("examples", examples) for info in infos)
        found += average["client_flops"][pool] * seen / examples
    return (server + clients) / (server + found) if server + found > 0 else 1.0
