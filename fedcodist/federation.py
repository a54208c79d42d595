"""A federation: a task, its pools, who teaches whom, and where the clients are. It has four verbs, the paper's own:

`gradients` (sample clients, let them work, fold their replies), `codistill` (all teachers and students from one theta), `step` (the
server optimizer) and `restart` (its momentum is stale). Methods are written with these and nothing else.

Pools are numbered in a canonical order, by parameter count, then clients, then declaration. All randomness and every sum over pools uses
that number, so neither the names of the pools nor their order in a file changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from fedcodist import distill, keys, topology, tree
from fedcodist.distill import Distiller
from fedcodist.engines import Ask, Engine
from fedcodist.engines.compiled import Compiled
from fedcodist.pool import Pool, server_step
from fedcodist.profile import ready, spent, waited
from fedcodist.settings import Problem, SettingError
from fedcodist.task import Task
from fedcodist.types import Info, Key, Params, PoolState, State, Tree


class Diverged(ArithmeticError):
    """A number that must be finite is not."""

    def __init__(self, what: str, pool: str, t: int):
        self.pool, self.round = pool, t
        super().__init__(f"{what} of pool {pool} is not finite in round {t}")


@dataclass(frozen=True, eq=False)
class Federation:
    """Task, pools, topology (a preset's name or {student: {teacher: weight}}) and engine."""

    task: Task
    pools: Mapping[str, Pool]
    topology: str | Mapping[str, Mapping[str, float]] = "complete"
    engine: Engine = Compiled()
    rounds: int = 1  # R, which the students' learning rates decay over

    def __post_init__(self) -> None:
        found = [] if self.pools else [Problem("pools", "none", "at least one pool")]
        for name, pool in self.pools.items():
            if pool.name != name:
                found.append(Problem(f"pools.{name}", f"a pool named {pool.name}", "each pool under its own name"))
            if not 1 <= pool.cohort <= len(pool.clients):
                found.append(Problem(f"pools.{name}.cohort", str(pool.cohort), f"1 to its {len(pool.clients)} clients"))
        if isinstance(self.topology, str) and self.topology not in topology.TOPOLOGIES:
            found.append(Problem("topology", repr(self.topology), " | ".join(topology.TOPOLOGIES)))
        elif not isinstance(self.topology, str):
            found += topology.problems(self.topology, list(self.pools))
        if found:
            raise SettingError(found)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The pools in their canonical order."""

        def place(name: str) -> tuple[int, tuple[str, ...]]:
            pool = self.pools[name]
            shapes = jax.eval_shape(pool.model.init, keys.root(0)) if pool.start is None else pool.start
            return tree.size(shapes), pool.ids

        return tuple(sorted(self.pools, key=place))

    @cached_property
    def table(self) -> topology.Table:
        """Who teaches whom, as weights that sum to 1 for each student."""
        if isinstance(self.topology, str):
            return topology.TOPOLOGIES[self.topology](self.names)
        return topology.weigh(self.topology, self.names)

    def init(self, key: Key) -> State:
        """Every pool at its beginning: given parameters, or drawn ones."""
        state = {}
        for rank, name in enumerate(self.names):
            pool = self.pools[name]
            params = pool.start if pool.start is not None else jax.jit(pool.model.init)(keys.derive(key, "init", rank))
            state[name] = pool.fresh(jax.tree.map(jax.numpy.asarray, params))
        return state

    def gradients(self, theta: Mapping[str, Params], t: int, key: Key) -> tuple[dict[str, Tree], Info]:
        """Each pool's client gradient, sum n_k (theta - theta_k) / sum n_k, and what was seen on the way."""
        asks = []
        for rank, name in enumerate(self.names):
            with spent("sample"):
                cohort = self.pools[name].sample(keys.derive(key, "cohort", t, rank))
            asks.append(Ask(self.pools[name], theta[name], cohort, keys.derive(key, "client", t, rank)))
        grads, info = {}, {}
        asks.reverse()  # the largest models first: cores then end together
        for (pool, *_), folded in zip(asks, self.engine.gather(self.task, asks), strict=True):
            name = pool.name
            if int(folded.used) == 0:
                raise Diverged("every client's gradient", name, t)
            grads[name] = folded.value
            info[name] = {"clients": int(folded.used), "examples": int(folded.weight), "train_loss": float(folded.info["loss"])}
            if int(folded.dropped):
                info[name]["dropped"] = int(folded.dropped)
        return grads, info

    def codistill(
        self, how: Distiller, theta: Mapping[str, Params], t: int, key: Key, nth: int, students: Iterable[str] | None = None
    ) -> tuple[dict[str, Params], Info]:
        """Students from theta, taught by theta: {student: parameters after `steps` steps}. A pool without a teacher is no student
        (DEVIATION D3).

        `nth` counts the distillations before this one, and with it the place in the stream of public data.
        """
        wanted = self.names if students is None else students
        taught = {i: self.teachers(i) for i in self.names if i in wanted and self.table[i]}
        if not taught:
            return {}, {}
        speakers = [j for j in self.names if any(j in teachers for teachers in taught.values())]
        pieces = distill.pieces(
            how, self.task.objective, self.pools[speakers[0]].model, theta[speakers[0]], self.task.public.x, len(speakers)
        )
        state = {i: (theta[i], how.optimizer().init(theta[i])) for i in taught}
        seen: dict[str, list] = {i: [] for i in taught}
        with spent("distil: public data"):
            order = np.split(how.rows(key, nth, len(self.task.public.x)), pieces)
        salt = keys.derive(key, "distill", t)
        speak = partial(self._speak, how, theta, speakers, order, salt)
        ahead = self.engine.beside(partial(speak, 0))
        for piece in range(pieces):
            with waited("distil: teachers"):
                heard = ahead.result()
            if piece + 1 < pieces:  # the teachers never learn, so they can be a piece ahead of the students
                ahead = self.engine.beside(partial(speak, piece + 1))
            with waited("distil: students"):
                lesson = partial(self._learn, how, t, salt, state, heard, taught)
                for i, after, *values in self.engine.map(lesson, reversed(taught)):  # the largest has the longest way
                    state[i] = after
                    seen[i].append([np.asarray(v) for v in values])
        info = {i: _heard(i, taught[i], *(np.concatenate(v) for v in zip(*seen[i], strict=True))) for i in taught}
        for i in taught:
            if not np.isfinite(info[i]["distill_loss"]).all():
                raise Diverged("the distillation loss", i, t)
        return {i: state[i][0] for i in taught}, info

    def beside(self, verb: Callable[..., Any], *args: Any, **more: Any) -> Callable[[], Any]:
        """Begin a verb beside the next one: call what is returned for its result. For verbs that do not need each other's."""
        begun = self.engine.beside(partial(verb, *args, **more))

        def result() -> Any:
            try:
                with waited("distil"):
                    return begun.result()
            except BaseException:  # an interrupt, maybe: then nobody will ask again
                begun.cancel()
                raise

        return result

    def step(self, state: State, grads: Mapping[str, Tree], t: int) -> State:
        """One step of every pool's server optimizer, with the learning rate of round t."""
        after: State = {}
        for name in self.names:
            pool = self.pools[name]
            with spent("server step"):
                after[name], finite = ready(server_step(pool.server, state[name], grads[name], pool.lr(t)))
            if not finite:
                raise Diverged("the server model", name, t)
        return after

    def restart(self, state: State, students: Mapping[str, Params]) -> State:
        """Students take the place of the models; their server momentum starts again, the learning rate goes on (A29)."""
        return {name: self.pools[name].fresh(students[name]) if name in students else state[name] for name in self.names}

    def teachers(self, student: str) -> dict[str, tuple[float, float]]:
        """{teacher: (weight, temperature)} in canonical order; the student itself speaks with weight gamma at temperature 1. One that
        hears nobody else (topology "self") does so at its own temperature as a teacher: at 1 it would have nothing to learn."""
        others = {j: w for j, w in self.table[student].items() if j != student}
        if not others:
            return {student: (1.0, self.pools[student].teaches.temperature)}
        gamma = self.pools[student].learns.self_weight
        taught = {j: ((1 - gamma) * w, self.pools[j].teaches.temperature) for j, w in others.items()} | {student: (gamma, 1.0)}
        return {j: taught[j] for j in self.names if j in taught and taught[j][0] > 0}

    def _speak(
        self, how: Distiller, theta: Mapping[str, Params], speakers: Sequence[str], order: Sequence[np.ndarray], salt: Key, piece: int
    ) -> distill.Heard:
        """What all teachers say of a piece of the public data."""
        public, rows = self.task.public, order[piece]
        first = sum(map(len, order[:piece]))
        with spent("distil: public data"):
            inputs = ready(distill.see(self.task.objective, public.x[rows], salt if how.augment else None, first))
        labels = public.y[rows] if how.labels > 0 and public.y is not None else None

        def say(teacher: str) -> Any:
            with spent("distil: teachers"):
                return jax.block_until_ready(distill.speak(self.pools[teacher].model, theta[teacher], inputs))

        said = self.engine.map(say, reversed(speakers))
        return distill.Heard(first, inputs, labels, dict(zip(reversed(speakers), said, strict=True)))

    def _learn(
        self, how: Distiller, t: int, salt: Key, state: Any, heard: distill.Heard, taught: Mapping[str, Mapping[str, Any]], student: str
    ) -> tuple:
        pool, teachers = self.pools[student], taught[student]
        lr = pool.learns.lr * (1 - (1 - pool.learns.decay) * (t - 1) / self.rounds)  # A14
        weights, temperatures = (np.array(column, np.float32) for column in zip(*teachers.values(), strict=True))
        said = tuple(heard.logits[j] for j in teachers)
        key = keys.derive(salt, "student", self.names.index(student))
        steps = heard.first + np.arange(len(heard.inputs), dtype=np.int32)
        given = (state[student], steps, heard.inputs, heard.labels, said, weights, temperatures, lr, key)
        with spent("distil: students"):
            return student, *jax.block_until_ready(distill.learn(pool.model, self.task.objective, how, *given))


def _heard(student: str, teachers: Iterable[str], losses: np.ndarray, agreed: np.ndarray) -> Info:
    """The loss of the first and the last steps, and with each teacher how often the student guessed alike, before and after."""
    few = distill.few(len(losses))
    return {
        "distill_loss": [float(losses[:few].mean()), float(losses[-few:].mean())],
        "agreement": {j: [float(agreed[:few, k].mean()), float(agreed[-few:, k].mean())] for k, j in enumerate(teachers) if j != student},
    }


def params_of(state: Mapping[str, PoolState]) -> dict[str, Params]:
    """The models of a state."""
    return {name: pool.params for name, pool in state.items()}
