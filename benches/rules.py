"""What a round costs under each rule, beside a FedAvg round of the same pools: the paper's two CNNs, 20 clients of each.

    python -m benches.rules              # a table
    python -m benches.rules --publish    # also benches/results/rules.md and docs/measured/rules.json, which the docs quote

All rules train in one process, one round each by turns, and every turn begins with another; a ratio is of two rounds of one turn. FedAvg
and SCAFFOLD have two pools, 20 clients of the small model and 20 of the large one. HeteroFL, Split-Mix and FLANC have the same 40 clients
in one pool: 20 carry the whole width and 20 half of it, which is the small model. CPU time is the whole process's, all threads together.

Memory is that of a process of its own for each rule, with 40 and with 120 clients a round, whose images are made when they are asked for.
A checkpoint is that of a run with 315 clients in the small pool and 47 in the large one, all of which keep state.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from benches import bench, machine, ours, report
from benches import workload as w
from fedcodist import Classify, Compiled, Examples, FedAvg, Federation, Images, Split, Task, keys
from fedcodist.cli.arguments import prepare_jax
from fedcodist.rules import FLANC, HeteroFL, Scaffold, SplitMix
from fedcodist.rules.carriers import Carriers, Width
from fedcodist.runs import checkpoint
from fedcodist.types import Rule

EACH, WARM, TURNS = 20, 2, 15
GOALS = {"scaffold": 1.25, "heterofl": 1.0, "splitmix": 1.0, "flanc": 1.3}  # of a FedAvg round
COHORTS = (40, 120)  # clients of a round
KEPT, CHECKPOINT_SECONDS = {"small": 315, "large": 47}, 1.0
ROOT = Path(__file__).parent.parent
PAGE, FILE = ROOT / "benches/results/rules.md", ROOT / "docs/measured/rules.json"


def rules(half: int) -> dict[str, Rule | None]:
    """The rules, with so many clients of the whole width; None is FedAvg."""
    widths = (Width(1.0, Carriers(take=half)), Width(0.5))
    shared = {"heterofl": HeteroFL(widths=widths), "splitmix": SplitMix(rate=0.5, widths=widths), "flanc": FLANC(widths=widths)}
    return {"fedavg": None, "scaffold": Scaffold(), **shared}


def federation(name: str, each: int, lazy: bool = False, kept: Mapping[str, int] | None = None) -> Federation:
    """So many clients for each of the two models; or those that `kept` says, of which `each` are asked."""
    rule, x = rules(each)[name], w.examples(10**6, w.EXAMPLES)
    sizes = kept or dict.fromkeys(w.CNNS, each)
    made = {size: ours.Lazy(n, first=i * n, of=w.pieces if lazy else w.examples) for i, (size, n) in enumerate(sizes.items())}
    data = made if lazy else {size: {**clients} for size, clients in made.items()}
    if rule is None or isinstance(rule, Scaffold):
        pools = {size: ours.pool(size, data[size], min(each, n)) for size, n in sizes.items()}
    else:
        everyone = ours.Lazy(2 * each, of=w.pieces if lazy else w.examples)
        pools = {"large": ours.pool("large", everyone if lazy else {**everyone}, 2 * each)}
    pools = {size: replace(pool, rule=rule) if rule else pool for size, pool in pools.items()}
    task = Task("images", Classify(Images(size=w.CROP)), data["small"], Examples(x[0]), Split(*x), Split(*x), w.CLASSES)
    return Federation(task, pools, engine=Compiled(workers=2), rounds=ours.ROUNDS)


class Run:
    """One of the runs that take turns."""

    def __init__(self, fed: Federation) -> None:
        self.fed, self.key, self.t = fed, keys.root(0), 0
        self.state = FedAvg().init(fed, self.key)

    def round(self) -> tuple[float, float]:
        """Seconds and CPU seconds of one more round."""
        self.t += 1
        wall, cpu = time.perf_counter(), time.process_time()
        self.state, _ = FedAvg().round(self.fed, self.state, self.t, self.key)
        jax.block_until_ready(self.state)
        return time.perf_counter() - wall, time.process_time() - cpu


def compared(turns: int) -> dict[str, Any]:
    """{rule: the ratios of its rounds to FedAvg's}, by turns."""
    runs = {name: Run(federation(name, EACH)) for name in rules(EACH)}
    for run in runs.values():
        for _ in range(WARM):
            run.round()
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    order = list(runs)
    for turn in range(turns):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            seen[name].append(runs[name].round())
        print(f"\rrules: turn {turn + 1} of {turns}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    found = {}
    for name in GOALS:
        pairs = list(zip(seen[name], seen["fedavg"], strict=True))
        found[name] = {what: report.spread([one[k] / plain[k] for one, plain in pairs]) for k, what in enumerate(("wall", "cpu"))}
    plain = {what: report.spread([pair[k] for pair in seen["fedavg"]]) for k, what in enumerate(("wall", "cpu"))}
    return {"turns": turns, "fedavg_seconds": plain, "ratios": found}


def peak(name: str, cohort: int) -> dict[str, float]:
    """The peak of this process's memory after three rounds with so many clients."""
    run = Run(federation(name, cohort // 2, lazy=True))
    for _ in range(3):
        run.round()
    return {"rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def kept() -> dict[str, Any]:
    """Bytes and seconds of a checkpoint with what SCAFFOLD's clients keep."""
    fed = federation("scaffold", EACH, lazy=True, kept=KEPT)
    state = FedAvg().init(fed, keys.root(0))
    seconds = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        for t in range(1, 6):
            began = time.perf_counter(), time.process_time()
            checkpoint.write(Path(folder), t, state, {})
            seconds.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    wall, cpu = ([pair[k] for pair in seconds] for k in (0, 1))
    return {"mb": checkpoint.size_bytes(state) / 1e6, "seconds": report.spread(wall), "cpu_seconds": report.spread(cpu)}


def apart(*args: str) -> dict[str, Any]:
    """One measurement in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "benches.rules", *args], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(found: Mapping[str, Any]) -> str:
    """The ratios, memory and the checkpoint."""
    lines = [
        "| rule | CPU time of a round, of FedAvg's | time of a round, of FedAvg's | goal | peak MB, 40 and 120 clients |",
        "|---|---|---|---|---|",
    ]
    memory = found["memory"]
    for name, ratios in found["ratios"].items():
        cpu, wall = (f"{ratios[what]['median']:.2f} ({ratios[what]['q1']:.2f}-{ratios[what]['q3']:.2f})" for what in ("cpu", "wall"))
        met = "met" if ratios["cpu"]["median"] <= GOALS[name] else "MISSED"
        lines.append(f"| `{name}` | {cpu} | {wall} | {GOALS[name]:.2f}, {met} | {_mb(memory.get(name, {}))} |")
    lines.append(f"| `average` | 1 | 1 |  | {_mb(memory.get('fedavg', {}))} |")
    state = found["checkpoint"]
    return "\n".join(
        [
            *lines,
            "",
            f"Medians of {found['turns']} paired rounds, with quartiles."
            + (" NOT QUIET: others used the cores as well, so the CPU time is what counts." if found["others"] > report.QUIET else ""),
            f"A checkpoint of SCAFFOLD with {KEPT['small']} and {KEPT['large']} clients has {state['mb']:.0f} MB and takes "
            f"{state['seconds']['median']:.2f} s, of which {state['cpu_seconds']['median']:.2f} s of CPU.",
        ]
    )


def _mb(found: Mapping[str, float]) -> str:
    return " and ".join(f"{found[str(cohort)]:.0f}" if str(cohort) in found else "not measured" for cohort in COHORTS)


def main() -> None:
    """Measure, print, and publish if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benches.rules", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=TURNS, help=f"rounds of each rule that count ({TURNS})")
    parser.add_argument("--publish", action="store_true", help="also to benches/results and docs/measured, which the docs quote")
    parser.add_argument("--peak", nargs=2, metavar=("RULE", "CLIENTS"), help="only the memory of one, as JSON")
    parser.add_argument("--ratios", action="store_true", help="only the ratios, as JSON")
    parser.add_argument("--kept", action="store_true", help="only the checkpoint, as JSON")
    args = parser.parse_args()
    prepare_jax()
    if args.peak or args.kept or args.ratios:
        others = bench.taken()
        print(
            json.dumps(
                kept() if args.kept else peak(args.peak[0], int(args.peak[1])) if args.peak else {"others": others, **compared(args.turns)}
            )
        )
        return
    found = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "on": machine.fingerprint(2),
        **apart("--ratios", "--turns", str(args.turns)),
    }
    found["memory"] = {name: {str(n): apart("--peak", name, str(n))["rss_mb"] for n in COHORTS} for name in rules(EACH)}
    found["checkpoint"] = apart("--kept")
    said = f"{found['date']}, {found['on']['cpu']}, the paper's two CNNs, 20 clients of each.\n\n{table(found)}\n"
    print(said)
    if args.publish:
        PAGE.write_text(said, "utf-8")
        FILE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
