"""A split of each client's own: parts of its data that it does not train on, to measure models on.

Tasks have a global test split, of other clients. A model that lives at a client is judged on that client's data, so some of them are kept
from training: drawn once by the task's key and the client's id, the same for every pool, method and seed of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedcodist import keys
from fedcodist.clients import Clients, grows
from fedcodist.settings import Problem, SettingError, check, setting
from fedcodist.types import Examples, Key

TRAIN, SPLITS = "train", ("held_out", "test")


@dataclass(frozen=True)
class Personal:
    """The shares of each client's examples that are kept from its training. A client always trains on one example at least.

    >>> {part: rows.tolist() for part, rows in Personal(0.2, 0.4).rows(keys.root(0), "anna", 5).items()}
    {'train': [1, 3], 'held_out': [4], 'test': [0, 2]}
    """

    held_out: float = setting(0.0, ge=0, lt=1)  # the share of each client's examples to measure on during training, and to choose by
    test: float = setting(0.0, ge=0, lt=1)  # the share of each client's examples to measure on once, at the end

    def __post_init__(self) -> None:
        check(self)
        if self.held_out + self.test >= 1:
            raise SettingError([Problem("Personal.test", f"{self.test} and held_out {self.held_out}", "less than 1 together")])

    def rows(self, key: Key, client: str, n: int) -> dict[str, np.ndarray]:
        """Which of a client's n examples go where."""
        test = min(round(self.test * n), n - 1)
        held_out = min(round(self.held_out * n), n - 1 - test)
        parts = np.split(keys.permutation(keys.derive(key, client), n), [test, test + held_out])
        return {TRAIN: np.sort(parts[2]), "held_out": np.sort(parts[1]), "test": np.sort(parts[0])}

    def divide(self, clients: Mapping[str, Examples], key: Key) -> tuple[Mapping[str, Examples], dict[str, Mapping[str, Examples]]]:
        """The clients with what they train on, and {split: clients with what they are measured on}, without those that have none."""
        if self == Personal():
            return clients, {}
        if grows(clients):
            raise SettingError([Problem("personal", "clients that may join during a run", "clients whose data are known")])
        if not isinstance(clients, Clients):
            parts = {client: self.rows(key, client, len(data.x)) for client, data in clients.items()}
            some = {
                part: {c: Examples(*(a[rows[part]] for a in map(np.asarray, clients[c]))) for c, rows in parts.items() if len(rows[part])}
                for part in (TRAIN, *SPLITS)
            }
            return some[TRAIN], {split: some[split] for split in SPLITS if some[split]}
        parts = {client: self.rows(key, client, n) for client, n in clients.sizes().items() if n}

        def only(part: str) -> Clients:
            rows = {client: clients.rows[client][rows[part]] for client, rows in parts.items() if len(rows[part])}
            return Clients(clients.x, clients.y, rows, clients.domain)

        return only(TRAIN), {split: found for split in SPLITS if (found := only(split))}
