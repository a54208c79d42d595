"""The models, the data and the augmentation of the sides that are written in PyTorch: the plain loop, Flower, pfl and FedLab."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benches.workload import BATCH, CLASSES, CNNS, CROP, IMAGE, LSTMS, VOCABULARY, examples


class CNN(nn.Module):
    """Three SAME convolutions, max-pools after the first two, two hidden dense layers; as a rule in channels_last, a tenth faster."""

    def __init__(self, size: str, layout: torch.memory_format = torch.channels_last) -> None:
        super().__init__()
        (a, b, c), dense = CNNS[size]
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
        self.to(memory_format=layout)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class LSTM(nn.Module):
    """Embed, then so many times [LSTM, tanh, project back], then the logits of all tokens.

    torch's LSTM has two bias vectors where the model has one: the second is a constant that holds the forget gate's +1, and is not trained.
    """

    def __init__(self, size: str) -> None:
        super().__init__()
        layers, embed, hidden = LSTMS[size]
        self.embed = nn.Embedding(VOCABULARY, embed)
        self.lstm = nn.ModuleList(nn.LSTM(embed, hidden, batch_first=True) for _ in range(layers))
        self.project = nn.ModuleList(nn.Linear(hidden, embed) for _ in range(layers))
        self.out = nn.Linear(embed, VOCABULARY)
        for lstm in self.lstm:
            with torch.no_grad():
                lstm.bias_hh_l0.zero_()[hidden : 2 * hidden] = 1.0
            lstm.bias_hh_l0.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for lstm, project in zip(self.lstm, self.project, strict=True):
            h = project(torch.tanh(lstm(h)[0]))
        return self.out(h)


def trained(model: nn.Module) -> list[nn.Parameter]:
    """What is trained, and counted."""
    return [p for p in model.parameters() if p.requires_grad]


def count(model: nn.Module) -> int:
    """How many parameters are trained."""
    return sum(p.numel() for p in trained(model))


def client(k: int) -> tuple[Tensor, Tensor]:
    """A client's images, [rows, 3, height, width] bytes, and labels."""
    x, y = examples(k)
    return torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y).long()


def see(images: Tensor, layout: torch.memory_format = torch.channels_last) -> Tensor:
    """Each image [batch, 3, 32, 32] cropped and flipped by its own draw, then standardised."""
    rows = torch.arange(len(images))
    top, left = torch.randint(0, IMAGE - CROP + 1, (2, len(images)))
    windows = images.unfold(2, CROP, 1).unfold(3, CROP, 1)  # [batch, 3, 9, 9, 24, 24], a view
    x = windows[rows, :, top, left].float().contiguous(memory_format=layout)
    return standardise(torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x))


def see_centre(images: Tensor) -> Tensor:
    """The middle of each image, standardised."""
    at = (IMAGE - CROP) // 2
    return standardise(images[:, :, at : at + CROP, at : at + CROP].float().contiguous(memory_format=torch.channels_last))


def standardise(x: Tensor) -> Tensor:
    """Each image to mean 0 and deviation 1."""
    deviation, mean = torch.std_mean(x, (1, 2, 3), correction=0, keepdim=True)
    return (x - mean) / deviation.clamp(min=x[0].numel() ** -0.5)


def batches(rows: int) -> tuple[Tensor, ...]:
    """An epoch's batches of row numbers, shuffled."""
    return torch.randperm(rows).split(BATCH)
