"""What a W1 round of ours costs beside the clients' training: sampling, the server step and the journal; and a checkpoint, by itself.

It is the loop of `fedcodist run` without its screen: the same engine, journal and checkpoints, with a clock around each. The machine's
limit is measured between its rounds, so that it also says how much of it the clients' training reaches where nobody else has a turn.
`python -m benches.overhead NAME THREADS` prints one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from benches import environments, machine, ours, report
from benches import workload as w
from fedcodist import keys, runs

WARM, ROUNDS, CHECKPOINT_EVERY = 3, 40, 5
LIMITS_BEFORE = range(WARM - 1, WARM + ROUNDS, 10)  # rounds


class Timed:
    """An engine with a clock around the clients' work."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.seconds = engine, 0.0

    def gather(self, task: Any, asks: Sequence[Any]) -> Any:
        start = time.perf_counter()
        found = jax.block_until_ready(self.engine.gather(task, asks))
        self.seconds += time.perf_counter() - start
        return found

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return self.engine.map(function, items)


def measure(work: w.Workload, threads: int, limits: Callable[[], dict[str, float]]) -> dict[str, Any]:
    """Medians over rounds, in milliseconds, and the best that the machine reached between them."""
    fed, method = ours.federation(work, threads)
    engine = Timed(fed.engine)
    fed, key = replace(fed, engine=engine), keys.root(0)
    state = method.init(fed, key)
    rows: list[dict[str, float]] = []
    saves: list[float] = []
    samples: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as root, runs.Run.open(Path(root) / "run", {"bench": work.name}) as run:
        run.resume(state)  # nothing yet: it opens the journal
        for t in range(1, WARM + ROUNDS + 1):
            if t in LIMITS_BEFORE:
                samples.append(limits())
            engine.seconds, start = 0.0, time.perf_counter()
            state, info = method.round(fed, state, t, key)
            jax.block_until_ready(state)
            journal = time.perf_counter()
            run.record({"round": t, "pools": info})
            run.time({"round": t, "seconds": round(journal - start, 4)})
            end = time.perf_counter()
            rows.append({"round": end - start, "clients": engine.seconds, "journal": end - journal})
            if t % CHECKPOINT_EVERY == 0:
                run.commit(t, state)
                saves.append(time.perf_counter() - end)
    rows = [{**row, "overhead": row["round"] - row["clients"]} for row in rows[WARM:]]
    found = {f"{part}_ms": 1e3 * statistics.median(row[part] for row in rows) for part in rows[0]}
    limit = report.limit_of([*samples, limits()])
    speed = {"gflops": work.flops / found["clients_ms"] / 1e6, "limit": limit}
    return {"workload": work.name, **found, **speed, "checkpoint_ms": 1e3 * statistics.median(saves)}


def main() -> None:
    """What the command line asks for, as one line of JSON."""
    work, threads = w.asked()
    fma, _ = machine.build_fma(environments.MADE)
    print(json.dumps(measure(work, threads, lambda: machine.limits(fma, threads))))


if __name__ == "__main__":
    main()
