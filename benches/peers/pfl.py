"""pfl-research's side: SimulatedBackend and FederatedAveraging with a PyTorch model, example-weighted, Adam as the central optimizer.

Its loop runs by itself; a callback at the end of an iteration answers the driver and waits for the next turn.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.version import __version__
from torch import Tensor
from torch.nn import functional as F

from benches import workload as w
from benches.peers import torch_net as net


class Client(Dataset):
    """A client's images in shuffled batches; pfl's own tensor dataset does not shuffle."""

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        x, y = self.raw_data
        for rows in net.batches(len(x)):
            yield [x[rows], y[rows]]


class Model(net.CNN):
    """The CNN with the loss that pfl asks of a model."""

    def __init__(self, size: str) -> None:
        super().__init__(size)
        self.total, self.steps = torch.zeros(()), 0

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        value = F.cross_entropy(self(net.see(x)), y)
        self.total, self.steps = self.total + value.detach(), self.steps + 1
        return value

    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict:
        return {}


class Wait(TrainingProcessCallback):
    """One iteration a turn."""

    def __init__(self, turns: w.Turns, model: Model) -> None:
        self.turns, self.model = turns, model
        self.asked = iter(turns)

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        next(self.asked, None)
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int) -> tuple[bool, Metrics]:
        self.turns.loss = self.model.total.item() / max(1, self.model.steps)
        self.model.total, self.model.steps = torch.zeros(()), 0
        return next(self.asked, "over") == "over", Metrics()


def main() -> None:
    """Answer the driver's turns."""
    work, threads = w.asked()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    np.random.seed(0)
    network = Model(work.size)
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.Adam(network.parameters(), lr=w.SERVER_LR, eps=w.SERVER_EPS),
    )
    data = [net.client(k) for k in range(work.clients)]
    users = FederatedDataset(lambda k: Client(data[k], user_id=str(k)), get_user_sampler("minimize_reuse", range(work.clients)))
    turns = w.Turns(net.count(network), {"pfl": __version__, "torch": torch.__version__, "numpy": np.__version__})
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=10**6, evaluation_frequency=10**7, train_cohort_size=work.cohort, val_cohort_size=0
        ),
        backend=SimulatedBackend(training_data=users, val_data=users),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=w.CLIENT_LR, local_batch_size=w.BATCH),
        callbacks=[Wait(turns, network)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
