"""Clients on a Ray cluster: blocks of a cohort over actors, each with the compiled engine's programs inside.

Each actor rebuilds the clients' data from the config's text, so rows are read where they are needed, and a question carries only what is
sent. Blocks are those of the compiled engine, and are joined in their order: the same bytes for any number of workers. A lost actor comes
back, and its block is done again. Deliberately absent: transport, scheduling and restarts, which are Ray's.

Without an address a cluster of this machine's cores is started and bound to loopback; Ray by itself would listen on every interface.
"""

from __future__ import annotations

import atexit
import ipaddress
import os
import platform
import secrets
import socket
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax

from fedcodist import native
from fedcodist.engines import blocks
from fedcodist.engines.blocks import Form, Part
from fedcodist.engines.threads import PriorityThreads, cores, shared
from fedcodist.errors import ConfigError, Failure
from fedcodist.profile import ready, timed
from fedcodist.settings import Problem, SettingError, check, setting
from fedcodist.types import Answer, Ask, Data, Examples, Fold, Key, Objective, Spec, Tree, Work

AHEAD = 2  # blocks that an actor is given before the first of them has come back
LOOPBACK = "127.0.0.1"
FLAGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes")
ENVIRONMENT = {  # of a cluster that is started here; all of it must be said before Ray is imported
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # or Ray would put this machine's outside address in the place of loopback
    "RAY_AUTH_MODE": "token",
    "RAY_worker_niceness": "0",  # as this process; by itself Ray lets its workers wait for everybody else
    "RAY_agent_register_timeout_ms": "300000",  # a busy machine takes longer to start than the half minute that Ray waits
    "RAY_worker_register_timeout_seconds": "300",
}

Population = Mapping[str, Mapping[str, Examples]]


class Source(Protocol):
    """The clients of all pools, which can be loaded wherever this is called: a frozen value of a few kilobytes, with no data in it."""

    def __call__(self) -> Population: ...


@dataclass(frozen=True)
class Ray:
    """`workers` actors (0: one a core) over blocks of `block` clients, on the cluster at `address` (host:port) or on this machine. Outside
    private networks only if `allow_public`."""

    kind: ClassVar[str] = "ray"
    workers: int = setting(0, ge=0, le=4096)  # actors; 0: one for each core of the cluster
    block: int = setting(5, ge=1, le=1024)  # clients that an actor trains at a time; the sums are made block by block
    # clients of a block one after the other (scan) or side by side (vmap); auto: by the device
    form: Literal["auto", "scan", "vmap"] = "auto"
    address: str = ""  # host:port of a running cluster; empty: one on this machine, bound to loopback
    allow_public: bool = False  # whether the address may be outside private networks

    def __post_init__(self) -> None:
        check(self)
        host, _, port = self.address.rpartition(":")
        if self.address and not (host and port.isdigit() and 0 < int(port) < 2**16):
            raise SettingError([Problem("Ray.address", repr(self.address), "host:port of a cluster, or nothing for this machine alone")])
        if self.address and not self.allow_public and _is_address(host) and not _is_private([host]):
            raise SettingError([_public(self.address)])

    def placed(self, source: Source) -> Placed:
        """The engine for clients that each actor can have from `source`."""
        if find_spec("ray") is None:
            raise ConfigError("the engine ray needs the package ray, which is not installed: pip install 'fedcodist[ray]'")
        return Placed(self, source)

    @property
    def host(self) -> PriorityThreads:
        """The threads of this machine, for the server's own work."""
        return shared(cores())

    def gather(self, population: Population, asks: Sequence[Ask]) -> list[Answer | None]:
        """With the clients' rows sent along, for data that only this process has."""
        return _gather(self, None, population, asks)


@dataclass(frozen=True)
class Placed:
    """Ray, with the clients' data read by the actors."""

    how: Ray
    source: Source

    @property
    def workers(self) -> int:
        """How many actors."""
        return self.how.workers

    @property
    def host(self) -> PriorityThreads:
        """As without a source."""
        return self.how.host

    def gather(self, population: Population, asks: Sequence[Ask]) -> list[Answer | None]:
        return _gather(self.how, self.source, population, asks)


class _Question(NamedTuple):
    """The part of a question that an actor receives; the models go through the object store, once for all actors."""

    pool: str
    spec: Spec
    objective: Objective
    work: Work
    fold: Fold
    key: Key
    t: int
    each: bool
    form: Form


class Worker:
    """One actor. It may be restarted at any time, so all of its state can be rebuilt."""

    def __init__(self, source: Source | None, places: int, flags: Mapping[str, Any]) -> None:
        self._source, self._places = source, places
        for name, value in flags.items():
            jax.config.update(name, value)

    @cached_property
    def population(self) -> Population:
        """The clients, read when they are first needed, because errors in an actor's constructor have no clear message."""
        assert self._source is not None
        return self._source()

    def built(self) -> dict[str, str]:
        """What its bits depend on."""
        return _built()

    def run(
        self, question: _Question, sent: Tree, block: list[str], own: Mapping[str, Tree] | None, packed: tuple[Data, Any] | None
    ) -> Part:
        """Run the work of a block of clients."""
        pool, spec, objective, work, fold, key, t, each, form = question
        model = spec.part.build(spec.shape, spec.classes)
        ask = Ask(pool, tuple(block), model, objective, work, fold, sent, key, t, own, each)
        part = blocks.run(ask, form, block, *(packed or blocks.pack(ask, self.population[pool], block, self._places)))
        return jax.device_get(part)


def _gather(how: Ray, source: Source | None, population: Population, asks: Sequence[Ask]) -> list[Answer | None]:
    ray, actors = _actors(how, source)
    form: Form = how.form if how.form != "auto" else "scan" if jax.default_backend() == "cpu" else "vmap"
    with timed("gather"):
        questions = [(_question(ask, form), ray.put(jax.device_get(ask.sent))) for ask in asks]
    todo = [(a, block) for a, ask in enumerate(asks) for block in blocks.cut(ask.clients, how.block)]
    free = deque(actors * AHEAD)
    flying: dict[Any, tuple[int, Any]] = {}  # {what will come: (the number of its block, from whom)}
    landed: dict[int, Part] = {}
    parts: dict[int, Part] = {}
    given = joined = 0
    try:
        while joined < len(todo):
            while given < len(todo) and free and given - joined < 2 * AHEAD * len(actors):  # what waits to be joined takes memory
                a, block = todo[given]
                own = {client: asks[a].own[client] for client in block} if asks[a].own else None  # type: ignore[index]
                packed = None if source is not None else blocks.pack(asks[a], population[asks[a].pool], block, how.block)
                actor = free.popleft()
                flying[actor.run.remote(*questions[a], block, own, packed)] = given, actor
                given += 1
            with timed("clients"):
                (ref,), _ = ray.wait(list(flying), num_returns=1)
                number, actor = flying.pop(ref)
                landed[number] = _come(ray, ref)
            free.append(actor)
            with timed("fold"):
                while joined in landed:  # in the order of the blocks, whoever ran them
                    a, part = todo[joined][0], landed.pop(joined)
                    parts[a] = ready(blocks.join(asks[a], parts[a], part)) if a in parts else part
                    joined += 1
    except BaseException:  # an error or an interrupt: nothing of this round goes on behind the next one
        for ref in flying:
            ray.cancel(ref)
        how.host.give_up()
        raise
    with timed("fold"):
        return [blocks.done(ask, parts[a]) for a, ask in enumerate(asks)]


def _question(ask: Ask, form: Form) -> _Question:
    if ask.model.spec is None:  # a model that is sent as code would be another program for every actor and task
        allowed = "a model that a part of the registry builds, so that an actor can build it too"
        raise ConfigError(str(Problem(f"pools.{ask.pool}.model", "a model without a spec", allowed)))
    return _Question(ask.pool, ask.model.spec, ask.objective, ask.work, ask.fold, ask.key, ask.t, ask.each, form)


def _come(ray: Any, ref: Any) -> Any:
    """A result, or the error of the actor that computed it, with its own message."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Failure):
            raise error.cause from error
        raise


class NoCluster(Failure):
    """No cluster can be used at the address."""

    code = 10


class _Known(NamedTuple):
    """The cluster that this process is connected to, and its actors."""

    how: tuple[Any, ...]
    source: Source | None
    actors: list[Any]


_known: _Known | None = None


def _actors(how: Ray, source: Source | None) -> tuple[Any, list[Any]]:
    """Ray, connected, and the actors for this source: those of the last question, if it was of the same experiment."""
    global _known
    wanted = how.address, how.workers, how.block, how.allow_public
    ray = _import(local=not how.address)
    if _known is not None and ray.is_initialized():
        if (_known.how, _known.source) == (wanted, source):
            return ray, _known.actors
        for actor in _known.actors:
            ray.kill(actor)
        if _known.how != wanted:
            ray.shutdown()
    _known = None
    many = _joined(ray, how, "engine.workers")
    made = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Worker)
    actors = [made.remote(source, how.block, {name: getattr(jax.config, name) for name in FLAGS}) for _ in range(many)]
    for theirs in ray.get([actor.built.remote() for actor in actors]):
        if theirs != (ours := _built()):
            raise NoCluster(str(Problem("engine.address", f"an actor with {_words(theirs)}", f"only this machine's {_words(ours)}")))
    _known = _Known(wanted, source, actors)
    return ray, actors


def cluster(how: Ray) -> tuple[Any, int]:
    """Ray, connected to this cluster, for whole trainings instead of blocks of clients; and how many of them it is to do at a time."""
    global _known
    ray = _import(local=not how.address)
    if _known is not None and ray.is_initialized():  # its actors would keep the CPUs
        for actor in _known.actors:
            ray.kill(actor)
    _known = None
    return ray, _joined(ray, how, "--jobs")


def _joined(ray: Any, how: Ray, said: str) -> int:
    if not ray.is_initialized():  # by the user, or by the last question
        _connect(ray, how)
    has = int(ray.cluster_resources().get("CPU", 0))
    if not 0 < (many := how.workers or has) <= has:
        raise ConfigError(str(Problem(said, str(many), f"at most the {has} CPUs of the cluster")))
    return many


def _import(local: bool) -> Any:
    """Ray, with the environment that a cluster of this machine alone needs."""
    if find_spec("ray") is None:
        raise ConfigError("the engine ray needs the package ray, which is not installed: pip install 'fedcodist[ray]'")
    for name, value in ENVIRONMENT.items() if local else ():
        os.environ.setdefault(name, value)
    if local and not any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        number, path = tempfile.mkstemp(prefix="fedcodist-ray-")  # readable by its owner alone
        with os.fdopen(number, "w") as file:
            file.write(secrets.token_hex(32))
        os.environ["RAY_AUTH_TOKEN_PATH"] = path
        atexit.register(Path(path).unlink, missing_ok=True)
    import ray

    return ray


def _connect(ray: Any, how: Ray) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if not how.address:
        try:
            ray.init("local", num_cpus=how.workers or cores(), include_dashboard=False, _node_ip_address=LOOPBACK, **quiet)
        except Exception as error:  # Ray raises nothing more definite
            said = str(error).strip().partition("\n")[0]
            raise NoCluster(str(Problem("engine.ray", "no cluster on this machine", "one that starts", said))) from error
        if any(node["NodeManagerAddress"] != LOOPBACK for node in ray.nodes()):
            ray.shutdown()
            said = "a cluster that listens outside this machine"
            raise NoCluster(str(Problem("engine.ray", said, "loopback", "Ray was imported before fedcodist could tell it")))
        return
    try:
        found = {str(place[4][0]) for place in socket.getaddrinfo(how.address.rpartition(":")[0].strip("[]"), None)}
    except OSError as error:
        raise NoCluster(str(Problem("engine.address", repr(how.address), "the address of a cluster", str(error)))) from None
    if not how.allow_public and not _is_private(found):
        raise ConfigError(str(_public(how.address)))
    try:
        ray.init(how.address, **quiet)
    except (ConnectionError, RuntimeError) as error:
        said = str(error).strip().partition("\n")[0]
        raise NoCluster(str(Problem("engine.address", f"no answer from {how.address}", "a running Ray cluster", said))) from None


def _public(address: str) -> Problem:
    return Problem(
        "Ray.address", f"{address}, which is public", "a private network, or allow_public = true: a cluster runs any code it is sent"
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _is_private(hosts: Iterable[str]) -> bool:
    return not any(ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_global for host in hosts)


def _built() -> dict[str, str]:
    versions = {name: metadata.version(name) for name in ("fedcodist", "jax", "jaxlib", "ray")}
    return {**versions, "kernels": native.path(), "platform": platform.machine()}


def _words(built: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in built.items())
