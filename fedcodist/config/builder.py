"""From a config to an experiment: loads the data, makes the pools, and refuses what only the data can show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedcodist import keys, settings
from fedcodist.clients import Clients, grows, sizes
from fedcodist.config import toml
from fedcodist.config.digests import of_clients
from fedcodist.config.fitting import fitted
from fedcodist.config.reader import MAX_PROBLEMS, read
from fedcodist.config.schema import Config, PoolConfig
from fedcodist.data.personal import Personal
from fedcodist.engines import private
from fedcodist.engines.faults import Faults, Faulty
from fedcodist.engines.private import Private
from fedcodist.errors import ConfigError, DataError, data_error
from fedcodist.federation import Federation
from fedcodist.folds import FOLDS
from fedcodist.methods.guarded import Guarded
from fedcodist.pool import Pool
from fedcodist.servers import rate
from fedcodist.settings import Problem
from fedcodist.task import Task
from fedcodist.train import Experiment
from fedcodist.types import Examples


def warnings(config: Config) -> list[str]:
    """What is allowed but hardly meant."""
    return config.method.warnings(list(config.pools), config.rounds)


def build(config: Config, seed: int, clamp: bool = False) -> Experiment:
    """The experiment: loads the data, makes the pools. Raises ConfigError for what does not fit the data."""
    task = config.task.load()
    return assemble(config, task, seed, clamp)


def load(path: str | Path, assignments: Sequence[str] = (), seed: int | None = None, **keys: Any) -> Experiment:
    """An experiment from a config file, with `key=value` assignments and keys on top, as in `load("quick/toy", rounds=2)`; the seed is the
    config's first unless one is given."""
    config = read(path, [*assignments, *assigned(keys)])
    return build(config, seed if seed is not None else (config.seeds or (0,))[0])


def assigned(keys: Mapping[str, Any]) -> list[str]:
    """Keys of a config with Python values, as `key=value` assignments.

    >>> assigned({"rounds": 2, "method.alpha": 0.7, "seeds": (0, 1)})
    ['rounds=2', 'method.alpha=0.7', 'seeds=[0, 1]']
    """
    return [f"{key}={toml.inline(settings.plain(value))}" for key, value in keys.items()]


def assemble(
    config: Config, task: Task, seed: int, clamp: bool = False, populations: Mapping[str, Mapping[str, Any]] | None = None
) -> Experiment:
    """The experiment on a task that is loaded already. `populations` are the pools' clients, where they are elsewhere than in the task."""
    problems: list[Problem] = []
    order = keys.permutation(keys.derive(keys.root(getattr(config.task, "split_seed", 0)), "membership"), len(task.clients))
    everyone = [sorted(task.clients)[i] for i in order]
    spec, pools = task.spec, {}
    if config.personal != Personal() and populations is not None:
        problems.append(Problem("personal", "parts of the clients' data", "none of it: the data is at the devices"))
    own_key = keys.derive(keys.root(getattr(config.task, "split_seed", 0)), "personal")
    for name, given in config.pools.items():
        clients = _clients(task, given, everyone, f"pools.{name}", problems) if populations is None else populations[name]
        clients, personal = config.personal.divide(clients, own_key) if populations is None else (clients, {})
        cohort = min(given.cohort, len(clients)) if clamp else given.cohort
        if 0 < len(clients) < cohort and not grows(clients):
            said = f"clients (pool {name} has {len(clients)})"
            problems.append(Problem(f"pools.{name}.cohort", str(cohort), f"at most {len(clients)} {said}", "or --clamp"))
        model = fitted(spec, given.model, name, problems)
        if model is None:
            continue
        pools[name] = Pool(
            name=name,
            model=model,
            clients=clients,
            cohort=cohort,
            work=given.work,
            fold=FOLDS[given.fold]() if isinstance(given.fold, str) else given.fold,
            rule=given.rule,
            server=replace(given.server, lr=1.0, decay="none").optimizer(),  # the pool's lr multiplies: one program for all rates
            lr=rate(given.server, config.rounds),
            learns=given.learns,
            teaches=given.teaches,
            spare=config.faults.spare(cohort),
            attributes=task.attributes,
            personal={split: rows for split, rows in personal.items() if len(task.split(split).x)},  # tuning sees no test at all
        )
        problems += given.rule.problems(pools[name])
    problems += _check_membership(config.membership, pools)
    problems += private.misfits(config.privacy, {name: pool.clients for name, pool in pools.items()}) if config.privacy else []
    method = config.method
    if method.distill is not None:
        method = _check_public(method, method.distill, task, clamp, problems)
    if problems:
        raise ConfigError("\n".join(map(str, problems[:MAX_PROBLEMS])))
    table = config.topology if config.topology != "auto" else "complete" if len(pools) <= 4 else "chain"
    engine = config.engine.placed(Elsewhere.of(config, task)) if hasattr(config.engine, "placed") else config.engine
    fed = Federation(task, pools, table, engine)
    if config.guard is not None:
        fed = Guarded(**{field.name: getattr(fed, field.name) for field in fields(fed)}, guard=config.guard)
    if config.faults != Faults():
        fed = replace(fed, engine=Faulty(engine, config.faults, fed.names))
    if config.privacy is not None:
        noise = {name: (said, config.pools[name].cohort) for name in fed.names if (said := config.pools[name].privacy) is not None}
        fed = replace(fed, engine=Private(fed.engine, config.privacy, noise))
    try:
        return Experiment(fed, method, config.rounds, seed, config)
    except settings.SettingError as error:  # of a method, or of a loss, that does not fit these pools
        raise ConfigError(str(error)) from None


@dataclass(frozen=True)
class Elsewhere:
    """The clients of a config's pools, wherever its text is sent: for engines that read data where they compute."""

    text: str  # JSON of a config, with what its clients depend on
    content: str  # of the clients

    @classmethod
    def of(cls, config: Config, task: Task) -> Elsewhere:
        """Those of a config, with its task as it was loaded here."""
        known = {name: getattr(config, name) for name in ("pools", "task", "membership", "personal")}
        return cls(json.dumps(settings.plain(Config(**known, rounds=1)), sort_keys=True), of_clients(task))

    def __call__(self) -> dict[str, Mapping[str, Examples]]:
        """Load the data, which must be what it was where the run was begun."""
        problems: list[Problem] = []
        config = settings.read_part(Config, json.loads(self.text), "", problems)
        if problems:
            raise ConfigError("\n".join(map(str, problems)))
        task = config.task.load()
        if (found := of_clients(task)) != self.content:
            wanted = f"that of the run, {self.content[:12]}"
            raise data_error("task", f"data {found[:12]} in a worker", wanted, "every machine needs the same data, at the same path")
        return {name: pool.clients for name, pool in assemble(config, task, 0, clamp=True).federation.pools.items()}


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
