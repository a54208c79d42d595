"""Where the time of our rounds goes, from the same clock that `run --profile` reads: `python -m benches.profile THREADS` prints JSON.

Clients are read from memory-mapped files, as from a prepared data set. The thread that runs the rounds reads the next clients while the
others train: `share` is how much of the cores' time in a round the process used, so that waiting of any kind is what is left of it.
`rest` is what the clock has no name for: with it the parts of that thread add up to the round, and their medians nearly do. Crops and
flips are a part of the compiled step, so they are measured apart, as a share of a step.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benches import ours
from benches import workload as w
from fedcodist import keys
from fedcodist.cli.arguments import prepare_jax
from fedcodist.profile import watch, whole
from fedcodist.types import Data

WARM, ROUNDS = 3, 15
NAMES = ("w1-small-20", "w1-large-20", "w3")


def on_disk(place: Path, client: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's images and labels, in files."""
    paths = [place / f"{client}-{name}.npy" for name in ("images", "labels")]
    if not paths[0].exists():
        for path, array in zip(paths, w.examples(client), strict=True):
            np.save(path, array)
    images, labels = (np.load(path, mmap_mode="r") for path in paths)
    return images, labels


def rounds_of(work: w.Workload, threads: int) -> dict[str, Any]:
    """Median milliseconds by name, of a round of a workload."""
    with tempfile.TemporaryDirectory() as place, watch() as clock:
        fed, method = ours.federation(work, threads, of=partial(on_disk, Path(place)))
        key, rows = keys.root(0), []
        state = method.init(fed, key)
        for t in range(1, WARM + ROUNDS + 1):
            start, used = time.perf_counter(), time.process_time()
            state, _ = method.round(fed, state, t, key)
            jax.block_until_ready(state)
            seconds = time.perf_counter() - start
            rows.append({"round": seconds, **whole(clock.take(), seconds), "processor time": time.process_time() - used})
    rows = rows[WARM:]
    found = {name: 1e3 * statistics.median(row.get(name, 0.0) for row in rows) for name in dict.fromkeys(n for row in rows for n in row)}
    share = statistics.median(row["processor time"] / (threads * row["round"]) for row in rows)
    return {"workload": work.name, "ms": found, "share": share}


def seeing(size: str) -> dict[str, float]:
    """Microseconds of a client's step, and of the crop, flip and standardisation in it; on one core, one after the other."""
    fed, method = ours.federation(w.WORKLOADS[f"w1-{size}-20"], 1)
    pool, objective = fed.pools[size], fed.task.objective
    x, y = (np.asarray(a) for a in pool.clients[pool.ids[0]])
    params = method.init(fed, keys.root(0))[size].params
    steps = w.EXAMPLES // w.BATCH

    @jax.jit
    def see(x: Any, key: Any) -> Any:
        def one(total: Any, step: Any) -> Any:
            rows = jax.lax.dynamic_slice_in_dim(x, step * w.BATCH, w.BATCH)
            return total + objective.inputs(rows, jax.random.fold_in(key, step))[0, 0, 0, 0], None

        return jax.lax.scan(one, 0.0, jax.numpy.arange(steps))[0]

    work = jax.jit(lambda params, data, key: pool.work(pool.model, objective, params, data, key))

    def microseconds(call: Any) -> float:
        times = []
        for _ in range(60):
            start = time.perf_counter()
            jax.block_until_ready(call())
            times.append(time.perf_counter() - start)
        return 1e6 * statistics.median(times[10:]) / steps

    key = keys.root(1)
    whole = microseconds(lambda: work(params, Data(x, y, np.int32(len(x))), key))
    return {"step": whole, "see": microseconds(lambda: see(x, key))}


def main() -> None:
    """All of it, as one line of JSON."""
    prepare_jax()
    threads = int(sys.argv[1])
    print(json.dumps({"rounds": [rounds_of(w.WORKLOADS[n], threads) for n in NAMES], "steps": {s: seeing(s) for s in w.CNNS}}))


if __name__ == "__main__":
    main()
