"""Figures 3 and 4, and the gains of Table 1 with their intervals, drawn from result files in the look of `plots`.

Each function gives one matplotlib figure. Methods keep the colours that they have in reports; whatever differs also differs by its line
or by a name at its end, never by colour alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedcodist.reports import drawing, statistics
from fedcodist.reports.arms import dig
from fedcodist.reports.arms import label as label_of
from fedcodist.reports.drawing import COLOURS, GRID, INK, MUTED, STYLES, TWIN_COLOUR
from fedcodist.reproduce import claims, paper, rival_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHOD = {"fedavg": (TWIN_COLOUR, STYLES[2]), "periodic": (COLOURS[0], STYLES[0]), "merged": (COLOURS[1], STYLES[1])}
POOL = {"small": (COLOURS[4], STYLES[0]), "large": (COLOURS[5], STYLES[1])}
DOMAIN = {"answers": (COLOURS[2], STYLES[0]), "questions": (COLOURS[3], STYLES[1]), "mixed": (MUTED, STYLES[2])}
SHORT = {"fedavg": "FedAvg", "periodic": "Periodic", "merged": "Merged"}


def names(result: Mapping[str, Any]) -> list[str]:
    """The figures that a result file gives, by the name of their file without its ending."""
    stem, told = f"{result['table']}-{result['budget']}", [cell for cell in result["cells"] if cell["seeds"]]
    if result["table"] == "figure4":
        return [stem] if any(cell["public"] for cell in told) else []
    if result["table"] == "rivals":
        return [stem] if rival_figure.points(result) else []
    having = [name for name in result["families"] if any(_shown(result["table"], cell) for cell in told if cell["family"] == name)]
    return [f"{stem}-{name}" for name in having] if result["table"] in ("table1", "figure3") else []


def _shown(table: str, cell: Mapping[str, Any]) -> bool:
    return bool(cell.get("curve")) if table == "figure3" else any(dig(dict(cell), "accuracy", p, "all", "gain") for p in paper.POOLS)


def draw(result: Mapping[str, Any], out: Path) -> list[Path]:
    """Save every figure of a result file into a directory, as PNG and SVG."""
    made = []
    with drawing.style():
        out.mkdir(parents=True, exist_ok=True)
        for name in names(result):
            family = name.rpartition("-")[2]  # where a figure is of one
            whole = {"figure4": sizes, "rivals": rival_figure.pareto}.get(result["table"])
            figure = whole(result) if whole else {"table1": gains, "figure3": curves}[result["table"]](result, family)
            drawing.save(figure, out / name)
            made.append(out / f"{name}.svg")
    return made


def curves(result: Mapping[str, Any], family: str) -> Figure:
    """Figure 3: held-out accuracy by round, a row a model and a column a domain, FedAvg dotted; below, what one codistillation of
    PeriodicCodist does: the change since the round before it, at once and some rounds later."""
    domains = result["families"][family]["domains"]
    cells = {cell["method"]: cell for cell in result["cells"] if cell["family"] == family and cell.get("curve")}
    figure, axes = drawing.grid(2 * len(domains) + 2, len(domains), height=2.4)
    ends: list[tuple[Axes, list[drawing.Label]]] = []
    for row, pool in enumerate(paper.POOLS):
        for column, (domain, ours) in enumerate(domains.items()):
            ax, labels = axes[row * len(domains) + column], []
            ax.set_title(f"{pool} model · {domain_name(domain, ours)}")
            for method, cell in cells.items():
                line = dig(cell["curve"], pool, ours) or []
                if not line:
                    continue
                colour, style = METHOD[method]
                rounds, middle, low, high = zip(*([t, *(100 * v for v in values)] for t, *values in line), strict=True)
                if len(cell["seeds"]) > 1:
                    ax.fill_between(rounds, low, high, color=colour, alpha=0.14, linewidth=0)
                ax.plot(rounds, middle, color=colour, linestyle=style, linewidth=1.5)
                labels.append((rounds[-1], middle[-1], SHORT[method], colour))
                if isinstance(marks := cell["curve"]["codistilled"], list):
                    drawing.mark(ax, marks, colour, 0)
            drawing.whole_rounds(ax)
            ax.margins(x=0.01, y=0.08)
            ax.set_xlabel("round")
            if column == 0:
                ax.set_ylabel("held-out accuracy, %")
            ends.append((ax, labels))
    ends += [_spikes(ax, cells.get("periodic", {}), pool, domains) for ax, pool in zip(axes[2 * len(domains) :], paper.POOLS, strict=True)]
    drawing.label_ends(figure, ends)
    return figure


def _spikes(ax: Axes, cell: Mapping[str, Any], pool: str, domains: Mapping[str, str]) -> tuple[Axes, list[drawing.Label]]:
    ax.set_title(f"Periodic teaches · {pool} model")
    ax.axhline(0, color=TWIN_COLOUR, linewidth=1, linestyle=STYLES[1])
    labels: list[drawing.Label] = []
    for domain, ours in domains.items():
        changes = dig(dict(cell), "spikes", pool, ours)
        if not changes or domain == "mixed":
            continue
        colour, style = DOMAIN[domain]
        offsets = sorted(changes, key=int)
        by_offset = [[0.0], *([100 * value for value in changes[k]] for k in offsets)]
        places = range(len(by_offset))
        if len(cell["seeds"]) > 1:
            ax.fill_between(places, [min(v) for v in by_offset], [max(v) for v in by_offset], color=colour, alpha=0.14, linewidth=0)
        middle = [fmean(v) for v in by_offset]
        ax.plot(places, middle, color=colour, linestyle=style, marker="o", markersize=3.5)
        labels.append((len(by_offset) - 1, middle[-1], domain_name(domain, ours), colour))
        ax.set_xticks(list(places), ["before", "at it", *(f"+{k}" for k in offsets[1:])])
    ax.margins(x=0.02, y=0.12)
    ax.set_xlabel("rounds after it")
    if pool == paper.POOLS[0]:  # the other one stands beside it
        ax.set_ylabel("points beyond FedAvg's")
    return ax, labels


def sizes(result: Mapping[str, Any]) -> Figure:
    """Figure 4: test accuracy against the number of public images, a panel a method; bars are the standard deviation over seeds, and the
    dotted lines the FedAvg twin. A panel is of the seeds that all its sizes have: seeds differ more than sizes do."""
    cells = [cell for cell in result["cells"] if cell["seeds"]]
    twin = next((cell for cell in cells if cell["method"] == "fedavg"), None)
    figure, axes = drawing.grid(2, 2, height=3.2, sharey=True)
    ends: list[tuple[Axes, list[drawing.Label]]] = []
    for place, (ax, method) in enumerate(zip(axes, ("periodic", "merged"), strict=True)):
        mine = sorted(((public(cell, result), cell) for cell in cells if cell["method"] == method), key=lambda pair: pair[0])
        ax.set_title(label_of(method))
        ax.set_xscale("log")
        labels: list[drawing.Label] = []
        seeds = _shared([cell for _, cell in mine] + ([twin] if twin else []))
        for pool, (colour, style) in POOL.items():
            known = [(size, *of) for size, cell in mine if (of := _over(cell, pool, seeds))]
            if known:
                x, y, error = zip(*known, strict=True)
                ax.errorbar(x, y, error, color=colour, linestyle=style, marker="o", markersize=4, capsize=3, linewidth=1.6)
                labels.append((x[-1], y[-1], pool, colour))
            if twin and known and (of := _over(twin, pool, seeds)):
                ax.plot((known[0][0], known[-1][0]), [of[0]] * 2, color=colour, linestyle=STYLES[2], linewidth=1.3)
                labels.append((known[-1][0], of[0], f"{pool}, FedAvg", colour))
        every = [size for size, _ in mine]
        if every:
            _plain_sizes(ax, every)
            fewest = min(map(int, result["families"]["images"]["sizes"]))
            ax.axvline(fewest, color=GRID, linewidth=5, zorder=0)
            of_whole = fewest == paper.ENOUGH
            said = f"{paper.ENOUGH}: the paper's “good performance”" if of_whole else f"in proportion, the paper's {paper.ENOUGH}"
            at = {"xycoords": ("data", "axes fraction"), "xytext": (6, 0), "textcoords": "offset points", "va": "top"}
            ax.annotate(said, (fewest, 0.99), fontsize=7.5, color=MUTED, **at)
        ax.margins(x=0.04, y=0.14)  # room for the note
        ax.set_xlabel(f"public images ({len(seeds)} seed{'' if len(seeds) == 1 else 's'})" if every else "public images")
        if place == 0:
            ax.set_ylabel("test accuracy, %")
        ends.append((ax, labels))
    drawing.label_ends(figure, ends)
    return figure


def _shared(cells: Sequence[Mapping[str, Any]]) -> set[int]:
    """The seeds that all cells have; those of any, if there are none."""
    every = [set(cell["seeds"]) for cell in cells]
    return set.intersection(*every) or set.union(*every) if every else set()


def _over(cell: Mapping[str, Any], pool: str, seeds: Collection[int]) -> tuple[float, float] | None:
    """The mean and the spread of a cell's test accuracy over some seeds, in percent."""
    known = [100 * value for seed, value in claims.values_of(cell, pool, "all").items() if seed in seeds]
    return (fmean(known), statistics.spread(known) or 0.0) if known else None


def gains(result: Mapping[str, Any], family: str) -> Figure:
    """Table 1's gains over the FedAvg twin: a dot with its 95 % interval, a bare ring where there is one seed, a diamond for the paper."""
    mine = [cell for cell in result["cells"] if cell["family"] == family and any(_gain(cell, pool) for pool in paper.POOLS)]
    twins = {cell["id"]: cell for cell in result["cells"]}
    figure, axes = drawing.grid(2, 2, height=0.9 + 0.24 * len(mine), sharey=True)
    for ax, pool in zip(axes, paper.POOLS, strict=True):
        ax.set_title(f"{pool} model")
        ax.axvline(0, color=TWIN_COLOUR, linewidth=1.2, linestyle=STYLES[1])
        for y, cell in enumerate(mine):
            gain, colour = _gain(cell, pool), METHOD[cell["method"]][0]
            printed = _printed(cell, twins.get(cell["twin"]), pool)
            if printed is not None:
                ax.plot(100 * printed, y, marker="D", color="none", markeredgecolor=MUTED, markersize=5, linestyle="none")
            if gain is None:
                continue
            if gain["low"] is not None:
                ax.plot((100 * gain["low"], 100 * gain["high"]), (y, y), color=colour, linewidth=2, solid_capstyle="butt")
            face = colour if gain["low"] is not None else "none"
            ax.plot(100 * gain["difference"], y, marker="o", color=face, markeredgecolor=colour, markersize=5, linestyle="none")
        ax.set_yticks(range(len(mine)), [f"{cell['row']} {cell['column']} {cell['public']}".strip() for cell in mine])
        ax.tick_params(axis="y", labelcolor=INK, length=0)
        _limits(ax, mine, twins, pool)
        ax.set_xlabel("gain over FedAvg, points (diamond: the paper's)")
        ax.set_ylim(len(mine) - 0.5, -0.5)  # the first on top, and no marker cut
    return figure


def _limits(ax: Axes, mine: Sequence[Mapping[str, Any]], twins: Mapping[str, Any], pool: str) -> None:
    """An axis made for the gains: an interval from two seeds can be twenty times as wide, and is cut."""
    dots = [100 * gain["difference"] for cell in mine if (gain := _gain(cell, pool))]
    dots += [100 * p for cell in mine if (p := _printed(cell, twins.get(cell["twin"]), pool)) is not None]
    far = 1.6 * max(map(abs, dots), default=1.0) or 1.0
    low, high = ax.get_xlim()
    ax.set_xlim(max(low, -far), min(high, far))


def _gain(cell: Mapping[str, Any], pool: str) -> dict[str, Any] | None:
    return dig(dict(cell), "accuracy", pool, "all", "gain")


def _printed(cell: Mapping[str, Any], twin: Mapping[str, Any] | None, pool: str) -> float | None:
    """The paper's gain."""
    mine, base = (dig(dict(c or {}), "paper", pool, "all") for c in (cell, twin))
    return None if mine is None or base is None else mine - base


def public(cell: Mapping[str, Any], result: Mapping[str, Any]) -> int:
    """How many public images a cell of Figure 4 has: its own number, or all of them."""
    return int(cell["public"] if cell["public"].isdigit() else result["families"]["images"]["sizes"][-1])


def domain_name(name: str, ours: str) -> str:
    """The paper's name of a domain, with ours where it is another."""
    return name if ours in (name, name.removesuffix("s"), "all") else f"{ours}s"


def _plain_sizes(ax: Axes, values: Iterable[int]) -> None:
    from matplotlib.ticker import NullLocator

    shown = sorted(set(values))
    ax.set_xticks(shown, [f"{value:,}" for value in shown])
    ax.xaxis.set_minor_locator(NullLocator())
