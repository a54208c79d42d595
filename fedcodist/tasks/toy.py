"""A toy task: Gaussian classes in a few dimensions, for tests that must be fast.

It has all features of a real task: clients of different sizes with skewed labels, and two domains, of which the second is shifted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedcodist import keys
from fedcodist.clients import Clients
from fedcodist.data.capacity import Capacity
from fedcodist.data.partition import client_names, owners
from fedcodist.objectives.classify import Classify
from fedcodist.settings import checked, setting
from fedcodist.task import Row, Spec, Task
from fedcodist.types import Examples, Split

GROUPS = 5  # clients of the public data and of each split


@dataclass(frozen=True)
@checked
class Toy:
    """Gaussian classes.

    >>> task = Toy().load()
    >>> len(task.clients), task.public.x.shape, task.public.y, task.domains
    (12, (200, 8), None, ('first', 'second'))
    """

    kind: ClassVar[str] = "toy"
    clients: int = setting(12, ge=1, le=100_000)  # federated clients
    examples: int = setting(20, ge=1, le=100_000)  # examples of a client on average; the largest has about twice the smallest
    features: int = setting(8, ge=1, le=10_000)  # numbers in an example
    classes: int = setting(4, ge=2, le=10_000)  # classes
    public: int = setting(200, ge=1, le=10_000_000)  # unlabelled public examples
    held_out: int = setting(200, ge=1, le=10_000_000)  # held-out examples
    test: int = setting(200, ge=1, le=10_000_000)  # test examples
    skew: float = setting(0.5, ge=1e-3, le=1e6)  # concentration of each client's label shares: Dirichlet(skew)
    noise: float = setting(1.0, ge=0, le=1e3)  # standard deviation around a class's mean, which is drawn from N(0, 4)
    shift: float = setting(1.0, ge=0, le=1e3)  # distance of the second domain from the first, in every dimension
    public_labels: bool = setting(False, silent=True)  # whether public data keeps its labels, for methods that may use them
    split_seed: int = setting(0, ge=0, le=2**63 - 1)  # seed of the data, the same for all seeds of a run

    def spec(self) -> Spec:
        """What is learned, without drawing anything."""
        return Spec(Classify(), Row((self.features,), "float32"), Row((), "int32"), self.classes)

    def load(self) -> Task:
        """Draw the data."""
        key = keys.derive(keys.root(self.split_seed), self.kind)
        means = 2 * keys.generator(keys.derive(key, "means")).standard_normal((self.classes, self.features))
        smallest = max(1, round(self.examples * 2 / 3))
        largest = max(smallest, 2 * self.examples - smallest)
        sizes = keys.generator(keys.derive(key, "sizes")).integers(smallest, largest, self.clients, endpoint=True)
        x, y, domain = self._draw(key, "clients", means, sizes)
        rows = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
        clients = Clients(x, y, dict(zip(client_names(self.clients), rows, strict=True)), domain)
        return Task(
            name=self.kind,
            objective=self.spec().objective,
            clients=clients,
            public=Examples(*self._draw(key, "public", means, _even(self.public))[: 2 if self.public_labels else 1]),
            held_out=self._split(key, "held_out", means, self.held_out),
            test=self._split(key, "test", means, self.test),
            classes=self.classes,
            domains=("first", "second"),
            attributes={"capacity": Capacity().assign(clients, keys.derive(key, "capacity"), {}, {})},
        )

    def _split(self, key: keys.Key, name: str, means: np.ndarray, n: int) -> Split:
        sizes = _even(n)
        x, y, domain = self._draw(key, name, means, sizes)
        return Split(x, y, owners([np.empty(size) for size in sizes])[1], domain)

    def _draw(self, key: keys.Key, name: str, means: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(x, y, domain) of clients of these sizes, one after the other."""
        draw = keys.generator(keys.derive(key, "rows", name))
        shares = [draw.dirichlet(np.full(self.classes, self.skew)) for _ in sizes]
        y = np.concatenate([draw.choice(self.classes, size, p=p) for size, p in zip(sizes, shares, strict=True)]).astype(np.int32)
        domain = draw.integers(0, 2, len(y))
        x = means[y] + self.noise * draw.standard_normal((len(y), self.features)) + self.shift * domain[:, None]
        return x.astype(np.float32), y, domain


def _even(n: int) -> np.ndarray:
    """The sizes of GROUPS clients that share n rows as evenly as possible."""
    groups = min(GROUPS, n)
    return np.bincount(np.arange(n) % groups, minlength=groups)
