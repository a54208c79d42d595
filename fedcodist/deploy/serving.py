"""The server of a real federation: a config becomes an experiment whose clients are devices, and the usual session runs it.

The server's task gives public, held-out and test rows; its own clients, if it has some, are not used. A pool takes the devices that its
`clients.where` or `clients.ids` name. Which devices there are is kept in a file beside the runs, so that a server which is started again
draws the same cohorts. Noise for privacy is drawn by a key that only this directory has.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedcodist import settings
from fedcodist.config import Config, assemble, read
from fedcodist.deploy import files, keys
from fedcodist.engines.flower import Flower, Terms
from fedcodist.engines.private import Private
from fedcodist.engines.roll import Declared, Roll
from fedcodist.engines.roster import Roster
from fedcodist.engines.wire import Post
from fedcodist.errors import ConfigError, Failure
from fedcodist.objectives import OBJECTIVES
from fedcodist.runs import session
from fedcodist.settings import Problem, setting
from fedcodist.storage import durable
from fedcodist.train import Experiment
from fedcodist.work import WORKS

SETTINGS, DEVICES, OUTCOME, LOG, RUNS = "server.toml", "devices.json", "outcome.json", "rounds.log", "runs"
NOISE_KEY = "noise.key"


@dataclass(frozen=True)
@settings.checked
class Server:
    """What a server's `server.toml` says."""

    config: str  # a file beside it, or a shipped config's name
    host: str = "127.0.0.1"  # where devices connect
    port: int = setting(9092, ge=1, le=65533)  # and the next one, on loopback, for Flower's SuperLink
    seed: int = setting(0, ge=0, le=2**63 - 1)
    secure_aggregation: bool = False
    rounds: Terms = Terms()


def read_server(directory: Path) -> Server:
    """The settings of the server that lives in this directory."""
    return files.read(Server, directory / SETTINGS)


def read_config(directory: Path, server: Server) -> Config:
    """The experiment's config, with a checkpoint after each round; refused if devices cannot carry it out."""
    beside = directory / server.config
    config = replace(read(beside if beside.is_file() else server.config), checkpoint_every=1)
    problems = refused(config) + ([secure_aggregation(config)] if server.secure_aggregation else [])
    if problems:
        raise ConfigError("\n".join(map(str, problems)))
    return config


def refused(config: Config) -> list[Problem]:
    """What a config asks for that only a simulation can do."""
    found = []
    for name, pool in config.pools.items():
        choice = pool.clients
        for key in ("take", "share", "skip"):
            if getattr(choice, key):
                found.append(
                    Problem(f"pools.{name}.clients.{key}", str(getattr(choice, key)), "where or ids: which devices come is not known")
                )
        if pool.domain is not None:
            found.append(Problem(f"pools.{name}.domain", pool.domain, "no domain: devices choose their own rows"))
        if type(pool.work).kind not in WORKS:
            found.append(Problem(f"pools.{name}.work", type(pool.work).kind, " | ".join(WORKS)))
    return found


def secure_aggregation(config: Config) -> Problem:
    """Why it is refused, and whether the experiment could have it, were it there."""
    why = "Flower's SecAgg+ runs only on its legacy strategies, which own a loop over one model, and pools have rounds of their own"
    single = [config.method.label] if config.method.singly else []
    single += [f"pool {name}'s fold" for name, pool in config.pools.items() if not isinstance(pool.fold, str) and pool.fold.each]
    fit = f"{' and '.join(single)} would not fit it: replies are needed one by one" if single else f"{config.method.label} would fit it"
    return Problem("secure_aggregation", "true", "false", f"{why}; {fit}, with the checks of single replies left out")


def membership(config: Config) -> Callable[[str, Mapping[str, str]], Sequence[str]]:
    """(client, attributes) -> the pools that it is in."""

    def pools(client: str, attributes: Mapping[str, str]) -> list[str]:
        def fits(name: str) -> bool:
            choice = config.pools[name].clients
            return (not choice.ids or client in choice.ids) and all(attributes.get(key) == value for key, value in choice.where.items())

        return [name for name in config.pools if fits(name)]

    return pools


def prepare(config: Config, server: Server, post: Post, directory: Path, say: Callable[[str], Any]) -> tuple[Experiment, Flower]:
    """The experiment and its engine, once enough devices are there."""
    task = replace(config.task.load(), clients=Roster(), attributes={})
    if type(task.objective).kind not in OBJECTIVES:
        raise ConfigError(str(Problem("task", f"an objective of kind {type(task.objective).kind}", " | ".join(OBJECTIVES))))
    roll = Roll(
        tuple(config.pools),
        task.spec,
        membership(config),
        server.rounds.most_examples,
        known=_known(directory / DEVICES),
        keep=lambda known: _keep(directory / DEVICES, known),
        say=say,
    )
    engine = Flower(post, roll, task.spec, server.rounds, say)
    engine.meet()
    experiment = assemble(config, task, server.seed, populations=roll.rosters)
    fed = experiment.federation
    pools = {name: replace(pool, spare=math.ceil(server.rounds.spare * pool.cohort)) for name, pool in fed.pools.items()}
    outer = fed.engine
    if isinstance(outer, Private):
        keys.check_private(directory / NOISE_KEY)
        outer = outer.hidden((directory / NOISE_KEY).read_bytes())
    return replace(experiment, federation=replace(fed, pools=pools, engine=outer)), engine


def serve(post: Post, directory: Path) -> None:
    """Run the federation's experiment to its end, from wherever it stands; whatever ends it is written down for whoever started it."""
    outcome = directory / OUTCOME

    def say(text: str) -> None:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {settings.one_line(text)}"
        print(line, flush=True)
        with open(directory / LOG, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
            log.write(line + "\n")

    try:
        server = read_server(directory)
        config = read_config(directory, server)
        experiment, engine = prepare(config, server, post, directory, say)
        for event in session.perform(experiment, directory / RUNS, engine=engine):
            for note in event.notes:
                say(f"note: {note}")
            say(f"{event.kind} {event.t} of {config.rounds}")
    except Failure as failure:
        for line in failure.lines:
            say(f"error: {line}")
        durable.replace_file(outcome, json.dumps({"code": failure.code, "lines": failure.lines}).encode())
        raise
    durable.replace_file(outcome, json.dumps({"code": 0, "lines": []}).encode())


def _known(path: Path) -> dict[str, Declared]:
    if not path.is_file():
        return {}
    return {client: Declared(**one) for client, one in json.loads(path.read_text("utf-8")).items()}


def _keep(path: Path, known: Mapping[str, Declared]) -> None:
    table = {client: one._asdict() for client, one in sorted(known.items())}
    durable.replace_file(path, json.dumps(table, indent=1).encode())
