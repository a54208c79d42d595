"""The picture of codistillation beside other systems: accuracy against the operations of clients and server, a panel a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedcodist.reports import drawing
from fedcodist.reports.drawing import COLOURS, INK, MUTED, STYLES, TWIN_COLOUR
from fedcodist.reproduce import paper
from fedcodist.reproduce.rival_sections import front, mean_of, run_rows, spent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = {"periodic": COLOURS[0], "merged": COLOURS[1]}
COST = "operations"


def points(result: Mapping[str, Any]) -> list[Any]:
    """The rows that have a place in it."""
    return [cell for cell in run_rows(result, "global") if spent(cell, COST) > 0]


def pareto(result: Mapping[str, Any]) -> Figure:
    """Each system a dot with its name; the rows that no other beats are joined, and their dots are full."""
    cells = points(result)
    figure, axes = drawing.grid(2, 2, height=4.4)
    for ax, pool in zip(axes, paper.POOLS, strict=True):
        ax.set_title(f"{pool} model")
        ax.set_xscale("log")
        places = {cell["id"]: (spent(cell, COST), 100 * value) for cell in cells if (value := mean_of(cell, pool)) is not None}
        best = [cell["id"] for cell in front(cells, pool, COST)]
        if len(best) > 1:
            ax.plot(*zip(*(places[name] for name in best), strict=True), color=MUTED, linewidth=1, linestyle=STYLES[1], zorder=1)
        for cell in (cell for cell in cells if cell["id"] in places):
            colour = OURS.get(cell["row"], TWIN_COLOUR if cell["row"] == "fedavg" else COLOURS[2])
            face = colour if cell["id"] in best else "none"
            ax.plot(*places[cell["id"]], marker="o", color=face, markeredgecolor=colour, markersize=6, linestyle="none")
            at: dict[str, Any] = {"xytext": (5, 4), "textcoords": "offset points", "fontsize": 7.5, "color": INK}
            ax.annotate(cell["row"], places[cell["id"]], **at)
        ax.margins(x=0.18, y=0.1)
        ax.set_xlabel("operations of clients and server")
        if pool == paper.POOLS[0]:
            ax.set_ylabel("test accuracy, %")
    return figure
