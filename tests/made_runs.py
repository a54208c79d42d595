"""Recorded runs made by hand, small enough to check by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any


def run(
    kind: str, seed: int, accuracy: dict[str, Any] | None, steps: int = 0, sent: int = 1000, name: str = "demo", rounds: Any = ()
) -> Any:
    """A run that reached these accuracies ({pool: value} or {pool: {domain: value}}); None: it never finished."""
    by_domain = {p: a if isinstance(a, dict) else {"all": a} for p, a in (accuracy or {}).items()}
    result = {
        "seed": seed,
        "method": kind,
        "parameters": {pool: 10 * (i + 1) for i, pool in enumerate(by_domain)},
        "test": {pool: {d: {"accuracy": v} for d, v in of.items()} for pool, of in by_domain.items()},
        "table": {p: {q: 1.0 for q in by_domain if q != p} for p in by_domain},
        "cost": {"client_bytes": dict.fromkeys(by_domain, sent), "server_steps": steps},
    }
    path = Path("runs") / name / kind / f"seed-{seed}"
    config = {"name": name, "method": {"kind": kind}, "rounds": 8, "pools": {"large": {"teaches": {"temperature": 2.0}}}}
    return SimpleNamespace(path=path, config=config, rounds=list(rounds), timing=[], result=result if accuracy else None, notes=[])


def both(a: list[dict[str, Any]], b: list[dict[str, Any]], **more: Any) -> tuple[list[Any], list[Any]]:
    return [run("fedavg", i, x) for i, x in enumerate(a)], [run("merged", i, x, **more) for i, x in enumerate(b)]
