"""A floor of the package imports only the floors below it, and no module imports itself by way of others; imports in functions count."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import fedcodist

ROOT = Path(fedcodist.__file__).parent
FLOORS = (
    *("core native", "methods rules models engines", "storage", "readers", "data", "tasks", "config", "runs"),
    *("tuning reports", "reproduce deploy", "cli"),
)
HEIGHT = {floor: height for height, floors in enumerate(FLOORS) for floor in floors.split()}
# What is still wrong: to be emptied, and nothing may be added.
UPWARD = {"runs.plan": {"reports.tables"}}
CYCLES = {
    "cli.reproduce": {"cli.main"},
    "cli.tune": {"cli.main"},
    "reports.tensorboard": {"reports.export"},
    "reproduce.studies": {"reproduce.cells"},
}


def imports(tree: ast.AST) -> Iterator[str]:
    """The full names of all that is imported, but for what only the type checker sees."""
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
    return first if (first := name.split(".")[0]) in HEIGHT else "core"


NAMES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in ROOT.rglob("*.py")}
for above in ("__init__", "testing"):  # the first shows the best of every floor, the second checks all of them
    NAMES.pop(above)
GRAPH = {
    name: {module(found) for found in imports(ast.parse(path.read_text())) if found.startswith("fedcodist.")} - {name, ""}
    for name, path in NAMES.items()
}


def test_a_module_imports_only_its_own_floor_and_those_below():
    def wrong(name: str) -> set[str]:
        mine = floor(name)
        below = max(HEIGHT[mine], 1)  # core and native are one floor in two places
        return {found for found in GRAPH[name] if floor(found) != mine and HEIGHT[floor(found)] >= below}

    assert {name: found for name in GRAPH if (found := wrong(name))} == UPWARD


def test_no_module_imports_itself_by_way_of_others():
    assert all(found <= GRAPH[name] for name, found in CYCLES.items())
    graphlib.TopologicalSorter({name: found - CYCLES.get(name, set()) for name, found in GRAPH.items()}).prepare()  # CycleError names them
