"""The vocabulary of this package as types: a model, a client's data, a question, an answer, a fold, a rule and a method.

Everything is a pure function or a frozen value. A *gradient* is always "before minus after", so that a client's model difference, a
distillation's model difference and a true gradient are one kind of thing and may be added (the paper's eq. 1 and 2).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

import jax
import numpy as np

if TYPE_CHECKING:
    from concurrent.futures import Future

    from fedcodist.federation import Federation
    from fedcodist.pool import Pool
    from fedcodist.settings import Problem

Array = jax.Array | np.ndarray
Params = Any  # a pytree of float arrays
Tree = Any  # any pytree of arrays
Key = np.ndarray  # uint32[2]: a threefry key, as jax.random takes it; made by keys.root and keys.derive
Schedule = Callable[[int], float]  # of the round t = 1..R; kept outside optimizer state, so that a restart cannot rewind it
Consumed = Literal["public data", "labels", "label counts", "client state", "single models"]  # beyond what FedAvg's server sees


class Model(NamedTuple):
    """Any neural network: two pure functions. `apply` with `key=None` is evaluation. The rest is optional."""

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array, Any], Array]  # (params, inputs, key or None) -> logits
    features: Callable[[Params, Array, Any], tuple[Array, dict[str, Array]]] | None = None  # -> logits, {layer: activations}
    narrow: Callable[[float], Narrow] | None = None  # a sub-model of this share of every hidden width
    spec: Spec | None = None
    head: str = ""  # the layer of the parameters that gives the logits; the last axis of its arrays are the classes


class Spec(NamedTuple):
    """What a model was built from: `part.build(shape, classes)` builds it again, wherever the text of `part` has been sent."""

    part: Any  # a frozen dataclass of `models`
    shape: tuple[int, ...]  # of one input
    classes: int


class Narrow(NamedTuple):
    """A sub-model of a wider one: a prefix of every hidden dimension."""

    model: Model
    cut: Callable[[Params], Params]  # the wide model's parameters -> the sub-model's
    paste: Callable[[Params, Params], Params]  # (wide, sub) -> wide, with the sub-model's numbers in their places


class Voice(NamedTuple):
    """A model with its parameters, which can be a teacher: a pool's server model, a sub-model, an ensemble, or a client's model."""

    model: Model
    params: Params


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
    """One client's examples as its work sees them: perhaps padded, with `n` real rows in front; and what the client keeps itself."""

    x: Array
    y: Array
    n: Array  # scalar int32
    own: Tree = ()


class Reply(NamedTuple):
    """What a client sends back: a value (as a rule its gradient), its weight (its number of examples) and metrics. `own` is not sent:
    it stays at the client until the client is asked again."""

    value: Tree
    weight: Array
    info: Mapping[str, Array]
    own: Tree = ()


class Each(NamedTuple):
    """Replies one by one, in the order of their clients' ids, without those that were dropped."""

    clients: tuple[str, ...]
    values: Tree  # the replies' values, stacked: [clients, ...]
    weights: np.ndarray  # [clients]


class Folded(NamedTuple):
    """The end of a fold: the combined value, how many replies were used and dropped, and the weighted means of their infos."""

    value: Tree
    weight: Array
    used: Array
    dropped: Array
    info: Mapping[str, Array]


class Fold(Protocol):
    """How replies are combined: a monoid, so that a compiled block of clients, a cluster and a stream from a network share it.

    A fold that needs all replies at once sets `each = True`: its `add` only counts, and `done` receives the replies one by one.
    """

    each: ClassVar[bool] = False

    def zero(self, reply: Reply) -> Tree:
        """The empty total, for replies of these shapes."""
        ...

    def add(self, total: Tree, reply: Reply) -> Tree: ...

    def join(self, a: Tree, b: Tree) -> Tree: ...

    def done(self, total: Tree, each: Each | None, key: Key) -> Folded:
        """Finish the fold. `key` is for folds that add noise."""
        ...


class Objective(Protocol):
    """What is learned, as pure functions that run inside compiled programs. Hashable: it is part of a program's identity."""

    def inputs(self, x: Array, key: Any = None) -> Array:
        """Model inputs from raw rows; augmented if a key is given."""
        ...

    def public_inputs(self, x: Array, key: Any = None) -> Array:
        """Model inputs for distillation; with the stronger augmentation of public data if a key is given."""
        ...

    def loss(self, logits: Array, y: Array) -> Array:
        """Training loss of each row: [batch]."""
        ...

    def mask(self, inputs: Array) -> Array:
        """Which predictions count in distillation: [batch], or [batch, length] for text (PAD does not)."""
        ...

    def measure(self, logits: Array, y: Array) -> dict[str, Array]:
        """Sums for each row, from which `summarise` makes metrics: {name: [batch, ...]}."""
        ...

    def summarise(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Metrics from summed measures. `accuracy` is the headline of every objective."""
        ...


class Work(Protocol):
    """What a client does with what the server sends. Its fields are its wire format."""

    def __call__(self, model: Model, objective: Objective, sent: Tree, data: Data, key: Any) -> Reply: ...


class Ask(NamedTuple):
    """A complete question to some clients. It holds no client's data, so it can be sent to a thread, an actor or a device."""

    pool: str
    clients: tuple[str, ...]  # in the order of their ids
    model: Model
    objective: Objective
    work: Work
    fold: Fold
    sent: Tree
    key: Key
    t: int
    own: Mapping[str, Tree] | None = None  # {client: what it kept when it was last asked}
    each: bool = False  # whether the replies are wanted one by one as well
    spare: tuple[str, ...] = ()  # the next clients of the same random order, for engines that over-select


class Answer(NamedTuple):
    """The folded replies, and whatever else the question requested."""

    value: Tree
    weight: Array
    used: Array
    dropped: Array
    info: Mapping[str, Array]
    own: Mapping[str, Tree]  # {client: what it keeps}, of the clients whose replies were used
    each: Each | None
    reasons: Mapping[str, int]  # {why replies were dropped: how many}
    bytes_down: int
    bytes_up: int


class Host(Protocol):
    """The machine that runs the server: it maps the server's work over its cores."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """function(item) for each item, in parallel where there are cores, results in the order of the items."""
        ...

    def start(self, function: Callable[[], Any]) -> Future:
        """Begin function() in parallel with whatever comes next, where there are threads. A failure of `gather` cancels it."""
        ...


class Engine(Protocol):
    """Runs the work of clients, wherever they are. All engines agree on the result of a round."""

    @property
    def host(self) -> Host: ...

    def gather(self, population: Mapping[str, Mapping[str, Examples]], asks: Sequence[Ask]) -> list[Answer | None]:
        """Run the work of every client of every ask, and fold each ask's replies in a fixed order.

        `population` is {pool: {client: examples}}. All pools are asked at once, so that an engine can keep its cores busy with one while
        another comes to its end. None is the answer of a pool that lost its quorum.
        """
        ...


class PoolState(NamedTuple):
    """The state of a pool: what the next round needs, and nothing else."""

    params: Params
    opt: Tree
    kept: Tree = ()  # by the pool's rule: control variates, a dual model, what clients keep


State = dict[str, PoolState]
Info = dict[str, Any]  # JSON-able: what happened, for the journal


class Told(NamedTuple):
    """The result of a pool's conversation with its clients: the gradient, the kept state, and info for the journal."""

    grad: Tree
    kept: Tree
    info: Info


class Rule(Protocol):
    """The messages between a pool and its clients in a round. FedAvg's rule is the default (`rule.Average`)."""

    kind: ClassVar[str]
    consumes: ClassVar[tuple[Consumed, ...]]  # what `fedcodist list rules` says that it needs
    secure: ClassVar[bool]  # whether it fits secure aggregation: the server needs only sums over clients
    teachable: ClassVar[bool] = True  # whether a distillation may change the pool's model between two rounds

    def problems(self, pool: Pool) -> list[Problem]:
        """The problems of a pool with this rule."""
        return []

    def model(self, model: Model) -> Model:
        """The model of a pool with this rule, made from the declared one. A model that a rule has made is returned unchanged."""
        return model

    def models(self, fed: Federation, pool: Pool, state: PoolState) -> dict[str, Voice]:
        """The models that are evaluated, by name: the pool's own, and further ones of the rule, named `pool@what`."""
        return {pool.name: Voice(pool.model, state.params)}

    def trains(self, pool: Pool) -> dict[str, tuple[Model, Work]]:
        """What clients train where it is not the pool's model, by name; a round's info then says under `trained` on how many examples."""
        return {}

    def expects(self, fed: Federation, pool: Pool) -> Info:
        """The costs in the info of an average round, where they are not those of a cohort that trains the pool's model."""
        return {}

    def begin(self, fed: Federation, pool: Pool, params: Params) -> Tree:
        """The state that is kept before the first round."""
        return ()

    def talk(self, fed: Federation, pool: Pool, state: PoolState, t: int, key: Key) -> Generator[Sequence[Ask], Sequence[Answer], Told]:
        """A conversation: each `yield` is one exchange with clients, of all its asks at once. It ends with the round; state that lasts is
        kept."""
        ...

    def settle(self, fed: Federation, pool: Pool, before: PoolState, after: PoolState, grad: Tree, t: int) -> PoolState:
        """The pool after the server's step with `grad`, which may have been merged with a distillation's."""
        return after


class Method(Protocol):
    """One paper. Rounds are t = 1..R; everything random comes from `key` by name.

    A method declares what the rest of the package must know about it, so that no code outside `methods/` refers to one by name.
    """

    kind: ClassVar[str]
    label: ClassVar[str]  # as tables and plots name it
    consumes: ClassVar[tuple[Consumed, ...]]  # what `fedcodist list methods` says that it needs, whatever the pools' rules need
    secure: ClassVar[bool]  # whether it fits secure aggregation
    asks: ClassVar[bool] = False  # whether it asks the clients itself, so that pools can have no rule of their own
    singly: ClassVar[bool] = False  # whether it needs clients' replies one by one, which secure aggregation would hide
    personal: ClassVar[bool] = False  # whether models live at the clients, and are measured on each client's own data
    begins_plain: ClassVar[bool] = False  # whether rounds before the first lesson are the baseline's, so that tuning may share them
    leaps: ClassVar[bool] = False  # whether lessons are rare and change a model at once, so that evaluation looks around them

    distill: Any = None  # the Distiller, if it distils on public data

    def init(self, fed: Federation, key: Key) -> State:
        return fed.init(key)

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]: ...

    def models(self, fed: Federation, state: State) -> dict[str, Voice]:
        """The models that are evaluated, by name: each pool's server model, and further ones of the method."""
        return fed.models(state)

    def clients(self, fed: Federation, state: State) -> dict[str, Voice]:
        """The models that live at the clients, by pool, with {client: parameters}; in other pools each client has the pool's."""
        return {}

    def unfit(self, fed: Federation) -> list[Problem]:
        """What in a federation does not fit this method."""
        return []

    def expects(self, fed: Federation, pool: Pool) -> Info:
        """What the info of an average round will say of costs, where it is not a cohort that trains the pool's model."""
        return {}

    def students(self, pools: Sequence[str], t: int) -> list[str]:
        """The pools among these that are taught in round t; the federation's topology defines their teachers."""
        return []

    def speakers(self, fed: Federation, students: Sequence[str], info: Mapping[str, Info]) -> dict[str, int]:
        """{pool: the number of models of its architecture that taught these students}, in a round with this `info`."""
        return dict.fromkeys((teacher for student in students for teacher in fed.teachers(student)), 1)

    def lessons(self, fed: Federation, student: str) -> int:
        """How many distillations a student has in a round in which it is taught."""
        return 1

    def over(self, rounds: int) -> Self:
        """The method for a run of so many rounds: schedules that span the run receive its length."""
        return self

    def problems(self, pools: Sequence[str]) -> list[Problem]:
        """The problems of the method with these pools."""
        return []

    def searched(self) -> dict[str, tuple[float, float]]:
        """{key of a config: the range that tuning searches by default}, of the method's own fields."""
        return {}

    def warnings(self, pools: Sequence[str], rounds: int) -> list[str]:
        """Warnings about settings that are allowed but probably a mistake."""
        return []
