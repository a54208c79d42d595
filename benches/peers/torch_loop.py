"""Every workload as plain PyTorch, written as one writes it well by hand: `python -m benches.peers.torch_loop NAME THREADS`.

Nothing is made slow: images are cropped, flipped and standardised a batch at a time, one model and its SGD are reused for all clients,
channels_last throughout, torch's own Adam with its fused step, teachers speak once a batch without a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benches import workload as w
from benches.peers import torch_net as net


class Server:
    """A server model with its Adam, and one model that all its clients train in turn."""

    def __init__(
        self, make: Callable[[], nn.Module], data: Sequence[Any], loss: Callable[[nn.Module, Any, Tensor], Tensor], lr: float
    ) -> None:
        self.model, self.clients_model, self.data, self.loss = make(), make(), data, loss
        self.theta, self.local = net.trained(self.model), net.trained(self.clients_model)
        self.sgd = torch.optim.SGD(self.local, lr=lr, foreach=True)
        self.adam = torch.optim.Adam(self.theta, lr=w.SERVER_LR, eps=w.SERVER_EPS, fused=True)

    def one_client(self, data: Any) -> tuple[float, int]:
        """One epoch from the server's model; the sum of the losses, and the examples."""
        with torch.no_grad():
            torch._foreach_copy_(self.local, self.theta)
        total, rows = torch.zeros(()), len(data[0])
        for at in net.batches(rows):
            loss = self.loss(self.clients_model, data, at)
            self.sgd.zero_grad()
            loss.backward()
            self.sgd.step()
            total += loss.detach() * len(at)
        return total.item(), rows

    def gradients(self, cohort: int) -> tuple[list[Tensor], float]:
        """The example-weighted mean of the clients' model differences, and their mean loss."""
        sums = [torch.zeros_like(p) for p in self.theta]
        total, seen = 0.0, 0
        for k in torch.randperm(len(self.data))[:cohort].tolist():
            loss, rows = self.one_client(self.data[k])
            total, seen = total + loss, seen + rows
            with torch.no_grad():
                torch._foreach_add_(sums, torch._foreach_sub(self.theta, self.local), alpha=rows)
        torch._foreach_div_(sums, seen)
        return sums, total / seen

    def step(self, gradients: Sequence[Tensor]) -> None:
        """The server's Adam."""
        for p, gradient in zip(self.theta, gradients, strict=True):
            p.grad = gradient
        self.adam.step()


def image_loss(model: nn.Module, data: Any, rows: Tensor) -> Tensor:
    """Cross-entropy of augmented images."""
    x, y = data
    return F.cross_entropy(model(net.see(x[rows])), y[rows])


def text_loss(model: nn.Module, data: Any, rows: Tensor) -> Tensor:
    """The mean over sentences of the sum over tokens, PAD left out."""
    x, y = data
    sums = F.cross_entropy(model(x[rows]).flatten(0, 1), y[rows].flatten(), ignore_index=0, reduction="sum")
    return sums / (w.TOKENS_OF_A_ROW * len(rows))


def images(size: str, clients: range) -> Server:
    """A server of image clients."""
    return Server(lambda: net.CNN(size), [net.client(k) for k in clients], image_loss, w.CLIENT_LR)


def texts(size: str, clients: range) -> Server:
    """A server of text clients."""
    data = [tuple(torch.from_numpy(a).long() for a in w.sentences(k)) for k in clients]
    return Server(lambda: net.LSTM(size), data, text_loss, w.TEXT_LR)


def see_public(x: Tensor) -> Tensor:
    """As clients see images, then flipped both ways by coins and mixed with another image of the batch, Beta(2, 2)."""
    x = net.see(x)
    for axis in (3, 2):
        x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(axis), x)
    share = torch.rand(len(x), 3).median(1).values.view(-1, 1, 1, 1)  # the median of three uniforms is Beta(2, 2)
    return torch.lerp(x[torch.randperm(len(x))], x, share)


def codistill(servers: Sequence[Server], students: Sequence[nn.Module], public: Tensor, rows: Tensor) -> None:
    """Students start as the server models and are taught by all of them, themselves with a small weight, on the same public batches."""
    adams = []
    for server, student in zip(servers, students, strict=True):
        student.load_state_dict(server.model.state_dict())
        adams.append(torch.optim.Adam(student.parameters(), lr=w.STUDENT_LR, eps=w.STUDENT_EPS, fused=True))
    for at in rows.view(w.STEPS, w.PUBLIC_BATCH):
        x = see_public(public[at])
        with torch.no_grad():
            said = [F.softmax(server.model(x), -1) for server in servers]
            other = [sum(q for j, q in enumerate(said) if j != i) / (len(said) - 1) for i in range(len(said))]
            targets = [torch.lerp(q, own, w.SELF_WEIGHT) for q, own in zip(other, said, strict=True)]
        for student, adam, target in zip(students, adams, targets, strict=True):
            loss = F.kl_div(F.log_softmax(student(x), -1), target, reduction="batchmean")
            adam.zero_grad()
            loss.backward()
            adam.step()


def merged(sizes: Sequence[str], clients: int, cohort: int) -> tuple[Callable[[], float], int]:
    """A MergedCodist round of all pools, and the parameters of their models."""
    servers = [images(size, range(i * clients, (i + 1) * clients)) for i, size in enumerate(sizes)]
    students = [net.CNN(size) for size in sizes]
    public = torch.from_numpy(w.examples(10**6 + 1, w.PUBLIC)[0]).permute(0, 3, 1, 2).contiguous()

    def one_round() -> float:
        found = [server.gradients(cohort) for server in servers]
        codistill(servers, students, public, torch.randperm(len(public))[: w.STEPS * w.PUBLIC_BATCH])
        for server, student, (gradient, _) in zip(servers, students, found, strict=True):
            with torch.no_grad():
                taught = torch._foreach_sub(server.theta, list(student.parameters()))
                length, wanted = (torch.linalg.vector_norm(torch.stack(torch._foreach_norm(t))) for t in (taught, gradient))
                torch._foreach_mul_(gradient, w.ALPHA)
                torch._foreach_add_(gradient, taught, alpha=float((1 - w.ALPHA) * wanted / length))
            server.step(gradient)
        return float(np.mean([loss for _, loss in found]))

    return one_round, sum(net.count(server.model) for server in servers)


def evaluation(size: str) -> tuple[Callable[[], float], int]:
    """The loss and the right answers of all test images."""
    model = net.CNN(size).eval()
    x, y = w.examples(10**6, w.TEST)
    x, y = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y).long()

    @torch.inference_mode()
    def one_evaluation() -> float:
        total, right = torch.zeros(()), torch.zeros((), dtype=torch.long)
        for images, labels in zip(x.split(500), y.split(500), strict=True):
            logits = model(net.see_centre(images))
            total += F.cross_entropy(logits, labels, reduction="sum")
            right += (logits.argmax(-1) == labels).sum()
        return total.item() / len(x)

    return one_evaluation, net.count(model)


def main() -> None:
    """Answer the driver's turns."""
    work, threads = w.asked()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if work.family == "eval":
        one_round, parameters = evaluation(work.size)
    elif work.family == "w3":
        one_round, parameters = merged(list(w.CNNS), work.clients, work.cohort)
    else:
        server = (texts if work.family == "w2" else images)(work.size, range(work.clients))
        parameters = net.count(server.model)

        def one_round() -> float:
            gradient, loss = server.gradients(work.cohort)
            server.step(gradient)
            return loss

    w.serve(one_round, parameters, {"torch": torch.__version__, "numpy": np.__version__})


if __name__ == "__main__":
    main()
