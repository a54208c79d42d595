"""What a run had consumed at the end of each round, and the accuracy that it had reached for it.

The journal has no cost of single rounds, so a run's totals are spread over its rounds in proportion to what the journal has: bytes by the
clients that took part, client operations by the examples that they trained on, server operations by the models that were taught. That is
exact where each client, example and lesson costs the same, as with every rule that trains one model per pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from fedcodist.reports import drawing
from fedcodist.reports.arms import Arm, cost_of, dig, headline, number, pools_of, rows_of
from fedcodist.reports.curves import Line, each_series, series
from fedcodist.reports.drawing import Label, grid, label_ends, shortened, styled, thin
from fedcodist.reports.scalars import elapsed
from fedcodist.reports.units import si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {
    "client_bytes": "client bytes, up and down",
    "client_flops": "client FLOPs",
    "server_flops": "server FLOPs",
    "seconds": "training time",
}  # {what is consumed: how its axis is named}
UNITS = {"client_bytes": "B", "seconds": "s"}
MOST_POOLS = 8


def spent(run: Any, what: str) -> dict[int, float]:
    """{round: how much of `what` the run had consumed at its end}, over all pools; empty where the run does not say."""
    rows = rows_of(run)
    if what == "seconds":
        took = elapsed(run.timing or (), [row["round"] for row in rows])
        ends = list(took.values())
        later = [after - before for before, after in pairwise(ends)]
        compiling = max(ends[0] - median(later), 0.0) if later else 0.0  # in the first round: seeds would differ by nothing else
        return {t: seconds - compiling for t, seconds in took.items()}
    total = cost_of(run, what)
    if total is None:
        return {}
    by_pool = dig(run.result, "cost", what)
    pools = by_pool if isinstance(by_pool, dict) and what != "server_flops" else {None: total}
    found = dict.fromkeys((row["round"] for row in rows), 0.0)
    for pool, amount in pools.items():
        parts = [sum(_part(info, what) for info in _infos(row, pool)) for row in rows]
        if amount and not sum(parts):
            return {}
        for t, part in zip(found, accumulate(parts), strict=False):  # a foreign run may tell a round twice
            found[t] += (number(amount) or 0.0) * part / (sum(parts) or 1.0)
    return found


def against(runs: Sequence[Any], what: str, pool: str, domain: str) -> tuple[Line, list[list[tuple[float, float]]]]:
    """Accuracy against what was consumed: the mean over runs, round by round, as [(mean consumed, mean accuracy, ...)], and each run's."""

    def read(row: Mapping[str, Any]) -> Any:
        return dig(row, "held_out", pool, domain, "accuracy")

    used = [spent(run, what) for run in runs]
    lines = [each_series([run], read) for run in runs]
    each = [[(of[t], v) for t, v in line[0] if t in of] for of, line in zip(used, lines, strict=True) if line]
    mean = [
        (sum(of[t] for of in used) / len(used), middle, low, high)
        for t, middle, low, high in series(runs, read)
        if all(t in of for of in used)
    ]
    return mean, [line for line in each if line]  # type: ignore[return-value]


def draw(arms: Sequence[Arm]) -> Figure | None:
    """Held-out accuracy against client bytes, client operations, server operations and time: a row for each pool."""
    runs = [run for arm in arms for run in arm.runs]
    domain = headline(runs) or "all"
    styles = [(arm, colour, style) for arm, colour, style in styled(arms) if arm.finished]
    everybody = pools_of(runs)[:MOST_POOLS]
    found = {(pool, what): [(*s, *against(s[0].finished, what, pool, domain)) for s in styles] for pool in everybody for what in AXES}
    shown = [w for w in AXES if any(line and line[-1][0] > 0 for pool in everybody for *_, line, _ in found[pool, w])]
    pools = [pool for pool in everybody if any(line for w in shown for *_, line, _ in found[pool, w])]
    if not shown or not pools:
        return None
    figure, axes = grid(len(pools) * len(shown), len(shown), height=2.5, width=drawing.width(len(shown)))
    ends: list[tuple[Axes, list[Label]]] = []
    for place, ax in enumerate(axes):
        pool, what = pools[place // len(shown)], shown[place % len(shown)]
        ax.set_title(shortened(pool, 22))
        labels: list[Label] = []
        for arm, colour, style, line, each in found[pool, what]:
            if not line:
                continue
            if line[-1][0] <= 0:  # it consumes nothing of this: a level to compare with
                ax.axhline(100 * line[-1][1], color=colour, linewidth=1.2, linestyle=style)
                labels.append((0.0, 100 * line[-1][1], arm.short, colour))
                continue
            drawing.draw_seeds(ax, [[(x, 100 * y) for x, y in seed] for seed in each], colour)
            ax.plot(*zip(*thin([(x, 100 * middle) for x, middle, _, _ in line]), strict=True), color=colour, linestyle=style)
            labels.append((line[-1][0], 100 * line[-1][1], arm.short, colour))
        _amounts(ax, UNITS.get(what, ""))
        ax.margins(x=0.02, y=0.06)
        ax.set_xlabel(AXES[what])
        if place % len(shown) == 0:
            ax.set_ylabel("held-out accuracy, %")
        ends.append((ax, labels))
    drawing.equal(axes)
    for column in range(len(shown)):
        same = axes[column :: len(shown)]
        drawing.equal(same, x=True, y=False)
        for ax, labels in (end for end in ends if end[0] in same):
            right = ax.get_xlim()[1]
            labels[:] = [(right if x == 0.0 else x, y, text, colour) for x, y, text, colour in labels]  # of a level, at the right end
    label_ends(figure, ends)
    return figure


def _amounts(ax: Axes, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(nbins=3))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value, unit)))


def _infos(row: Mapping[str, Any], pool: str | None) -> list[Mapping[str, Any]]:
    known = dig(row, "pools") or {}
    chosen = known.values() if pool is None else [known.get(pool)]
    return [info for info in chosen if isinstance(info, dict)]


def _part(info: Mapping[str, Any], what: str) -> float:
    """How much a pool consumed in a round, in a unit that only has to be the same for all rounds of the pool."""
    if what == "client_bytes":
        sent = number(info.get("client_bytes"))
        return sent if sent is not None else (number(info.get("clients")) or 0.0) + (number(info.get("dropped")) or 0.0)
    if what == "client_flops":
        trained = info.get("trained")
        if isinstance(trained, dict):
            return sum(known for n in trained.values() if (known := number(n)) is not None)
        return number(info.get("examples")) or 0.0
    return 1.0 if info.get("codistilled") else 0.0
