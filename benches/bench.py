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
turns. A side that cannot be installed, dies or has another model is reported with its reason, and the others go on. What is measured is
written after every workload, to runs/benches; `--publish` copies it to what the documentation quotes, if it is whole and was quiet. See
README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from benches import environments, machine, plot, report
from benches.environments import PEERS, Peer
from benches.report import OURS
from benches.workers import ROOT, Failed, Worker, busy_seconds, our_cores
from benches.workload import WORKLOADS, Workload
from fedcodist.runs import environment

HERE = Path(__file__).resolve().parent
OWN = ROOT / "runs" / "benches"  # of whoever measures; nothing there is under version control
PAUSE_SECONDS = 0.05  # before a round, so that one side's threads have stopped spinning before the other is timed
SCALING_TURNS, SCALING_CLIENTS = 9, 200  # of a turn of each side, or one round if that has more
FEWEST_TURNS, FEWEST_LONG_TURNS = 10, 3  # of a workload, and of one of 100 clients and more
SHORT = ("w1-small-20", "w1-large-20", "w2-small", "w2-large", "w3", "eval-small", "eval-large")
AMONG_PEERS = ("w1-small-20", "w1-large-20")
COHORTS = ("w1-small-100", "w1-large-100", "w1-small-500", "w1-large-500")
Name = TypeVar("Name")
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
    """How much is measured: warm rounds, at most so many turns, and no new turn after so many seconds, but the fewest."""

    warm: int = 3
    turns: int = 15
    seconds: float = 30.0
    fewest: int = FEWEST_TURNS


def rotated(names: Sequence[Name], turn: int) -> list[Name]:
    """The order of a turn.

    >>> rotated(["a", "b", "c"], 0), rotated(["a", "b", "c"], 4)
    (['a', 'b', 'c'], ['b', 'c', 'a'])
    """
    first = turn % len(names)
    return [*names[first:], *names[:first]]


Limits = Callable[[], dict[str, float]]
Tell = Callable[[str], None]


def measure(
    work: Workload, start: Mapping[str, Callable[[], Side]], how: How, limits: Limits | None, tell: Tell = lambda words: None
) -> dict[str, Any]:
    """All sides of one workload: started one after another, warmed, then asked in turns. Whatever happens, all are ended."""
    alive: dict[str, Side] = {}
    try:
        return _measure(work, start, how, limits, tell, alive)
    finally:
        for worker in alive.values():
            worker.close()


def _measure(
    work: Workload, start: Mapping[str, Callable[[], Side]], how: How, limits: Limits | None, tell: Tell, alive: dict[str, Side]
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
        tell(f"starting {side}")
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
            tell(f"warming {side}")
            ask(side)
    sample = (lambda: samples.append(limits())) if limits is not None else (lambda: None)
    begun, turns = time.perf_counter(), 0
    sample()
    while alive and turns < how.turns and (turns < how.fewest or time.perf_counter() - begun < how.seconds):
        for side in rotated(list(start), turns):
            if side in alive:
                tell(f"turn {turns + 1}, {side}")
                ask(side)
        turns += 1
        if len(samples) == 1 and (turns >= how.turns / 2 or time.perf_counter() - begun > how.seconds / 2):
            sample()
    sample()
    limit = report.limit_of(samples)
    top = report.top_of(limit)
    sides: dict[str, Any] = {}
    for side in start:
        if side in failed:
            sides[side] = {"failed": failed[side]}
            continue
        worker = alive[side]
        done = work.operations(worker.hello.get("wide", 1.0)) / work.flops
        sides[side] = report.summary(worker.rounds[-turns:], work.flops, top, done) | {
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


def scaling(size: str, threads: int, tell: Tell = lambda words: None) -> dict[str, Any]:
    """Our peak memory and time of a client for rounds of more and more clients, a process each; data costs neither. They are asked in
    turns, for about as many clients each, because a machine's speed drifts by more than what is looked for. One process before them
    fills the compilation cache: compiling takes memory too."""
    works = [w for w in WORKLOADS.values() if w.family == "w1" and w.size == size]
    tell("compiling")
    our_start(works[0], threads, "lazy")().close()
    sides: dict[int, Side] = {}
    turns: list[dict[int, dict[str, float]]] = []
    try:
        for work in works:
            tell(f"starting {work.cohort} clients")
            sides[work.cohort] = our_start(work, threads, "lazy")()
        for turn in range(SCALING_TURNS):
            tell(f"turn {turn + 1} of {SCALING_TURNS}")
            turns.append(_turn(sides, rotated(list(sides), turn)))
    finally:
        for side in sides.values():
            side.close()
    return {"workload": f"w1-{size}", "turns": len(turns)} | report.scaled(turns, {n: side.rss_mb for n, side in sides.items()})


def _turn(sides: Mapping[int, Side], order: Sequence[int]) -> dict[int, dict[str, float]]:
    """{clients of a round: milliseconds a client, and what others took} of one turn."""
    found = {}
    for n in order:
        rounds = [sides[n].round() for _ in range(max(1, SCALING_CLIENTS // n))]
        found[n] = {key: sum(r[key] for r in rounds) / len(rounds) for key in ("seconds", "others")}
        found[n]["ms_a_client"] = 1e3 * found[n].pop("seconds") / n
    return found


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


class Job(NamedTuple):
    """What is to be measured: piece by piece, and after every piece there is something to write."""

    name: str
    pieces: Iterator[Any]
    words: Callable[[list[Any]], str]
    draw: Callable[[list[Any], Path], Any] = lambda results, path: None
    failed: Callable[[list[Any]], bool] = lambda results: False
    doubts: Callable[[list[Any]], list[str]] = lambda results: []  # why it is not to be quoted


def job(args: argparse.Namespace, where: str) -> Job:
    """What the command line asks for."""
    portable = "-portable" if args.portable else ""
    if args.scaling:
        return Job(
            f"scaling{portable}",
            _one_by_one(("small", "large"), lambda size, tell: scaling(size, args.threads, tell)),
            lambda results: "\n\n".join([where, *map(report.scaling_table, results)]),
            doubts=lambda results: ["a part of it was not quiet"] if any(map(report.loud, results)) else [],
        )
    if args.overhead:
        pieces = _one_by_one(("w1-small-20",), lambda name, tell: apart("overhead", name, str(args.threads)))
        return Job(
            f"overhead{portable}",
            pieces,
            lambda results: f"{where}\n\n{report.overhead_table(results[0])}",
            doubts=lambda results: report.unsteady(results[0]),
        )
    if args.profile:
        pieces = _one_by_one(("profile",), lambda _, tell: apart("profile", str(args.threads)))
        return Job(f"profile{portable}", pieces, lambda results: f"{where}\n\n{report.profile_table(results[0])}")
    names = args.workloads or (COHORTS if args.cohorts else AMONG_PEERS if args.peers else SHORT)
    peers = [PEERS[name] for name in args.sides or (PEERS if args.peers or args.cohorts else ["torch"])]
    some = "-some" if args.sides or args.workloads else ""
    name = ("cohorts" if args.cohorts else "peers" if args.peers else "bench") + some + portable
    fma, note = machine.build_fma(environments.MADE)

    def words(results: list[Any]) -> str:
        absent = {peer.name: peer.absent for peer in peers}
        sides = "\n".join(f"- {peer.name}: {peer.says}" for peer in peers)
        missing = [name for name in names if name not in {found["workload"] for found in results}]
        opening = [where, note, *([f"\nNot measured yet: {', '.join(missing)}."] if missing else []), ""]
        return "\n".join(
            [
                *opening,
                report.goals(name, results),
                report.table(results, absent),
                "Sides:",
                "",
                sides,
                "",
                "Versions:",
                "",
                report.versions(results),
                "",
            ]
        )

    return Job(
        name,
        compared(args, [WORKLOADS[name] for name in names], peers, fma),
        words,
        lambda results, path: plot.draw(results, path, where),
        lambda results: any("failed" in found["sides"][OURS] for found in results),
        lambda results: [f"{found['workload']}: {why}" for found in results for why in report.doubts(found)],
    )


def _one_by_one(names: Sequence[str], measured: Callable[[str, Callable[..., None]], Any]) -> Iterator[Any]:
    """Each of these measured, with progress."""
    for n, name in enumerate(names, 1):
        tell = progress(f"bench: {n} of {len(names)}, {name}")
        tell("measuring")
        found = measured(name, tell)
        tell("done", last=True)
        yield found


def compared(args: argparse.Namespace, works: Sequence[Workload], peers: Sequence[Peer], fma: list[str] | None) -> Iterator[dict[str, Any]]:
    """All sides that were asked for, workload by workload."""
    for n, work in enumerate(works, 1):
        starts: dict[str, Callable[[], Side]] = {OURS: our_start(work, args.threads)}
        for peer in peers:
            if work.family in peer.families:
                starts[peer.name] = peer_start(peer, work, args.threads, args.torch if peer.name == "torch" else None)
        tell = progress(f"bench: {n} of {len(works)}, {work.name}")
        long = work.cohort >= 100
        how = How(args.warm, args.turns, args.seconds * (3 if long else 1), FEWEST_LONG_TURNS if long else FEWEST_TURNS)
        found = measure(work, starts, how, lambda: machine.limits(fma, args.threads), tell)
        tell(report.in_short(found), last=True)
        yield found


def progress(title: str) -> Callable[..., None]:
    """Says what goes on: on a terminal in one line that changes, elsewhere only how it began and ended."""
    live, begun = sys.stderr.isatty(), time.perf_counter()
    if not live:
        print(title, file=sys.stderr)

    def tell(words: str, last: bool = False) -> None:
        line = f"{title}: {words} ({time.perf_counter() - begun:.0f} s)"
        if live:
            print(f"\r\033[K{line}", end="\n" if last else "", file=sys.stderr, flush=True)
        elif last:
            print(line, file=sys.stderr)

    return tell


def taken(seconds: float = 1.0) -> float:
    """The share of our cores that others take now."""
    before = busy_seconds()
    time.sleep(seconds)
    return (busy_seconds() - before) / (seconds * len(our_cores()))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action="store_true", help="all peers, 20 clients a round; makes their environments")
    parser.add_argument("--cohorts", action="store_true", help="all peers, 100 and 500 clients a round")
    parser.add_argument("--portable", action="store_true", help="ours without native kernels")
    parser.add_argument("--sides", nargs="+", choices=PEERS, help="only these, beside ours")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, help="only these")
    how = How()
    parser.add_argument("--turns", type=int, default=how.turns, help=f"measured rounds of each side ({how.turns})")
    parser.add_argument(
        "--seconds",
        type=float,
        default=how.seconds,
        help=f"of a workload, after which no turn begins but {FEWEST_TURNS} ({how.seconds:.0f}; 100+ clients: thrice, {FEWEST_LONG_TURNS})",
    )
    parser.add_argument("--warm", type=int, default=how.warm, help=f"rounds before ({how.warm})")
    parser.add_argument("--threads", type=int, default=2, help="cores of every side (2)")
    parser.add_argument("--torch", type=Path, metavar="PYTHON", help="an interpreter with torch, instead of an environment of its own")
    ours = parser.add_mutually_exclusive_group()
    ours.add_argument("--scaling", action="store_true", help="ours: memory and time over the clients of a round")
    ours.add_argument("--overhead", action="store_true", help="ours: what a round costs beside training")
    ours.add_argument("--profile", action="store_true", help="ours: where the time of a round goes")
    parser.add_argument("--out", type=Path, default=OWN, help="where table, picture and history.jsonl go (runs/benches)")
    parser.add_argument("--publish", action="store_true", help="also to benches/results and benches/history.jsonl, which the docs quote")
    args = parser.parse_args()
    if (args.scaling or args.overhead or args.profile) and (args.peers or args.cohorts or args.sides or args.workloads):
        parser.error("--scaling, --overhead and --profile: allowed without other sides and workloads")
    if min(args.turns, args.threads, args.warm) < 1:
        parser.error("--turns, --threads and --warm: allowed whole numbers from 1")
    if args.publish and (args.sides or args.workloads):
        parser.error("--publish: allowed without --sides and --workloads: a part would stand in the place of the whole")
    return args


def main() -> int:
    """Measure, write, draw, remember. 1 if our own side failed."""
    args = arguments()
    if args.portable:
        os.environ["FEDCODIST_NATIVE"] = "0"
    if hasattr(os, "sched_setaffinity"):  # all sides inherit it: equal cores, however many the machine has
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception: workers are ended on the way out
    load, started = os.getloadavg(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if (share := taken()) > report.QUIET:
        print(f"bench: warning: others take {share:.0%} of the cores now; what is measured beside them is worth nothing", file=sys.stderr)
    print_of = machine.fingerprint(args.threads)
    where = f"{started[:10]}, {print_of['cpu']}, {args.threads} of {os.cpu_count()} cores, of which others took {share:.0%} before."
    args.out.mkdir(parents=True, exist_ok=True)
    todo, results, entry = job(args, where), [], {}
    page = args.out / f"{todo.name}.md"
    try:
        for found in todo.pieces:
            results.append(found)
            page.write_text(todo.words(results).rstrip() + "\n")
            todo.draw(results, args.out / todo.name)
    except KeyboardInterrupt:
        print(f"\nbench: interrupted; {f'what was measured is in {page}' if results else 'nothing was measured'}", file=sys.stderr)
        return 130
    finally:
        if results:
            loads = {"load_before": load, "load_after": os.getloadavg()}
            entry = {"bench": todo.name, "when": started, "commit": environment.checkout(), "machine": print_of | loads}
            entry |= {"turns": args.turns, "results": results}
            remember(args.out / "history.jsonl", entry)
    print(page.read_text())
    print(f"bench: {page}", file=sys.stderr)
    if todo.failed(results):
        return 1
    return publish(todo, args.out, entry, todo.doubts(results)) if args.publish else 0


def publish(todo: Job, out: Path, entry: Mapping[str, Any], doubts: Sequence[str]) -> int:
    """Put what was measured where the documentation finds it, unless others used the machine meanwhile."""
    if (share := taken()) > report.QUIET:
        doubts = [*doubts, f"others take {share:.0%} of the cores now"]
    if doubts:
        print(f"bench: not published: {'; '.join(doubts)}", file=sys.stderr)
        return 1
    (HERE / "results").mkdir(parents=True, exist_ok=True)
    for path in out.glob(f"{todo.name}.*"):
        shutil.copyfile(path, HERE / "results" / path.name)
    remember(HERE / "history.jsonl", entry)
    print(f"bench: published in {HERE.name}/results; `make docs` writes the pages that quote it", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
