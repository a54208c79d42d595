"""The picture of a bench: for each workload how many times longer than ours a round of every other side takes, with its quartiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.report import OURS

OTHER, MINE, INK = "#7d8ca3", "#d1495b", "#2b2d33"


def draw(results: Sequence[Mapping[str, Any]], path: Path, caption: str) -> list[Path]:
    """PNG and SVG; nothing where there is nothing to compare, or no matplotlib."""
    shown = [found for found in results if any("ratio" in s for s in found["sides"].values())]
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return []
    if not shown:
        return []
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    most = max(len(found["sides"]) for found in shown)
    figure = Figure(figsize=(5.2 * columns, rows * (0.34 * most + 1.0) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, found in zip(grid.flat, shown, strict=False):
        _panel(axes, found)
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    figure.suptitle("Round time as a multiple of ours, one interleaved run", fontsize=11, color=INK, x=0.01, ha="left")
    figure.supxlabel(caption, fontsize=7, color=INK)
    made = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for where in made:
        figure.savefig(where, dpi=150, metadata={"Date": None} if where.suffix == ".svg" else None)
    return made


def _panel(axes: Any, found: Mapping[str, Any]) -> None:
    bars: list[tuple[str, float, float, float]] = [(OURS, 1.0, 1.0, 1.0)]
    for side, s in found["sides"].items():
        if "ratio" in s:
            bars.append((side, s["ratio"]["median"], s["ratio"]["q1"], s["ratio"]["q3"]))
    bars.sort(key=lambda bar: -bar[1])
    middle = [bar[1] for bar in bars]
    whiskers = [[m - bar[2] for m, bar in zip(middle, bars, strict=True)], [bar[3] - m for m, bar in zip(middle, bars, strict=True)]]
    colours = [MINE if bar[0] == OURS else OTHER for bar in bars]
    axes.barh(range(len(bars)), middle, 0.66, xerr=whiskers, color=colours, ecolor=INK, error_kw={"elinewidth": 1, "capsize": 2})
    axes.set_yticks(range(len(bars)), [bar[0] for bar in bars], fontsize=8, color=INK)
    for y, bar in enumerate(bars):
        ms = found["sides"][bar[0]]["ms"]["median"]
        axes.annotate(f"{bar[1]:.1f} x, {ms:,.0f} ms", (bar[3], y), (5, 0), textcoords="offset points", va="center", fontsize=7, color=INK)
    axes.set_xlim(0, 1.45 * max(bar[3] for bar in bars))
    axes.set_title(f"{found['workload']}: {found['says']}", fontsize=8, loc="left", color=INK)
    axes.axvline(1, color=MINE, linewidth=0.8, alpha=0.6)
    axes.tick_params(axis="x", labelsize=7, colors=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
