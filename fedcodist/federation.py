"""A federation: a task, its pools, who teaches whom, and where the clients are. It has four verbs, the paper's own:

`gradients` (every pool talks with its clients), `codistill` (all teachers and students from one theta), `step` (the server optimizer) and
`restart` (its momentum is stale). Methods are written with these; one that asks the clients itself has `ask` and `gather` as well.

Pools are numbered in a canonical order, by parameter count, then clients, then declaration. All randomness and every sum over pools uses
that number, so neither the names of the pools nor their order in a file changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from fedcodist import clients, distill, imports, keys, losses, topology, tree
from fedcodist.distill import Distiller
from fedcodist.pool import Pool, server_step
from fedcodist.profile import ready, timed, timed_wait
from fedcodist.rule import Diverged, skipped
from fedcodist.settings import Problem, SettingError
from fedcodist.task import Task
from fedcodist.types import Answer, Ask, Engine, Info, Key, Params, PoolState, State, Tree, Voice, Work

ENGINE = "fedcodist.engines.compiled:Compiled"  # the default, by name, because the core imports no engine
Hears = Mapping[str, Mapping[str, tuple[float, float]]]  # {student: {teacher: (weight, temperature)}}


@dataclass(frozen=True, eq=False)
class Federation:
    """Task, pools (a list of them, or {name: pool}), topology (a preset's name or {student: {teacher: weight}}) and engine."""

    task: Task
    pools: Any  # {name: Pool}, also from a list of them
    topology: str | Mapping[str, Mapping[str, float]] = "complete"
    engine: Engine = field(default_factory=lambda: imports.function(ENGINE)())
    rounds: int | None = None  # R, which the students' learning rates decay over; an Experiment sets it
    voices: Mapping[str, Voice] = field(default_factory=dict)  # teachers in a pool's place, by the pool's name

    def __post_init__(self) -> None:
        found = [] if self.pools else [Problem("pools", "none", "at least one pool")]
        if not isinstance(listed := self.pools, Mapping):
            names = [pool.name for pool in listed]
            found += [Problem("pools", f"two named {name}", "each name once") for name in sorted({n for n in names if names.count(n) > 1})]
            object.__setattr__(self, "pools", {pool.name: pool for pool in listed})
        for name, pool in self.pools.items():
            if pool.name != name:
                found.append(Problem(f"pools.{name}", f"a pool named {pool.name}", "each pool under its own name"))
            if not 1 <= pool.cohort <= len(pool.clients) and not clients.grows(pool.clients):
                found.append(Problem(f"pools.{name}.cohort", str(pool.cohort), f"1 to its {len(pool.clients)} clients"))
            found += pool.rule.problems(pool)
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
            return tree.size(pool.shapes), () if clients.grows(pool.clients) else pool.ids  # its number must not change when clients join

        return tuple(sorted(self.pools, key=place))

    @cached_property
    def table(self) -> topology.Table:
        """Who teaches whom, as weights that sum to 1 for each student."""
        given = self.topology
        return topology.TOPOLOGIES[given](self.names) if isinstance(given, str) else topology.weigh(given, self.names)

    def init(self, key: Key) -> State:
        """The state before round 1: given parameters, or drawn ones."""

        def begin(rank: int) -> PoolState:
            pool = self.pools[self.names[rank]]
            params = pool.start if pool.start is not None else jax.jit(pool.model.init)(keys.derive(key, "init", rank))
            params = jax.tree.map(jax.numpy.asarray, params)
            return pool.fresh(params, pool.rule.begin(self, pool, params))

        return dict(zip(self.names, self.engine.host.map(begin, range(len(self.names))), strict=True))

    def models(self, state: State) -> dict[str, Voice]:
        """Every pool's server model, and those that its rule has beside it."""
        pools = ((self.pools[name], state[name]) for name in self.names)
        return {name: voice for pool, of in pools for name, voice in pool.rule.models(self, pool, of).items()}

    def gradients(self, state: State, t: int, key: Key) -> tuple[State, dict[str, Tree], Info]:
        """Every pool talks with its clients, all pools in lockstep and with one `gather` for each exchange. Returns the states with what
        the rules keep, each pool's gradient, and info. A pool that loses its quorum has no gradient in this round."""
        state, grads, info = dict(state), {}, {}
        talks = {name: self.pools[name].rule.talk(self, self.pools[name], state[name], t, key) for name in self.names}
        asks = {name: next(talk) for name, talk in talks.items()}
        while asks:
            order = [name for name in reversed(self.names) if name in asks]  # the largest models first: cores finish together
            answers = iter(self.gather([ask for name in order for ask in asks[name]]))
            for name in order:
                said = [next(answers) for _ in asks.pop(name)]
                heard = [answer for answer in said if answer is not None]
                if len(heard) < len(said):
                    talks[name].close()
                    info[name] = skipped()
                    continue
                try:
                    asks[name] = talks[name].send(heard)
                except StopIteration as end:
                    grads[name], kept, info[name] = end.value
                    state[name] = state[name]._replace(kept=kept)
        return state, {name: grads[name] for name in self.names if name in grads}, info

    def ask(
        self,
        pool: Pool,
        sent: Tree,
        t: int,
        key: Key,
        *purpose: str | int,
        work: Work | None = None,
        own: Mapping[str, Tree] | None = None,
        each: bool = False,
    ) -> Ask:
        """A question to the pool's cohort of round t: to do the pool's work, or another one, with what it is sent. `purpose` tells several
        questions of one round apart; their cohort is the same."""
        rank = self.names.index(pool.name)
        with timed("sample"):
            cohort, spare = pool.sample(keys.derive(key, "cohort", t, rank))
        own = None if own is None else {client: own[client] for client in (*cohort, *spare)}
        draw = keys.derive(key, "client", t, rank, *purpose)
        work = work or pool.work
        return Ask(pool.name, cohort, pool.model, self.task.objective, work, pool.fold, sent, draw, t, own, each, spare)

    def gather(self, asks: Sequence[Ask]) -> list[Answer | None]:
        """The answers, wherever the clients are."""
        return self.engine.gather({name: pool.clients for name, pool in self.pools.items()}, asks)

    def codistill(
        self,
        how: Distiller,
        theta: Mapping[str, Params],
        t: int,
        key: Key,
        nth: int,
        students: Iterable[str] | None = None,
        hears: Hears | None = None,
        voices: Mapping[str, Voice] | None = None,
        watch: distill.Watch | None = None,
    ) -> tuple[dict[str, Params], Info]:
        """Students from theta, taught by theta: {student: parameters after `steps` steps}. A pool without a teacher is no student
        (DEVIATION D3).

        `nth` counts the distillations before this one, and with it the place in the stream of public data. `voices` are further teachers
        that are no pool's model; `hears` says who hears whom instead of the topology; `watch` looks on, and may stop students.
        """
        wanted = self.names if students is None else students
        hears = {i: self.teachers(i) for i in self.names if self.table[i]} if hears is None else hears
        taught = {i: hears[i] for i in self.names if i in wanted and hears.get(i)}
        if not taught:
            return {}, {}
        known = {j: Voice(self.pools[j].model, theta[j]) for j in self.names} | dict(self.voices) | dict(voices or {})
        speakers = {j: voice for j, voice in known.items() if any(j in teachers for teachers in taught.values())}
        model, params = next(iter(speakers.values()))
        looks = watch.every if watch else how.steps
        pieces = distill.pieces(how, self.task.objective, model, params, self.task.public.x, len(speakers), looks)
        seen: dict[str, list] = {i: [] for i in taught}
        learning, every = dict(taught), how.steps // pieces
        with timed("distil: public data"):
            order = np.split(how.rows(key, nth, len(self.task.public.x)), pieces)
        salt = keys.derive(key, "distill", t)
        state = {
            i: self._begin(how, {j: (known[j], *taught[i][j]) for j in taught[i]}, Voice(self.pools[i].model, theta[i]), salt, i)
            for i in taught
        }
        speak = partial(self._speak, how, speakers, order, salt)
        ahead = self.engine.host.start(partial(speak, 0))
        for piece in range(pieces):
            with timed_wait("distil: teachers"):
                heard = ahead.result()
            if piece + 1 < pieces:  # the teachers never learn, so they can be a piece ahead of the students
                ahead = self.engine.host.start(partial(speak, piece + 1))
            with timed_wait("distil: students"):
                lesson = partial(self._learn, how, t, salt, state, heard, learning)
                for i, after, *values in self.engine.host.map(lesson, reversed(learning)):  # the largest model takes longest
                    state[i] = after
                    seen[i].append([np.asarray(v) for v in values])
            if watch and ((piece + 1) * every % watch.every == 0 or piece + 1 == pieces):
                stopped = watch.see((piece + 1) * every, {i: state[i][0][0] for i in learning})
                learning = {i: teachers for i, teachers in learning.items() if i not in stopped}
                if not learning:
                    break
        info = {i: _heard(how, i, taught[i], *(np.concatenate(v) for v in zip(*seen[i], strict=True))) for i in taught}
        for i in taught:
            if not np.isfinite(info[i]["distill_loss"]).all():
                raise Diverged("the distillation loss", i, t)
        return {i: state[i][0][0] for i in taught}, info

    def start(self, verb: Callable[..., Any], *args: Any, **more: Any) -> Callable[[], Any]:
        """Begin a verb in parallel with the next one, of which it is independent; call what is returned for its result."""
        begun = self.engine.host.start(partial(verb, *args, **more))

        def result() -> Any:
            try:
                with timed_wait("distil"):
                    return begun.result()
            except BaseException:  # perhaps an interrupt: then nobody will wait for it again
                begun.cancel()
                raise

        return result

    def step(self, state: State, grads: Mapping[str, Tree], t: int) -> State:
        """One step of the server optimizer of every pool that has a gradient, with the learning rate of round t."""

        def one(name: str) -> PoolState:
            pool, before = self.pools[name], state[name]
            with timed("server step"):
                params, opt, finite = ready(server_step(pool.server, before.params, before.opt, grads[name], pool.lr(t)))
            if not finite:
                raise Diverged("the server model", name, t)
            return pool.rule.settle(self, pool, before, PoolState(params, opt, before.kept), grads[name], t)

        with timed_wait("server step"):
            return {**state, **dict(zip(grads, self.engine.host.map(one, grads), strict=True))}

    def norms(self, trees: Mapping[str, Tree]) -> dict[str, float]:
        """Each tree's L2 norm."""
        return dict(zip(trees, map(float, self.engine.host.map(tree.norm, trees.values())), strict=True))

    def restart(self, state: State, students: Mapping[str, Params]) -> State:
        """Students take the place of the models; their server momentum starts again, the learning rate goes on (A29)."""
        after = dict(state)
        for name in students:
            after[name] = self.pools[name].fresh(students[name], state[name].kept)
        return after

    def teachers(self, student: str) -> dict[str, tuple[float, float]]:
        """{teacher: (weight, temperature)} in canonical order; the student itself has weight gamma and temperature 1. One without
        other teachers (topology "self") hears itself at its own temperature as a teacher: at 1 there would be nothing to learn."""
        others = {j: w for j, w in self.table[student].items() if j != student}
        if not others:
            return {student: (1.0, self.pools[student].teaches.temperature)}
        gamma = self.pools[student].learns.self_weight
        taught = {j: ((1 - gamma) * w, self.pools[j].teaches.temperature) for j, w in others.items()} | {student: (gamma, 1.0)}
        return {j: taught[j] for j in self.names if j in taught and taught[j][0] > 0}

    def _begin(self, how: Distiller, teachers: Mapping[str, tuple[Voice, float, float]], student: Voice, salt: Key, name: str) -> Any:
        """A student as it enters a lesson."""
        heard = tuple(None if j == name else voice for j, (voice, *_) in teachers.items())
        shares, temperatures = (np.array([of[k] for of in teachers.values()], np.float32) for k in (1, 2))
        key = keys.derive(salt, "technique", self.names.index(name))
        return distill.begin(how, losses.Lesson(student, heard, shares, temperatures, self.task.objective, self.task.public.x, key))

    def _speak(
        self, how: Distiller, speakers: dict[str, Voice], order: Sequence[np.ndarray], salt: Key, piece: int
    ) -> distill.TeacherBatch:
        """The logits of all teachers on a piece of the public data."""
        public, rows = self.task.public, order[piece]
        first = sum(map(len, order[:piece]))
        with timed("distil: public data"):
            inputs = ready(distill.inputs(self.task.objective, public.x[rows], salt if how.augment else None, first))
        labels = public.y[rows] if how.labels > 0 and public.y is not None else None
        asked = losses.technique(how.loss)

        def say(teacher: str) -> Any:
            model, params = speakers[teacher]
            with timed("distil: teachers"):
                if layers := asked.layers(model, params, inputs[0]):
                    return jax.block_until_ready(distill.teacher_features(model, layers, params, inputs))
                return jax.block_until_ready(distill.teacher_logits(model, params, inputs)), {}

        said = dict(zip(reversed(speakers), self.engine.host.map(say, reversed(speakers)), strict=True))
        logits, features = ({j: of[k] for j, of in said.items()} for k in (0, 1))
        return distill.TeacherBatch(first, inputs, labels, logits, features, rows if asked.rows else None)

    def _learn(
        self,
        how: Distiller,
        t: int,
        salt: Key,
        state: Any,
        heard: distill.TeacherBatch,
        taught: Mapping[str, Mapping[str, Any]],
        student: str,
    ) -> tuple:
        if self.rounds is None:
            raise ValueError("Federation.rounds: got nothing; allowed the rounds of the run (an Experiment sets them)")
        pool, teachers = self.pools[student], taught[student]
        lr = pool.learns.lr * (1 - (1 - pool.learns.decay) * (t - 1) / self.rounds)  # A14
        weights, temperatures = (np.array(column, np.float32) for column in zip(*teachers.values(), strict=True))
        said = tuple(heard.logits[j] for j in teachers)
        key = keys.derive(salt, "student", self.names.index(student))
        steps = heard.first + np.arange(len(heard.inputs), dtype=np.int32)
        seen = tuple(heard.features[j] for j in teachers)
        given = (state[student], steps, heard.inputs, heard.labels, heard.rows, said, seen, weights, temperatures, lr, key)
        with timed("distil: students"):
            return student, *jax.block_until_ready(distill.learn(pool.model, self.task.objective, how, *given))


def _heard(how: Distiller, student: str, teachers: Iterable[str], values: np.ndarray, agreed: np.ndarray) -> Info:
    """The loss of the first and the last steps, and how often the student's prediction agreed with each teacher's, before and after;
    `agreed` if teachers and student gave the same distributions from the start. Of one that was stopped only the losses are known."""
    few = distill.edge_steps(len(values))
    alike: Info = {"agreed": True} if values[0] < distill.ROUNDING else {}
    if len(values) < how.steps:
        teachers, alike = (), alike | {"steps": len(values)}
    return alike | {
        "distill_loss": [float(values[:few].mean()), float(values[-few:].mean())],
        "agreement": {j: [float(agreed[:few, k].mean()), float(agreed[-few:, k].mean())] for k, j in enumerate(teachers) if j != student},
    }


def params_of(state: Mapping[str, PoolState]) -> dict[str, Params]:
    """The models of a state."""
    return {name: pool.params for name, pool in state.items()}
