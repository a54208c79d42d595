"""One run from its config to its result: resume, train, evaluate, journal, commit. Side effects stay in the run directory.

A generator again: it yields an `Event` after every round, and whoever consumes it draws the screen. Signals are caught between and inside
rounds but never inside a save; the last completed round is then committed, so nothing is lost and nothing is half-written.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from fedcodist import keys, runs, tree
from fedcodist.config import HARMLESS, Config, digest, identity, plain
from fedcodist.data.skew import label_skew
from fedcodist.engines.faults import instead
from fedcodist.engines.private import BudgetSpent, Private
from fedcodist.errors import Failure, Interrupted
from fedcodist.evaluate import ensemble, evaluate
from fedcodist.profile import timed, watch, whole
from fedcodist.rule import Diverged
from fedcodist.runs import checkpoint, clock, cost, personal, programs
from fedcodist.runs.evaluation import is_due
from fedcodist.runs.trained import described
from fedcodist.storage.journal import Lines, decode_lines
from fedcodist.train import Experiment, train
from fedcodist.types import Engine

ACCOUNT = "privacy.jsonl"  # every release, written before it
QUANTILES = "client_quantiles"  # of the clients' accuracies: beside the metrics, which are single numbers
COSTLY, SPARING = 1.0, 10  # a checkpoint of more seconds waits until training has taken so many times as long
AFTER = ("evaluate", "journal", "checkpoint")  # what comes after the seconds of a round


@dataclass(frozen=True)
class Event:
    """What just happened in a run."""

    kind: str  # started, round, finished, skipped
    path: Path
    config: Config
    seed: int
    t: int = 0
    held_out: dict[str, Any] | None = None  # {pool: {domain: metrics}}, in rounds that were evaluated
    codistilled: tuple[str, ...] = ()
    result: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    personal: dict[str, Any] | None = None  # {pool: {"all": metrics}} of each client on its own data, in these rounds


class DivergedRun(Failure):
    """Training met a number that is not finite."""

    code = 7


class Signals:
    """SIGINT, SIGTERM and SIGHUP as Interrupted, at once, except inside `shield`, where they wait for its end."""

    def __init__(self) -> None:
        self._shielded = 0
        self._pending: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(signum) is not signal.SIG_IGN:  # as nohup leaves it: then the run is meant to go on
                    self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *exc: Any) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Nothing interrupts the body; what arrives in it is raised after it."""
        self._shielded += 1
        try:
            yield
        finally:
            self._shielded -= 1
        if self._pending is not None and not self._shielded:
            pending, self._pending = self._pending, None
            raise Interrupted(pending)

    def _handle(self, signum: int, frame: Any) -> None:
        if self._shielded:
            self._pending = signum
            return
        # A second Ctrl-C ends the process at once; checkpoints are safe at any instant.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise Interrupted(signum)


def perform(
    experiment: Experiment,
    root: Path,
    *,
    engine: Engine | None = None,
    strict: bool = False,
    restart: bool = False,
    profile: bool = False,
) -> Generator[Event, None, None]:
    """Train an experiment that was made from a config in its run directory, from wherever it stands. A finished run is skipped. `engine`
    takes the place of the config's, for engines that are no setting, such as a live connection to devices. `restart` sets aside what is
    there, deleting nothing, and begins again; `profile` also notes where the time of each round goes."""
    if engine is not None:
        experiment = replace(experiment, federation=replace(experiment.federation, engine=instead(experiment.federation.engine, engine)))
    config, seed = experiment.config, experiment.seed
    method, fed = experiment.method, experiment.federation
    content = digest(fed.task)
    table = {**plain(config), "data": content}
    cost.check_memory(experiment.federation)
    path = runs.run_path(root, config.name, config.method.kind, seed)
    needs = checkpoint.size_bytes(jax.eval_shape(lambda: method.init(fed, keys.root(seed))))
    with (
        Signals() as signals,
        watch() if profile else nullcontext() as profiler,
        runs.Run.open(path, table, set(HARMLESS), checkpoint_bytes=needs, keep=config.keep, strict=strict) as run,
    ):
        if restart:
            run.restart()
        if run.finished is not None:
            yield Event("skipped", path, config, seed, config.rounds, result=run.finished, notes=tuple(run.notes))
            return
        watched = clock.Watch()
        with watched.part(clock.START):
            start = method.init(fed, keys.root(seed))
            done, state = run.resume(start) or (0, start)
        ahead = {"expected_seconds": round(expected, 1)} if (expected := clock.left(config, done)) is not None else {}
        first = done
        notes = (*run.notes, *_accounted(fed.engine, path))
        yield Event("started", path, config, seed, done, notes=notes)
        committed, held_out, evaluation = done, None, None
        saving, saved = 0.0, clock.now()
        infos = [row["pools"] for row in runs.read(path).rounds] if done else []
        try:
            for step, span in _timed(train(experiment, jax.tree.map(jax.numpy.asarray, state), after=done)):
                watched.add(clock.kind(method.students(fed.names, step.t)), span)
                if evaluation is None:  # compiled while training goes on
                    evaluation = fed.engine.host.start(partial(programs.compile_evaluation, fed, step.models))
                due = is_due(config, step.t) or (any("codistilled" in i for i in step.info.values()) and method.leaps)
                held_out, own, took = None, None, {"seconds": round(span[0], 4)} | ahead
                if due:
                    with timed("evaluate"), watched.part(clock.EVALUATE):
                        evaluation.result()
                        held_out, own = step.evaluate("held_out"), personal.evaluate(experiment, step.state)
                    took["evaluate_seconds"] = watched.last(clock.EVALUATE)
                row = {"round": step.t, "pools": step.info} | ({"held_out": held_out} if held_out else {})
                row |= {personal.HELD_OUT: own} if own else {}
                infos.append(step.info)
                with signals.shield():
                    with timed("journal"):
                        run.record(row)
                    done, state = step.t, step.state
                    if done == config.rounds or (done % config.checkpoint_every == 0 and pays(saving, clock.since(saved)[0])):
                        with timed("checkpoint"), watched.part(clock.CHECKPOINT):
                            run.commit(done, state, final=done == config.rounds)
                        took["checkpoint_seconds"] = saving = watched.last(clock.CHECKPOINT)
                        saved = clock.now()
                        committed = done
                    spans = profiler.take() if profiler else {}
                    told = {"spent": whole(spans, span[0] + sum(spans.get(name, 0.0) for name in AFTER))} if profiler else {}
                    run.time({"round": step.t, **took, **told})
                    ahead = {}  # it stands in the first row of those that go together
                codistilled = tuple(name for name, info in step.info.items() if info.get("codistilled"))
                yield Event("round", path, config, seed, done, held_out, codistilled, personal=own)
        except (Interrupted, GeneratorExit):  # the signal may come while whoever consumes this has the floor
            with signals.shield():
                if done > committed:
                    run.commit(done, state)
            raise
        except BudgetSpent as error:
            if done > committed:
                run.commit(done, state)
            raise BudgetSpent(f"{error}; the models of round {done} are kept ({path})") from None
        except Diverged as error:
            with signals.shield():
                if done > committed:  # its model is good, and so are the numbers of its rounds
                    run.commit(done, state)
                    committed = done
            last = f"the last good checkpoint is round {committed}" if committed else "there is no checkpoint yet"
            raise DivergedRun(f"{error} ({path}); {last}; a smaller learning rate is the usual cure") from None
        with watched.part(clock.RESULT):
            result = _result(experiment, state, infos, held_out, identity(config, content))
        with signals.shield():
            run.finish(result)
        if done - first >= clock.ENOUGH and engine is None and not profile:  # else it is no time of these programs alone
            clock.remember(config, watched.times())
        yield Event("finished", path, config, seed, config.rounds, result=result)


def pays(saving: float, since: float) -> bool:
    """Whether another checkpoint pays, if the last one took so many seconds and training has gone on for so many since: large ones, such as
    those with the state of many clients, are written less often.

    >>> pays(0.9, since=0.1), pays(2.0, since=19.0), pays(2.0, since=20.0)
    (True, False, True)
    """
    return saving <= COSTLY or since >= SPARING * saving


def _result(experiment: Experiment, state: Any, infos: list[Any], held_out: Any, digest: str) -> dict[str, Any]:
    """The last word on a run. Here, and nowhere else, the test split is read; held-out metrics are those of the last round, if it was
    evaluated just now. So are the parts of the clients' data that nobody trained on."""
    fed, method = experiment.federation, experiment.method
    models = method.models(fed, state)
    test = evaluate(fed, models, "test", quantiles=True)
    having = {name: {domain: metrics[QUANTILES] for domain, metrics in of.items() if QUANTILES in metrics} for name, of in test.items()}
    quantiles = {name: of for name, of in having.items() if of}
    shown = [] if isinstance(fed.engine, Private) else fed.names  # counts of single clients are not for the public
    labels = {name: found for name in shown if (found := label_skew(fed.pools[name].clients, fed.task.classes))}
    several = len(fed.names) > 1 and set(fed.names) <= set(models)
    together = {"ensemble": {split: ensemble(fed, models, split) for split in ("held_out", "test")}} if several else {}
    return {
        "seed": experiment.seed,
        "method": method.kind,
        "rounds": experiment.rounds,
        "identity": digest,
        "table": fed.table,
        "parameters": cost.parameters(fed) | {name: tree.size(voice.params) for name, voice in models.items()},
        "held_out": held_out or evaluate(fed, models, "held_out"),
        "test": {name: {domain: _without(QUANTILES, metrics) for domain, metrics in of.items()} for name, of in test.items()},
        **together,
        **({QUANTILES: quantiles} if quantiles else {}),
        **({"labels": labels} if labels else {}),
        **personal.of_result(experiment, state),
        "cost": cost.of_rounds(fed, method, infos),
        **({"privacy": fed.engine.told()} if isinstance(fed.engine, Private) else {}),
        "notes": list(fed.task.notes),
        "task": described(fed.task),
    }


def _accounted(engine: Engine, path: Path) -> list[str]:
    """Let a private engine keep its account with the run, and say what it promises. A run that is begun again goes on with its account:
    what was released was released."""
    if not isinstance(engine, Private):
        return []
    rows, _ = decode_lines((path / ACCOUNT).read_bytes(), ACCOUNT) if (path / ACCOUNT).exists() else ([], [])
    lines = Lines(path / ACCOUNT)
    lines.cut(lines.whole_bytes())

    def keep(row: Mapping[str, Any]) -> None:
        lines.append(row)
        lines.sync()

    engine.opened(rows, keep)
    said = engine.told()
    return [f"privacy: epsilon at most {engine.how.budget:g} at delta {said['delta']:g}, so far {said['epsilon']:g}; {said['assumption']}"]


def _without(name: str, metrics: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metrics.items() if key != name}


def _timed(steps: Iterator[Any]) -> Iterator[tuple[Any, clock.Span]]:
    began = clock.now()
    for step in steps:
        yield step, clock.since(began)
        began = clock.now()
