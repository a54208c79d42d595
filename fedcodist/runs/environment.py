"""On what a run was computed: the versions, processor and flags that the bits of a result may depend on (R9)."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import fedcodist
from fedcodist.settings import show


def fingerprint() -> dict[str, Any]:
    """What the bits of a result may depend on besides the config (R9)."""
    import jax
    import numpy as np

    from fedcodist import native

    model, flags = _cpu()
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})  # type: ignore[union-attr]
    versions = {name: _version(name) for name in ("numpy", "jax", "jaxlib", "optax", "fedcodist")}
    return {
        "python": platform.python_version(),
        **versions,
        "blas": f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": model,
        "cpu_flags": hashlib.sha256(flags.encode()).hexdigest()[:16],
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "backend": jax.default_backend(),
        "kernels": native.path(),
    }


@cache
def checkout() -> str | None:
    """The commit of the checkout that this package is in; None if it is in none. Read from git's files: git itself may be absent. Once a
    process: a commit that comes later is not of the code that runs."""
    try:
        place = Path(fedcodist.__file__).parent.parent / ".git"
        if place.is_file():  # a worktree: its own HEAD, and the references of the main one
            place = (place.parent / place.read_text("utf-8").partition("gitdir:")[2].strip()).resolve()
        head = (place / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref:"):
            return head[:40] or None
        name = head.partition(":")[2].strip()
        shared = place / (place / "commondir").read_text("utf-8").strip() if (place / "commondir").is_file() else place
        for folder in (place, shared):
            if (folder / name).is_file():
                return (folder / name).read_text("utf-8").strip() or None
        packed = (shared / "packed-refs").read_text("utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
    except (OSError, ValueError, IndexError):
        return None


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What changed between two fingerprints, in words.

    >>> differences({"jax": "0.10.1", "cores": 2}, {"jax": "0.10.2", "cores": 2})
    ['jax 0.10.1 -> 0.10.2']
    """
    keys = [key for key in [*old, *(key for key in new if key not in old)] if old.get(key) != new.get(key)]
    return [f"{key} {_word(old.get(key))} -> {_word(new.get(key))}" for key in keys]


def _word(value: Any) -> str:
    return "nothing" if value in (None, "") else show(value).strip("'")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _cpu() -> tuple[str, str]:
    """Model and flags of the first core; the kernels that XLA and BLAS choose depend on the flags."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0]
    except OSError:
        return platform.processor() or "unknown", ""
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    return facts.get("model name", platform.processor() or "unknown"), facts.get("flags", facts.get("Features", ""))
