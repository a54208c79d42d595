"""How every plot of this package looks: colours, the grid of panels, names at the ends of lines, and saving as PNG and SVG.

The same figure gives the same bytes. Methods differ by colour (safe for colour-blind readers), by line and by a name at the line's end,
never by colour alone. matplotlib is loaded only when something is drawn.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedcodist.errors import ConfigError
from fedcodist.methods import METHODS
from fedcodist.reports.arms import TWIN, Arm
from fedcodist.storage import durable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1b1f24", "#59636e", "#e4e8ec", "#ffffff"
TWIN_COLOUR = "#6e7781"
COLOURS = ("#c2570c", "#0a66c2", "#0f8a78", "#a8327f", "#7d6b00", "#5b4bd6")
THEME = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", TWIN_COLOUR: "twin"} | {c: f"arm-{i}" for i, c in enumerate(COLOURS)}
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
WIDTH, NARROW = 10.4, 9.0  # inches, of a full page; of one with few wide panels, so that their text is not too small on a phone
MOST_POINTS = 240  # of a line; more are averaged in groups, so that the page of a long run stays small
LABEL_GAP = 11.0  # points between two names at the ends of lines
MOST_SEEDS = 10  # that are drawn as lines of their own; of more there is a band from the lowest to the highest
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


class Picture(NamedTuple):
    """A figure as SVG, and where its panels are in it: [(x, y, width, height)] in its units. A narrow screen shows them one by one."""

    svg: str
    panels: tuple[tuple[float, float, float, float], ...] = ()


def load_matplotlib() -> Any:
    """Import matplotlib, or fail with a message that says how to install it."""
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install fedcodist[plots]") from None
    return matplotlib


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of this package, independently of the user's settings."""
    matplotlib = load_matplotlib()
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **RC}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the SVG shows what the PNG's font lacks
        yield


def styled(arms: Iterable[Arm]) -> list[tuple[Arm, str, Any]]:
    """Each arm with its colour and line style. A method of this package has the same colour in every plot."""
    fixed = {kind: i for i, kind in enumerate(kind for kind in METHODS if kind != TWIN)}
    arms = list(arms)
    several = len({arm.name for arm in arms}) > 1
    found, free = [], 0 if several else len(fixed)
    for arm in arms:
        if arm.kind == TWIN:
            found.append((arm, TWIN_COLOUR, STYLES[1]))
            continue
        place = fixed.get(arm.kind) if not several else None
        if place is None:
            place, free = free, free + 1
        found.append((arm, COLOURS[place % len(COLOURS)], STYLES[place // len(COLOURS) * 2 % len(STYLES)]))
    return found


def colours(arms: Sequence[Arm]) -> list[str]:
    """The name that the page has for each arm's colour."""
    return [THEME[colour] for _, colour, _ in styled(arms)]


def grid(panels: int, columns: int, height: float, sharey: bool = False, width: float = WIDTH) -> tuple[Figure, list[Axes]]:
    """A figure with this number of panels and columns; `height` is that of a row, in inches."""
    from matplotlib.figure import Figure

    rows = -(-panels // columns)
    figure = Figure(figsize=(width, height * rows + 0.2), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.05)  # type: ignore[union-attr]
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for ax in axes[panels:]:
        ax.remove()
    return figure, axes[:panels]


def width(columns: int) -> float:
    """The width of a report's figure with so many columns."""
    return WIDTH if columns > 2 else NARROW


def whole_rounds(ax: Axes) -> None:
    """Ticks of the x axis at whole rounds only."""
    whole_steps(ax.xaxis)


def whole_steps(axis: Any) -> None:
    """Ticks of an axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def equal(axes: Iterable[Axes], x: bool = False, y: bool = True) -> None:
    """Give panels that are compared the same limits, and each its own tick labels."""
    axes = list(axes)
    for which, wanted in (("x", x), ("y", y)):
        if wanted and axes:
            ends = [getattr(ax, f"get_{which}lim")() for ax in axes]
            for ax in axes:
                getattr(ax, f"set_{which}lim")(min(low for low, _ in ends), max(high for _, high in ends))


def draw_seeds(ax: Axes, lines: Sequence[Sequence[tuple[float, float]]], colour: str) -> None:
    """Single seeds beside their mean: thin lines, or a band if there are too many."""
    if len(lines) < 2:
        return
    if len(lines) <= MOST_SEEDS:
        for line in lines:
            ax.plot(*zip(*thin(line), strict=True), color=colour, linewidth=0.7, alpha=0.45, zorder=1.5)
        return
    known: dict[float, list[float]] = {}
    for at, y in (point for line in lines for point in line):
        known.setdefault(at, []).append(y)
    band = thin([(at, min(ys), max(ys)) for at, ys in sorted(known.items()) if len(ys) == len(lines)])
    if band:
        x, low, high = zip(*band, strict=True)
        ax.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)


def plain_log(ax: Axes) -> None:
    """A logarithmic axis with labels such as 0.02: matplotlib's own are formulas, which RC turns off."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=8))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def thin(line: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """At most MOST_POINTS points: means over groups of neighbours; the last point is kept as it is."""
    every = -(-len(line) // MOST_POINTS)
    if every <= 1:
        return list(line)
    groups = [line[i : i + every] for i in range(0, len(line) - 1, every)]
    return [tuple(sum(column) / len(group) for column in zip(*group, strict=True)) for group in groups] + [line[-1]]


def shortened(text: str, most: int = 28) -> str:
    """A text of at most `most` printable characters: names come from files and may contain anything."""
    text = "".join(c if c.isprintable() else " " for c in str(text))
    return text if len(text) <= most else text[: most - 1] + "…"


def mark(ax: Axes, rounds: Sequence[int], colour: str, place: int) -> int:
    """Mark the rounds with codistillation: consecutive rounds by a strip below the lines, a single round by a vertical line. Returns the
    number of strips that were drawn, 0 or 1."""
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
        elif len(spans) <= 60:  # more vertical lines than that would hide the curves
            for t in range(first, last + 1):
                ax.axvline(t, color=colour, linewidth=0.9, linestyle=(0, (2, 2)), alpha=0.45, zorder=1)
        else:
            ax.axvspan(first - 0.5, last + 0.5, low, low + 0.018, color=colour, alpha=0.55, linewidth=0)
            took = 1
    return took


def label_ends(figure: Figure, panels: Iterable[tuple[Axes, list[Label]]]) -> None:
    """Write the arms' names at the ends of their lines, moved apart where they would overlap."""
    placed = []
    for ax, labels in panels:
        notes = []
        for x, y, text, colour in labels:
            note = ax.annotate(
                shortened(text, 22), (x, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8.5, color=colour
            )
            notes.append((y, note))
        placed.append((ax, sorted(notes, key=lambda item: item[0])))
    _lay_out(figure)  # this decides how far apart two values are on paper
    for ax, notes in placed:
        heights = [ax.transData.transform((1, y))[1] * 72 / figure.dpi for y, _ in notes]
        spots = list(heights)
        for _ in range(40):  # neighbours push each other apart until all have room
            for i in range(1, len(spots)):
                short = LABEL_GAP - (spots[i] - spots[i - 1])
                if short > 1e-6:
                    spots[i - 1] -= short / 2
                    spots[i] += short / 2
        for (_, note), spot, height in zip(notes, spots, heights, strict=True):
            note.set_position((6, spot - height))


def _lay_out(figure: Figure) -> None:
    """Place the panels once and for all: matplotlib would do so again for every file, which takes a third of the time."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def save(figure: Figure, path: Path) -> Picture:
    """Write path.png and path.svg, and return the SVG. No date and no random ids, so that the same runs give the same bytes."""
    _lay_out(figure)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=150, metadata={"Software": None})
    durable.publish(path.with_suffix(".png"), image.getvalue())
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
    durable.publish(path.with_suffix(".svg"), svg.encode("utf-8", "replace"))
    return Picture(svg, tuple(_place(ax, figure) for ax in figure.axes))


def _place(ax: Axes, figure: Figure) -> tuple[float, float, float, float]:
    """Where a panel with its labels is in the figure's SVG, whose unit is the point, from the upper left corner."""
    box, points, margin = ax.get_tightbbox(), 72 / figure.dpi, 4
    assert box is not None  # the panel is visible
    left, top = box.x0 * points, figure.get_figheight() * 72 - box.y1 * points
    return (
        round(left - margin, 1),
        round(top - margin, 1),
        round(box.width * points + 2 * margin, 1),
        round(box.height * points + 2 * margin, 1),
    )


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
