"""What the engine `ray` must keep, on a cluster that is started here: the compiled engine's bytes, lost actors, flat memory, loopback.

`make test-ray` runs it in a network namespace of its own, and reads what it prints.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import w1

from fedcodist import config, testing
from fedcodist.engines import blocks
from fedcodist.engines import ray as engine
from fedcodist.engines.compiled import Compiled
from fedcodist.engines.ray import Placed, Ray
from fedcodist.errors import Failure
from fedcodist.reproduce import spread
from fedcodist.runs import session
from fedcodist.testing import same_bits
from fedcodist.train import Experiment, train
from fedcodist.tuning import space, study, tune

BASE = ["rounds=3", "pools.small.cohort=7", "pools.large.cohort=4"]
CASES = {
    "merged": ("quick/toy", []),
    "scaffold": ("quick/toy-scaffold", []),
    "feddf": ("quick/toy-feddf", []),
    "krum": ("quick/toy", ["pools.small.fold={ kind = 'krum' }", "method='fedavg'"]),
    "faults": ("quick/toy-faults", []),
}


def made(name: str, settings: list[str], how: Any) -> Any:
    """The experiment of a shipped config, with another engine."""
    read = replace(config.read(name, [*BASE, *settings]), engine=how)
    return config.build(read, 0)


def last(experiment: Any) -> Any:
    return list(train(experiment))[-1]


def ask_actors(what: Callable[[Any], Any]) -> list[Any]:
    """What this function finds in each actor."""
    import ray

    assert engine._known is not None
    return ray.get([actor.__ray_call__.remote(what) for actor in engine._known.actors])


def identical() -> dict[str, list[bool]]:
    """For each case whether one and two workers give the bytes and the journal of the compiled engine."""
    found: dict[str, list[bool]] = {}
    for workers in (1, 2):
        for case, (name, settings) in CASES.items():
            here, there = (last(made(name, settings, how)) for how in (Compiled(block=2), Ray(workers=workers, block=2)))
            found.setdefault(case, []).append(same_bits(here.state, there.state) and here.info == there.info)
            print(case, workers, found[case][-1], file=sys.stderr)
    return found


def loses_an_actor(rounds: int = 5) -> dict[str, Any]:
    """Kill the process of an actor three times, each in the middle of a round: some blocks have landed and others are on their way."""
    steps = iter(train(made("quick/toy", [f"rounds={rounds}"], Ray(workers=2, block=1))))
    state, come, lost, landed = next(steps).state, engine._come, [], 0
    processes = ask_actors(lambda _: os.getpid())

    def kill(ray: Any, ref: Any) -> Any:
        nonlocal landed
        landed += 1
        if landed == 4:
            lost.append(processes[len(lost) % 2])
            os.kill(lost[-1], signal.SIGKILL)
        return come(ray, ref)

    engine._come = kill
    try:
        for step in steps:
            state, landed = step.state, 0 if len(lost) < 3 else 4
            processes = ask_actors(lambda _: os.getpid())
    finally:
        engine._come = come
    expected = last(made("quick/toy", [f"rounds={rounds}"], Compiled(block=1))).state
    return {"killed": len(set(lost)), "same": same_bits(state, expected)}


def rss(process: int | str = "self") -> float:
    """Resident memory in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory(rounds: int = 200) -> dict[str, Any]:
    """Resident memory of this process and its actors, and the objects in the store, after the first rounds and at the end."""
    import ray

    found, seconds = [], []
    steps, start = train(made("quick/toy", [f"rounds={rounds}"], Ray(workers=2, block=2))), time.monotonic()
    for step in steps:
        seconds.append(time.monotonic() - start)
        if step.t in (20, rounds):
            sizes = [rss(), *map(rss, ask_actors(lambda _: os.getpid()))]
            total, free = (resources().get("object_store_memory", 0) for resources in (ray.cluster_resources, ray.available_resources))
            found.append({"rss": sizes, "store": total - free})
        start = time.monotonic()
    here, times = [], time.monotonic()
    for _ in train(made("quick/toy", [f"rounds={rounds}"], Compiled(block=2))):
        here.append(time.monotonic() - times)
        times = time.monotonic()
    return {"rounds": rounds, "after": found, "ms": {"ray": 1e3 * statistics.median(seconds), "compiled": 1e3 * statistics.median(here)}}


def overhead(turns: int = 12) -> dict[str, Any]:
    """Rounds of the benches' W1 (20 clients, the small CNN) with two actors and with two threads by turns: the median of each turn's ratio,
    of time and of this process's and the actors' work, without the first turns."""
    from benches import ours, workload

    work = workload.WORKLOADS["w1-small-20"]
    fed, method = ours.federation(work, 2, of=lambda client: tuple(w1.made(work.clients)[f"client-{client:04d}"]))
    there = replace(fed, engine=Placed(Ray(workers=2), w1.Clients(work.size, work.clients)))
    steps = [iter(train(Experiment(one, method, turns + 3))) for one in (fed, there)]
    rows, last_steps = [], []
    for turn in range(turns + 3):
        row, last_steps = [], []
        for one in steps if turn % 2 else steps[::-1]:
            start, busy = time.monotonic(), spent()
            last_steps.append(next(one))
            row += [time.monotonic() - start, spent() - busy]
        rows.append(row if turn % 2 else row[2:] + row[:2])
    wall, cpu = ([row[2 + i] / row[i] for row in rows[3:]] for i in (0, 1))
    return {
        "turns": turns,
        "time": round(statistics.median(wall), 3),
        "times": [round(min(wall), 3), round(max(wall), 3)],
        "cpu": round(statistics.median(cpu), 3),
        "ms": round(1e3 * statistics.median(row[0] for row in rows[3:])),
        "load": round(os.getloadavg()[0], 1),
        "same": same_bits(*(step.state for step in last_steps)),
    }


def spent() -> float:
    """Seconds of a core that this process and its actors have used."""
    found = sum(os.times()[:2])
    for process in ask_actors(lambda _: os.getpid()) if engine._known is not None else ():
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        found += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return found


def address() -> dict[str, Any]:
    """The bytes of `compiled` on a cluster that was there before, by its address; and that it is still there when the run is over."""
    import ray

    ray.shutdown()
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--node-ip-address=127.0.0.1", "--port=6399", "--num-cpus=2"]
    options = ["--include-dashboard=false", "--disable-usage-stats", "--block"]  # `ray stop` would end other people's clusters too
    there = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until_open(6399)
        found = [last(made("quick/toy", [], Compiled(block=2)))]
        for _ in range(2):
            found.append(last(made("quick/toy", [], Ray(address="127.0.0.1:6399", workers=2, block=2))))
            ray.shutdown()
        return {"same": same_bits(found[0].state, found[1].state), "again": same_bits(found[0].state, found[2].state)}
    finally:
        ray.shutdown()
        engine._known = None
        there.send_signal(signal.SIGTERM)
        there.wait(60)


def until_open(port: int, seconds: float = 300) -> None:
    """Wait until something answers there."""
    end = time.monotonic() + seconds
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                time.sleep(5)  # the rest of the cluster follows its head
                return
        assert time.monotonic() < end, "no cluster"
        time.sleep(0.5)


def trials() -> dict[str, Any]:
    """The trials of a study whose jobs are a cluster's, and of one in this process."""
    found = []
    base = config.read("quick/toy", ["rounds=3", "method.distill.steps=2"])
    for cluster, jobs in (("", 1), ("local", 2)):
        with tempfile.TemporaryDirectory() as place:
            search = study.Search(base, space.preset(base, "rates"), 4, 0)
            steps = tune.run(search, place, jobs=jobs, cluster=cluster)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    found.append({trial.number: (sorted(trial.values.items()), trial.outcome.curve) for trial in end.value})
                    break
    return {"trials": len(found[1]), "same": found[0] == found[1]}


def cells() -> dict[str, Any]:
    """The results of runs that were spread over a cluster, and of the same in this process."""
    jobs = [(replace(config.read("quick/toy", ["rounds=3", f"name='cell-{k}'"])), k) for k in (0, 1, 2)]
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        for one, seed in jobs:
            for _ in session.perform(config.build(one, seed), Path(here)):
                pass
        ended = list(spread.trained([(one, seed, Path(there)) for one, seed in jobs], "local", 2))
        names = [path.relative_to(here) for path in sorted(Path(here).glob("*/*/*/*")) if path.name in ("result.json", "rounds.jsonl")]
        same = [(Path(here) / name).read_bytes() == (Path(there) / name).read_bytes() for name in names]
    return {"runs": len(ended), "failed": [end.why for end in ended if end.why], "files": len(same), "same": all(same)}


def compiles() -> int:
    """How many programs an actor has made in the last of twenty rounds of different cohorts: none."""
    counts = []
    for step in train(made("quick/toy", ["rounds=20", "pools.small.cohort=5"], Ray(workers=2, block=2))):
        if step.t in (10, 20):
            counts.append(sum(ask_actors(lambda _: blocks._run._cache_size())))  # type: ignore[attr-defined]
    return counts[1] - counts[0]


def listens() -> list[str]:
    """The addresses on which anything in this namespace listens while there is a cluster, that are not loopback."""
    last(made("quick/toy", ["rounds=1"], Ray(workers=2, block=2)))
    found = []
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address = local.partition(":")[0]
            loopback = address in ("0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F")
            if state in ("0A", "07") and not loopback:
                found.append(f"{name} {local}")
    return found


def refuses() -> str:
    """What is said of an address where nothing answers."""
    import ray

    ray.shutdown()
    os.environ["RAY_gcs_rpc_server_reconnect_timeout_s"] = "2"  # noqa: SIM112 Ray's own spelling
    experiment = made("quick/toy", ["rounds=1"], Ray(address="127.0.0.1:9"))
    try:
        last(experiment)
    except Failure as error:
        return f"{error.code} {error}"
    return "nothing"


def data_that_differs() -> str:
    """What is said if an actor finds other data than the run has."""
    how = Ray(workers=2, block=2)
    experiment = made("quick/toy", ["rounds=1"], how)
    placed = experiment.federation.engine
    wrong = replace(placed, source=replace(placed.source, content="0" * 64))
    try:
        last(replace(experiment, federation=replace(experiment.federation, engine=wrong)))
    except Failure as error:
        return f"{error.code} {error}"
    return "nothing"


def contract() -> bool:
    """The contract of every engine, with the clients' rows sent along."""
    testing.check_engine(Ray(workers=2, block=2))
    return True


CHECKS: dict[str, Callable[[], Any]] = {
    "identical": identical,
    "listens": listens,
    "contract": contract,
    "differs": data_that_differs,
    "compiled": compiles,
    "lost": loses_an_actor,
    "memory": memory,
    "overhead": overhead,
    "trials": trials,
    "cells": cells,
    "address": address,
    "refuses": refuses,
}


def main(names: list[str]) -> None:
    """Those named, or all; a line of JSON for each."""
    for name in names or CHECKS:
        start = time.monotonic()
        print(json.dumps({name: CHECKS[name](), "seconds": round(time.monotonic() - start, 1)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
