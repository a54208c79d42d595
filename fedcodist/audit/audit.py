"""An audit of a task's public data: what repeats, how far it is from the clients' data, what teachers say of it, and what a lesson gives.

Every part ends in warnings, in words; without one the data is as good as can be told before a whole run. Nothing here reads the test
split's labels: its rows are only compared with others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedcodist import keys
from fedcodist.audit import lessons, rows
from fedcodist.audit.lessons import Probe, Tell
from fedcodist.clients import sizes
from fedcodist.data import overlap
from fedcodist.task import Task
from fedcodist.train import Experiment
from fedcodist.types import Array, Key

MOST_ROWS = 10_000  # of a part that are compared with another's
ENOUGH = 16  # numbers in a row, for near duplicates to be looked for
NEAR_SHARE = 0.01  # of near duplicates, from which there is a warning
FAR = 0.75  # the classifier's accuracy from which public data is far from the clients'
UNSURE = 0.2  # how much less confident teachers may be of public data than of held-out data
FEW = 600  # public rows, the fewest that the paper tries
ALIKE = 0.98  # the share of rows on which all models agree, from which there is little to learn


class Audit(NamedTuple):
    """What was found, as rows of tables, and the warnings."""

    repeated: list[dict[str, Any]]
    distance: list[dict[str, Any]]
    teachers: list[dict[str, Any]]
    gains: list[dict[str, Any]]
    warnings: list[str]


def audit(experiments: Sequence[Experiment], probe: Probe | None, tell: Tell = lambda done, many: None) -> Audit:
    """The audit of the task that these experiments share, one for each seed of the probe; without a probe no model is trained."""
    first = experiments[0]
    task, key = first.federation.task, keys.derive(keys.root(first.seed), "audit")
    parts = {"clients": _clients(task, keys.derive(key, "clients")), "held_out": task.held_out.x, "test": task.test.x}
    repeated, distance = _repeated(task, parts), _distance(task, parts, key)
    teachers, gains = [], []
    for experiment in experiments:
        if probe is None:
            break
        state = lessons.begun(experiment, probe.rounds, tell)
        teachers = teachers or lessons.spoken(experiment, state, 1_000, keys.derive(key, "teachers"))
        gains.append(lessons.gains(experiment, state, probe, tell))
    found = Audit(repeated, distance, teachers, lessons.joined(gains), [])
    return found._replace(warnings=[*_warnings(found, len(task.public.x))])


def _clients(task: Task, key: Key) -> Array:
    """Rows of clients in a random order, as many as are compared."""
    names = sorted(task.clients)
    many, found, total = sizes(task.clients), [], 0
    each = max(1, -(-MOST_ROWS // max(1, len(names))))
    for i in keys.permutation(key, len(names)):
        name = names[int(i)]
        picked = np.sort(keys.permutation(keys.derive(key, name), many[name])[:each])
        found.append(np.asarray(task.clients[name].x)[picked])
        total += len(picked)
        if total >= MOST_ROWS:
            break
    return np.concatenate(found)


def _repeated(task: Task, parts: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Rows of the public data that are, exactly or nearly, in another part, and repetitions within it."""
    public = np.asarray(task.public.x[:MOST_ROWS])
    exact, short = overlap.digests(public), rows.vectors(public)
    again = len(exact) - len(np.unique(exact))
    found: list[dict[str, Any]] = [{"public rows": len(public), "also in": "public", "exactly": again, "nearly": None}]
    for part, x in parts.items():
        x = np.asarray(x[:MOST_ROWS])
        same = np.isin(exact, overlap.digests(x))
        told = short.shape[1] >= ENOUGH  # in fewer numbers, rows are near each other by chance
        nearly = int(((rows.near(short, rows.vectors(x)) >= 0) & ~same).sum()) if told else None
        found.append({"public rows": len(public), "also in": part, "exactly": int(same.sum()), "nearly": nearly})
    return found


def _distance(task: Task, parts: Mapping[str, Array], key: Key) -> list[dict[str, Any]]:
    """How well public rows are told from clients' rows, beside held-out rows as the yardstick; and what they look like."""
    public, clients = np.asarray(task.public.x[:MOST_ROWS]), parts["clients"]
    found = []
    for what, x in (("public", public), ("held_out", np.asarray(parts["held_out"][:MOST_ROWS]))):
        apart = rows.told_apart(rows.vectors(x), rows.vectors(clients), keys.derive(key, what))
        found.append({"rows of": what, "told apart": apart.value, "low": apart.low, "high": apart.high} | _looks(x))
    return [*found, {"rows of": "clients", "told apart": None, "low": None, "high": None} | _looks(np.asarray(clients))]


def _looks(x: np.ndarray) -> dict[str, float]:
    """Lengths of texts, or mean and deviation of numbers."""
    if x.dtype.kind in "iu" and x.ndim == 2:
        length = (x > 0).sum(1)
        return {"mean length": float(length.mean()), "deviation": float(length.std())}
    return {"mean": float(x.mean()), "deviation": float(x.std())}


def _warnings(found: Audit, public: int) -> Iterator[str]:
    for row in found.repeated:
        part, exact = row["also in"], row["exactly"]
        if part == "public":
            if exact > NEAR_SHARE * row["public rows"]:
                yield f"public data: {exact:,} of {row['public rows']:,} rows repeat another one"
        elif exact:
            why = "held-out and test accuracy are not to be trusted" if part != "clients" else "the server has seen what clients keep"
            yield f"public data: {exact:,} rows are also in {part}; {why}"
        if part != "public" and (row["nearly"] or 0) > NEAR_SHARE * row["public rows"]:
            yield f"public data: {row['nearly']:,} of {row['public rows']:,} rows are near duplicates of rows in {part}"
    if public < FEW:
        yield f"public data: {public:,} rows are fewer than the {FEW} that the paper tries"
    here, yardstick = found.distance[0], found.distance[1]
    if here["low"] > FAR and here["low"] > yardstick["high"]:
        share = 100 * here["told apart"]
        yield f"public data: a linear classifier tells {share:.0f} % of the rows from the clients'; it teaches less than data of their kind"
    for row in found.teachers:
        if row["confidence_public"] < row["confidence_held_out"] - UNSURE:
            yield (
                f"pool {row['pool']}: its model is less sure of public rows than of held-out ones "
                f"({row['confidence_public']:.2f} against {row['confidence_held_out']:.2f})"
            )
    if found.teachers and found.teachers[0]["disagreement"] < 1 - ALIKE:
        yield f"public data: all models agree on {100 * (1 - found.teachers[0]['disagreement']):.0f} % of it, so there is little to learn"
    most = max((row["public_rows"] for row in found.gains), default=0)
    for row in found.gains:
        if row["public_rows"] == most and row["high_later"] < 0:
            interval = f"{row['gain_later']:+.1f} points [{row['low_later']:+.1f}, {row['high_later']:+.1f}]"
            yield f"pool {row['pool']}: the probe's lesson harmed it: {interval} of held-out accuracy"
