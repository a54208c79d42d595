"""The words of this package, as types: what a model, a client's data, a reply, a fold and a method are.

Everything is a pure function or a frozen value. A *gradient* is always "before minus after", so that a client's model difference, a
distillation's model difference and a true gradient are one kind of thing and may be added (the paper's eq. 1 and 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import numpy as np

if TYPE_CHECKING:
    from fedcodist.federation import Federation

Array = jax.Array | np.ndarray
Params = Any  # a pytree of float arrays
Tree = Any  # any pytree of arrays
Key = np.ndarray  # uint32[2]: a threefry key, as jax.random takes it; made by keys.root and keys.derive
Schedule = Callable[[int], float]  # of the round t = 1..R; kept outside optimizer state, so that a restart cannot rewind it


class Model(NamedTuple):
    """Any neural network: two pure functions. `apply` with `key=None` is evaluation."""

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array, Any], Array]  # (params, inputs, key or None) -> logits


class Examples(NamedTuple):
    """Rows of data. `y` is None where there are no labels (the server's public data)."""

    x: Array  # [rows, ...]
    y: Array | None = None  # [rows] or [rows, length]


class Split(NamedTuple):
    """Rows to evaluate on, each with the client and the domain it came from."""

    x: Array
    y: Array
    client: np.ndarray | None = None  # [rows] integer codes, or None where no client is known
    domain: np.ndarray | None = None  # [rows] indices into Task.domains, or None where there is one domain


class Data(NamedTuple):
    """One client's examples as its work sees them: perhaps padded, with `n` real rows in front."""

    x: Array
    y: Array
    n: Array  # scalar int32


class Reply(NamedTuple):
    """What a client sends back: a value (as a rule its gradient), its weight (its number of examples) and what it saw."""

    value: Tree
    weight: Array
    info: Mapping[str, Array]


class Fold(NamedTuple):
    """How replies combine: a monoid, so that a compiled block of clients, a cluster and a stream from a network share it."""

    zero: Callable[[Reply], Tree]  # of a reply's shapes
    add: Callable[[Tree, Reply], Tree]
    join: Callable[[Tree, Tree], Tree]
    done: Callable[[Tree], Folded]


class Folded(NamedTuple):
    """The end of a fold: the combined value, how many replies were used and dropped, and the weighted means of their infos."""

    value: Tree
    weight: Array
    used: Array
    dropped: Array
    info: Mapping[str, Array]


class PoolState(NamedTuple):
    """What the next round needs of a pool, and nothing else."""

    params: Params
    opt: Tree


State = dict[str, PoolState]
Info = dict[str, Any]  # JSON-able: what happened, for the journal


class Objective(Protocol):
    """What is learned, as pure functions that run inside compiled programs. Hashable: it is part of a program's identity."""

    def see(self, x: Array, key: Any = None) -> Array:
        """Model inputs from raw rows; augmented if a key is given."""
        ...

    def see_public(self, x: Array, key: Any = None) -> Array:
        """Model inputs for distillation; with the stronger augmentation of public data if a key is given."""
        ...

    def loss(self, logits: Array, y: Array) -> Array:
        """Training loss of each row: [batch]."""
        ...

    def counts(self, inputs: Array) -> Array:
        """Which predictions count in distillation: [batch], or [batch, length] for text (PAD does not)."""
        ...

    def measure(self, logits: Array, y: Array) -> dict[str, Array]:
        """Sums for each row, from which `summarise` makes metrics: {name: [batch, ...]}."""
        ...

    def summarise(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Metrics from summed measures. `accuracy` is the headline of every objective."""
        ...


class Work(Protocol):
    """What a client does with what it is sent. Its fields are its wire format."""

    def __call__(self, model: Model, objective: Objective, sent: Tree, data: Data, key: Any) -> Reply: ...


class Method(Protocol):
    """One paper. Rounds are t = 1..R; everything random comes from `key` by name."""

    def init(self, fed: Federation, key: Key) -> State: ...

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]: ...

    def models(self, fed: Federation, state: State) -> dict[str, Params]: ...
