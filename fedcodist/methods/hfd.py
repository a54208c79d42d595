"""HFD, hybrid federated distillation (Ahn et al. 2019): FD whose clients distil on mean inputs as well.

Before round 1 all clients share, once, the mean of their inputs of each label. Client k then has the mean input of each label over the
others, and from FD's tables what the others' models say of that label on average; its loss on a batch is CE(y) plus weight CE(G_k[l], .) on
mean inputs of labels l that are drawn anew for every step. Noiseless: the paper's channels are absent. With weight 0 it is Local.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from fedcodist import tree
from fedcodist.fold import Sum
from fedcodist.methods.covariates import OnMeanInputs, Share
from fedcodist.methods.fd import FD
from fedcodist.methods.tables import Table, empty
from fedcodist.settings import Problem
from fedcodist.types import Consumed, Info, Key, State, Tree, Work

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@dataclass(frozen=True)
class HFD(FD):
    """FD with mean inputs: what the others say of each label is learned on the mean of their inputs of that label."""

    kind: ClassVar[str] = "hfd"
    label: ClassVar[str] = "HFD"
    consumes: ClassVar[tuple[Consumed, ...]] = ("client state",)
    secure: ClassVar[bool] = True

    def init(self, fed: Federation, key: Key) -> State:
        nothing = empty(fed.task.classes, math.prod(fed.task.spec.inputs))
        return {i: s._replace(kept={**s.kept, "inputs": nothing}) for i, s in super().init(fed, key).items()}

    def unfit(self, fed: Federation) -> list[Problem]:
        return [Problem("method.htfl", "true", "false: HtFLlib has no HFD")] if self.htfl else super().unfit(fed)

    def work(self, pool: Pool) -> Work:
        return OnMeanInputs(pool.work, self.weight)

    def sent(self, state: State, total: Table) -> Tree:
        return total, reduce(tree.add, [state[i].kept["inputs"] for i in sorted(state)])

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        shared: dict[str, int] = {}
        if t == 1:  # all clients, once
            nothing = state[fed.names[0]].kept["inputs"]
            asked = {i: fed.ask(fed.pools[i], nothing, t, key, "inputs", work=Share())._replace(fold=Sum()) for i in fed.names}
            asked = {i: ask._replace(clients=fed.pools[i].ids, spare=()) for i, ask in asked.items()}
            _, heard, _ = self.gather(fed, state, asked, t)
            state = {i: s._replace(kept={**s.kept, "inputs": heard[i].value}) if i in heard else s for i, s in state.items()}
            shared = {i: answer.bytes_up + answer.bytes_down for i, answer in heard.items()}
        state, info = super().round(fed, state, t, key)
        for i in info:
            if "client_bytes" in info[i]:
                info[i]["client_bytes"] += shared.get(i, 0)
                info[i]["digested"] = info[i]["examples"]
        return state, info
