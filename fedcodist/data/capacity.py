"""The capacity of each client's device: at random by shares, from a column, or correlated with an attribute of the client.

The correlation is a Gaussian copula of ranks: only the order of an attribute's values matters, and `rho` says how closely the order of
capacities follows it. Nothing is measured here: a capacity is a label by which pools choose their clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcodist.data.splits import shuffled
from fedcodist.errors import data_error
from fedcodist.settings import Problem, SettingError, check, nearest, setting, show
from fedcodist.types import Key

SHARES = {"high": 0.1, "mid": 0.2, "low": 0.7}  # the usual picture: most devices are small
SIZE = "examples"  # the attribute that every client has


@dataclass(frozen=True)
class Capacity:
    """Levels by share in a keyed random order.

    >>> from fedcodist import keys
    >>> sizes = {"a": 5, "b": 50, "c": 20, "d": 1}
    >>> Capacity({"high": 0.25, "low": 0.75}, attribute="examples", rho=1.0).assign(sizes, keys.root(0), {}, sizes)["b"]
    'high'
    """

    shares: dict[str, float] = field(default_factory=lambda: dict(SHARES))  # the share of the clients at each level
    column: str | None = None  # the attribute that says the level itself, instead of shares
    attribute: str | None = None  # what the level goes with; "examples" is the client's size
    # rank correlation with the attribute: 1 gives the largest values the highest level, -1 the smallest
    rho: float = setting(0.0, ge=-1, le=1)
    order: tuple[str, ...] = ("high", "mid", "low")  # the levels, the highest first: a table of shares has no order of its own

    def __post_init__(self) -> None:
        check(self)
        wrong = [(name, share) for name, share in self.shares.items() if not 0 <= share <= 1]
        unknown = [name for name in self.shares if name not in self.order]
        total = sum(self.shares.values())
        problems = [Problem(f"Capacity.shares.{name}", show(share), "0 to 1") for name, share in wrong]
        if not wrong and not math.isclose(total, 1, abs_tol=1e-6):
            problems.append(Problem("Capacity.shares", show(self.shares), "shares whose sum is 1", f"their sum is {total:g}"))
        if len(set(self.order)) < len(self.order):
            problems.append(Problem("Capacity.order", show(list(self.order)), "each level once"))
        if unknown:
            hint = "order names the levels, the highest first"
            problems.append(Problem("Capacity.shares", show(unknown[0]), f"levels of order: {', '.join(self.order)}", hint))
        if self.column is not None and self.attribute is not None:
            problems.append(Problem("Capacity.column", show(self.column), "column or attribute, not both"))
        if self.rho and self.attribute is None:
            problems.append(Problem("Capacity.rho", show(self.rho), "0 without an attribute", "set attribute"))
        if problems:
            raise SettingError(problems)

    def assign(
        self, clients: Iterable[str], key: Key, attributes: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]
    ) -> dict[str, str]:
        """The level of each client; DataError for an unknown attribute."""
        order = shuffled(clients, key)
        if self.column is not None:
            level = _attribute("capacity.column", self.column, attributes, sizes)
            return {name: str(level[name]) for name in order}
        if self.attribute is not None:
            values = _attribute("capacity.attribute", self.attribute, attributes, sizes)
            if self.rho and len(order) > 1 and len({values[name] for name in order}) == 1:
                raise data_error(
                    "capacity.attribute", f"{show(self.attribute)}, the same for all clients", "an attribute that differs, or rho = 0"
                )
            chance = _normal(-np.arange(len(order)))  # of the keyed order, so that rho = 0 keeps it
            ranked = _normal(_ordinal(self.attribute, [values[name] for name in order]))
            score = self.rho * ranked + math.sqrt(1 - self.rho**2) * chance
            order = [order[i] for i in np.argsort(-score, kind="stable")]  # equal values stay in the keyed order
        levels = [level for level in self.order if level in self.shares]
        ends = np.cumsum([round(self.shares[level] * len(order)) for level in levels[:-1]], dtype=int)
        return {name: levels[int(np.searchsorted(ends, i, side="right"))] for i, name in enumerate(order)}


def _attribute(where: str, name: str, attributes: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]) -> Mapping[str, Any]:
    known = {**attributes, SIZE: sizes}
    if name not in known:
        raise data_error(where, f"{show(name)}, an unknown attribute", ", ".join(known), nearest(name, known))
    return known[name]


def _normal(values: Any) -> np.ndarray:
    """The normal score of each value's rank; equal values share their ranks."""
    from scipy.special import ndtri  # here, because scipy takes a second to import and few runs need it
    from scipy.stats import rankdata

    return ndtri((rankdata(values) - 0.5) / max(1, len(values)))


def _ordinal(name: str, values: list[Any]) -> np.ndarray:
    """Numbers in the order of the values: numbers as they are, strings by their rank in sorted order."""
    if all(isinstance(value, int | float | np.integer | np.floating) for value in values):
        numbers = np.array(values, float)
        if np.isnan(numbers).any():
            raise data_error("capacity.attribute", f"NaN in {show(name)}", "numbers or strings")
        return numbers
    if not all(isinstance(value, str) for value in values):
        raise data_error("capacity.attribute", f"numbers and strings in {show(name)}", "numbers or strings")
    return np.unique(values, return_inverse=True)[1]
