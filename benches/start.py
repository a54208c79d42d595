"""From the command to the end of the first round, with nothing compiled before: `python -m benches.start [COMMAND ...]`.

The command is `fedcodist demo` unless another one is given, such as `run quick/toy`. Each time is of a process of its own with an empty
cache of compiled programs; what is timed ends when the first line of the run's `timing.jsonl` is there. Beside the wall time stands the CPU
time of the whole process until then, since on a machine with other work only that means much: on two quiet cores the wall time lies between
half of the CPU time and all of it. The last line is the parts that Python's imports have in it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def once(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds until the first round is over."""
    with tempfile.TemporaryDirectory() as place:
        here = {**os.environ, "FEDCODIST_CACHE": f"{place}/cache"}
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "fedcodist.cli.main", *command, "--out", f"{place}/runs"],
            env=here,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not any(file.stat().st_size for file in Path(place).glob("runs/**/timing.jsonl")):
                if process.poll() is not None:
                    raise SystemExit(f"fedcodist {' '.join(command)} ended with {process.returncode} before its first round")
                time.sleep(0.01)
            after = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            return time.monotonic() - began, (int(after[11]) + int(after[12])) / TICKS
        finally:
            process.kill()
            process.wait()


def imports() -> dict[str, float]:
    """Seconds of Python's imports by package, as `-X importtime` tells them, the longest first."""
    said = subprocess.run([sys.executable, "-X", "importtime", "-c", "import fedcodist.cli.main"], capture_output=True, text=True).stderr
    found: dict[str, float] = {}
    for own, name in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\w+)", said):
        found[name] = found.get(name, 0.0) + int(own) / 1e6
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def main() -> None:
    """Time it a few times."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("command", nargs="*", default=["demo"], help="a command of fedcodist (default: demo)")
    given.add_argument("--times", type=int, default=3)
    args = given.parse_args()
    for _ in range(args.times):
        wall, cpu = once(args.command)
        print(f"first round after {wall:.1f} s, {cpu:.1f} s of CPU; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    found = imports()
    print(f"imports {sum(found.values()):.1f} s: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in list(found.items())[:6]))


if __name__ == "__main__":
    main()
