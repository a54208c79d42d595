"""Pictures of recorded runs: accuracy curves, the gain over the twin as it grows, norms and cosines of the two gradients, and cost.

Each function draws one matplotlib figure from arms, or none where there is nothing to draw; `save` writes it as PNG and SVG. The same
runs give the same bytes. Methods differ by colour (safe for colour-blind readers), by line and by a name at the line's end, never by
colour alone. matplotlib is loaded only when something is drawn.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcodist.errors import ConfigError
from fedcodist.reports import compare
from fedcodist.reports.compare import Arm, dig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1b1f24", "#59636e", "#e4e8ec", "#ffffff"
TWIN_COLOUR = "#6e7781"
COLOURS = ("#c2570c", "#0a66c2", "#0f8a78", "#a8327f", "#7d6b00", "#5b4bd6")
THEME = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", TWIN_COLOUR: "twin"} | {c: f"arm-{i}" for i, c in enumerate(COLOURS)}
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
WIDTH = 10.4  # inches, of a full page
MOST_POINTS = 240  # of a line; more are averaged in groups, or a long run's page weighs megabytes
MOST_PANELS = 24
LABEL_GAP = 11.0  # points between two names at the ends of lines
Label = tuple[float, float, str, str]  # where, the text, its colour
RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a pool's name is a dollar sign
    "text.usetex": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.titlepad": 8,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.left": False,
    "ytick.minor.left": False,
    "xtick.major.size": 3,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",  # text stays text: light, sharp, and it can be searched
    "svg.hashsalt": "fedcodist",
}


def draw(arms: Sequence[Arm], out: Path) -> dict[str, str]:
    """Every picture that these arms give, saved into a directory as PNG and SVG: {name: SVG}."""
    matplotlib = load_matplotlib()
    out.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **RC}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the SVG shows what the PNG's font lacks
        for name, picture in (("accuracy", accuracy), ("gain", gain), ("gradients", gradients), ("cost", cost)):
            if (figure := picture(arms)) is not None:
                drawn[name] = save(figure, out / name)
    return drawn


def accuracy(arms: Sequence[Arm], metric: str = "accuracy") -> Figure | None:
    """Held-out accuracy over rounds: a panel for each pool and domain, a line for each arm with the band from its lowest to its highest
    seed. Runs that did not finish are thin lines that end in a cross."""
    runs = [run for arm in arms for run in arm.runs]
    names = compare.domains(runs)
    panels = [(pool, domain) for pool in compare.pools(runs) for domain in names]
    panels = [p for p in panels if any(compare.series([run], _held_out(*p, metric)) for run in runs)][:MOST_PANELS]
    if not panels:
        return None
    columns = min(len(panels), 3) if len(names) == 1 or len(names) > 4 else len(names)
    figure, axes = grid(len(panels), columns, height=2.5 if columns > 2 else 3.0)
    ends: list[tuple[Axes, list[Label]]] = []
    for place, ((pool, domain), ax) in enumerate(zip(panels, axes, strict=True)):
        ax.set_title(_short(pool) if len(names) == 1 else f"{_short(pool)} · {_short(domain)}")
        read, labels, strips = _held_out(pool, domain, metric), [], 0
        for arm, colour, style in _styled(arms):
            line = _thin([(t, *(100 * v for v in values)) for t, *values in compare.series(arm.finished, read)])
            if line:
                rounds, middle, low, high = zip(*line, strict=True)
                if len(arm.finished) > 1:
                    ax.fill_between(rounds, low, high, color=colour, alpha=0.16, linewidth=0)
                ax.plot(rounds, middle, color=colour, linestyle=style, marker="o" if len(rounds) == 1 else None, markersize=4)
                labels.append((rounds[-1], middle[-1], arm.short, colour))
            for run in (run for run in arm.runs if not compare.finished(run)):
                part = _thin([(t, 100 * v) for t, v, _, _ in compare.series([run], read)])
                if part:
                    ax.plot(*zip(*part, strict=True), color=colour, linewidth=1, linestyle=style, alpha=0.8)
                    ax.plot(*part[-1], color=colour, marker="x", markersize=6, markeredgewidth=1.6)
                    if not line:
                        labels.append((*part[-1], arm.short, colour))
            strips += mark(ax, compare.codistilled(arm.runs, pool), colour, strips)
        whole_rounds(ax)
        ax.margins(x=0.01, y=0.08)
        if strips:  # room for the marks below the lines
            low, high = ax.get_ylim()
            ax.set_ylim(low - 0.035 * (strips + 1) * (high - low), high)
        if place % columns == 0:
            ax.set_ylabel("held-out accuracy, %")
        if place + columns >= len(panels):
            ax.set_xlabel("round")
        ends.append((ax, labels))
    label_ends(figure, ends)
    return figure


def gain(arms: Sequence[Arm], metric: str = "accuracy") -> Figure | None:
    """What each method has over its twin, round by round: the mean of paired differences, and the band of the seeds. A panel a pool."""
    runs = [run for arm in arms for run in arm.runs]
    domain = compare.headline(runs) or "all"
    pairs = [(arm, twin, colour, style) for arm, colour, style in _styled(arms) if (twin := compare.twin_of(arm, arms))]
    lines: dict[str, list[Any]] = {}
    for pool in compare.pools(runs):
        for arm, twin, colour, style in pairs:
            line = compare.paired_series(twin.runs, arm.runs, _held_out(pool, domain, metric))
            if len(line) > 1:
                lines.setdefault(pool, []).append((arm, colour, style, _thin([(t, *(100 * v for v in values)) for t, *values in line])))
    if not lines:
        return None
    columns = min(len(lines), 3)
    figure, axes = grid(len(lines), columns, height=2.3, sharey=True)
    ends: list[tuple[Axes, list[Label]]] = []
    for place, (ax, (pool, drawn)) in enumerate(zip(axes, lines.items(), strict=True)):
        ax.set_title(_short(pool))
        ax.axhline(0, color=TWIN_COLOUR, linewidth=1.4, linestyle=STYLES[1])
        labels: list[Label] = []
        for arm, colour, style, line in drawn:
            rounds, middle, low, high = zip(*line, strict=True)
            ax.fill_between(rounds, low, high, color=colour, alpha=0.16, linewidth=0)
            ax.plot(rounds, middle, color=colour, linestyle=style)
            labels.append((rounds[-1], middle[-1], arm.short, colour))
        labels.append((max(line[-1][0] for *_, line in drawn), 0.0, "twin", TWIN_COLOUR))
        whole_rounds(ax)
        ax.margins(x=0.01, y=0.08)
        if place % columns == 0:
            ax.set_ylabel("gain over twin, points")
        if place + columns >= len(lines):
            ax.set_xlabel("round")
        ends.append((ax, labels))
    label_ends(figure, ends)
    return figure


def gradients(arms: Sequence[Arm]) -> Figure | None:
    """Above, the length of the clients' gradient g (a line) and of the distillation gradient (dots or a dotted line); below, their
    cosine. A column for each pool."""
    taught = [(arm, colour) for arm, colour, _ in _styled(arms) if arm.kind != compare.TWIN or len(arms) == 1]
    pools = [pool for pool in compare.pools([run for arm, _ in taught for run in arm.runs]) if _any(taught, pool, "grad_norm")][:8]
    if not pools:
        return None
    cosines = any(_any(taught, pool, "cosine") for pool in pools)
    figure, axes = grid(len(pools) * (2 if cosines else 1), len(pools), height=2.1)
    ends: list[tuple[Axes, list[Label]]] = []
    for column, pool in enumerate(pools):
        ax, labels = axes[column], []
        ax.set_title(_short(pool))
        ax.set_yscale("log")
        _plain_log(ax)
        for arm, colour in taught:
            lengths = _thin([point[:2] for point in compare.series(arm.told, _info(pool, "grad_norm")) if point[1] > 0])
            deltas = _thin([point[:2] for point in compare.series(arm.told, _info(pool, "dist_norm")) if point[1] > 0])
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
            line = _thin([point[:2] for point in compare.series(arm.told, _info(pool, "cosine"))])
            if line:
                ax.plot(*zip(*line, strict=True), color=colour, linewidth=1.3)
                labels.append((*line[-1], arm.short, colour))
        whole_rounds(ax)
        ax.set_xlabel("round")
        if column == 0:
            ax.set_ylabel("cosine of g and δ")
        ends.append((ax, labels))
    label_ends(figure, ends)
    return figure


def cost(arms: Sequence[Arm]) -> Figure | None:
    """What an average run of each arm costs: bars for client bytes, client operations, server operations and server steps."""
    titles = ("client bytes, up and down", "client FLOPs", "server FLOPs", "server steps")
    shown = [(arm, colour) for arm, colour, _ in _styled(arms) if arm.finished]
    values = {what: [compare.mean(compare.cost_of(run, what) for run in arm.finished) for arm, _ in shown] for what in compare.COSTS}
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
        ax.set_yticks(list(places), [_short(arm.label, 30) for arm, _ in shown])
        ax.tick_params(axis="y", labelcolor=INK, length=0)
        ax.spines["bottom"].set_visible(False)
        if not ax.yaxis_inverted():  # shared: the second would turn it back
            ax.invert_yaxis()
    return figure


def draw_bars(histograms: Mapping[str, Sequence[tuple[str, int]]], path: Path) -> None:
    """Save a panel of bars for each histogram, [(bin, count)], as path.png and path.svg."""
    matplotlib = load_matplotlib()
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **RC}):
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


def save(figure: Figure, path: Path) -> str:
    """Write path.png and path.svg; the SVG is given back. No date and no random ids, so that the same runs give the same bytes."""
    figure.savefig(path.with_suffix(".png"), dpi=150, metadata={"Software": None})
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
    path.with_suffix(".svg").write_bytes(svg.encode("utf-8", "replace"))
    return svg


def inline(svg: str, name: str) -> str:
    """An SVG to put into a page: its colours are the page's (so it follows dark mode), its ids its own, its font the page's.

    >>> inline('<?xml version="1.0"?><svg width="9pt" viewBox="0 0 9 9"><g id="a" style="fill: #1b1f24"/></svg>', "p")
    '<svg viewBox="0 0 9 9"><g id="p-a" style="fill: var(--ink)"/></svg>'
    """
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)  # matplotlib's style is for every element
    head, rest = svg.split(">", 1)
    svg = re.sub(r' (?:width|height)="[^"]*"', "", head) + ">" + rest
    svg = re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", svg)  # a hundredth of a point is finer than any screen
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda m: f"var(--{THEME[m[0]]})" if m[0] in THEME else m[0], svg)
    return re.sub(r"font: ((?:[a-z]+ )*(?:\d+ )?[\d.]+px) [^;\"]*", r"font: \1 var(--sans)", svg)


def si(value: float, unit: str = "") -> str:
    """A number with a prefix, as people say it.

    >>> si(1.64e9, "B"), si(0, "B"), si(1280), si(2.5e12, "FLOP")
    ('1.64 GB', '0 B', '1,280', '2.5 TFLOP')
    """
    if abs(value) < 1e4 and not unit:
        return f"{value:,.0f}"
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power:
            return f"{value / 10**power:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".strip()


def colours(arms: Sequence[Arm]) -> list[str]:
    """The page's name of each arm's colour."""
    return [THEME[colour] for _, colour, _ in _styled(arms)]


def load_matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install fedcodist[plots]") from None
    return matplotlib


def _styled(arms: Iterable[Arm]) -> list[tuple[Arm, str, Any]]:
    """Each arm with its colour and line. The methods of this package keep theirs, whichever of them are shown."""
    fixed = {kind: i for i, kind in enumerate(kind for kind in compare.LABELS if kind != compare.TWIN)}
    arms = list(arms)
    several = len({arm.name for arm in arms}) > 1
    found, free = [], 0 if several else len(fixed)
    for arm in arms:
        if arm.kind == compare.TWIN:
            found.append((arm, TWIN_COLOUR, STYLES[1]))
            continue
        place = fixed.get(arm.kind) if not several else None
        if place is None:
            place, free = free, free + 1
        found.append((arm, COLOURS[place % len(COLOURS)], STYLES[place // len(COLOURS) * 2 % len(STYLES)]))
    return found


def grid(panels: int, columns: int, height: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    rows = -(-panels // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.2), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.05)  # type: ignore[union-attr]
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for ax in axes[panels:]:
        ax.remove()
    return figure, axes[:panels]


def _held_out(pool: str, domain: str, metric: str) -> Any:
    return lambda row: dig(row, "held_out", pool, domain, metric)


def _info(pool: str, what: str) -> Any:
    return lambda row: dig(row, "pools", pool, what)


def _any(arms: Iterable[tuple[Arm, str]], pool: str, what: str) -> bool:
    return any(compare.series(arm.told, _info(pool, what)) for arm, _ in arms)


def _thin(line: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """At most MOST_POINTS points: means of groups of neighbours, the last point kept as it is."""
    every = -(-len(line) // MOST_POINTS)
    if every <= 1:
        return list(line)
    groups = [line[i : i + every] for i in range(0, len(line) - 1, every)]
    return [tuple(sum(column) / len(group) for column in zip(*group, strict=True)) for group in groups] + [line[-1]]


def mark(ax: Axes, rounds: Sequence[int], colour: str, place: int) -> int:
    """Where codistillation happened: a strip under the lines where rounds follow each other, a vertical line where one stands alone.
    Gives back how many strips it took."""
    spans: list[list[int]] = []
    for t in rounds:
        if spans and t == spans[-1][1] + 1:
            spans[-1][1] = t
        else:
            spans.append([t, t])
    low = 0.012 + 0.032 * place
    took = 0
    for first, last in spans:
        if last - first >= 2:
            ax.axvspan(first - 0.5, last + 0.5, low, low + 0.018, color=colour, alpha=0.55, linewidth=0)
            took = 1
        elif len(spans) <= 60:  # more lines than that are a wall
            for t in range(first, last + 1):
                ax.axvline(t, color=colour, linewidth=0.9, linestyle=(0, (2, 2)), alpha=0.45, zorder=1)
        else:
            ax.axvspan(first - 0.5, last + 0.5, low, low + 0.018, color=colour, alpha=0.55, linewidth=0)
            took = 1
    return took


def whole_rounds(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def _plain_log(ax: Axes) -> None:
    """A logarithmic axis with labels such as 0.02: matplotlib's own are formulas, which RC turns off."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=8))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def label_ends(figure: Figure, panels: Iterable[tuple[Axes, list[Label]]]) -> None:
    """The arms' names at the ends of their lines, pushed apart where they would cover each other."""
    placed = []
    for ax, labels in panels:
        notes = []
        for x, y, text, colour in labels:
            note = ax.annotate(_short(text, 22), (x, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8.5, color=colour)
            notes.append((y, note))
        placed.append((ax, sorted(notes, key=lambda item: item[0])))
    figure.draw_without_rendering()  # the layout decides how far apart two values are on paper
    for ax, notes in placed:
        heights = [ax.transData.transform((1, y))[1] * 72 / figure.dpi for y, _ in notes]
        spots = list(heights)
        for _ in range(40):  # neighbours push each other apart until nobody is pushed
            for i in range(1, len(spots)):
                short = LABEL_GAP - (spots[i] - spots[i - 1])
                if short > 1e-6:
                    spots[i - 1] -= short / 2
                    spots[i] += short / 2
        for (_, note), spot, height in zip(notes, spots, heights, strict=True):
            note.set_position((6, spot - height))


def _short(text: str, most: int = 28) -> str:
    """Printable and not endless: names come from files."""
    text = "".join(c if c.isprintable() else " " for c in str(text))
    return text if len(text) <= most else text[: most - 1] + "…"
