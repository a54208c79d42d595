"""FedDF (Lin et al. 2020): the clients' single models are an ensemble that teaches every pool's averaged model.

After each round's averaging, every server model is distilled on public data from the mean of the logits of all client models of the round,
whatever their architecture. With labelled data on the server (`validate`, `drop_worst`) the paper also chooses among students while they
learn, and among the clients' models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedcodist import keys, tree
from fedcodist.distill import Distiller, Watch
from fedcodist.federation import Federation, params_of
from fedcodist.methods.ensembles import ensemble, weighted
from fedcodist.methods.validation import Best, Validation, accuracies, good, refold
from fedcodist.rule import skipped, summary
from fedcodist.settings import setting
from fedcodist.types import Answer, Consumed, Info, Key, Method, Params, State, Voice

ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class FedDF(Method):
    """Ensemble distillation of the clients' models into each pool's mean. Its own server optimizer is `average`. `validate` and
    `drop_worst` consume labels."""

    kind: ClassVar[str] = "feddf"
    label: ClassVar[str] = "FedDF"
    consumes: ClassVar[tuple[Consumed, ...]] = ("public data", "single models")
    secure: ClassVar[bool] = False
    asks: ClassVar[bool] = True
    singly: ClassVar[bool] = True
    distill: Distiller | None = Distiller(steps=32)  # the distillation of every round; `None` (in Python only) is FedAvg
    validate: Validation | None = setting(None, silent=True)  # keep the student that is best on labelled held-out data; off
    drop_worst: bool = setting(False, silent=True)  # leave out clients' models that are bad on labelled held-out data

    def round(self, fed: Federation, state: State, t: int, key: Key) -> tuple[State, Info]:
        sent = params_of(state)
        asked = tuple(reversed(fed.names))
        answers = fed.gather([fed.ask(fed.pools[i], sent[i], t, key, each=True) for i in asked])
        heard = {i: answer for i, answer in zip(asked, answers, strict=True) if answer is not None}
        info: Info = {i: skipped() for i in asked if i not in heard}
        info |= {i: summary(answer, fed.pools[i], t) for i, answer in heard.items()}
        members = {i: _members(sent[i], heard[i]) for i in fed.names if i in heard}
        grad, shares = {i: heard[i].value for i in members}, None
        if self.drop_worst:
            kept = {i: self._kept(fed, i, heard[i], members[i]) for i in members}
            for i, of in kept.items():
                grad[i] = refold(fed.pools[i].fold, heard[i].each, of, keys.derive(key, "kept", t, fed.names.index(i))).value
                info[i]["left_out"] = int((~of).sum())
            shares = tuple((of / sum(map(np.sum, kept.values()))).astype(np.float32) for of in kept.values())
        for i, norm in fed.norms(grad).items():
            info[i]["grad_norm"] = norm
        state = fed.step(state, grad, t)
        if self.distill is None:
            return state, info
        models, stacked = tuple(fed.pools[i].model for i in members), tuple(members.values())
        voice = Voice(ensemble(models), stacked) if shares is None else Voice(weighted(models), (stacked, shares))
        theta, hears = params_of(state), {i: {ENSEMBLE: (1.0, 1.0)} for i in grad}
        watch, best = None, Best(fed, self.validate) if self.validate else None
        if best:
            watch = Watch(best.how.every, best.see)
            best.see(0, {i: theta[i] for i in grad})
        student, taught = fed.codistill(self.distill, theta, t, key, nth=t - 1, hears=hears, voices={ENSEMBLE: voice}, watch=watch)
        for i in taught:
            info[i] |= taught[i]  # whether or not a guard refused it
        for i in student:
            info[i]["codistilled"] = True
            if best:
                student[i] = best.found[i][2]
                info[i] |= best.info(i)
            info[i]["dist_norm"] = float(tree.norm(tree.sub(theta[i], student[i])))
        return {i: s._replace(params=student.get(i, s.params)) for i, s in state.items()}, info

    def _kept(self, fed: Federation, pool: str, answer: Answer, members: Params) -> np.ndarray:
        assert answer.each is not None
        model, members = fed.pools[pool].model, jax.device_get(members)
        voices = {c: Voice(model, jax.tree.map(lambda leaf, k=k: leaf[k], members)) for k, c in enumerate(answer.each.clients)}
        return good(np.array(list(accuracies(fed, voices).values())), fed.task.classes)

    def students(self, pools: Sequence[str], t: int) -> list[str]:
        return list(pools) if self.distill else []

    def speakers(self, fed: Federation, students: Sequence[str], info: Mapping[str, Info]) -> dict[str, int]:
        return {i: info[i]["clients"] for i in info}


def _members(sent: Params, answer: Answer) -> Params:
    """Each client's model, stacked: [clients, ...]."""
    assert answer.each is not None
    return jax.tree.map(jnp.subtract, sent, answer.each.values)
