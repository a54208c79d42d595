"""The work that every side of a bench does alike: which workloads there are, their data, their floating-point operations, and how a
worker talks to the driver. It imports numpy and nothing heavier, for it runs inside every peer's environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

CLIENTS, EXAMPLES, BATCH = 64, 100, 20  # at least so many clients, each with so many examples
CLASSES, IMAGE, CROP = 100, 32, 24
CLIENT_LR, SERVER_LR, SERVER_EPS = 0.05, 0.01, 1e-5
SENTENCES, LENGTH, VOCABULARY = 40, 20, 10_004
TEXT_LR, TOKENS_OF_A_ROW = 0.1, 13.3  # a sentence's loss is its sum over tokens divided by this expected length
PUBLIC, STEPS, PUBLIC_BATCH, STUDENT_LR, STUDENT_EPS, SELF_WEIGHT, ALPHA = 8_192, 32, 64, 1e-3, 1e-5, 0.05, 0.5
TEST = 10_000
CNNS = {"small": ((16, 32, 32), (64, 128)), "large": ((32, 64, 64), (128, 256))}  # filters, dense
LSTMS = {"small": (1, 96, 70), "large": (2, 192, 140)}  # layers, embed, hidden
WIDE, WINOGRAD = 1_024, 16 / 36  # channels times filters that our kernels take in Winograd's basis, and the products that are left of all
PARAMETERS = {"w1": {"small": 109_348, "large": 410_084}, "w2": {"small": 1_984_348, "large": 4_278_644}}


@dataclass(frozen=True)
class Workload:
    """One thing to measure: its family (w1, w2, w3, eval), the size of its model, and the clients of a round."""

    family: str
    size: str
    cohort: int = 20

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        return {"w1": f"w1-{self.size}-{self.cohort}", "w3": "w3"}.get(self.family, f"{self.family}-{self.size}")

    @property
    def clients(self) -> int:
        """How many clients there are to choose from."""
        return max(self.cohort, CLIENTS)

    @property
    def parameters(self) -> int:
        """Of all models together: every side must have as many."""
        if self.family == "w3":
            return sum(PARAMETERS["w1"].values())
        return PARAMETERS["w2" if self.family == "w2" else "w1"][self.size]

    @property
    def flops(self) -> float:
        """Floating-point operations of a round in products and convolutions; nothing else is counted."""
        return self.operations()

    def operations(self, wide: float = 1.0) -> float:
        """The same where a wide convolution (WIDE) takes only this share of its multiplications."""
        if self.family == "w1":
            return self.cohort * EXAMPLES * cnn_flops(self.size, True, wide)
        if self.family == "w2":
            return self.cohort * SENTENCES * LENGTH * lstm_flops(self.size)
        if self.family == "eval":
            return TEST * cnn_flops(self.size, False, wide)
        spoken_and_learned = STEPS * PUBLIC_BATCH * sum(cnn_flops(s, train, wide) for s in CNNS for train in (False, True))
        return spoken_and_learned + sum(self.cohort * EXAMPLES * cnn_flops(s, True, wide) for s in CNNS)


WORKLOADS = {
    w.name: w
    for w in (
        *(Workload("w1", size, cohort) for cohort in (20, 100, 500) for size in CNNS),
        *(Workload("w2", size) for size in LSTMS),
        Workload("w3", "both"),
        *(Workload("eval", size) for size in CNNS),
    )
}


def cnn_flops(size: str, train: bool, wide: float = 1.0) -> float:
    """Of one image: twice the multiplications forward; in training thrice that, without the gradient of the first layer's input. A wide
    convolution counts this share of its own.

    >>> round(20 * EXAMPLES * cnn_flops("small", train=True) / 1e9, 1), round(20 * EXAMPLES * cnn_flops("large", train=True) / 1e9, 1)
    (15.1, 56.0)
    """
    (a, b, c), (d, e) = CNNS[size]
    first = CROP**2 * 27 * a
    later = ((CROP // 2) ** 2, a, b), ((CROP // 4) ** 2, b, c)
    convs = first + sum(pixels * 9 * m * n * (wide if m * n >= WIDE else 1) for pixels, m, n in later)
    products = convs + (CROP // 4) ** 2 * c * d + d * e + e * CLASSES
    return 2.0 * (3 * products - first if train else products)


def lstm_flops(size: str) -> float:
    """Of one token in training."""
    layers, embed, hidden = LSTMS[size]
    return 6.0 * (layers * ((embed + hidden) * 4 * hidden + hidden * embed) + embed * VOCABULARY)


def examples(client: int, rows: int = EXAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """A client's images, [rows, height, width, channels] bytes, and labels: the same on every side."""
    rng = np.random.default_rng(client)
    return rng.integers(0, 256, (rows, IMAGE, IMAGE, 3), dtype=np.uint8), rng.integers(0, CLASSES, rows, dtype=np.int32)


def pieces(client: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's images as a piece of one block of noise, and labels: it costs no time to make them and no memory to keep them."""
    size = EXAMPLES * IMAGE * IMAGE * 3
    start = client * 4_099 % (len(_noise()) - size)
    x = _noise()[start : start + size].reshape(EXAMPLES, IMAGE, IMAGE, 3)
    return x, x[:, 0, 0, 0].astype(np.int32) % CLASSES


@cache
def _noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, 2**22, dtype=np.uint8)


def sentences(client: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's sentences, [rows, length] token ids without padding, and the next tokens."""
    ids = np.random.default_rng(client).integers(3, VOCABULARY - 1, (SENTENCES, LENGTH + 1), dtype=np.int32)
    return ids[:, :-1], ids[:, 1:]


class Turns:
    """A worker's end of the pipe: say hello once, then answer each turn. Iterate over it: a turn's time runs while the body does.

    Frameworks print; so answers go through a pipe of their own, whose number the driver gives, and stdout is nobody's protocol.
    """

    def __init__(self, parameters: int, versions: Mapping[str, str], wide: float = 1.0) -> None:
        number = int(os.environ["BENCH_ANSWERS"])
        os.set_inheritable(number, False)
        self._pipe = os.fdopen(number, "w")
        self.loss: float | None = None
        self._say({"parameters": parameters, "versions": dict(versions), "wide": wide})

    def __iter__(self) -> Iterator[None]:
        for _ in sys.stdin:
            wall, cpu = time.perf_counter(), time.process_time()
            yield
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            self._say({"seconds": wall, "cpu_seconds": cpu, "loss": self.loss})

    def _say(self, what: Mapping[str, Any]) -> None:
        print(json.dumps(what), file=self._pipe, flush=True)


def serve(one_round: Callable[[], float | None], parameters: int, versions: Mapping[str, str], wide: float = 1.0) -> None:
    """Answer every turn with one round, which returns its training loss if the framework tells it. `wide` is the share of a wide
    convolution's multiplications that this side does."""
    turns = Turns(parameters, versions, wide)
    for _ in turns:
        turns.loss = one_round()


def asked() -> tuple[Workload, int]:
    """What a worker is started with: `NAME THREADS`."""
    return WORKLOADS[sys.argv[1]], int(sys.argv[2])
