"""A task: what is learned, and from what data. It knows nothing of pools, rounds or methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedcodist.types import Examples, Objective, Split


@dataclass(frozen=True, eq=False)
class Task:
    """Clients with their data, the server's public data, and two splits: held_out for tuning and curves, test for the very end."""

    name: str
    objective: Objective
    clients: Mapping[str, Examples]
    public: Examples
    held_out: Split
    test: Split
    classes: int
    domains: tuple[str, ...] = ("all",)
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # {attribute: {client: value}}, to choose pools by
    digest: str = ""  # of the source, where it is known without reading every row
    notes: tuple[str, ...] = ()  # what a user should know about this data: rows left out, labels dropped

    def split(self, name: str) -> Split:
        """held_out or test."""
        return {"held_out": self.held_out, "test": self.test}[name]
