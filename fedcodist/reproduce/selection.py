"""Which cells a table, a figure or the studies have under a budget, and which of them somebody asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from fedcodist.errors import ConfigError
from fedcodist.reproduce import paper, rivals, studies
from fedcodist.reproduce.budgets import BUDGETS
from fedcodist.reproduce.cells import Cell, figure_4, table_1, table_2
from fedcodist.settings import nearest


def cells(table: str, budget: str) -> list[Cell]:
    """All cells of a table, of a figure or of the studies, in the order of their rows."""
    if budget not in BUDGETS:
        raise ConfigError(f"--budget: got {budget}; allowed {' | '.join(BUDGETS)}")
    if table not in paper.TABLES:
        raise ConfigError(f"reproduce: got {table}; allowed {' | '.join(paper.TABLES)}")
    made: dict[str, Any] = {"table1": table_1, "table2": table_2, "figure3": table_2, "figure4": figure_4, "studies": studies.all_cells}
    made |= {"rivals": rivals.all_cells}
    return list(made[table](BUDGETS[budget]))


def choose(every: Sequence[Cell], patterns: Sequence[str], seeds: Sequence[int] | None = None) -> list[Cell]:
    """The cells whose ids match one of the patterns, as file names and directories do, or whose study has this name; all without a
    pattern. FedAvg twins, and what a study compares with, come with their cells. `seeds` replaces those of the budget."""
    if seeds is not None:
        every = [replace(cell, seeds=tuple(seeds)) for cell in every]
    if not patterns:
        return list(every)
    chosen: set[str] = set()
    for pattern in patterns:
        whole = pattern.rstrip("/")
        matched = [c.id for c in every if fnmatchcase(c.id, whole) or fnmatchcase(c.id, f"{whole}/*") or whole in c.studies]
        if not matched:
            hint = nearest(whole, _names(every)) or "--list shows them all"
            raise ConfigError(
                f"--cell: got {pattern!r}; allowed the id of a cell or its beginning, or a pattern such as 'images/*' ({hint})"
            )
        chosen.update(matched)
    known: set[str] = set()
    while chosen != known:  # what comes along has a twin too
        known = set(chosen)
        chosen |= {
            other for cell in every if cell.id in known for other in (cell.twin, *cell.studies.values(), *cell.rival.get("alone", ()))
        }
    return [cell for cell in every if cell.id in chosen]


def _names(every: Sequence[Cell]) -> list[str]:
    """What one can say without a wildcard: the names of studies, and ids from their beginning to any of their slashes or their end."""
    parts = [cell.id.split("/") for cell in every]
    return [
        *dict.fromkeys(study for cell in every for study in cell.studies),
        *dict.fromkeys("/".join(p[:n]) for p in parts for n in range(1, len(p) + 1)),
    ]
