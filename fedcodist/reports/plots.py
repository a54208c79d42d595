"""Plots of recorded runs: curves of accuracy, loss and calibration, the gain over the twin as it grows, norms and cosines of the two
gradients, and cost. Accuracy against cost is in spending.py, the
differences between clients in distributions.py.

Each function draws one matplotlib figure from arms, or returns None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcodist.reports import distributions, drawing, spending
from fedcodist.reports.arms import COSTS, TWIN, Arm, cost_of, dig, domains_of, headline, is_finished, pools_of, twin_of
from fedcodist.reports.curves import codistilled, each_paired, each_series, paired_series, series
from fedcodist.reports.drawing import (
    COLOURS,
    INK,
    MUTED,
    STYLES,
    TWIN_COLOUR,
    Label,
    Picture,
    grid,
    label_ends,
    save,
    shortened,
    styled,
    thin,
    whole_rounds,
)
from fedcodist.reports.statistics import mean
from fedcodist.reports.units import si
from fedcodist.storage import durable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 24


def draw(arms: Sequence[Arm], out: Path) -> dict[str, Picture]:
    """Every plot that these arms give, saved into a directory as PNG and SVG: {name: picture}."""
    drawn = {}
    with drawing.style():
        durable.own_directory(out)
        for name, picture in PLOTS.items():
            if (figure := picture(arms)) is not None:
                drawn[name] = save(figure, out / name)
    return drawn


def accuracy(arms: Sequence[Arm]) -> Figure | None:
    """Held-out accuracy over rounds: a panel for each pool and domain."""
    return held_out(arms, "accuracy", "held-out accuracy, %", 100)


def loss(arms: Sequence[Arm]) -> Figure | None:
    """Held-out loss over rounds: a panel for each pool."""
    return held_out(arms, "loss", "held-out loss", 1, whole=True)


def calibration(arms: Sequence[Arm]) -> Figure | None:
    """The expected calibration error on held-out data over rounds: a panel for each pool."""
    return held_out(arms, "calibration", "calibration error, %", 100, whole=True)


def held_out(arms: Sequence[Arm], metric: str, says: str, scale: float, whole: bool = False) -> Figure | None:
    """A held-out metric over rounds: a panel for each pool and domain (`whole`: only for each pool), a line for each arm's mean with a thin
    line for each seed. Runs that did not finish are thin lines that end in a cross. Panels of one domain have the same limits."""
    runs = [run for arm in arms for run in arm.runs]
    names = domains_of(runs)[: 1 if whole else None]
    panels = [(pool, domain) for pool in pools_of(runs) for domain in names]
    panels = [p for p in panels if any(series([run], _held_out(*p, metric)) for run in runs)][:MOST_PANELS]
    if not panels:
        return None
    columns = min(len(panels), 3) if len(names) == 1 or len(names) > 4 else len(names)
    figure, axes = grid(len(panels), columns, height=2.5 if columns > 2 or whole else 3.0, width=drawing.width(columns))
    ends: list[tuple[Axes, list[Label]]] = []
    strips: dict[Axes, int] = {}
    for place, ((pool, domain), ax) in enumerate(zip(panels, axes, strict=True)):
        ax.set_title(shortened(pool) if len(names) == 1 else f"{shortened(pool)} · {shortened(domain)}")
        read, labels, strips[ax] = _held_out(pool, domain, metric), [], 0
        for arm, colour, style in styled(arms):
            line = thin([(t, scale * middle) for t, middle, _, _ in series(arm.finished, read)])
            if line:
                drawing.draw_seeds(ax, [[(t, scale * v) for t, v in seed] for seed in each_series(arm.finished, read)], colour)
                ax.plot(*zip(*line, strict=True), color=colour, linestyle=style, marker="o" if len(line) == 1 else None, markersize=4)
                labels.append((*line[-1], arm.short, colour))
            for run in (run for run in arm.runs if not is_finished(run)):
                part = thin([(t, scale * v) for t, v, _, _ in series([run], read)])
                if part:
                    ax.plot(*zip(*part, strict=True), color=colour, linewidth=1, linestyle=style, alpha=0.8)
                    ax.plot(*part[-1], color=colour, marker="x", markersize=6, markeredgewidth=1.6)
                    if not line:
                        labels.append((*part[-1], arm.short, colour))
            if metric == "accuracy":
                strips[ax] += drawing.mark(ax, codistilled(arm.runs, pool), colour, strips[ax])
        whole_rounds(ax)
        ax.margins(x=0.01, y=0.08)
        if place % columns == 0:
            ax.set_ylabel(says)
        if place + columns >= len(panels):
            ax.set_xlabel("round")
        ends.append((ax, labels))
    for domain in names:
        compared = [ax for ax, (_, other) in zip(axes, panels, strict=True) if other == domain]
        drawing.equal(compared)
        if most := max(strips[ax] for ax in compared):  # room for the marks below the lines
            low, high = compared[0].get_ylim()
            for ax in compared:
                ax.set_ylim(low - 0.035 * (most + 1) * (high - low), high)
    label_ends(figure, ends)
    return figure


def gain(arms: Sequence[Arm], metric: str = "accuracy") -> Figure | None:
    """The gain of each method over its twin, round by round: the mean of the paired differences and the difference of each seed. A panel
    for each pool."""
    runs = [run for arm in arms for run in arm.runs]
    domain = headline(runs) or "all"
    pairs = [(arm, twin, colour, style) for arm, colour, style in styled(arms) if (twin := twin_of(arm, arms))]
    lines: dict[str, list[Any]] = {}
    for pool in pools_of(runs):
        for arm, twin, colour, style in pairs:
            read = _held_out(pool, domain, metric)
            line = [(t, 100 * middle) for t, middle, _, _ in paired_series(twin.runs, arm.runs, read)]
            if len(line) > 1:
                seeds = [[(t, 100 * v) for t, v in seed] for seed in each_paired(twin.runs, arm.runs, read)]
                lines.setdefault(pool, []).append((arm, colour, style, thin(line), seeds))
    if not lines:
        return None
    columns = min(len(lines), 3)
    figure, axes = grid(len(lines), columns, height=2.3, width=drawing.width(columns))
    ends: list[tuple[Axes, list[Label]]] = []
    for place, (ax, (pool, drawn)) in enumerate(zip(axes, lines.items(), strict=True)):
        ax.set_title(shortened(pool))
        ax.axhline(0, color=TWIN_COLOUR, linewidth=1.4, linestyle=STYLES[1])
        labels: list[Label] = []
        for arm, colour, style, line, seeds in drawn:
            drawing.draw_seeds(ax, seeds, colour)
            ax.plot(*zip(*line, strict=True), color=colour, linestyle=style)
            labels.append((*line[-1], arm.short, colour))
        labels.append((max(line[-1][0] for *_, line, _ in drawn), 0.0, "twin", TWIN_COLOUR))
        whole_rounds(ax)
        ax.margins(x=0.01, y=0.08)
        if place % columns == 0:
            ax.set_ylabel("gain over twin, points")
        if place + columns >= len(lines):
            ax.set_xlabel("round")
        ends.append((ax, labels))
    drawing.equal(axes)
    label_ends(figure, ends)
    return figure


def gradients(arms: Sequence[Arm]) -> Figure | None:
    """Above, the length of the clients' gradient g (a line) and of the distillation gradient (dots or a dotted line); below, their
    cosine. A column for each pool."""
    taught = [(arm, colour) for arm, colour, _ in styled(arms) if arm.kind != TWIN or len(arms) == 1]
    pools = [pool for pool in pools_of([run for arm, _ in taught for run in arm.runs]) if _any(taught, pool, "grad_norm")][:8]
    if not pools:
        return None
    cosines = any(_any(taught, pool, "cosine") for pool in pools)
    figure, axes = grid(len(pools) * (2 if cosines else 1), len(pools), height=2.1, width=drawing.width(len(pools)))
    ends: list[tuple[Axes, list[Label]]] = []
    for column, pool in enumerate(pools):
        ax, labels = axes[column], []
        ax.set_title(shortened(pool))
        ax.set_yscale("log")
        drawing.plain_log(ax)
        for arm, colour in taught:
            lengths = thin([point[:2] for point in series(arm.counted, _info(pool, "grad_norm")) if point[1] > 0])
            deltas = thin([point[:2] for point in series(arm.counted, _info(pool, "dist_norm")) if point[1] > 0])
            if lengths:
                ax.plot(*zip(*lengths, strict=True), color=colour, linewidth=1.3)
                labels.append((*lengths[-1], f"|g| {arm.short}", colour))
            if deltas:
                sparse = len(deltas) < 0.5 * len(lengths)
                dots = {"linestyle": "none", "marker": "o", "markersize": 4} if sparse else {"linestyle": STYLES[2], "linewidth": 1.5}
                ax.plot(*zip(*deltas, strict=True), color=colour, **dots)
                labels.append((*deltas[-1], f"|δ| {arm.short}", colour))
        whole_rounds(ax)
        if column == 0:
            ax.set_ylabel("length")
        ends.append((ax, labels))
        if not cosines:
            ax.set_xlabel("round")
            continue
        ax, labels = axes[len(pools) + column], []
        ax.axhline(0, color=MUTED, linewidth=0.8)
        for arm, colour in taught:
            line = thin([point[:2] for point in series(arm.counted, _info(pool, "cosine"))])
            if line:
                ax.plot(*zip(*line, strict=True), color=colour, linewidth=1.3)
                labels.append((*line[-1], arm.short, colour))
        whole_rounds(ax)
        ax.set_xlabel("round")
        if column == 0:
            ax.set_ylabel("cosine of g and δ")
        ends.append((ax, labels))
    drawing.equal(axes[: len(pools)])
    drawing.equal(axes[len(pools) :])
    label_ends(figure, ends)
    return figure


def cost(arms: Sequence[Arm]) -> Figure | None:
    """The cost of an average run of each arm: bars for client bytes, client operations, server operations and server steps."""
    titles = ("client bytes, up and down", "client FLOPs", "server FLOPs", "server steps")
    shown = [(arm, colour) for arm, colour, _ in styled(arms) if arm.finished]
    values = {what: [mean(cost_of(run, what) for run in arm.finished) for arm, _ in shown] for what in COSTS}
    if not any(v is not None for of_arm in values.values() for v in of_arm):
        return None
    figure, axes = grid(len(titles), 4, height=0.75 + 0.27 * len(shown), sharey=True)
    for ax, title, (what, amounts) in zip(axes, titles, values.items(), strict=True):
        ax.set_title(title, fontsize=9)
        ax.grid(False)
        known = [v or 0.0 for v in amounts]
        places = range(len(shown))
        ax.barh(places, known, color=[colour for _, colour in shown], height=0.5)
        for place, value in zip(places, amounts, strict=True):
            text = "not recorded" if value is None else si(value, "B" if what == "client_bytes" else "")
            ax.annotate(text, (value or 0.0, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK)
        ax.set_xlim(0, 1.5 * max(known) or 1)
        ax.set_xticks([])
        ax.set_yticks(list(places), [shortened(arm.label, 30) for arm, _ in shown])
        ax.tick_params(axis="y", labelcolor=INK, length=0)
        ax.spines["bottom"].set_visible(False)
        if not ax.yaxis_inverted():  # the axis is shared: a second inversion would undo the first
            ax.invert_yaxis()
    return figure


def draw_bars(histograms: Mapping[str, Sequence[tuple[str, int]]], path: Path) -> None:
    """Save a panel of bars for each histogram, [(bin, count)], as path.png and path.svg."""
    with drawing.style():
        save(bars({title: bins for title, bins in histograms.items() if bins}), path)


def bars(shown: Mapping[str, Sequence[tuple[str, int]]]) -> Figure:
    """A panel of bars for each histogram."""
    figure, axes = grid(len(shown), 2, 2.2)
    for ax, (title, bins) in zip(axes, shown.items(), strict=True):
        names, counts = zip(*bins, strict=True)
        ax.bar(range(len(bins)), counts, color=COLOURS[0], width=0.8)
        ax.set_title(title, loc="left", fontsize=9)
        step = -(-len(bins) // 6)
        ax.set_xticks(range(0, len(bins), step), [str(name).removesuffix(" examples") for name in names[::step]], fontsize=7)
        if all(str(name).endswith(" examples") for name in names):
            ax.set_xlabel("examples", fontsize=8)
            ax.set_ylabel("labels", fontsize=8)
    return figure


PLOTS: dict[str, Callable[[Sequence[Arm]], Figure | None]] = {
    "accuracy": accuracy,
    "gain": gain,
    "loss": loss,
    "calibration": calibration,
    "spending": spending.draw,
    "clients": distributions.clients,
    "labels": distributions.labels,
    "gradients": gradients,
    "cost": cost,
}


def _held_out(pool: str, domain: str, metric: str) -> Any:
    return lambda row: dig(row, "held_out", pool, domain, metric)


def _info(pool: str, what: str) -> Any:
    return lambda row: dig(row, "pools", pool, what)


def _any(arms: Iterable[tuple[Arm, str]], pool: str, what: str) -> bool:
    return any(series(arm.counted, _info(pool, what)) for arm, _ in arms)
