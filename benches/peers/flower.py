"""Flower's side: its simulation on Ray, a worker a core with one thread of PyTorch, and its FedAdam; evaluation is off.

Rounds are taken one at a time with the strategy's own pieces (configure, send and receive, aggregate), which is what its loop does.
"""

from __future__ import annotations

import logging

import flwr
import numpy as np
import ray
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam
from flwr.simulation import run_simulation

from benches import workload as w
from benches.peers import torch_net as net
from benches.peers.flower_client import client_app

work, threads = w.asked()
server_app = ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Answer the driver's turns."""
    torch.manual_seed(0)
    model = net.CNN(work.size)
    arrays = ArrayRecord(model.state_dict())
    # int(clients * fraction) is the cohort: a little more than the quotient, so that rounding cannot lose one.
    strategy = FedAdam(
        fraction_train=(work.cohort + 0.5) / work.clients if work.cohort < work.clients else 1.0,
        fraction_evaluate=0.0,
        min_available_nodes=work.clients,
        eta=w.SERVER_LR,
        beta_1=0.9,
        beta_2=0.999,
        tau=w.SERVER_EPS,
    )
    versions = {"flwr": flwr.__version__, "ray": ray.__version__, "torch": torch.__version__, "numpy": np.__version__}
    turns = w.Turns(net.count(model), versions)
    for t, _ in enumerate(turns, 1):
        replies = list(grid.send_and_receive(strategy.configure_train(t, arrays, ConfigRecord({"size": work.size}), grid)))
        assert len(replies) == work.cohort and not any(reply.has_error() for reply in replies), [r.error for r in replies if r.has_error()]
        arrays, metrics = strategy.aggregate_train(t, replies)
        turns.loss = float(metrics["loss"])


def main() -> None:
    """Start the simulation; it ends when the driver asks no more."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.clients,
        backend_config={"init_args": {"num_cpus": threads}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main()
