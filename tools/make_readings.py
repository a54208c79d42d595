"""Compare readings of what the paper leaves open: one saved FedAvg state, one lesson each, held-out accuracy after it and 100 rounds later.

    python tools/make_readings.py OUT [--seeds 100 101 102] [--layout 24/same]

OUT keeps the FedAvg states and a line for each reading and seed; the same command again goes on, and so it does from
docs/measured/readings.json, which is written after each seed. Held-out data alone is looked at, and the seeds are in no table.
Readings that no config can express are written out below: targets mixed from the teachers' outputs on clean images, and an optimizer that
the students of MergedCodist keep from round to round.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedcodist import config, distill, keys
from fedcodist.cli.arguments import prepare_jax
from fedcodist.federation import Federation
from fedcodist.objectives.images import _beta
from fedcodist.reproduce.results import ENVIRONMENT, dump
from fedcodist.runs import checkpoint, environment
from fedcodist.task import Task
from fedcodist.train import Experiment, train
from fedcodist.tuning.trial import without_test

FILE = Path(__file__).resolve().parents[1] / "docs/measured/readings.json"
ROUNDS, LESSON, LATER = 1_500, 1_000, 100
CLIENTS = 157  # of the large pool: FedAvg's two models end within a point of each other there
TEACHING = "{ lr = 0.00229, decay = 0.1, self_weight = 0.321 }"
GIVEN = (
    f"rounds={ROUNDS}",
    f"pools.large.clients={{ take = {CLIENTS} }}",
    *(f"pools.{pool}.{key}" for pool in ("small", "large") for key in ("work.lr=0.03", f"learns={TEACHING}", "teaches.temperature=0.697")),
)
THE_32 = ("task.size=32", "task.pad=4", 'task.scale="cifar"', *(f'pools.{pool}.model.layout="32/valid"' for pool in ("small", "large")))
PERIODIC = f"method={{ kind = 'periodic', period = {LESSON}, distill = {{ steps = 200, batch = 64 }} }}"
MERGED = "method={ kind = 'merged', alpha = 0.9, distill = { steps = 32, batch = 64 } }"


class Reading(NamedTuple):
    """What is read otherwise than in the shipped settings."""

    name: str
    given: tuple[str, ...]
    federation: type[Federation] = Federation


@dataclass(frozen=True, eq=False)
class MixedOutputs(Federation):
    """Students see mixtures of two images, and their targets are the same mixtures of the teachers' outputs on the images themselves."""

    def _speak(self, how: Any, speakers: Any, order: Any, salt: Any, piece: int) -> distill.TeacherBatch:
        said = super()._speak(how, speakers, order, salt, piece)
        mixed, _ = _mix(said.inputs, salt, said.first)
        return said._replace(inputs=(said.inputs, mixed))

    def _learn(self, how: Any, t: int, salt: Any, state: Any, heard: Any, taught: Any, student: str) -> tuple:
        _, mixed = heard.inputs

        def target(logits: Any, temperature: float) -> Any:
            said = jax.nn.softmax(logits / temperature)
            return temperature * jnp.log(_mix(said, salt, heard.first)[0])

        logits = {j: target(heard.logits[j], temperature) for j, (_, temperature) in taught[student].items()}
        return super()._learn(how, t, salt, state, heard._replace(inputs=mixed, logits=logits), taught, student)


def _mix(values: Any, salt: Any, first: int, beta: float = 2.0) -> tuple[Any, Any]:
    """lam v + (1 - lam) v' for every step of [steps, batch, ...]: the same draws for images and for what teachers say of them."""

    def step(at: Any) -> tuple[Any, Any]:
        v, key = at[0], jax.random.fold_in(jax.random.fold_in(salt, at[1]), 4)
        partner = jax.random.permutation(jax.random.fold_in(key, 0), len(v))
        lam = _beta(jax.random.fold_in(key, 1), beta, len(v)).reshape(-1, *[1] * (v.ndim - 1))
        return lam * v + (1 - lam) * v[partner], lam

    return jax.lax.map(step, (values, first + jnp.arange(len(values))))


@dataclass(frozen=True, eq=False)
class KeptOptimizer(Federation):
    """Students go on with the optimizer state of their last lesson (A15 says fresh)."""

    kept: dict[str, Any] = field(default_factory=dict)

    def _begin(self, how: Any, teachers: Any, student: Any, salt: Any, name: str) -> tuple:
        trained, opt, kept = super()._begin(how, teachers, student, salt, name)
        return trained, self.kept.get(name, opt), kept

    def _learn(self, how: Any, t: int, salt: Any, state: Any, heard: Any, taught: Any, student: str) -> tuple:
        result = super()._learn(how, t, salt, state, heard, taught, student)
        self.kept[student] = result[1][1]
        return result


NO_MIXUP, NO_FLIPS = "task.mixup_beta=0", "task.public_flips=false"
READINGS = (
    Reading("FedAvg", ("method=fedavg",)),
    Reading("as shipped", (PERIODIC,)),
    Reading("without mixup and public flips", (PERIODIC, NO_MIXUP, NO_FLIPS)),
    Reading("without mixup", (PERIODIC, NO_MIXUP)),
    Reading("teachers' outputs mixed, not labels of mixtures", (PERIODIC, NO_MIXUP), MixedOutputs),
    Reading("reverse KL", (PERIODIC, "method.distill.loss=reverse_kl")),
    Reading("momentum kept after the lesson", (PERIODIC, "method.restart=false")),
    Reading("MergedCodist, alpha 0.9", (MERGED,)),
    Reading("MergedCodist, alpha 0.9, students' optimizer kept", (MERGED,), KeptOptimizer),
)
OTHER_LAYOUT = READINGS[:2]  # of the 32 x 32 layout


def made(reading: Reading, seed: int, layout: str) -> tuple[Experiment, Task]:
    """The experiment of a reading, without its test split."""
    given = [*GIVEN, *(THE_32 if layout == "32/valid" else ()), *reading.given]
    read = config.read("paper/cifar-fedavg-4700", given)
    task = without_test(read.task.load())
    experiment = config.assemble(read, task, seed)
    if reading.federation is not Federation:
        fed = experiment.federation
        values = {f.name: getattr(fed, f.name) for f in fields(Federation)}
        experiment = replace(experiment, federation=reading.federation(**values))
    return experiment, task


def begun(place: Path, seed: int, layout: str) -> Any:
    """FedAvg's state before the round of the lesson, trained once."""
    experiment, _ = made(READINGS[0], seed, layout)
    state = experiment.method.init(experiment.federation, keys.root(seed))
    where, after = place / f"{layout.replace('/', '-')}-{seed}", 0
    for known in sorted(where.glob("[0-9]*"), reverse=True):
        _, files = checkpoint.verify(known)
        state, after = checkpoint.load(state, files), int(known.name)
        break
    where.mkdir(parents=True, exist_ok=True)
    for step in train(replace(experiment), jax.tree.map(jnp.asarray, state), after):
        if step.t > LESSON - 1:
            break
        if step.t % 100 == 0 or step.t == LESSON - 1:
            checkpoint.write(where, step.t, step.state, {})
            print(f"seed {seed}: round {step.t}", flush=True)
        state = step.state
        if step.t == LESSON - 1:
            break
    return state


def heard(reading: Reading, seed: int, layout: str, state: Any) -> dict[str, Any]:
    """Held-out accuracy right after the round of the lesson, and later."""
    experiment, _ = made(reading, seed, layout)
    found: dict[str, Any] = {"reading": reading.name, "seed": seed, "layout": layout}
    for step in train(experiment, jax.tree.map(jnp.asarray, state), LESSON - 1):
        if step.t in (LESSON, LESSON + LATER):
            found["after" if step.t == LESSON else "later"] = {
                pool: float(domains["all"]["accuracy"]) for pool, domains in step.evaluate("held_out").items()
            }
        if step.t == LESSON + LATER:
            break
    return found


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """What is known already."""
    if path.exists():
        yield from (json.loads(line) for line in path.read_text("utf-8").splitlines())


def write(rows: list[Mapping[str, Any]]) -> None:
    """The file that the documentation is made from."""
    on = environment.fingerprint()
    about = {
        "rounds": ROUNDS,
        "lesson": LESSON,
        "later": LATER,
        "clients": CLIENTS,
        "on": {key: on[key] for key in ENVIRONMENT if key in on},
    }
    FILE.write_text(dump({**about, "rows": rows}) + "\n", "utf-8")
    print(FILE.name)


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--layout", choices=("24/same", "32/valid"), default="24/same")
    args = parser.parse_args()
    prepare_jax()
    journal = args.out / "readings.jsonl"
    if not journal.exists() and FILE.exists():  # what another machine has measured counts
        args.out.mkdir(parents=True, exist_ok=True)
        journal.write_text("".join(json.dumps(row) + "\n" for row in json.loads(FILE.read_text("utf-8"))["rows"]), "utf-8")
    for seed in args.seeds:
        known = {row["reading"] for row in lines(journal) if (row["seed"], row["layout"]) == (seed, args.layout)}
        missing = [r for r in (READINGS if args.layout == "24/same" else OTHER_LAYOUT) if r.name not in known]
        state = begun(args.out, seed, args.layout) if missing else None
        for reading in missing:
            row = heard(reading, seed, args.layout, state)
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
        write(sorted(lines(journal), key=lambda row: (row["layout"], row["seed"])))


if __name__ == "__main__":
    main()
