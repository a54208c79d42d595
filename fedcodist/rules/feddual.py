"""FedDual (Chen, Wang, Wang and Lin 2022): no server; clients are nodes that gossip in pairs, with noise on what they learned.

Every node has a model of its own. In a round the nodes of the cohort wake up, train, clip and noise their update (local differential
privacy), and meet in random pairs, which take the mean of their models. Noise is cut by meeting only on the coordinates that both peers
changed most; the sets are compared in the clear, and no privacy is claimed. With complete mixing and no noise it is FedAvg to the bit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from fedcodist import clients, keys, tree
from fedcodist.rule import summary
from fedcodist.rules.gossip import matched, meet, middle, spread
from fedcodist.rules.nodes import NodeSGD
from fedcodist.settings import Problem, SettingError, check, setting
from fedcodist.types import Answer, Ask, Consumed, Info, Key, PoolState, Rule, Told, Tree
from fedcodist.work import LocalSGD

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@dataclass(frozen=True)
class FedDual(Rule):
    """Nodes gossip in pairs, without a server. The pool's model is the mean of all nodes, for evaluation alone."""

    kind: ClassVar[str] = "feddual"
    consumes: ClassVar[tuple[Consumed, ...]] = ("client state", "single models")
    secure: ClassVar[bool] = False
    teachable: ClassVar[bool] = False  # there is no model between rounds that could be changed
    mixing: Literal["pairs", "complete"] = "pairs"  # pairs that take their mean, or the mean of all nodes, as a server would have it
    ticks: int = setting(1, ge=1, le=1000)  # random matchings in a round
    clip: float = setting(0.0, ge=0, le=1e6)  # largest norm of a node's update; 0: any
    noise: float = setting(0.0, ge=0, le=1e3)  # standard deviation of the noise on each number of an update, in multiples of `clip`
    top: float = setting(1.0, gt=0, le=1)  # the share of coordinates, those changed most, that a node lets others meet it on
    most_bytes: float = setting(2e9, gt=0, le=1e15)  # limit on the bytes of all nodes' models, which every checkpoint holds

    def __post_init__(self) -> None:
        check(self)
        if self.noise > 0 and not self.clip > 0:
            raise SettingError([Problem("FedDual.noise", f"{self.noise:g} without clip", "0, or a clip that the noise is a multiple of")])

    def problems(self, pool: Pool) -> list[Problem]:
        found, where = [], f"pools.{pool.name}"
        if type(pool.work) is not LocalSGD:
            found.append(Problem(f"{where}.work", getattr(pool.work, "kind", "another"), "local_sgd, from each node's own model"))
        if pool.fold.each or clients.grows(pool.clients):
            found.append(Problem(f"{where}.rule", "feddual", "a fold of sums and a fixed population of nodes"))
        if (needs := len(pool.clients) * tree.nbytes(pool.shapes)) > self.most_bytes:
            state = f"feddual, which keeps {needs:.3g} bytes for {len(pool.clients)} nodes"
            found.append(Problem(f"{where}.rule", state, f"at most {self.most_bytes:.3g} (most_bytes)"))
        return found

    def begin(self, fed: Federation, pool: Pool, params: Tree) -> Tree:
        return dict.fromkeys(pool.ids, params)

    def talk(self, fed: Federation, pool: Pool, state: PoolState, t: int, key: Key) -> Generator[Sequence[Ask], Sequence[Answer], Told]:
        assert isinstance(pool.work, LocalSGD)
        (answer,) = yield [fed.ask(pool, (), t, key, work=NodeSGD(pool.work, self.clip or None, self.noise), own=state.kept)]
        info = summary(answer, pool, t)
        if self.mixing == "complete":
            return Told(answer.value, state.kept, info)
        pairs = [matched(keys.derive(key, "pairs", t, fed.names.index(pool.name), tick), sorted(answer.own)) for tick in range(self.ticks)]
        awake, numbers = meet(state.kept, answer.own, pairs, self.top)
        nodes = state.kept | awake
        mean = middle(nodes)
        info |= {"client_bytes": 4 * 4 * numbers, "spread": spread(nodes, mean)}  # both of a pair send and are sent
        return Told(tree.sub(state.params, mean), nodes, info)

    def settle(self, fed: Federation, pool: Pool, before: PoolState, after: PoolState, grad: Tree, t: int) -> PoolState:
        if self.mixing == "complete":
            return after._replace(kept=dict.fromkeys(before.kept, after.params))
        return after._replace(params=middle(before.kept))  # whatever the pool's server optimizer made of it

    def expects(self, fed: Federation, pool: Pool) -> Info:
        share = 1 if self.top == 1 else 2 * self.top  # at most: the places of a top set, and all of its numbers
        pairs = 0 if self.mixing == "complete" else self.ticks * (pool.cohort // 2)
        return {"client_bytes": 4 * share * tree.nbytes(pool.shapes) * pairs} if pairs else {}
