"""The package's floors and who imports whom, read from the source: for the picture in docs/architecture.md and for tests/test_floors.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent / "fedcodist"
FLOORS = (  # from the ground up; each imports only those below it
    {"core": "pure functions and frozen values: a round, as the paper has it", "native": "kernels for convolutions"},
    {
        "methods": "what the server does with all pools, one paper a file",
        "rules": "what a pool and its clients say to each other, one paper a file",
        "techniques": "what a student is asked to match, one technique a file",
        "folds": "how replies combine",
        "servers": "server optimizers",
        "objectives": "what a model is trained and judged by",
        "models": "networks",
        "engines": "where the clients are",
    },
    {"storage": "files that survive a crash"},
    {"readers": "publishers' file formats"},
    {"data": "stores, vocabularies, splits, partitions"},
    {"tasks": "what is learned, and from what data"},
    {"config": "from TOML to an experiment, strictly"},
    {"runs": "run directories, checkpoints, costs, the session"},
    {"audit": "what public data is worth, before it is used"},
    {"tuning": "studies on held-out data", "reports": "comparisons, tables, plots, pages, exports"},
    {"live": "a page of runs while they train", "reproduce": "the paper's tables and figures", "deploy": "real federations"},
    {"cli": "verbs"},
)
HEIGHT = {floor: height for height, floors in enumerate(FLOORS) for floor in floors}
ABOVE = ("__init__", "__main__", "testing")  # the first shows the best of every floor, the second checks all of them


def imports(tree: ast.AST) -> Iterator[str]:
    """The full names of all that is imported, in functions too, but for what only the type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from imports(node)


def module(name: str) -> str:
    """`fedcodist.data.store.Store` is in `data.store`."""
    parts = name.split(".")[1:]
    while parts and not any(ROOT.joinpath(*parts).with_suffix(suffix).exists() for suffix in ("", ".py")):
        parts.pop()
    return ".".join(parts)


def floor(name: str) -> str:
    """Where a module stands; the package's root is the core."""
    return first if (first := name.split(".")[0]) in HEIGHT else "core"


def modules() -> dict[str, Path]:
    """{module: its file}."""
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in sorted(ROOT.rglob("*.py"))}
    return {name: path for name, path in found.items() if name not in ABOVE}


def graph() -> dict[str, set[str]]:
    """{module: the modules that it imports}."""
    return {
        name: {module(found) for found in imports(ast.parse(path.read_text("utf-8"))) if found.startswith("fedcodist.")} - {name, ""}
        for name, path in modules().items()
    }


def picture() -> str:
    """The floors from the top down with their modules, and which floors each one imports."""
    inside: dict[str, list[str]] = {}
    below: dict[str, set[str]] = {}
    for name in modules():
        inside.setdefault(floor(name), []).append(name.partition(".")[2] or name)
    for name, found in graph().items():
        below.setdefault(floor(name), set()).update(floor(other) for other in found)
    rows = ["| floor | what it is | modules | imports |", "|---|---|---|---|"]
    for floors in reversed(FLOORS):
        for where, what in floors.items():
            if where in inside:
                named = ", ".join(sorted(set(inside[where]) - {where}))
                under = ", ".join(sorted(below.get(where, set()) - {where}, key=lambda other: (-HEIGHT[other], other)))
                rows.append(f"| **{where}** | {what} | {named} | {under or '–'} |")
    edges = [f"  {a} --> {b}" for a in inside for b in sorted(below.get(a, set())) if _next(a, b, below)]
    return "\n".join([*rows, "", "```mermaid", "flowchart TD", *edges, "```"])


def _next(a: str, b: str, below: dict[str, set[str]]) -> bool:
    """Whether an import shows in the picture: only those that no other floor stands between."""
    return a != b and not any(c not in (a, b) and b in below.get(c, set()) for c in below.get(a, set()))
