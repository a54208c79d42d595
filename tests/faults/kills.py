"""kill -9 at random times, resume by the same command, and ask whether a run still ends with the bytes of an undisturbed one.

    python tests/faults/kills.py --kills 50 --once

A run is the real command line in its own process group. It is killed at a uniformly random time between its start and its expected end,
started again, perhaps killed again (never with --once), until it gets to its end; then its whole directory (models, optimizers, journal,
result; only timing and the lock may differ) and what it printed must be those of the reference. Kills that fall inside a save or a
distillation are counted, because a test whose kills all land in start-up would show nothing. The sentence in docs/runs.md is made from

    python tests/faults/kills.py --kills 50 --once --json docs/measured/kills.json

in a checkout that gets no commit meanwhile: a run writes down by which commits it was computed.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import itertools
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WRAPPER = HERE / "marked.py"
PHASES = {b"": "start-up", b".": "training", b"s": "save", b"d": "distillation"}
LEAST_INSIDE = 0.2  # of the kills, inside a save or a distillation
MAY_DIFFER = {"timing.jsonl", "run.lock"}
PATIENCE = 300  # seconds after which a run that was not killed is stuck

CONFIG = """
rounds = {rounds}
seeds = [0]
checkpoint_every = {every}
task = {{ kind = "toy", public = 400 }}

[pools.small]
model  = {{ kind = "mlp", hidden = [8] }}
cohort = 4
work   = {{ kind = "local_sgd", lr = 0.1, batch = 10 }}
server = {{ kind = "adam", lr = 0.03 }}
rule   = "{rule}"

[pools.large]
like    = "small"
model   = {{ kind = "mlp", hidden = [64, 64] }}
clients = {{ take = 4 }}

[method]
{method}
"""


class Arm(NamedTuple):
    """What is killed. Checkpoints in every second round leave a journal that is ahead after half of the kills."""

    method: str  # its table
    every: int = 1  # rounds between checkpoints
    rule: str = "average"


MERGED = 'kind = "merged"\nalpha = 0.7\ndistill = { steps = 120, batch = 100 }'
PERIODIC = 'kind = "periodic"\nperiod = 2\ndistill = { steps = 300, batch = 100 }'
ARMS = {
    "merged": Arm(MERGED, every=2),
    "periodic": Arm(PERIODIC),
    "scaffold": Arm('kind = "fedavg"', rule="scaffold"),  # the clients' state is in every checkpoint
    "scaffold-merged": Arm(MERGED, every=2, rule="scaffold"),
    "scaffold-periodic": Arm(PERIODIC, rule="scaffold"),
    "feddf": Arm('kind = "feddf"\ndistill = { steps = 60, batch = 100 }', every=2),
}
PUBLISHED = ("merged", "periodic")


@dataclass
class Tally:
    """What was seen so far."""

    phases: Counter[str] = field(default_factory=Counter)  # where kills landed
    runs: int = 0  # runs that got to their end after at least one kill
    wrong: list[str] = field(default_factory=list)  # in what they differ from the reference

    @property
    def kills(self) -> int:
        return self.phases.total()

    @property
    def inside(self) -> int:
        return self.phases["save"] + self.phases["distillation"]

    def plain(self) -> dict[str, Any]:
        """What docs/runs.md tells, as JSON can hold it."""
        fell = {phase: self.phases[phase] for phase in PHASES.values()}
        return {"kills": self.kills, "runs": self.runs, "identical": self.runs - len(self.wrong), "fell": fell}

    def __str__(self) -> str:
        save, distillation, start_up = (self.phases[phase] for phase in ("save", "distillation", "start-up"))
        return (
            f"{self.kills} kills: {self.runs} runs, {self.runs - len(self.wrong)} byte-identical; {save} kills inside a save, "
            f"{distillation} inside a distillation, {self.kills - self.inside} elsewhere (start-up {start_up})"
        )


@dataclass(frozen=True)
class Ended:
    """One start of the command: how it ended, what it printed, the phase it was in when it did, and its times in seconds."""

    killed: bool
    code: int
    stdout: bytes
    stderr: str
    phase: str
    seconds: float = 0.0
    start_up: float | None = None  # until the first phase; None if it never came


def environment(cache: Path) -> dict[str, str]:
    """Of a child: the checkout first on the path, one compilation cache for all."""
    return os.environ | {"PYTHONPATH": str(ROOT), "FEDCODIST_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}


def start(config: Path, out: Path, cache: Path, kill_after: float | None = None) -> Ended:
    """Run the command once, to its end or to its kill."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", 0) as marks, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        argv = [sys.executable, str(WRAPPER), str(writer), "run", str(config), "--out", str(out), "--format", "json"]
        began = time.monotonic()
        process = subprocess.Popen(
            argv, stdout=stdout, stderr=stderr, pass_fds=[writer], env=environment(cache), cwd=out.parent, start_new_session=True
        )
        os.close(writer)
        last, start_up = b"", None
        until = began + (PATIENCE if kill_after is None else kill_after)
        while ready := select.select([marks], [], [], max(0.0, until - time.monotonic()))[0]:
            data = marks.read(65536)
            if not data:  # the other end is closed: the process is over
                break
            last, start_up = data[-1:], start_up or time.monotonic() - began
        if not ready:
            os.killpg(process.pid, signal.SIGKILL)
            last = (marks.read(65536) or last)[-1:]  # what it wrote last outlives it
        code, seconds = process.wait(), time.monotonic() - began
        if not ready and kill_after is None:
            raise RuntimeError(f"stuck for {PATIENCE} s")
        stdout.seek(0)
        stderr.seek(0)
        said = stderr.read().decode(errors="replace")
        return Ended(code == -signal.SIGKILL, code, stdout.read(), said, PHASES[last], seconds, start_up)


def digests(root: Path) -> dict[str, str]:
    """{file: sha256} of everything that must not differ. Leftovers of dead writers would show here as well."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name not in MAY_DIFFER)
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@dataclass(frozen=True)
class Reference:
    """An undisturbed run: what it left and printed, and how long it took."""

    config: Path
    files: dict[str, str]
    stdout: bytes
    seconds: float
    start_up: float


def reference(name: str, rounds: int, place: Path, cache: Path) -> Reference:
    """Run the config twice without a kill: the first fills the compilation cache, the second is timed, and both must agree."""
    config = place / f"{name}.toml"
    config.write_text(CONFIG.format(rounds=rounds, **ARMS[name]._asdict()))
    first, second = (undisturbed(config, place / f"{name}-{time}", cache) for time in ("first", "second"))
    if (first.files, first.stdout) != (second.files, second.stdout):
        raise RuntimeError("two undisturbed runs differ")
    if not {"safetensors", "jsonl", "json"} <= {name.rpartition(".")[2] for name in second.files}:
        raise RuntimeError(f"the undisturbed run left no models, no journal or no result: {sorted(second.files)}")
    return second


def undisturbed(config: Path, out: Path, cache: Path) -> Reference:
    """A run without a kill."""
    ended = start(config, out, cache)
    if ended.code or not ended.start_up:
        raise RuntimeError(f"the undisturbed run failed with {ended.code}: {ended.stderr}")
    return Reference(config, digests(out), ended.stdout, ended.seconds, ended.start_up)


def differences(want: Reference, out: Path, ended: Ended) -> list[str]:
    """What a run that was killed on its way has otherwise than the undisturbed one."""
    have = digests(out)
    odd = [name for name in sorted(want.files.keys() | have.keys()) if want.files.get(name) != have.get(name)]
    if ended.code:
        odd.insert(0, f"exit code {ended.code}: {ended.stderr.strip()}")
    return odd + (["stdout"] if ended.stdout != want.stdout else [])


def storm(kills: int, seed: int, place: Path, cache: Path, arms: Sequence[str], rounds: int, once: bool = False) -> Iterator[Tally]:
    """Runs, one arm after the other, under random kills; yields the tally after each run that got to its end."""
    draw = random.Random(seed)
    references = itertools.cycle([reference(name, rounds, place, cache) for name in arms])
    tally = Tally()
    pace = 1.0  # how much slower than at the time of the reference this machine is now, by its last start
    while tally.kills < kills:
        want = next(references)
        out = place / f"run-{tally.runs}"
        hit = 0
        while True:
            spared = tally.kills >= kills or (once and hit)
            ended = start(want.config, out, cache, None if spared else draw.uniform(0, pace * want.seconds))
            pace = ended.start_up / want.start_up if ended.start_up else max(pace, ended.seconds / want.start_up)
            if not ended.killed:
                break
            hit += 1
            tally.phases[ended.phase] += 1
        if not hit:  # lucky: nothing was tried
            shutil.rmtree(out)
            continue
        odd = differences(want, out, ended)
        tally.runs += 1
        if odd:
            tally.wrong.append(f"{out.name} after {hit} kills: {', '.join(odd)}")
        else:
            shutil.rmtree(out)  # only what is wrong is worth looking at
        yield tally


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    """When it was measured, how, and on what."""
    sys.path.insert(0, str(ROOT))  # as the children have it
    import fedcodist
    from fedcodist.reproduce.results import ENVIRONMENT
    from fedcodist.runs.environment import fingerprint

    on = fingerprint() | {"fedcodist": fedcodist.__version__}
    how = {"arms": list(args.arms), "rounds": args.rounds, "seed": args.seed, "once": args.once}
    return {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "on": {key: on[key] for key in ENVIRONMENT}, "how": how}


def main(argv: list[str] | None = None) -> int:
    """Print one line; 1 if a run differs, or if too few kills fell where they hurt."""
    parser = argparse.ArgumentParser(description="random kill -9 of a small run, each resumed by the same command")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the times of the kills")
    parser.add_argument("--rounds", type=int, default=60, help="of a run")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=PUBLISHED, help="what is killed, in turn")
    parser.add_argument("--once", action="store_true", help="kill each run once: as many ends as kills")
    parser.add_argument("--keep", action="store_true", help="keep the directory of the runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen, and on what")
    args = parser.parse_args(argv)
    cache = Path(os.environ.get("FEDCODIST_CACHE") or ROOT / ".cache" / "xla")
    place = Path(tempfile.mkdtemp(prefix="kills-"))
    tally, began = Tally(), time.monotonic()
    try:
        for tally in storm(args.kills, args.seed, place, cache, args.arms, args.rounds, args.once):
            if sys.stderr.isatty():
                print(f"\r{tally.kills} of {args.kills}", end="\r", file=sys.stderr)
    finally:
        if args.keep or tally.wrong:
            print(f"kept: {place}", file=sys.stderr)
        else:
            shutil.rmtree(place)
    print(tally)
    if args.json:
        args.json.write_text(json.dumps({**provenance(args), **tally.plain()}, indent=1) + "\n", "utf-8")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    for line in tally.wrong:
        print(f"differs: {line}", file=sys.stderr)
    if tally.inside < LEAST_INSIDE * tally.kills:
        print(f"only {tally.inside} of {tally.kills} kills fell inside a save or a distillation: nothing is shown", file=sys.stderr)
        return 1
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
