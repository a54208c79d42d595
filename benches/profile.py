"""Where the time of our rounds goes, from the same clock that `run --profile` reads: `python -m benches.profile THREADS` prints JSON.

Clients are read from memory-mapped files, as from a prepared data set. The thread that runs the rounds reads the next clients while the
others train: what `share` says is how much of the cores' time between the first and the last client went into training. What the clock has
no name for is `rest`, so that the parts of that thread add up to the round; medians of them only nearly do. Crops and flips are a part
of the compiled step, so they are measured apart, as a share of a step.
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
from fedcodist.clock import THREADS, watch
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
            start = time.perf_counter()
            state, _ = method.round(fed, state, t, key)
            jax.block_until_ready(state)
            rows.append(whole({"round": time.perf_counter() - start, **clock.take()}))
    rows = rows[WARM:]
    found = {name: 1e3 * statistics.median(row.get(name, 0.0) for row in rows) for name in dict.fromkeys(n for row in rows for n in row)}
    share = statistics.median(busy(row, threads) for row in rows) if work.family == "w1" else None
    return {"workload": work.name, "ms": found, "share": share}


def whole(row: dict[str, float]) -> dict[str, float]:
    """A round with what the clock has no name for.

    >>> whole({"round": 9.0, "gather": 1.0, "clients": 5.0, "clients (threads)": 11.0})["rest"]
    3.0
    """
    named = sum(seconds for name, seconds in row.items() if name != "round" and not name.endswith(THREADS))
    return {**row, "rest": row["round"] - named}


def busy(row: dict[str, float], threads: int) -> float:
    """The share of the cores' time between the first and the last client that went into training.

    >>> busy({"round": 9.0, "sample": 1.0, "server step": 2.0, "clients (threads)": 9.0}, 2)
    0.75
    """
    outside = row.get("sample", 0.0) + row.get("server step", 0.0)
    return row[f"clients{THREADS}"] / (threads * (row["round"] - outside))


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
            return total + objective.see(rows, jax.random.fold_in(key, step))[0, 0, 0, 0], None

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
    threads = int(sys.argv[1])
    print(json.dumps({"rounds": [rounds_of(w.WORKLOADS[n], threads) for n in NAMES], "steps": {s: seeing(s) for s in w.CNNS}}))


if __name__ == "__main__":
    main()
