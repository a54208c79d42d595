"""What teachers say of public data after a few rounds, and what a lesson on it gives, against the same rounds without the lesson."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from scipy.stats import t

from fedcodist import keys
from fedcodist.distill import Distiller
from fedcodist.evaluate import evaluate, measure
from fedcodist.federation import params_of
from fedcodist.methods import BASELINE
from fedcodist.scores import argmax
from fedcodist.train import Experiment, train
from fedcodist.types import Array, Examples, State, Voice

AT_ONCE = 100  # rows in a batch
Tell = Callable[[int, int], None]  # (rounds done, of how many)


@dataclass(frozen=True)
class Probe:
    """How long the probe is, and how many public rows each of its lessons may use; 0 is all of them."""

    rounds: int = 10  # of FedAvg before the lesson
    after: int = 5  # of FedAvg after it, with and without it; at least one
    sizes: tuple[int, ...] = (600, 3_000, 0)
    steps: int = 200  # of each lesson


def begun(experiment: Experiment, rounds: int, tell: Tell) -> State:
    """The state after the first rounds of FedAvg, with the rates that the experiment would have in them."""
    return _continued(experiment, None, 0, rounds, tell)[-1]


def _continued(experiment: Experiment, state: State | None, after: int, until: int, tell: Tell) -> list[State]:
    """The states of the rounds of FedAvg that follow, up to this one."""
    plain, found = replace(experiment, method=BASELINE(), config=None), []
    for step in train(plain, state, after):
        tell(step.t, until)
        found.append(step.state)
        if step.t >= until:
            break
    return found


def spoken(experiment: Experiment, state: State, rows: int, key: Any) -> list[dict[str, Any]]:
    """For each pool's model: its confidence and its entropy on public and on held-out rows, its calibration error on held-out ones; and
    on how many public rows any two of the models disagree."""
    fed, task = experiment.federation, experiment.federation.task
    picked = {what: _some(len(x), rows, keys.derive(key, what)) for what, x in (("public", task.public.x), ("held_out", task.held_out.x))}
    public = {
        name: _probabilities(experiment, name, state, task.public.x[picked["public"]], task.objective.public_inputs) for name in fed.names
    }
    guesses = np.stack([argmax(p) for p in public.values()])
    counts = _counted(task.objective, task.public.x[picked["public"]], task.objective.public_inputs)
    differ = float((guesses != guesses[:1]).any(0)[counts].mean())
    found, judged = [], evaluate(fed, params_of(state))
    for name in fed.names:
        held = _probabilities(experiment, name, state, task.held_out.x[picked["held_out"]], task.objective.inputs)
        mask = _counted(task.objective, task.held_out.x[picked["held_out"]], task.objective.inputs)
        row: dict[str, Any] = {"pool": name}
        for what, p, real in (("public", public[name], counts), ("held_out", held, mask)):
            row[f"confidence_{what}"] = float(p.max(-1)[real].mean())
            row[f"entropy_{what}"] = float(-(p * np.log(np.maximum(p, 1e-12))).sum(-1)[real].mean())
        found.append(
            row | {"accuracy": judged[name]["all"]["accuracy"], "calibration": judged[name]["all"]["calibration"], "disagreement": differ}
        )
    return found


def gains(experiment: Experiment, state: State, probe: Probe, tell: Tell) -> list[dict[str, Any]]:
    """What a lesson gives on so many public rows: for each size and pool, the change of held-out accuracy in points, row by row of the
    held-out data: right after the lesson, and as a mean over the rounds that follow, against the same rounds without the lesson."""
    fed, found = experiment.federation, []
    key = keys.root(experiment.seed)
    until = probe.rounds + probe.after
    before, without = _right(experiment, [state]), _right(experiment, _continued(experiment, state, probe.rounds, until, tell))
    how = replace(experiment.method.distill or Distiller(), steps=probe.steps)
    everything = len(fed.task.public.x)
    for size in dict.fromkeys(min(size or everything, everything) for size in probe.sizes):
        rows = np.sort(keys.permutation(keys.derive(key, "audit"), everything)[:size])
        public = Examples(fed.task.public.x[rows], None if fed.task.public.y is None else fed.task.public.y[rows])
        fewer = replace(fed, task=replace(fed.task, public=public))
        student, _ = fewer.codistill(replace(how, batch=min(how.batch, size)), params_of(state), probe.rounds, key, nth=0)
        taught = {name: s._replace(params=student.get(name, s.params)) for name, s in state.items()}  # momentum goes on, with and without
        at_once = _right(experiment, [taught])
        later = _right(experiment, _continued(experiment, taught, probe.rounds, until, tell))
        changes = {name: {"at_once": at_once[name] - before[name], "later": later[name] - without[name]} for name in student}
        found += [{"public_rows": size, "pool": name} | changes[name] for name in student]
    return found


def joined(seeds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The gains of several seeds, in points: means, with 95 % intervals over the seeds, or over the held-out rows of a single one."""
    found = []
    for same in zip(*seeds, strict=True):
        row = {"public_rows": same[0]["public_rows"], "pool": same[0]["pool"]}
        for what in ("at_once", "later"):
            values = same[0][what] if len(same) == 1 else np.array([of[what].mean() for of in same])
            reach = 1.959964 if len(same) == 1 else float(t.ppf(0.975, len(same) - 1))
            half = 100 * reach * float(values.std(ddof=1)) / len(values) ** 0.5
            mean = 100 * float(values.mean())
            row |= {f"gain_{what}": mean, f"low_{what}": mean - half, f"high_{what}": mean + half}
        found.append(row)
    return found


def _right(experiment: Experiment, states: list[State]) -> dict[str, np.ndarray]:
    """{pool: for each held-out row the share of its predictions that are right}, as a mean over these states."""
    fed, held_out = experiment.federation, experiment.federation.task.held_out

    def shares(name: str, state: State) -> np.ndarray:
        sums = measure(fed, [Voice(fed.pools[name].model, state[name].params)], held_out)
        return np.array([fed.task.objective.summarise({k: v[i] for k, v in sums.items()})["accuracy"] for i in range(len(held_out.x))])

    return {name: np.mean([shares(name, state) for state in states], 0) for name in fed.names}


def _some(n: int, most: int, key: Any) -> np.ndarray:
    return np.sort(keys.permutation(key, n)[:most])


def _probabilities(experiment: Experiment, name: str, state: State, x: Array, inputs: Callable) -> np.ndarray:
    model = experiment.federation.pools[name].model
    say = jax.jit(lambda params, rows: jax.nn.softmax(model.apply(params, inputs(rows), None)))
    batch = min(AT_ONCE, len(x))
    full = [np.asarray(say(state[name].params, x[i : i + batch])) for i in range(0, len(x) - batch + 1, batch)]
    rest = len(x) % batch
    return np.concatenate([*full, *([np.asarray(say(state[name].params, x[-batch:]))[-rest:]] if rest else [])])


def _counted(objective: Any, x: Array, inputs: Callable) -> np.ndarray:
    return np.asarray(objective.mask(inputs(x))) > 0
