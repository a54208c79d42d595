"""What an experiment will cost before anything is spent: parameters, bytes, operations, and a guess at the time on this machine."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from fedcodist import native
from fedcodist.clients import sizes
from fedcodist.engines.threads import cores
from fedcodist.runs import cost
from fedcodist.train import Experiment

# Of this machine's matrix-product speed that training reaches: rules of thumb, good to a factor of two.
EFFICIENCY, WITH_KERNELS, OFF = 0.2, 0.42, 1.7  # of `speed`, and by what factor either way it may be off


def plan(experiment: Experiment) -> dict[str, Any]:
    """{pools: rows, total: {...}}: for each pool its clients, parameters, bytes a client and round, and operations of the whole run."""
    fed = experiment.federation
    expected = cost.expected(fed, experiment.method, experiment.rounds)
    size = cost.parameters(fed)
    pools = []
    for name in fed.names:
        pool = fed.pools[name]
        counts = sizes(pool.clients)
        pools.append(
            {
                "pool": name,
                "parameters": size[name],
                "clients": len(counts),
                "examples": sum(counts.values()),
                "cohort": pool.cohort,
                "bytes_per_client_and_round": round(expected["client_bytes"][name] / (experiment.rounds * pool.cohort)),
                "client_gflops": expected["client_flops"][name] / 1e9,
                "server_gflops": expected["server_flops"][name] / 1e9,
                "teachers": ", ".join(f"{j} {w:g}" for j, w in fed.table[name].items()),
            }
        )
    flops = sum(expected["client_flops"].values()) + sum(expected["server_flops"].values())
    total = {
        "rounds": experiment.rounds,
        "client_bytes": sum(expected["client_bytes"].values()),
        "server_steps": expected["server_steps"],
        "flops": flops,
        "seconds": flops / ((WITH_KERNELS if native.path() else EFFICIENCY) * speed()),
        "public_examples": len(fed.task.public.x),
        "held_out_examples": len(fed.task.held_out.x),
        "test_examples": len(fed.task.test.x),
    }
    return {"pools": pools, "total": total, "notes": list(fed.task.notes)}


def speed() -> float:
    """Floating-point operations a second of small matrix products on this machine, the fastest of a few, times its cores. Small, because
    large ones are spread over threads, which wait for each other while anybody else uses a core."""
    many, side = 64, 64
    a = np.ones((many, side, side), np.float32)
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begun < 0.1:
        start = time.perf_counter()
        _ = np.matmul(a, a)
        times.append(time.perf_counter() - start)
    return 2 * many * side**3 / min(times) * cores()
