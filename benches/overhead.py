"""What a W1 round of ours costs beside the clients' training: sampling, the server step and the journal; and a checkpoint, by itself.

It is the loop of `fedcodist run` without its screen: the same engine, journal and checkpoints, with a clock around each. Before every round
the machine's limit has a short turn, so that it also says what share of it the clients' training reaches, pair by pair.
`python -m benches.overhead NAME THREADS` prints one line of JSON.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from benches import environments, machine, ours, report
from benches import workload as w
from fedcodist import keys, runs
from fedcodist.cli.arguments import prepare_jax

WARM, ROUNDS, CHECKPOINT_EVERY = 3, 40, 5
LIMIT_SECONDS, PAUSE_SECONDS = 0.1, 0.05  # threads of whoever had the turn before spin for a while


class Timed:
    """An engine with a clock around the clients' work."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.seconds = engine, 0.0

    def gather(self, population: Any, asks: Sequence[Any]) -> Any:
        start = time.perf_counter()
        found = jax.block_until_ready(self.engine.gather(population, asks))
        self.seconds += time.perf_counter() - start
        return found

    @property
    def host(self) -> Any:
        return self.engine.host


def measure(work: w.Workload, threads: int, limit: Callable[[], float] | None) -> dict[str, Any]:
    """Medians over rounds, in milliseconds; and the share of the limit, GFLOP/s, if there is something that measures it."""
    fed, method = ours.federation(work, threads)
    engine = Timed(fed.engine)
    fed, key = replace(fed, engine=engine), keys.root(0)
    state = method.init(fed, key)
    rows: list[dict[str, float]] = []
    saves: list[float] = []
    with tempfile.TemporaryDirectory() as root, runs.Run.open(Path(root) / "run", {"bench": work.name}) as run:
        run.resume(state)  # nothing yet: it opens the journal
        for t in range(1, WARM + ROUNDS + 1):
            time.sleep(PAUSE_SECONDS)
            top = limit() if limit is not None else float("nan")
            time.sleep(PAUSE_SECONDS)
            engine.seconds, start = 0.0, time.perf_counter()
            state, info = method.round(fed, state, t, key)
            jax.block_until_ready(state)
            journal = time.perf_counter()
            run.record({"round": t, "pools": info})
            run.time({"round": t, "seconds": round(journal - start, 4)})
            end = time.perf_counter()
            rows.append({"round": end - start, "clients": engine.seconds, "journal": end - journal, "top": top})
            if t % CHECKPOINT_EVERY == 0:
                run.commit(t, state)
                saves.append(time.perf_counter() - end)
    rows = rows[WARM:]
    for row in rows:
        row["overhead"] = row["round"] - row["clients"]
    found = {f"{part}_ms": 1e3 * statistics.median(row[part] for row in rows) for part in ("round", "clients", "overhead", "journal")}
    found["checkpoint_ms"] = 1e3 * statistics.median(saves)
    speeds = [work.flops / row["clients"] / 1e9 for row in rows]
    if limit is not None:
        done = work.operations(ours.wide()) / work.flops  # what a basis saves is no work
        shares = [done * speed / row["top"] for speed, row in zip(speeds, rows, strict=True)]
        found |= {"of_limit": report.spread(shares), "limit": report.spread([row["top"] for row in rows])}
    return {"workload": work.name, "rounds": len(rows), **found, "gflops": report.spread(speeds)}


def main() -> None:
    """What the command line asks for, as one line of JSON."""
    prepare_jax()
    work, threads = w.asked()
    fma, _ = machine.build_fma(environments.MADE)
    limit = None if fma is None else lambda: machine.fma_now(fma, threads, LIMIT_SECONDS)
    print(json.dumps(measure(work, threads, limit)))


if __name__ == "__main__":
    main()
