"""What many clients take: by simulation, from a memory-mapped store with tiny rows, and on paper, from the counters of what a round does.

`python -m benches.scale` prints both; each number of clients is a process of its own, so that a peak is its own. `--publish` keeps them in
docs/measured/scale.json, from where `make docs` takes the tables of docs/scale.md. Seconds are not published: they are of a quiet machine,
which `python -m benches.bench` looks for.
"""

from __future__ import annotations

import datetime
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benches.workload import EXAMPLES, WORKLOADS
from fedcodist import keys
from fedcodist.clients import Clients, Spans
from fedcodist.data.store import Writer, open_store
from fedcodist.distill import Distiller
from fedcodist.federation import Federation
from fedcodist.methods import MergedCodist
from fedcodist.models import CNN, MLP
from fedcodist.objectives.classify import Classify
from fedcodist.objectives.images import Images
from fedcodist.pool import Pool
from fedcodist.reproduce.results import ENVIRONMENT, dump
from fedcodist.runs import checkpoint, cost, environment
from fedcodist.servers import Adam
from fedcodist.task import Task
from fedcodist.train import Experiment, train
from fedcodist.types import Examples, Split
from fedcodist.work import LocalSGD

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs/measured/scale.json"
MANY = (1_000, 10_000, 100_000)
ROWS, FEATURES, CLASSES, ROUNDS, COHORT = 4, 16, 4, 20, 100
DEVICES, WORKERS, ASKED, SHARE, LINK = 1_000_000, 64, 6_400, 0.1, 10e9  # the federation on paper; the link in bits a second
STEPS, BATCH = 32, 128  # of its distillation
PAPER = {"small": CNN(), "large": CNN((32, 64, 64), (128, 256))}


def write(path: Path, many: int) -> None:
    """A store of so many clients of ROWS rows."""
    draw = keys.generator(keys.root(0))
    means = 2 * draw.standard_normal((CLASSES, FEATURES))
    with Writer(path, {"made by": "benches.scale", "clients": many}) as writer:
        for start in range(0, many, 10_000):
            y = draw.integers(0, CLASSES, ROWS * min(10_000, many - start)).astype(np.int32)
            writer.append("x", (means[y] + draw.standard_normal((len(y), FEATURES))).astype(np.float32))
            writer.append("y", y)
        writer.write_text("clients", (f"client-{k:09d}" for k in range(many)))
        writer.finish(kind="scale")


def simulate(path: Path) -> dict[str, Any]:
    """Train MergedCodist from the store; a tenth of its clients are in the larger pool."""
    store = open_store(path)
    names, x, y = store.text("clients"), store["x"], store["y"]
    before = peak()
    clients = Clients(x, y, Spans.ending(names, ROWS * np.arange(1, len(names) + 1)))
    rows = Split(np.array(x[:200]), np.array(y[:200]))
    task = Task("scale", Classify(), clients, Examples(np.array(x[:500])), rows, rows, CLASSES, digest=store.digest)
    pools = {}
    for name, hidden, taken in (("small", 16, clients), ("large", 64, clients.only(names[: math.ceil(SHARE * len(names))]))):
        model = MLP((hidden,)).build((FEATURES,), CLASSES)
        pools[name] = Pool(name, model, taken, COHORT, LocalSGD(lr=0.05, batch=4), Adam().optimizer())
    experiment = Experiment(Federation(task, pools), MergedCodist(distill=Distiller(steps=8, batch=50)), ROUNDS)
    first, seconds, start = 0.0, [], time.monotonic()
    for step in train(experiment):
        seconds.append(time.monotonic() - start)
        first = first or peak()
        start = time.monotonic()
        accuracy = step.evaluate()["small"]["all"]["accuracy"] if step.t == ROUNDS else 0.0
    size = sum(file.stat().st_size for file in path.iterdir())
    return {
        "clients": len(names),
        "store_mb": size / 1e6,
        "opened_mb": before,
        "first_round_mb": first,
        "peak_mb": peak(),
        "accuracy": float(accuracy),
        "ms": 1e3 * float(np.median(seconds[2:])),
    }


def peak() -> float:
    """The largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def on_paper() -> dict[str, Any]:
    """Counters of a round of the paper's two CNNs: bytes, operations, and what the server keeps."""
    rows = Split(np.zeros((8, 32, 32, 3), np.uint8), np.zeros(8, np.int32))
    one = {"a": Examples(rows.x, rows.y)}
    task = Task("paper", Classify(Images()), one, Examples(rows.x), rows, rows, 100)
    pools = {name: Pool(name, part.build((24, 24, 3), 100), one, 1, server=Adam().optimizer()) for name, part in PAPER.items()}
    fed = Federation(task, pools)
    state = jax.eval_shape(lambda: fed.init(keys.root(0)))
    return {
        name: {
            "parameters": cost.parameters(fed)[name],
            "training_flops": cost.training_flops(fed, name),
            "forward_flops": cost.forward_flops(fed, name),
            "state_bytes": checkpoint.size_bytes({name: state[name]}),
            "client_ms": client_ms(f"w1-{name}-20"),
        }
        for name in pools
    }


def client_ms(workload: str) -> float:
    """Milliseconds of a core for a client of EXAMPLES images, from the last published benchmark that had this workload."""
    lines = (ROOT / "benches/history.jsonl").read_text("utf-8").splitlines()
    for row in map(json.loads, reversed(lines)):
        for result in row["results"]:
            side = result["sides"].get("fedcodist", {})
            if result["workload"] == workload and "ms" in side:
                return side["ms"]["median"] * row["machine"]["threads"] / WORKLOADS[workload].cohort
    raise SystemExit(f"benches/history.jsonl: no result of {workload}")


def main(asked: list[str]) -> int:
    """All numbers of clients, each in a process of its own."""
    if asked[:1] == ["one"]:
        print(json.dumps(simulate(Path(asked[1]))))
        return 0
    found = []
    for many in MANY:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place, "store")
            write(path, many)
            done = subprocess.run([sys.executable, "-m", "benches.scale", "one", str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        if done.returncode:
            return done.returncode
        found.append(json.loads(done.stdout.splitlines()[-1]))
        row = found[-1]
        print(f"{many:>7,} clients: peak {row['peak_mb']:.0f} MB ({row['opened_mb']:.0f} opened), {row['ms']:.0f} ms a round", flush=True)
    known = environment.fingerprint()
    kept = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "on": {key: known[key] for key in ENVIRONMENT},
        "rounds": ROUNDS,
        "cohort": COHORT,
        "simulated": [{key: round(value, 3) for key, value in row.items() if key != "ms"} for row in found],
        "assumed": {
            "devices": DEVICES, "workers": WORKERS, "cohort": ASKED, "share": SHARE, "link": LINK,
            "steps": STEPS, "batch": BATCH, "examples": EXAMPLES,
        },
        "counted": on_paper(),
    }  # fmt: skip
    if "--publish" in asked:
        FILE.write_text(dump(kept) + "\n", "utf-8")
        print(f"{FILE.relative_to(ROOT)}: now run make docs")
    else:
        print(json.dumps(kept["counted"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
