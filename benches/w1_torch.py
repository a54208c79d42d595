"""The other side of W1: the same round as a plain PyTorch loop, written as one writes it by hand, for `w1.py` to drive.

Nothing is made slow: images are cropped, flipped and standardised a batch at a time, one model and its SGD are reused for all clients,
and the server's step is torch's own Adam. Run by an interpreter with torch: `PYTHON w1_torch.py small 2`.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from w1 import BATCH, CLASSES, CLIENT_LR, CLIENTS, COHORT, CROP, IMAGE, SERVER_EPS, SERVER_LR, SIZES, examples, serve


class CNN(nn.Module):
    """Three SAME convolutions, max-pools after the first two, two hidden dense layers."""

    def __init__(self, filters: tuple[int, ...], dense: tuple[int, ...]) -> None:
        super().__init__()
        a, b, c = filters
        self.features = nn.Sequential(
            nn.Conv2d(3, a, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(a, b, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(b, c, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(c * (CROP // 4) ** 2, dense[0]),
            nn.ReLU(inplace=True),
            nn.Linear(dense[0], dense[1]),
            nn.ReLU(inplace=True),
            nn.Linear(dense[1], CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def see(images: Tensor) -> Tensor:
    """Each image [batch, 3, 32, 32] cropped and flipped by its own draw, then standardised."""
    rows = torch.arange(len(images))
    top, left = torch.randint(0, IMAGE - CROP + 1, (2, len(images)))
    windows = images.unfold(2, CROP, 1).unfold(3, CROP, 1)  # [batch, 3, 9, 9, 24, 24], a view
    x = windows[rows, :, top, left].float().contiguous(memory_format=torch.channels_last)
    x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
    deviation, mean = torch.std_mean(x, (1, 2, 3), correction=0, keepdim=True)
    return (x - mean) / deviation.clamp(min=x[0].numel() ** -0.5)


def main(size: str, threads: int) -> None:
    """Answer the driver's rounds."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    data = []
    for client in range(CLIENTS):
        x, y = examples(client)
        data.append((torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y).long()))
    model, server = (CNN(*SIZES[size]).to(memory_format=torch.channels_last) for _ in range(2))  # a tenth faster than the default
    sgd = torch.optim.SGD(model.parameters(), lr=CLIENT_LR)
    adam = torch.optim.Adam(server.parameters(), lr=SERVER_LR, eps=SERVER_EPS)

    def one_client(x: Tensor, y: Tensor) -> float:
        """One epoch from the server's model; the sum of the losses."""
        model.load_state_dict(server.state_dict())
        total = 0.0
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = F.cross_entropy(model(see(x[rows])), y[rows])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            total += loss.item() * len(rows)
        return total

    def one_round() -> float:
        adam.zero_grad()
        sums = [torch.zeros_like(p) for p in server.parameters()]
        total, seen = 0.0, 0
        for client in torch.randperm(CLIENTS)[:COHORT].tolist():
            x, y = data[client]
            total, seen = total + one_client(x, y), seen + len(x)
            with torch.no_grad():
                for add, before, after in zip(sums, server.parameters(), model.parameters(), strict=True):
                    add += len(x) * (before - after)
        for p, add in zip(server.parameters(), sums, strict=True):
            p.grad = add / seen
        adam.step()
        return total / seen

    parameters = sum(p.numel() for p in server.parameters())
    serve(one_round, {"parameters": parameters, "versions": {"torch": torch.__version__, "numpy": np.__version__}})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
