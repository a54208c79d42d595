"""What an experiment will cost before anything is spent: parameters, bytes and operations; `clock` has the time."""

from __future__ import annotations

from typing import Any

from fedcodist.clients import sizes
from fedcodist.runs import cost
from fedcodist.train import Experiment


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
        "public_examples": len(fed.task.public.x),
        "held_out_examples": len(fed.task.held_out.x),
        "test_examples": len(fed.task.test.x),
    }
    return {"pools": pools, "total": total, "notes": list(fed.task.notes)}
