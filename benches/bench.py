"""The benchmark: ours beside plain PyTorch and beside real federated simulators, in one interleaved run.

    python -m benches.bench                       ours and plain PyTorch, all workloads at 20 clients
    python -m benches.bench --peers               all peers, 20 clients a round
    python -m benches.bench --peers --portable    the same without our native kernels
    python -m benches.bench --peers --cohorts     all peers, 100 and 500 clients a round
    python -m benches.bench --scaling             ours: memory and time of a client from 20 to 500 clients a round
    python -m benches.bench --overhead            ours: what a round costs beside training, and a checkpoint
    python -m benches.bench --profile             ours: where the time of a round goes

Every side is a process in an environment of its own that is asked for one round at a time. Each turn asks all of them, beginning with
another one than the turn before, so that whatever else the machine does hits all alike; the machine's own limit is measured between
turns. A side that cannot be installed, dies or has another model is reported with its reason, and the others go on. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benches import environments, machine, plot, report
from benches.environments import PEERS, Peer
from benches.report import OURS
from benches.workers import ROOT, Failed, Worker
from benches.workload import WORKLOADS, Workload

HERE = Path(__file__).resolve().parent
PAUSE_SECONDS = 0.05  # before a round, so that one side's threads have stopped spinning before the other is timed
FEWEST_TURNS = 3
SHORT = ("w1-small-20", "w1-large-20", "w2-small", "w2-large", "w3", "eval-small", "eval-large")
AMONG_PEERS = ("w1-small-20", "w1-large-20")
COHORTS = ("w1-small-100", "w1-large-100", "w1-small-500", "w1-large-500")
SAYS = {
    "w1": "{cohort} clients, FedAvg round, {size} CNN",
    "w2": "{cohort} clients, FedAvg round, {size} LSTM",
    "w3": "MergedCodist round, both CNNs, {cohort} clients each, 32 steps both ways",
    "eval": "10,000 test images, {size} CNN",
}


class Side(Protocol):
    """What the driver needs of a worker."""

    hello: dict[str, Any]
    rounds: list[dict[str, float]]
    rss_mb: float
    first_seconds: float

    def round(self) -> dict[str, float]: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class How:
    """How much is measured: warm rounds, at most so many turns, and no new turn after so many seconds (but three)."""

    warm: int = 3
    turns: int = 15
    seconds: float = 60.0


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of a turn.

    >>> rotated(["a", "b", "c"], 0), rotated(["a", "b", "c"], 4)
    (['a', 'b', 'c'], ['b', 'c', 'a'])
    """
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def measure(
    work: Workload, start: Mapping[str, Callable[[], Side]], how: How, limits: Callable[[], dict[str, float]] | None
) -> dict[str, Any]:
    """All sides of one workload: started one after another, warmed, then asked in turns. Whatever happens, all are ended."""
    alive: dict[str, Side] = {}
    try:
        return _measure(work, start, how, limits, alive)
    finally:
        for worker in alive.values():
            worker.close()


def _measure(
    work: Workload, start: Mapping[str, Callable[[], Side]], how: How, limits: Callable[[], dict[str, float]] | None, alive: dict[str, Side]
) -> dict[str, Any]:
    failed: dict[str, str] = {}
    samples: list[dict[str, float]] = []

    def lose(side: str, why: str) -> None:
        failed[side] = why
        if side in alive:
            alive.pop(side).close()

    def ask(side: str) -> None:
        alive[side].thaw()
        time.sleep(PAUSE_SECONDS)
        try:
            alive[side].rounds.append(alive[side].round())
            alive[side].freeze()
        except Failed as error:
            lose(side, str(error))

    for side, begin in start.items():
        try:
            alive[side] = begin()
        except Failed as error:
            lose(side, str(error))
            continue
        if (found := alive[side].hello["parameters"]) != work.parameters:
            lose(side, f"has {found:,} parameters instead of {work.parameters:,}")
        else:
            alive[side].freeze()
    warm = max(1, how.warm - 1 - work.cohort // 100)  # the first round came with the start; long rounds are warm sooner
    for _ in range(warm):
        for side in list(alive):
            ask(side)
    sample = (lambda: samples.append(limits())) if limits is not None else (lambda: None)
    begun, turns = time.perf_counter(), 0
    sample()
    while alive and turns < how.turns and (turns < FEWEST_TURNS or time.perf_counter() - begun < how.seconds):
        for side in rotated(list(start), turns):
            if side in alive:
                ask(side)
        turns += 1
        if len(samples) == 1 and (turns >= how.turns / 2 or time.perf_counter() - begun > how.seconds / 2):
            sample()
    sample()
    limit = report.limit_of(samples)
    top = limit.get("fma_all") or limit.get("sgemm_all")
    sides: dict[str, Any] = {}
    for side in start:
        if side in failed:
            sides[side] = {"failed": failed[side]}
            continue
        worker = alive[side]
        sides[side] = report.summary(worker.rounds[-turns:], work.flops, top) | {
            "rss_mb": worker.rss_mb,
            "first_seconds": worker.first_seconds,
            "loss": [worker.rounds[0].get("loss"), worker.rounds[-1].get("loss")],
            "versions": worker.hello["versions"],
        }
        if side != OURS and OURS in alive:
            sides[side]["ratio"] = report.ratios(worker.rounds[-turns:], alive[OURS].rounds[-turns:])
    says = SAYS[work.family].format(cohort=work.cohort, size=work.size)
    return {"workload": work.name, "says": says, "gflop": work.flops / 1e9, "turns": turns, "limit": limit, "sides": sides}


def our_start(work: Workload, threads: int, *more: str) -> Callable[[], Worker]:
    """How our worker is started."""
    command = [sys.executable, "-m", "benches.ours", work.name, str(threads), *more]
    return lambda: Worker(OURS, command, environments.MADE / "logs" / f"{OURS}-{work.name}.log", {"JAX_PLATFORMS": "cpu"})


def peer_start(peer: Peer, work: Workload, threads: int, python: Path | None = None) -> Callable[[], Worker]:
    """How a peer is installed, if it must be, and started."""

    def start() -> Worker:
        if python is None:
            environments.make(peer)
        command = [str(python or peer.interpreter), "-m", peer.module, work.name, str(threads)]
        log = environments.MADE / "logs" / f"{peer.name}-{work.name}.log"
        return Worker(peer.name, command, log, {**environments.QUIET, **peer.env})

    return start


def scaling(size: str, threads: int) -> dict[str, Any]:
    """Our peak memory and time of a client for rounds of more and more clients, a fresh process each; data costs neither."""
    cohorts = {}
    for work in (w for w in WORKLOADS.values() if w.family == "w1" and w.size == size):
        worker = our_start(work, threads, "lazy")()
        worker.rounds += [worker.round() for _ in range(max(3, 1_000 // work.cohort))]  # about as many clients each
        seconds = report.spread([r["seconds"] for r in worker.rounds[1:]])["median"]
        worker.close()
        cohorts[work.cohort] = {"seconds": seconds, "ms_a_client": 1e3 * seconds / work.cohort, "rss_mb": worker.rss_mb}
    first, *_, last = cohorts.values()
    growth, slower = last["rss_mb"] - first["rss_mb"], last["ms_a_client"] / first["ms_a_client"] - 1
    return {"workload": f"w1-{size}", "cohorts": cohorts, "growth_mb": growth, "slower": slower}


def apart(module: str, *args: str) -> dict[str, Any]:
    """What a module of ours measures, in a process of its own."""
    command = [sys.executable, "-m", f"benches.{module}", *args]
    ran = subprocess.run(command, cwd=ROOT, env={**os.environ, "JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE, text=True)
    if ran.returncode:
        sys.exit(f"bench: the process of {module} ended with code {ran.returncode}; its own words are above")
    return json.loads(ran.stdout.splitlines()[-1])


def remember(history: Path, entry: Mapping[str, Any]) -> None:
    """One line a run, never rewritten."""
    with history.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def compare(args: argparse.Namespace, where: str) -> tuple[str, list[dict[str, Any]]]:
    """All workloads and sides that were asked for; the whole report as Markdown, and the numbers."""
    names = args.workloads or (COHORTS if args.cohorts else AMONG_PEERS if args.peers else SHORT)
    peers = [PEERS[name] for name in args.sides or (PEERS if args.peers else ["torch"])]
    fma, note = machine.build_fma(environments.MADE)
    results = []
    for work in map(WORKLOADS.__getitem__, names):
        starts: dict[str, Callable[[], Side]] = {OURS: our_start(work, args.threads)}
        for peer in peers:
            if work.family in peer.families:
                starts[peer.name] = peer_start(peer, work, args.threads, args.torch if peer.name == "torch" else None)
        print(f"bench: {work.name}, {', '.join(starts)}", file=sys.stderr)
        how = How(args.warm, args.turns, args.seconds * (1 if work.cohort < 100 else 3))
        results.append(measure(work, starts, how, lambda: machine.limits(fma, args.threads)))
    absent = {peer.name: peer.absent for peer in peers}
    sides = "\n".join(f"- {peer.name}: {peer.says}" for peer in peers)
    words = [where, note, "", report.table(results, absent), "Sides:", "", sides, "", "Versions:", "", report.versions(results), ""]
    return "\n".join(words), results


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benches.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", action="store_true", help="all peers, 20 clients a round; makes their environments")
    parser.add_argument("--cohorts", action="store_true", help="100 and 500 clients a round instead")
    parser.add_argument("--portable", action="store_true", help="ours without native kernels")
    parser.add_argument("--sides", nargs="+", choices=PEERS, help="only these, beside ours")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, help="only these")
    parser.add_argument("--turns", type=int, default=15, help="measured rounds of each side (15)")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of a workload, after which no turn begins, but three (30; thrice for 100+)"
    )
    parser.add_argument("--warm", type=int, default=3, help="rounds before (3)")
    parser.add_argument("--threads", type=int, default=2, help="cores of every side (2)")
    parser.add_argument("--torch", type=Path, metavar="PYTHON", help="an interpreter with torch, instead of an environment of its own")
    parser.add_argument("--scaling", action="store_true", help="ours: memory and time over the clients of a round")
    parser.add_argument("--overhead", action="store_true", help="ours: what a round costs beside training")
    parser.add_argument("--profile", action="store_true", help="ours: where the time of a round goes")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="where table and picture go")
    parser.add_argument("--history", type=Path, default=HERE / "history.jsonl", help="the file that the numbers are appended to")
    args = parser.parse_args()
    if min(args.turns, args.threads, args.warm) < 1:
        parser.error("--turns, --threads and --warm: allowed whole numbers from 1")
    return args


def main() -> int:
    """Measure, print, draw, remember. 1 if our own side failed."""
    args = arguments()
    if args.portable:
        os.environ["FEDCODIST_NATIVE"] = "0"
    if hasattr(os, "sched_setaffinity"):  # all sides inherit it: equal cores, however many the machine has
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception: workers are ended on the way out
    load, started = os.getloadavg(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print_of = machine.fingerprint(args.threads)
    where = f"{started[:10]}, {print_of['cpu']}, {args.threads} of {os.cpu_count()} cores, load before {load[0]:.2f}."
    args.out.mkdir(parents=True, exist_ok=True)
    results: Any
    if args.scaling:
        name, results = "scaling", [scaling(size, args.threads) for size in ("small", "large")]
        words = "\n\n".join([where, *map(report.scaling_table, results)])
    elif args.overhead:
        name, results = "overhead", apart("overhead", "w1-small-20", str(args.threads))
        words = f"{where}\n\n{report.overhead_table(results)}"
    elif args.profile:
        name, results = "profile", apart("profile", str(args.threads))
        words = f"{where}\n\n{report.profile_table(results)}"
    else:
        name = ("cohorts" if args.cohorts else "peers" if args.peers else "bench") + ("-portable" if args.portable else "")
        words, results = compare(args, where)
        plot.draw(results, args.out / name, where)
    print(words)
    (args.out / f"{name}.md").write_text(words.rstrip() + "\n")
    loads = {"load_before": load, "load_after": os.getloadavg()}
    remember(args.history, {"bench": name, "when": started, "machine": print_of | loads, "turns": args.turns, "results": results})
    return int(not (args.scaling or args.overhead or args.profile) and any("failed" in found["sides"][OURS] for found in results))


if __name__ == "__main__":
    sys.exit(main())
