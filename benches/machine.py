"""What the numbers depend on: the machine's fingerprint, without saying whose it is, and its own limit, measured between the rounds.

The limit is a loop of fused multiply-adds that never leaves the registers (fma.cpp), on one core and on all that the workers have, and
numpy's single-precision matrix product beside it, which is what a good library reaches.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FMA_SECONDS, SGEMM_SECONDS, SGEMM_SIDE = 0.3, 0.3, 1024
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def fingerprint(threads: int) -> dict[str, Any]:
    """Processor, cores, caches, system, versions."""
    packages = {}
    for name in ("jax", "jaxlib", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "caches": _caches(),
        "vectors": [word for word in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if word in _cpuinfo("flags").split()],
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30) if hasattr(os, "sysconf") else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": packages,
    }


def build_fma(where: Path) -> tuple[list[str] | None, str]:
    """The compiled loop as a command, or None; and what to say about it."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None, "no C++ compiler (g++ or clang++): the FMA limit is not measured, and shares of the limit are those of sgemm"
    where.mkdir(parents=True, exist_ok=True)
    program = where / "fma"
    made = subprocess.run(
        [compiler, "-O2", "-std=c++17", "-pthread", str(HERE / "fma.cpp"), "-o", str(program)], capture_output=True, text=True
    )
    if made.returncode:
        words = (made.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return None, f"{Path(compiler).name} could not build fma.cpp ({words}): shares of the limit are those of sgemm"
    return [str(program)], ""


def fma_now(fma: list[str], threads: int, seconds: float = FMA_SECONDS) -> float:
    """GFLOP/s of the loop on so many threads, now."""
    return float(subprocess.run([*fma, str(threads), str(seconds)], capture_output=True, text=True, check=True).stdout.split()[1])


def limits(fma: list[str] | None, threads: int) -> dict[str, float]:
    """GFLOP/s now: {fma_1, fma_all, sgemm_1, sgemm_all}; about 1.5 seconds."""
    found = {}
    for name, count in {"1": 1, "all": threads}.items():
        if fma is not None:
            found[f"fma_{name}"] = fma_now(fma, count)
        env = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(count))}
        ran = subprocess.run(
            [sys.executable, "-m", "benches.machine"], env=env, cwd=HERE.parent, capture_output=True, text=True, check=True
        )
        found[f"sgemm_{name}"] = float(ran.stdout)
    return found


def sgemm() -> float:
    """GFLOP/s of numpy's product of two square matrices, the best of many; the environment says on how many threads."""
    import numpy as np

    a, b = np.random.default_rng(0).random((2, SGEMM_SIDE, SGEMM_SIDE), dtype=np.float32)
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < SGEMM_SECONDS:
        wall = time.perf_counter()
        _ = a @ b
        best = min(best, time.perf_counter() - wall)
    return 2 * SGEMM_SIDE**3 / best / 1e9


def _cpuinfo(what: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(what)), "")


def _processor() -> str:
    """Its name, and its family and model where the name hides them, as on rented machines."""
    name = _cpuinfo("model name")
    exact = f" (family {_cpuinfo('cpu family')}, model {_cpuinfo('model	')})" if name else ""
    return name + exact if name else platform.processor() or platform.machine()


def _caches() -> dict[str, str]:
    """{L1d: 48K, ...} of the first core."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / part).read_text().strip() for part in ("level", "type", "size"))
        except OSError:
            continue
        found[f"L{level}" + {"Data": "d", "Instruction": "i"}.get(kind, "")] = size
    return found


if __name__ == "__main__":
    print(sgemm())
