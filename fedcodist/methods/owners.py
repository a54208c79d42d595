"""What methods with models at the clients have in common: no server model takes part, and what a client keeps is state of the run.

Every client begins with its pool's initial model. A client that is not asked keeps what it has; so does one whose reply was lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax

from fedcodist import clients, keys, tree
from fedcodist.fold import Mean
from fedcodist.rule import skipped, summary
from fedcodist.settings import Problem, checked, setting
from fedcodist.types import (
    Answer,
    Ask,
    Info,
    Key,
    Method,
    Params,
    PoolState,
    State,
    Tree,
    Voice,
    Work,
)

if TYPE_CHECKING:
    from fedcodist.federation import Federation
    from fedcodist.pool import Pool


@dataclass(frozen=True)
@checked
class Owners(Method):
    """A method whose models live at the clients. `most_bytes` limits what all of them keep, which every checkpoint holds."""

    asks: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    most_bytes: float = setting(2e9, gt=0, le=1e15)  # limit on the bytes of all that clients keep, which every checkpoint holds

    def begins(self, fed: Federation, pool: Pool, params: Params) -> Tree:
        """What a client keeps before it is asked for the first time."""
        return params

    def model_of(self, own: Tree) -> Params:
        """The model in what a client keeps."""
        return own

    def init(self, fed: Federation, key: Key) -> State:
        state = fed.init(key)
        own = {i: self.begins(fed, fed.pools[i], state[i].params) for i in state}
        return {i: PoolState(s.params, (), {"clients": dict.fromkeys(fed.pools[i].ids, own[i])}) for i, s in state.items()}

    def models(self, fed: Federation, state: State) -> dict[str, Voice]:
        return {}

    def clients(self, fed: Federation, state: State) -> dict[str, Voice]:
        own = {i: state[i].kept["clients"] for i in fed.names}
        return {i: Voice(fed.pools[i].model, {client: self.model_of(kept) for client, kept in own[i].items()}) for i in own}

    def unfit(self, fed: Federation) -> list[Problem]:
        found = []
        for name, pool in fed.pools.items():
            if pool.fold != Mean():
                found.append(Problem(f"pools.{name}.fold", type(pool.fold).__name__, f"mean: {self.kind} folds no models"))
            if clients.grows(pool.clients):
                found.append(Problem(f"pools.{name}.clients", "some that may join later", "a fixed population: its models are kept"))
                continue
            own = jax.eval_shape(lambda pool=pool: self.begins(fed, pool, pool.model.init(keys.root(0))))
            if (needs := len(pool.clients) * tree.nbytes(own)) > self.most_bytes:
                got = f"{needs:.3g} bytes for the models of {len(pool.clients)} clients"
                found.append(Problem(f"pools.{name}.clients", got, f"at most {self.most_bytes:.3g} (method.most_bytes)"))
        return found

    def ask(self, fed: Federation, state: State, i: str, t: int, key: Key, sent: Tree, work: Work) -> Ask:
        """A question to the cohort of a pool, each with what it keeps."""
        return fed.ask(fed.pools[i], sent, t, key, work=work, own=state[i].kept["clients"])

    def gather(self, fed: Federation, state: State, asks: Mapping[str, Ask], t: int) -> tuple[State, dict[str, Answer], Info]:
        """The answers of the pools that kept their quorum, the state with what their clients keep now, and what happened."""
        order = [i for i in reversed(fed.names) if i in asks]  # the largest models first: cores finish together
        heard = {i: a for i, a in zip(order, fed.gather([asks[i] for i in order]), strict=True) if a is not None}
        info: Info = {i: skipped() for i in order if i not in heard}
        info |= {i: summary(a, fed.pools[i], t) | {"client_bytes": a.bytes_down + a.bytes_up} for i, a in heard.items()}
        after = {i: s._replace(kept={**s.kept, "clients": s.kept["clients"] | heard[i].own}) if i in heard else s for i, s in state.items()}
        return after, heard, info


def scarce(fed: Federation, rows: int) -> list[Problem]:
    """Fewer public rows than a round is to be about."""
    return [Problem("method.rows", str(rows), f"at most the {there} public examples")] if rows > (there := len(fed.task.public.x)) else []
