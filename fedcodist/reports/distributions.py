"""How clients differ: the accuracy of single clients as a distribution, and the labels that each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedcodist.reports import drawing
from fedcodist.reports.arms import Arm, dig, headline, number, pools_of
from fedcodist.reports.drawing import COLOURS, Label, grid, label_ends, shortened, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POOLS = 8
MOST_CLASSES = 100  # of more, dots would be too small to be seen
MOST_NAMED = 20  # classes whose names fit beside the axis


def quantiles(run: Any, pool: str, domain: str) -> list[float]:
    """The accuracies of single clients on the test split, at even steps from the lowest to the highest; empty where none were recorded."""
    found = dig(run.result, "client_quantiles", pool, domain)
    known = [number(value) for value in found] if isinstance(found, list) else []
    return [value for value in known if value is not None] if len(known) > 1 and None not in known else []


def label_counts(arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """{pool: its clients' labels}, of the first run that recorded them: clients have the same data in every arm."""
    found: dict[str, dict[str, Any]] = {}
    for run in (run for arm in arms for run in arm.runs):
        for pool, of_pool in (dig(run.result, "labels") or {}).items():
            if isinstance(of_pool, dict) and isinstance(of_pool.get("counts"), list) and number(of_pool.get("classes")):
                numbers = {what: number(of_pool.get(what)) for what in ("clients", "classes", "read", "skew", "distinct")}
                found.setdefault(str(pool), {**numbers, "counts": of_pool["counts"]})
    return found


def clients(arms: Sequence[Arm]) -> Figure | None:
    """The accuracy of single clients, from the lowest to the highest: a panel for each pool, all with the same limits."""
    runs = [run for arm in arms for run in arm.runs]
    domain = headline(runs) or "all"
    pools = [pool for pool in pools_of(runs) if any(quantiles(run, pool, domain) for run in runs)][:MOST_POOLS]
    if not pools:
        return None
    columns = min(len(pools), 3)
    figure, axes = grid(len(pools), columns, height=2.5, width=drawing.width(columns))
    ends: list[tuple[Axes, list[Label]]] = []
    for place, (pool, ax) in enumerate(zip(pools, axes, strict=True)):
        ax.set_title(shortened(pool))
        labels: list[Label] = []
        for arm, colour, style in styled(arms):
            lines = [line for run in arm.finished if (line := quantiles(run, pool, domain))]
            lines = [line for line in lines if len(line) == len(lines[0])]
            if not lines:
                continue
            share = [100 * at / (len(lines[0]) - 1) for at in range(len(lines[0]))]
            drawing.draw_seeds(ax, [[(x, 100 * y) for x, y in zip(share, line, strict=True)] for line in lines], colour)
            middle = [100 * fmean(values) for values in zip(*lines, strict=True)]
            ax.plot(share, middle, color=colour, linestyle=style)
            labels.append((share[-1], middle[-1], arm.short, colour))
        ax.margins(x=0.01, y=0.06)
        ax.set_xticks([0, 25, 50, 75, 100], ["lowest", "25 %", "median", "75 %", "highest"])
        ax.set_xlabel("clients in order of their accuracy")
        if place % columns == 0:
            ax.set_ylabel("test accuracy of a client, %")
        ends.append((ax, labels))
    drawing.equal(axes)
    label_ends(figure, ends)
    return figure


def labels(arms: Sequence[Arm]) -> Figure | None:
    """Which labels clients have: a dot for each client and label, its area the share of the client's examples. A panel for each pool."""
    found = {pool: of for pool, of in label_counts(arms).items() if of["classes"] <= MOST_CLASSES}
    order = [pool for pool in pools_of([run for arm in arms for run in arm.runs]) if pool in found][:MOST_POOLS]
    if not order:
        return None
    names = next((known for arm in arms for run in arm.runs if isinstance(known := dig(run.result, "task", "labels"), list)), [])
    columns = min(len(order), 3)
    most = max(found[pool]["classes"] for pool in order)
    figure, axes = grid(len(order), columns, height=2.6 if most <= 20 else 3.6, width=drawing.width(columns))
    for place, (pool, ax) in enumerate(zip(order, axes, strict=True)):
        counts = [row for row in found[pool]["counts"] if isinstance(row, dict) and row]
        ax.set_title(shortened(pool))
        ax.grid(False)
        widest = 250 / max(len(counts), most, 24)  # points: dots of neighbours should not cover each other
        dots = [(x, int(label), n / sum(row.values())) for x, row in enumerate(counts) for label, n in row.items()]
        if dots:
            x, y, share = zip(*dots, strict=True)
            ax.scatter(x, y, s=[max(widest**2 * s, 0.8) for s in share], color=COLOURS[1], alpha=0.8, linewidth=0)
        ax.set_xlim(-1, max(len(counts), 2))
        ax.set_ylim(-0.8, most - 0.2)
        ax.set_xticks([])
        everybody = found[pool]["clients"] or len(counts)
        ax.set_xlabel(f"{len(counts)} clients" if len(counts) == everybody else f"{len(counts)} of {everybody:,.0f} clients")
        if len(names) == found[pool]["classes"] <= MOST_NAMED:
            ax.set_yticks(range(len(names)), [shortened(str(name), 14) for name in names])
        else:
            drawing.whole_steps(ax.yaxis)
        if place % columns == 0:
            ax.set_ylabel("label")
    return figure
