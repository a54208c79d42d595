"""FedLab's side: its serial trainer and its synchronous server, which takes the plain mean of the clients' models (no Adam)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib.metadata import version
from types import ModuleType

try:
    import torchvision  # noqa: F401
except Exception:  # there is no build of it for torch without CUDA, or it does not fit; FedLab only wants it for its own datasets
    for name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
        sys.modules[name] = ModuleType(name)
    sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
    sys.modules["torchvision"].datasets = sys.modules["torchvision.datasets"]

import numpy as np
import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from torch import Tensor
from torch.nn import functional as F

from benches import workload as w
from benches.peers import torch_net as net


class Clients:
    """The data of all clients, as FedLab asks for it."""

    def __init__(self, clients: int) -> None:
        self.data = [net.client(k) for k in range(clients)]

    def get_dataloader(self, client: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """An epoch of augmented batches."""
        x, y = self.data[client]
        return ((net.see(x[rows], torch.contiguous_format), y[rows]) for rows in net.batches(len(x)))


def main() -> None:
    """Answer the driver's turns."""
    work, threads = w.asked()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    losses: list[Tensor] = []

    def criterion(logits: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(logits, labels)
        losses.append(loss.detach())
        return loss

    quiet = logging.getLogger("fedlab")
    network = net.CNN(work.size, torch.contiguous_format)  # FedLab flattens parameters with view(-1)
    trainer = SGDSerialClientTrainer(network, work.clients, cuda=False, logger=quiet)
    trainer.setup_dataset(Clients(work.clients))
    trainer.setup_optim(epochs=1, batch_size=w.BATCH, lr=w.CLIENT_LR)
    trainer.criterion = criterion
    server = SyncServerHandler(network, global_round=10**6, sample_ratio=work.cohort / work.clients, cuda=False, logger=quiet)
    server.num_clients = work.clients

    def one_round() -> float:
        cohort = server.sample_clients()
        assert len(cohort) == work.cohort
        trainer.local_process(server.downlink_package, cohort)
        for reply in trainer.uplink_package:
            server.load(reply)
        mean = torch.stack(losses).mean().item()
        losses.clear()
        return mean

    versions = {"fedlab": version("fedlab"), "torch": torch.__version__, "numpy": np.__version__}
    w.serve(one_round, net.count(network), versions)


if __name__ == "__main__":
    main()
