"""W1: the time of one FedAvg round of the paper's CNN, ours beside a plain PyTorch loop that does the same work.

Each side is a process of its own that is asked for one round at a time over a pipe. The driver warms both and then alternates, so that
whatever else the machine does hits both alike; the number to quote is the median of the paired ratios, never an absolute time. With
`--memory` it measures instead how our peak memory grows with the clients of a round. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np  # and nothing heavier: the driver and the PyTorch worker import this file too

CLIENTS, COHORT, EXAMPLES, BATCH = 64, 20, 100, 20
CLASSES, IMAGE, CROP = 100, 32, 24
CLIENT_LR, SERVER_LR, SERVER_EPS = 0.05, 0.01, 1e-5
SIZES = {"small": ((16, 32, 32), (64, 128)), "large": ((32, 64, 64), (128, 256))}  # filters, dense
WARM_ROUNDS = 3
PAUSE_SECONDS = 0.05  # between rounds, so that one side's threads have stopped spinning before the other is timed
QUIET = 0.1  # the share of the cores that others may take during a round worth quoting
MEMORY_COHORTS, MEMORY_ROUNDS, MEMORY_GOAL_MB = (20, 100, 500), 3, 100
HERE = Path(__file__).resolve().parent


# -- both sides --


def examples(client: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's images, [rows, height, width, channels] bytes, and labels: the same on both sides."""
    rng = np.random.default_rng(client)
    shape = (EXAMPLES, IMAGE, IMAGE, 3)
    return rng.integers(0, 256, shape, dtype=np.uint8), rng.integers(0, CLASSES, EXAMPLES, dtype=np.int32)


def serve(one_round: Callable[[], float], hello: Mapping[str, Any]) -> None:
    """A worker: say hello, then answer every line on stdin with the measurements of one round, which returns its training loss."""
    print(json.dumps(hello), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        loss = one_round()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"seconds": wall, "cpu_seconds": cpu, "rss_mb": peak_rss_mb(), "loss": loss}), flush=True)


def peak_rss_mb() -> float:
    """The peak memory of this process. Not ru_maxrss where it can be avoided: that one also remembers the process that forked this."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 1024)


# -- our side --


class Lazy(Mapping[str, Any]):
    """Clients whose data is made when it is asked for, so that it does not count in the memory of a round."""

    def __init__(self, clients: int) -> None:
        self.ids = {f"client-{k:04d}": k for k in range(clients)}

    def __getitem__(self, client: str) -> Any:
        from fedcodist import Examples

        return Examples(*examples(self.ids[client]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


def work(size: str, cohort: int, threads: int, lazy: bool) -> None:
    """Our worker: a Federation of one pool and FedAvg, as a user composes them."""
    import jax
    import jaxlib

    import fedcodist
    from fedcodist import CNN, Classify, Compiled, Constant, Examples, FedAvg, Federation, Images, LocalSGD, Pool, Split, Task, keys, tree
    from fedcodist.server import Adam

    filters, dense = SIZES[size]
    clients = Lazy(max(cohort, CLIENTS))
    x, y = examples(len(clients))  # of no client
    split = Split(x, y)
    data = clients if lazy else {client: clients[client] for client in clients}
    task = Task("w1", Classify(Images(size=CROP)), data, Examples(x), split, split, CLASSES)
    pool = Pool(
        size,
        CNN(filters, dense).build((CROP, CROP, 3), CLASSES),
        data,
        cohort,
        work=LocalSGD(lr=CLIENT_LR, epochs=1, batch=BATCH, shuffle=True, augment=True),
        server=Adam(eps=SERVER_EPS).optimizer(),
        lr=Constant(SERVER_LR),
    )
    fed, method, key = Federation(task, {size: pool}, engine=Compiled(workers=threads)), FedAvg(), keys.root(0)
    state, t = method.init(fed, key), 0

    def one_round() -> float:
        nonlocal state, t
        t += 1
        state, info = method.round(fed, state, t, key)
        jax.block_until_ready(state)
        return info[size]["train_loss"]

    versions = {"fedcodist": fedcodist.__version__, "jax": jax.__version__, "jaxlib": jaxlib.__version__, "numpy": np.__version__}
    serve(one_round, {"parameters": int(tree.size(state[size].params)), "versions": versions})


# -- the driver --


class Worker:
    """A process that does one round when asked."""

    def __init__(self, command: list[str]) -> None:
        path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
        self.started = time.perf_counter()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.hello = self._hear()
        self.rounds = [self.round()]
        self.first_seconds = time.perf_counter() - self.started  # from the start of the process to the end of its first round

    def round(self) -> dict[str, float]:
        """One round's measurements, and what share of the cores others took meanwhile."""
        assert self.process.stdin is not None
        busy, wall = busy_seconds(), time.perf_counter()
        self.process.stdin.write("round\n")
        self.process.stdin.flush()
        found = self._hear()
        busy, wall = busy_seconds() - busy, time.perf_counter() - wall
        return found | {"others": max(0.0, busy - found["cpu_seconds"]) / (wall * (os.cpu_count() or 1))}

    def close(self) -> None:
        """End the process by ending its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"w1: the worker {self.process.args!r} ended with code {self.process.wait()}; its own words are above")
        return json.loads(line)


def busy_seconds() -> float:
    """Seconds that all cores together have worked or were taken away since the machine started; 0 where nobody says."""
    try:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def our_command(size: str, cohort: int, threads: int, lazy: bool = False) -> list[str]:
    """How our worker is started."""
    said = ["--worker", "--models", size, "--cohort", str(cohort), "--threads", str(threads)]
    return [sys.executable, str(HERE / "w1.py"), *said, *(["--lazy"] if lazy else [])]


def measure(size: str, torch: str | None, repeats: int, threads: int, torch_threads: int) -> dict[str, Any]:
    """Both sides, warmed and then in turn."""
    commands = {"fedcodist": our_command(size, COHORT, threads)}
    if torch:
        commands["torch"] = [torch, str(HERE / "w1_torch.py"), size, str(torch_threads)]
    workers = {side: Worker(command) for side, command in commands.items()}
    parameters = {worker.hello["parameters"] for worker in workers.values()}
    if len(parameters) != 1:
        sys.exit(f"w1: the two sides have different models, of {sorted(parameters)} parameters")
    for worker in workers.values():
        worker.rounds += [worker.round() for _ in range(WARM_ROUNDS - 1)]
    for _ in range(repeats):
        for worker in workers.values():
            time.sleep(PAUSE_SECONDS)
            worker.rounds.append(worker.round())
    sides = {side: summary(worker, repeats) for side, worker in workers.items()}
    for worker in workers.values():
        worker.close()
    found: dict[str, Any] = {"model": size, "parameters": parameters.pop(), "sides": sides}
    if torch:
        pairs = zip(workers["torch"].rounds[-repeats:], workers["fedcodist"].rounds[-repeats:], strict=True)
        ratios = sorted(theirs["seconds"] / ours["seconds"] for theirs, ours in pairs)
        best = sides["torch"]["best_ms"] / sides["fedcodist"]["best_ms"]
        found["ratio"] = {"median": statistics.median(ratios), "low": ratios[0], "high": ratios[-1], "of_best": best}
    return found


def summary(worker: Worker, repeats: int) -> dict[str, Any]:
    """The measured rounds of a side; the warm ones only count for the first round and the peak of memory."""
    rounds = worker.rounds[-repeats:]
    return {
        "median_ms": 1e3 * statistics.median(r["seconds"] for r in rounds),
        "best_ms": 1e3 * min(r["seconds"] for r in rounds),
        "cpu_ms": 1e3 * statistics.median(r["cpu_seconds"] for r in rounds),
        "rss_mb": max(r["rss_mb"] for r in worker.rounds),
        "others": statistics.median(r["others"] for r in rounds),
        "first_seconds": worker.first_seconds,
        "loss": [worker.rounds[0]["loss"], worker.rounds[-1]["loss"]],
        "versions": worker.hello["versions"],
    }


def measure_memory(size: str, threads: int) -> dict[str, Any]:
    """Our peak memory for rounds of more and more clients, each in a fresh process."""
    cohorts = {}
    for cohort in MEMORY_COHORTS:
        worker = Worker(our_command(size, cohort, threads, lazy=True))
        worker.rounds += [worker.round() for _ in range(MEMORY_ROUNDS - 1)]
        worker.close()
        cohorts[cohort] = {"rss_mb": worker.rounds[-1]["rss_mb"], "seconds": worker.rounds[-1]["seconds"]}
    first, last = MEMORY_COHORTS[0], MEMORY_COHORTS[-1]
    return {"model": size, "cohorts": cohorts, "growth_mb": cohorts[last]["rss_mb"] - cohorts[first]["rss_mb"]}


def machine(threads: int) -> dict[str, Any]:
    """What the numbers depend on, without saying whose machine it is."""
    try:
        info = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    return {"cpu": cpu, "cores": os.cpu_count(), "threads": threads, "system": platform.system(), "python": platform.python_version()}


def table(results: list[dict[str, Any]]) -> str:
    """Round times as Markdown."""
    lines = ["| W1, 20 clients | median ms | best ms | CPU ms | peak RSS MB | first round s |", "|---|---|---|---|---|---|"]
    for found in results:
        for side, s in found["sides"].items():
            numbers = f"{s['median_ms']:.0f} | {s['best_ms']:.0f} | {s['cpu_ms']:.0f} | {s['rss_mb']:.0f} | {s['first_seconds']:.1f}"
            lines.append(f"| {side}, {found['model']} ({found['parameters']:,} parameters) | {numbers} |")
    for found in results:
        if ratio := found.get("ratio"):
            spread = f"pairs from {ratio['low']:.2f} to {ratio['high']:.2f}; of the best rounds {ratio['of_best']:.2f}"
            lines.append(f"\n{found['model']}: torch / fedcodist = **{ratio['median']:.2f}** (median of the paired ratios; {spread})")
    return "\n".join(lines)


def memory_table(results: list[dict[str, Any]]) -> str:
    """Peak memory as Markdown."""
    lines = ["| clients of a round | model | peak RSS MB | round s |", "|---|---|---|---|"]
    for found in results:
        lines += [f"| {n} | {found['model']} | {c['rss_mb']:.0f} | {c['seconds']:.2f} |" for n, c in found["cohorts"].items()]
    for found in results:
        verdict = "met" if found["growth_mb"] < MEMORY_GOAL_MB else "MISSED"
        span = f"from {MEMORY_COHORTS[0]} to {MEMORY_COHORTS[-1]} clients"
        lines.append(f"\n{found['model']}: {found['growth_mb']:+.0f} MB {span} (goal: less than {MEMORY_GOAL_MB} MB, {verdict})")
    return "\n".join(lines)


def main() -> None:
    """Drive the workers, print a table, remember the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with torch, to compare with")
    parser.add_argument("--repeats", type=int, default=15, help="measured rounds of each side (15)")
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--threads", type=int, default=2, help="cores of either side (2)")
    parser.add_argument("--torch-threads", type=int, help="threads of PyTorch, if not the same")
    parser.add_argument("--memory", action="store_true", help="peak memory over the clients of a round, ours only")
    parser.add_argument("--history", type=Path, default=HERE / "history.jsonl", help="the file that the numbers are appended to")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cohort", type=int, default=COHORT, help=argparse.SUPPRESS)
    parser.add_argument("--lazy", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.repeats < 1 or args.threads < 1:
        parser.error("--repeats and --threads: allowed whole numbers from 1")
    if args.worker:
        return work(args.models[0], args.cohort, args.threads, args.lazy)
    if hasattr(os, "sched_setaffinity"):  # both sides inherit it: equal cores, however many the machine has
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    load = os.getloadavg()
    if args.memory:
        results = [measure_memory(size, args.threads) for size in args.models]
        print(memory_table(results))
    else:
        torch_threads = args.torch_threads or args.threads
        results = [measure(size, args.torch, args.repeats, args.threads, torch_threads) for size in args.models]
        print(table(results))
        if not args.torch:
            print("\nOurs only: give --torch PYTHON, an interpreter with torch, for the comparison.")
    where = f"{machine(args.threads)['cpu']}, {args.threads} of {os.cpu_count()} cores"
    torch_said = f", PyTorch with {args.torch_threads} threads" if args.torch_threads else ""
    print(f"\n{where}{torch_said}, load before {load[0]:.2f}.")
    if any(side["others"] > QUIET for found in results for side in found.get("sides", {}).values()):
        print(f"NOT QUIET: others took more than {QUIET:.0%} of the cores. PyTorch suffers more from that than we do: do not quote this.")
    entry = {
        "bench": "w1-memory" if args.memory else "w1",
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(args.threads) | {"load_before": load, "load_after": os.getloadavg()},
        "torch_threads": args.torch_threads or args.threads,
        "repeats": MEMORY_ROUNDS if args.memory else args.repeats,
        "results": results,
    }
    with args.history.open("a") as file:
        file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
