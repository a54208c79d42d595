"""A floor of the package imports only the floors below it, and no module imports itself by way of others; imports in functions count."""

import graphlib

from tools.architecture import HEIGHT, floor, graph, modules

GRAPH = graph()


def test_a_module_imports_only_its_own_floor_and_those_below():
    def wrong(name: str) -> set[str]:
        mine = floor(name)
        below = max(HEIGHT[mine], 1)  # core and native are one floor in two places
        return {found for found in GRAPH[name] if floor(found) != mine and HEIGHT[floor(found)] >= below}

    assert {name: found for name in GRAPH if (found := wrong(name))} == {}


def test_no_module_imports_itself_by_way_of_others():
    graphlib.TopologicalSorter(GRAPH).prepare()  # CycleError names them


def test_files_and_the_core_stay_small():
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in modules().items()}
    assert not {name: many for name, many in lines.items() if many > 400}
    assert sum(many for name, many in lines.items() if floor(name) == "core") <= 2_800
    assert not {name: many for name, many in lines.items() if floor(name) in ("methods", "rules") and many > 100}
