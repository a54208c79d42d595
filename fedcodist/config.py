"""A config: one frozen dataclass that says everything about an experiment except its seed, read strictly from TOML.

`read` collects all that is wrong, each with its file and line; `build` loads the data and makes the experiment, and refuses what only
the data can show. `identity` is the part of a config that a result depends on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from fedcodist import keys, settings, toml, topology
from fedcodist.checkpoint import NAME
from fedcodist.clients import Clients, sizes
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.serial import Serial
from fedcodist.errors import ConfigError, DataError
from fedcodist.federation import Federation
from fedcodist.fold import FOLDS
from fedcodist.methods import METHODS, FedAvg, MergedCodist, PeriodicCodist
from fedcodist.models import MODELS
from fedcodist.pool import Learns, Pool, Teaches
from fedcodist.schedule import over_rounds
from fedcodist.server import SERVERS, Adam, rate
from fedcodist.settings import Problem, setting
from fedcodist.task import Task
from fedcodist.tasks import TASKS
from fedcodist.train import Experiment
from fedcodist.work import WORKS, LocalSGD

ENGINES = {cls.kind: cls for cls in (Compiled, Serial)}
HARMLESS = frozenset(  # no result depends on these
    {"name", "seeds", "engine.workers", "evaluate_every", "evaluate_after", "checkpoint_every", "keep"}
)
MAX_PROBLEMS = 20


@dataclass(frozen=True)
@settings.checked
class Choice:
    """Which clients a pool trains on: those whose attributes are `where`, in a fixed random order, without the first `skip`, then the
    first `take` (or that `share`) of them; or exactly the `ids`. Pools that only differ in `take` are nested."""

    take: int | None = setting(None, ge=1)
    share: float | None = setting(None, gt=0, le=1)
    skip: int = setting(0, ge=0)
    where: dict[str, str] = field(default_factory=dict)
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
@settings.checked
class PoolConfig:
    """One pool. `like = "other"` starts from another pool's keys."""

    model: Any = setting(kinds=MODELS)
    clients: Choice = Choice()
    domain: str | None = None  # train only on the clients' examples of this domain
    cohort: int = setting(20, ge=1)
    work: Any = setting(LocalSGD(), kinds=WORKS)
    fold: Literal["mean"] = "mean"
    server: Any = setting(Adam(), kinds=SERVERS)
    learns: Learns = Learns()
    teaches: Teaches = Teaches()


@dataclass(frozen=True)
@settings.checked
class Config:
    """An experiment, without its seed."""

    pools: dict[str, PoolConfig]
    task: Any = setting(kinds=TASKS)
    rounds: int = setting(ge=1, le=10**7)
    method: Any = setting(FedAvg(), kinds=METHODS)
    topology: str | dict[str, dict[str, float]] = "auto"
    membership: Literal["any", "nested", "disjoint"] = "any"  # what must be true of the pools' clients
    engine: Any = setting(Compiled(), kinds=ENGINES)
    name: str = "run"
    seeds: tuple[int, ...] = setting((), ge=0, le=2**63 - 1)
    evaluate_every: int = setting(0, ge=0)  # rounds between evaluations on held_out; 0: twenty in a run
    evaluate_after: tuple[int, ...] = setting((), ge=1)  # also so many rounds after each periodic codistillation, and the round before it
    checkpoint_every: int = setting(10, ge=1)
    keep: int = setting(3, ge=1)  # checkpoints


def read(path: str | Path, assignments: Sequence[str] = ()) -> Config:
    """The config in a file, or a shipped one by its name such as quick/images. Raises ConfigError with everything that is wrong."""
    source = toml.override(_source(path), list(assignments))
    problems: list[Problem] = []
    inherited: set[str] = set()
    table = dict(source.table)
    table.setdefault("name", Path(source.name).stem)
    if isinstance(table.get("pools"), dict):
        table["pools"], inherited = _inherit(table["pools"], problems)
    config = settings.read_part(Config, table, "", problems)
    problems = [
        p for p in problems if not any(p.path == key or p.path.startswith(f"{key}.") for key in inherited)
    ]  # told once, at its source
    problems = [_meant(p, table.get("pools")) for p in problems]
    if config is not None:
        problems += relations(config)
    if problems or config is None:
        raise ConfigError("\n".join(_say(problems, source)))
    return config


def shipped() -> dict[str, Path]:
    """The configs that come with the package: {name: path}. Those under `tuned` are only parts, which `reproduce` lays over others."""
    root = Path(str(resources.files("fedcodist") / "configs"))
    whole = [path for path in sorted(root.rglob("*.toml")) if path.parent.name != "tuned"]
    return {str(path.relative_to(root).with_suffix("")): path for path in whole}


def twin(config: Config) -> Config:
    """The same experiment under plain FedAvg: same seeds, clients, batches and initial parameters."""
    return replace(config, method=FedAvg())


def plain(config: Config) -> dict[str, Any]:
    """The resolved config as a plain table."""
    return settings.plain(config)


def identity(config: Config, data: str = "") -> str:
    """The digest of all that a result depends on: the config without its harmless keys, and the data."""
    table = plain(config)
    for path in HARMLESS:
        inside, _, last = path.rpartition(".")
        (table[inside] if inside else table).pop(last, None)
    return hashlib.sha256(json.dumps([table, data], sort_keys=True).encode()).hexdigest()


def warnings(config: Config) -> list[str]:
    """What is allowed but hardly meant."""
    method, found = config.method, []
    if isinstance(method, PeriodicCodist) and method.period > config.rounds:
        found.append(f"method.period: {method.period} is more than the {config.rounds} rounds: codistillation never happens")
    if isinstance(method, MergedCodist):
        alphas = {name: method.alpha_of(name) for name in config.pools}
        values = {name: getattr(alpha, "value", None) for name, alpha in alphas.items()}
        if all(value == 1 and alphas[n].kind == "constant" for n, value in values.items()):  # type: ignore[attr-defined]
            found.append("method.alpha: 1 is plain FedAvg: distillation is skipped")
        if any(value == 0 for value in values.values()):
            found.append("method.alpha: 0 lets the clients' gradient set only the length of a step")
    return found


def build(config: Config, seed: int, clamp: bool = False) -> Experiment:
    """The experiment: loads the data, makes the pools. Raises ConfigError for what does not fit the data."""
    task = config.task.load()
    return assemble(config, task, seed, clamp)


def load(path: str | Path, assignments: Sequence[str] = (), seed: int | None = None) -> Experiment:
    """An experiment from a config file, with `key=value` assignments on top; the seed is the config's first unless one is given."""
    config = read(path, assignments)
    return build(config, seed if seed is not None else (config.seeds or (0,))[0])


def assemble(config: Config, task: Task, seed: int, clamp: bool = False) -> Experiment:
    """The experiment on a task that is loaded already."""
    problems: list[Problem] = []
    order = keys.permutation(keys.derive(keys.root(getattr(config.task, "split_seed", 0)), "membership"), len(task.clients))
    everyone = [sorted(task.clients)[i] for i in order]
    rows = jax.ShapeDtypeStruct((2, *task.held_out.x.shape[1:]), task.held_out.x.dtype)
    shape = jax.eval_shape(task.objective.see, rows).shape[1:]
    pools = {}
    for name, given in config.pools.items():
        clients = _clients(task, given, everyone, f"pools.{name}", problems)
        cohort = min(given.cohort, len(clients)) if clamp else given.cohort
        if 0 < len(clients) < cohort:
            said = f"clients (pool {name} has {len(clients)})"
            problems.append(Problem(f"pools.{name}.cohort", str(cohort), f"at most {len(clients)} {said}", "or --clamp"))
        model = given.model.build(shape, task.classes)
        _check_model(task, given.model, model, name, problems)
        pools[name] = Pool(
            name=name,
            model=model,
            clients=clients,
            cohort=cohort,
            work=given.work,
            fold=FOLDS[given.fold],
            server=replace(given.server, lr=1.0, decay="none").optimizer(),  # the pool's lr multiplies: one program for all rates
            lr=rate(given.server, config.rounds),
            learns=given.learns,
            teaches=given.teaches,
        )
    problems += _check_membership(config.membership, pools)
    method = _with_rounds(config.method, config.rounds)
    if distill := getattr(method, "distill", None):
        method = _check_public(method, distill, task, clamp, problems)
    if problems:
        raise ConfigError("\n".join(map(str, problems[:MAX_PROBLEMS])))
    table = config.topology if config.topology != "auto" else "complete" if len(pools) <= 4 else "chain"
    fed = Federation(task, pools, table, config.engine, config.rounds)
    return Experiment(fed, method, config.rounds, seed, config)


def digest(task: Task) -> str:
    """The content of a task: every client's id and rows, the public data and both splits.

    A task that knows the digest of its source is not read through: the config says how clients and splits were taken from it.
    """
    total = hashlib.sha256(task.name.encode())
    if task.digest:
        total.update(task.digest.encode() + repr(sorted(sizes(task.clients).items())).encode())
        total.update(repr([np.shape(part.x) for part in (task.public, task.held_out, task.test)]).encode())
        return total.hexdigest()
    for client in sorted(task.clients):
        total.update(repr(client).encode())
        _hash(total, *task.clients[client])
    for rows in (task.public, task.held_out, task.test):
        _hash(total, *rows)
    return total.hexdigest()


def _hash(total: Any, *arrays: Any) -> None:
    for array in arrays:
        if array is not None:
            array = np.asarray(array)
            total.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())


def _source(path: str | Path, seen: tuple[str, ...] = ()) -> toml.Source:
    """A file or a shipped config, on top of the config that it is `like`, key by key; pools go by name."""
    known = shipped()
    if str(path) in known and not Path(path).is_file():
        source = toml.parse(known[str(path)].read_bytes(), str(path))
    else:
        try:
            source = toml.read(Path(path))
        except ConfigError as error:
            hint = settings.nearest(path, known)
            raise ConfigError(f"{error}{f' ({hint})' if hint else ''}") from None
    if "like" not in source.table:
        return source
    other = source.table.pop("like")
    where = source.where("like")
    if not isinstance(other, str) or len(seen) >= 8:
        raise ConfigError(f"like: got {settings.show(other)}; allowed a shipped config or a path beside this one, no cycle ({where})")
    base = _source(other if other in known else Path(path).parent / other, (*seen, str(path))).table
    table = {**base, **{key: _over(base.get(key), value) for key, value in source.table.items()}}
    if isinstance(pools := source.table.get("pools"), dict) and isinstance(known_pools := base.get("pools"), dict):
        table["pools"] = {**known_pools, **{name: _over(known_pools.get(name), pool) for name, pool in pools.items()}}
    return source._replace(table=table)


def _over(base: Any, given: Any) -> Any:
    """A table on top of another, key by key; one that says its own `kind`, or whom it is `like`, replaces the other whole."""
    both = isinstance(base, dict) and isinstance(given, dict)
    return {**base, **given} if both and not {"kind", "like"} & given.keys() else given


def _meant(problem: Problem, pools: Any) -> Problem:
    """A pool without a model is most often another one's name, misspelt: then that is said too."""
    name = problem.path.removeprefix("pools.").removesuffix(".model")
    if problem.path != f"pools.{name}.model" or problem.got != "nothing" or not isinstance(pools, dict):
        return problem
    return problem._replace(
        hint=problem.hint
        or settings.nearest(name, [other for other, given in pools.items() if isinstance(given, dict) and "model" in given])
    )


def _say(problems: list[Problem], source: toml.Source) -> list[str]:
    lines = [
        settings.one_line(
            f"{p.path or 'config'}: got {p.got}; allowed {p.allowed} ({source.where(p.path)})" + (f" {p.hint}" if p.hint else "")
        )
        for p in problems
    ]
    if len(lines) > MAX_PROBLEMS:
        lines[MAX_PROBLEMS:] = [f"config: got {len(lines) - MAX_PROBLEMS} more problems; allowed none ({source.name})"]
    return lines


def _inherit(pools: dict[str, Any], problems: list[Problem]) -> tuple[dict[str, Any], set[str]]:
    """Each pool with the keys of the pool that it is `like`, and the dotted keys that it only has from there."""
    inherited: set[str] = set()

    def resolve(name: str, seen: tuple[str, ...]) -> dict[str, Any]:
        given = pools[name]
        if not isinstance(given, dict) or "like" not in given:
            return given
        other = given["like"]
        rest = {k: v for k, v in given.items() if k != "like"}
        if other in (*seen, name) or not isinstance(other, str) or other not in pools:
            allowed = [p for p in pools if p not in (*seen, name)]
            problems.append(Problem(f"pools.{name}.like", settings.show(other), " | ".join(allowed) or "nothing"))
            return rest
        base = resolve(other, (*seen, name))
        if not isinstance(base, dict):
            return rest
        inherited.update(settings.join(settings.join("pools", name), key) for key in base if key not in rest)
        return {**base, **rest}

    return {name: resolve(name, ()) for name in pools}, inherited


def relations(config: Config) -> list[Problem]:
    """What single fields cannot know."""
    found = []
    names = list(config.pools)
    if not re.fullmatch(NAME, config.name):
        found.append(Problem("name", settings.show(config.name), f"a name that matches {NAME}"))
    if len(set(config.seeds)) < len(config.seeds):
        found.append(Problem("seeds", settings.show(list(config.seeds)), "each seed once"))
    for name in names:
        if not re.fullmatch(NAME, name):
            found.append(Problem(settings.join("pools", name), "a pool of this name", f"a name that matches {NAME}"))
    if not names or (len(names) < 2 and not isinstance(config.method, FedAvg)):
        found.append(Problem("pools", f"{len(names)} of them", ">= 2 non-empty pools for codistillation, >= 1 for fedavg"))
    if isinstance(config.topology, dict):
        found += topology.problems(config.topology, names)
    elif config.topology not in ("auto", *topology.TOPOLOGIES):
        allowed = ("auto", *topology.TOPOLOGIES)
        hint = settings.nearest(config.topology, allowed)
        found.append(Problem("topology", settings.show(config.topology), f"{' | '.join(allowed)}, or a table", hint))
    alpha = getattr(config.method, "alpha", None)
    if isinstance(alpha, Mapping):
        for name, value in alpha.items():
            where = settings.join("method.alpha", name)
            if name not in names:
                found.append(Problem(where, "an unknown pool", " | ".join(names), settings.nearest(name, names)))
            elif isinstance(value, Mapping):
                found.append(Problem(where, "a table without kind", "a number >= 0 and <= 1, or a schedule"))
    for name, pool in config.pools.items():
        choice = pool.clients
        if sum(bool(c) for c in (choice.take, choice.share, choice.ids)) > 1:
            found.append(Problem(f"pools.{name}.clients", "more than one of them", "one of take, share, ids"))
    return found


def _clients(task: Task, given: PoolConfig, everyone: list[str], path: str, problems: list[Problem]) -> Mapping[str, Any]:
    choice, chosen = given.clients, list(everyone)
    for attribute, value in choice.where.items():
        known = task.attributes.get(attribute)
        if known is None:
            hint = settings.nearest(attribute, task.attributes)
            problems.append(
                Problem(f"{path}.clients.where.{attribute}", "an unknown attribute", ", ".join(task.attributes) or "none", hint)
            )
            return {}
        values = sorted({str(v) for v in known.values()})
        if value not in values:
            some = " | ".join(values[:20]) + (" | ..." if len(values) > 20 else "")
            problems.append(Problem(f"{path}.clients.where.{attribute}", settings.show(value), some, settings.nearest(value, values)))
            return {}
        chosen = [c for c in chosen if str(known.get(c)) == value]
    if choice.ids:
        unknown = [c for c in choice.ids if c not in task.clients]
        if unknown:
            some = ", ".join(sorted(task.clients)[:3])
            problems.append(Problem(f"{path}.clients.ids", settings.show(unknown[0]), f"ids of clients, such as {some}"))
            return {}
        chosen = list(choice.ids)
    take = choice.take if choice.take is not None else round(choice.share * len(chosen)) if choice.share else None
    if take is not None and choice.skip + take > len(chosen):
        allowed = f"at most {len(chosen)} clients, with skip and take together"
        problems.append(Problem(f"{path}.clients.take", str(choice.skip + take), allowed))
        return {}
    chosen = chosen[choice.skip :][:take]
    domain = None
    if given.domain is not None:
        if given.domain not in task.domains:
            hint = settings.nearest(given.domain, task.domains)
            problems.append(Problem(f"{path}.domain", settings.show(given.domain), " | ".join(task.domains), hint))
            return {}
        domain = task.domains.index(given.domain)
    clients = task.clients.only(chosen, domain) if isinstance(task.clients, Clients) else {c: task.clients[c] for c in chosen}
    if not any(sizes(clients).values()):
        raise DataError(f"{path}.clients: got no client with an example; allowed at least one")
    return clients


def _check_model(task: Task, part: Any, model: Any, name: str, problems: list[Problem]) -> None:
    x, y = (jax.ShapeDtypeStruct((2, *a.shape[1:]), a.dtype) for a in (task.held_out.x, task.held_out.y))

    def loss(key: Any, x: Any, y: Any) -> Any:
        return task.objective.loss(model.apply(model.init(key), task.objective.see(x), None), y)

    try:
        fits = jax.eval_shape(loss, jax.ShapeDtypeStruct((2,), "uint32"), x, y).shape == (2,)
    except (TypeError, ValueError, IndexError):
        fits = False
    if not fits:
        shape = "x".join(map(str, jax.eval_shape(task.objective.see, x).shape[1:]))
        allowed = f"a model for inputs of {shape} {x.dtype.name} and {task.classes} classes"
        problems.append(Problem(f"pools.{name}.model", type(part).kind, allowed))


def _check_membership(membership: str, pools: Mapping[str, Pool]) -> list[Problem]:
    found = []
    by_size = sorted(pools.values(), key=lambda pool: len(pool.clients))
    for i, small in enumerate(by_size):
        for large in by_size[i + 1 :]:
            shared = set(small.clients) & set(large.clients)
            wrong = shared if membership == "disjoint" else set(small.clients) - shared if membership == "nested" else set()
            if wrong:
                some = ", ".join(sorted(wrong)[:3])
                what = "in both" if membership == "disjoint" else f"not in {large.name}"
                found.append(Problem("membership", f"{len(wrong)} clients of {small.name} {what} ({some})", f"{membership} pools"))
    return found


def _check_public(method: Any, distill: Any, task: Task, clamp: bool, problems: list[Problem]) -> Any:
    public = len(task.public.x)
    if distill.batch > public:
        if clamp and public:
            return replace(method, distill=replace(distill, batch=public))
        problems.append(Problem("method.distill.batch", str(distill.batch), f"at most the {public} public examples", "or --clamp"))
    if distill.labels > 0 and task.public.y is None:
        problems.append(Problem("method.distill.labels", str(distill.labels), "0: the public data has no labels"))
    if public and task.public.x.shape[1:] != task.held_out.x.shape[1:]:
        shapes = f"{list(task.public.x.shape[1:])} against {list(task.held_out.x.shape[1:])}"
        raise DataError(f"task.public: got rows of {shapes}; allowed the clients' own shape")
    return method


def _with_rounds(method: Any, rounds: int) -> Any:
    alpha = getattr(method, "alpha", None)
    if alpha is None:
        return method
    if isinstance(alpha, Mapping):
        return replace(method, alpha={name: over_rounds(a, rounds) for name, a in alpha.items()})
    return replace(method, alpha=over_rounds(alpha, rounds))
