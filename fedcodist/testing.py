"""The contracts of this package, to be called from any test suite: what every method, rule, fold, work, model, task and engine must keep.

Each `check_...` raises AssertionError with a sentence. They train a small federation of Gaussian classes with ragged clients, so that each
takes a minute or so:

    from fedcodist import testing
    testing.check_method(MyMethod())
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedcodist import distill, keys, pool, tree
from fedcodist.config import digest
from fedcodist.engines import blocks
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.serial import Serial
from fedcodist.federation import Federation
from fedcodist.methods import BASELINE
from fedcodist.models import MLP
from fedcodist.objectives.classify import Classify
from fedcodist.pool import Learns, Pool
from fedcodist.runs import checkpoint, personal
from fedcodist.schedule import Linear
from fedcodist.servers import Adam
from fedcodist.storage.durable import CheckpointError
from fedcodist.task import Task
from fedcodist.train import Experiment, Step, train
from fedcodist.types import Ask, Data, Engine, Examples, Fold, Info, Method, Model, Rule, Split, Work
from fedcodist.work import LocalSGD

CLASSES, FEATURES, ROUNDS, CLOSE = 3, 4, 4, 1e-3  # close: what engines may differ by in the last bits of float32, after some rounds
WIDTHS = {"small": 4, "large": 12, "huge": 20, "third": 4}  # the third is as wide as the first, so that its programs are compiled already


def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of Gaussian classes, and their labels."""
    y = rng.integers(0, CLASSES, n).astype(np.int32)
    return (rng.normal(size=(n, FEATURES)) + 2 * np.eye(CLASSES, FEATURES)[y]).astype(np.float32), y


def task() -> Task:
    """Eight clients of 3 to 17 examples, 50 public rows, whose labels only some methods may use, two domains."""
    rng = np.random.default_rng(0)
    clients = {f"c{i:02d}": Examples(*draw(rng, 3 + 2 * i)) for i in range(8)}
    splits = [Split(*draw(rng, 60), client=np.arange(60) % 4, domain=np.arange(60) % 2) for _ in range(2)]
    return Task("gauss", Classify(), clients, Examples(*draw(rng, 50)), *splits, classes=CLASSES, domains=("even", "odd"))


TASK = task()


def federation(
    names: Sequence[str] = ("small", "large"),
    engine: Engine | None = None,
    topology: Any = "complete",
    rounds: int = ROUNDS,
    task: Task = TASK,
    **given: Any,
) -> Federation:
    """Nested pools of MLPs: every second name trains on the first half of the clients only. `given` goes to every pool; as `model` it is a
    function of the MLP that gives another part."""
    pools, part = {}, given.pop("model", lambda mlp: mlp)
    for i, name in enumerate(names):
        clients = task.clients if i % 2 == 0 else {c: task.clients[c] for c in list(task.clients)[:5]}
        fields: dict[str, Any] = {
            "clients": clients,
            "cohort": 3,
            "work": LocalSGD(lr=0.1, batch=4),
            "server": Adam().optimizer(),
            "lr": Linear(0.05, 0.0, over=rounds),
            "learns": Learns(lr=0.01, self_weight=0.1),
            "personal": {"held_out": clients},
        }
        pools[name] = Pool(name, part(MLP((WIDTHS.get(name, 4 + 8 * i),))).build((FEATURES,), CLASSES), **fields | given)
    return Federation(task, pools, topology, engine or Compiled(block=2), rounds)  # one size of blocks: few programs


def finish(fed: Federation, method: Method, rounds: int = ROUNDS, seed: int = 0) -> Step:
    """The last step of a run."""
    return list(train(Experiment(fed, method, rounds, seed)))[-1]


def same_bits(a: Any, b: Any) -> bool:
    """Whether two trees are equal to the bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def check_method(method: Method, **given: Any) -> None:
    """Same seed, same bits; resume equals a straight run; engines agree; names and order of pools, and workers, change nothing; no program
    is compiled after round 2; what it declares is what it does. `given` goes to every pool."""
    label = getattr(type(method), "label", "")
    assert label and getattr(type(method), "kind", ""), f"{method}: a method has a kind and a label"
    assert dataclasses.is_dataclass(method), f"{label}: a method is a frozen dataclass, whose fields are its keys in a config"
    steps = list(train(Experiment(federation(**given), method, ROUNDS)))
    last = steps[-1]
    assert same_bits(last.state, finish(federation(**given), method).state), f"{label}: the same seed gives other bits"
    other = finish(federation(**given), method, seed=1).state
    assert not any(same_bits(last.state[i].params, other[i].params) for i in other), f"{label}: another seed gives the same bits"
    _check_resume(label, steps, lambda: Experiment(federation(**given), method, ROUNDS))
    for pools in (("small", "large"), ("small", "large", "third")):
        reference = finish(federation(pools, Serial(), **given), method, rounds=2)
        for engine in (Compiled(block=2), Compiled(form="vmap", block=2)):
            _close(
                label, reference.state, finish(federation(pools, engine, **given), method, rounds=2).state, f"{engine} and serial differ"
            )
    _check_pools(label, method, given)
    workers = [finish(federation(engine=Compiled(workers=n, block=2), **given), method).state for n in (1, 3)]
    assert same_bits(*workers), f"{label}: the number of workers changes bits"
    _check_compiled_once(label, method, given)
    experiment = Experiment(federation(**given), method, ROUNDS)
    for step in steps:
        _check_info(label, method, step.info)
        declared = experiment.method.students(experiment.federation.names, step.t)
        taught = [i for i, info in step.info.items() if info.get("codistilled")]
        assert sorted(taught) == sorted(declared), f"{label}: students in round {step.t} are {declared}, and {taught} were taught"
    fed, owned = experiment.federation, method.clients(experiment.federation, last.state)
    assert set(last.models) | set(owned) >= set(fed.names), f"{label}: every pool's model, or those of its clients, are evaluated"
    assert all(set(own.params) == set(fed.pools[i].ids) for i, own in owned.items()), f"{label}: every client has a model of its own"
    assert bool(owned) == method.personal, f"{label}: a method is personal if models live at the clients"
    assert set(last.evaluate()) == set(last.models) and set(personal.evaluate(experiment, last.state)) == set(fed.names)


def check_rule(rule: Rule, **given: Any) -> None:
    """A rule passes what methods do, under the baseline. `given` goes to every pool."""
    check_method(BASELINE(), rule=rule, **given)


def check_fold(fold: Fold, **given: Any) -> None:
    """The order of clients, workers and blocks changes nothing that it should not; engines agree; a reply that is not finite is dropped."""
    given = {"cohort": 5} | given
    turned = dict(reversed(list(TASK.clients.items())))
    states = [
        finish(federation(("small",), Compiled(workers=n, block=2), fold=fold, clients=c, **given), BASELINE(), rounds=2).state
        for n, c in ((1, TASK.clients), (3, TASK.clients), (2, turned))
    ]
    assert all(same_bits(states[0], state) for state in states[1:]), f"{fold}: workers or the order of clients change bits"
    serial = finish(federation(("small",), Serial(), fold=fold, **given), BASELINE(), rounds=2).state
    _close(fold, serial, states[0], "serial and compiled differ")
    ids = sorted(TASK.clients)
    broken = {**TASK.clients, ids[0]: TASK.clients[ids[0]]._replace(x=np.full_like(TASK.clients[ids[0]].x, np.nan))}
    (answer,) = _ask(federation(("small",), fold=fold, clients=broken, cohort=8), "small", ids)
    assert (int(answer.used), int(answer.dropped)) == (7, 1), f"{fold}: a reply that is not finite is dropped, and only that"
    assert bool(tree.finite(answer.value)), f"{fold}: a reply that is not finite got in"


def check_work(work: Work) -> None:
    """A client without examples has no weight and changes nothing; padding changes no reply."""
    fed = federation(("small",), work=work)
    theta = fed.init(keys.root(0))["small"].params
    model = fed.pools["small"].model
    empty = Data(np.zeros((4, FEATURES), np.float32), np.zeros(4, np.int32), np.zeros((), np.int32))
    reply = jax.jit(lambda data, key: work(model, TASK.objective, theta, data, key))(empty, keys.root(0))
    assert float(reply.weight) == 0, f"{work}: a client without examples has a weight"
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(reply.value)), f"{work}: a client without examples says something"
    for client in list(TASK.clients)[:3]:
        (alone,), (padded,) = (_ask(federation(("small",), engine, work=work), "small", [client]) for engine in (Serial(), Compiled()))
        _close(work, alone.value, padded.value, "padding changes a reply")
        assert int(alone.used) == 1


def check_model(part: Any, shape: tuple[int, ...], classes: int, dtype: str = "float32") -> None:
    """Built once for one description; logits of the right shape; finite gradients; evaluation is deterministic; features end in the logits;
    a sub-model of the whole width is the whole."""
    model: Model = part.build(shape, classes)
    assert part.build(shape, classes) is model, f"{part}: builds another model each time, and with it other programs"
    rng = np.random.default_rng(0)
    x = rng.integers(0, classes, (3, *shape)).astype(dtype) if dtype.startswith("int") else rng.normal(size=(3, *shape)).astype(dtype)
    params = model.init(keys.root(0))
    assert same_bits(params, model.init(keys.root(0))), f"{part}: the same key gives other parameters"
    logits = model.apply(params, x, None)
    assert logits.shape[0] == 3 and logits.shape[-1] == classes, f"{part}: logits of {logits.shape} for 3 rows and {classes} classes"
    assert same_bits(logits, model.apply(params, x, None)), f"{part}: evaluation is not deterministic"
    grad = jax.grad(lambda p: model.apply(p, x, keys.root(1)).sum())(params)
    assert bool(tree.finite((params, logits, grad))), f"{part}: a number is not finite"
    if model.features is not None:
        _close(part, logits, model.features(params, x, None)[0], "features end in other logits")
    if model.narrow is not None:
        assert same_bits(model.narrow(1.0).cut(params), params), f"{part}: the sub-model of rate 1 is not the model"
    if model.spec is not None:
        assert model.spec.part.build(model.spec.shape, model.spec.classes) is model, f"{part}: its spec builds another model"


def check_task(part: Any) -> None:
    """Loads the same data twice; all parts have rows of one shape; public data has no labels; labels are classes; clients are not empty."""
    first, again = part.load(), part.load()
    assert digest(first) == digest(again), f"{part}: loads other data each time"
    assert first.public.y is None, f"{part}: public data has labels"
    assert not hasattr(part, "spec") or part.spec() == first.spec, f"{part}: its spec is not that of its data"
    shape, dtype = first.held_out.x.shape[1:], first.held_out.x.dtype
    some = [first.clients[c] for c in list(first.clients)[:5]]
    assert some and all(len(c.x) == len(c.y) > 0 for c in some if c.y is not None), f"{part}: a client has no examples"
    for rows in (*some, first.public, first.test):
        assert rows.x.shape[1:] == shape and rows.x.dtype == dtype, f"{part}: rows differ in shape or type"
    for rows in (*some, first.held_out, first.test):
        y = np.asarray(rows.y)
        assert y.min() >= 0 and y.max() < first.classes, f"{part}: a label is none of {first.classes} classes"
    assert all(set(a) <= set(first.clients) for a in first.attributes.values()), f"{part}: an attribute of nobody"


def check_engine(engine: Engine) -> None:
    """Answers as the serial engine does: the fold, what clients keep, and every reply; the order of clients changes nothing."""
    ids = sorted(TASK.clients)
    for order in (ids, ids[::-1]):
        (here,), (there,) = (_ask(federation(("small",), e), "small", order, each=True) for e in (engine, Serial()))
        _close(engine, there.value, here.value, "the folded value is not the serial engine's")
        assert here.each is not None and here.each.clients == tuple(ids), f"{engine}: replies are not in the order of their clients"
        _close(engine, there.each.values, here.each.values, "single replies are not the serial engine's")
        assert (int(here.used), here.bytes_down, here.bytes_up) == (int(there.used), there.bytes_down, there.bytes_up)
    assert list(engine.host.map(abs, [-1, -2])) == [1, 2] and engine.host.start(lambda: 3).result() == 3


def _ask(fed: Federation, name: str, clients: Sequence[str], each: bool = False) -> list[Any]:
    theta, of = fed.init(keys.root(0))[name].params, fed.pools[name]
    return fed.gather([Ask(name, tuple(clients), of.model, fed.task.objective, of.work, of.fold, theta, keys.root(3), 1, each=each)])


def _check_resume(label: Any, steps: list[Step], experiment: Any) -> None:
    for cut in range(1, len(steps)):
        resumed = list(train(experiment(), _reloaded(label, experiment(), steps[cut - 1].state), after=cut))
        assert same_bits(resumed[-1].state, steps[-1].state), f"{label}: resumed after round {cut} it ends with other bits"
        assert resumed[-1].info == steps[-1].info, f"{label}: resumed after round {cut} it tells something else"


def _reloaded(label: Any, experiment: Experiment, state: Any) -> Any:
    """A state from its checkpoint, which is read with the state of the beginning as its template."""
    start = experiment.method.init(experiment.federation, keys.root(0))
    try:
        loaded = checkpoint.load(start, {name: checkpoint.encode(part) for name, part in state.items()})
    except CheckpointError as error:
        raise AssertionError(
            f"{label}: a checkpoint cannot be read again; names, shapes and types must be those of init: {error}"
        ) from None
    assert same_bits(loaded, state), f"{label}: a checkpoint changes bits"
    return jax.tree.map(jax.numpy.asarray, loaded)


def _check_info(label: Any, method: Method, info: Info) -> None:
    for name, told in info.items():
        json.dumps(told)
        assert {"clients", "examples"} <= told.keys() or "skipped" in told, (
            f"{label}: the info of {name} has clients and examples (`rule.summary`)"
        )
        assert method.distill or not told.get("codistilled"), f"{label}: a method that distils has its Distiller in a field named `distill`"


def _check_pools(label: Any, method: Method, given: dict[str, Any]) -> None:
    """Rename the pools so that their alphabetical order is reversed, and declare them in reverse."""
    fed = federation(("small", "large", "huge"), **given)
    before, renamed = finish(fed, method), {"small": "z", "large": "m", "huge": "a"}
    pools = {renamed[n]: dataclasses.replace(p, name=renamed[n]) for n, p in reversed(list(fed.pools.items()))}
    after = finish(dataclasses.replace(fed, pools=pools), method)
    for old, new in renamed.items():
        assert same_bits(before.state[old], after.state[new]), f"{label}: names or the order of pools change bits"


def _check_compiled_once(label: Any, method: Method, given: dict[str, Any]) -> None:
    programs = (personal._measure, blocks._run, distill.learn, distill.teacher_logits, distill.inputs, pool.server_step)
    counts, taught = [], 0  # by round; the round of the first lesson
    for step in train(Experiment(federation(rounds=2 * ROUNDS, **given), method, 2 * ROUNDS)):
        step.evaluate()
        personal.evaluate(step.experiment, step.state)
        counts.append([program._cache_size() for program in programs])  # type: ignore[attr-defined]
        taught = taught or (step.t if any(told.get("codistilled") for told in step.info.values()) else 0)
    assert taught or not method.distill, f"{label}: nobody was taught in {len(counts)} rounds; check it with more frequent lessons"
    ready = max(2, taught)
    assert counts[ready - 1] == counts[-1], f"{label}: programs were compiled after round {ready}"


def _close(label: Any, a: Any, b: Any, said: str) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.allclose(np.asarray(x), np.asarray(y), rtol=0, atol=CLOSE), f"{label}: {said}"


def check_loss(loss: Any, **given: Any) -> None:
    """A distillation loss: the same bits again; what it trains beside the student is dropped; it teaches, under every method that it does
    not refuse; no program is compiled after the first lesson. `given` goes to every pool."""
    how = distill.Distiller(steps=8, batch=25, augment=False, loss=loss)
    fed = dataclasses.replace(federation(**given), rounds=ROUNDS)
    theta = {name: state.params for name, state in fed.init(keys.root(0)).items()}
    students, info = fed.codistill(how, theta, 1, keys.root(0), 0)
    again, _ = fed.codistill(how, theta, 1, keys.root(0), 0)
    assert same_bits(students, again), f"{loss}: the same key gives other bits"
    for name in fed.names:
        assert jax.tree.structure(students[name]) == jax.tree.structure(theta[name]), f"{loss}: a student has other parameters"
        assert bool(tree.finite(students[name])) and not same_bits(students[name], theta[name]), f"{loss}: {name} learned nothing"
        assert np.isfinite(info[name]["distill_loss"]).all(), f"{loss}: a loss is not finite"
    programs = distill.learn, distill.teacher_logits, distill.teacher_features
    before = [program._cache_size() for program in programs]  # type: ignore[attr-defined]
    fed.codistill(how, students, 2, keys.root(0), 1)
    assert before == [program._cache_size() for program in programs], f"{loss}: a second lesson compiles programs"  # type: ignore[attr-defined]
