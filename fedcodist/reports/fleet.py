"""What a federation asks of devices, in words and as a picture: the numbers of runs/fleet.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcodist.config import Config
from fedcodist.reports import drawing, tables
from fedcodist.reports.drawing import COLOURS, INK, MUTED, grid, save
from fedcodist.reports.units import duration, percent, si, size
from fedcodist.runs.devices import Device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]


def words(config: Config, found: Row, devices: Sequence[Device], where: str, takes: str) -> str:
    """A plan, as the screen shows it. `where` names the table of devices; `takes` says how long the simulation takes here."""
    assumed = found["assumed"]
    lines = [
        f"{config.name}: {config.rounds} rounds of {config.method.kind}; nothing is trained for this plan",
        "",
        "What each pool asks of one of its clients in a round:",
        tables.render([_pool(row) for row in found["pools"]]),
        "",
        f"What each class of devices would do in each pool ({where}), at {percent(assumed['efficiency'])} of its peak operations,",
        f"with {percent(assumed['memory'])} of its memory, and no round longer than {duration(assumed['deadline'])}:",
        tables.render([_seat(row) for row in found["devices"]]),
        "",
        *_reach(found["pools"]),
        "",
        *_further(found["sizes"], found["pools"][-1]["pool"]),
        "",
        *_server(found["server"], takes),
    ]
    return "\n".join(lines)


def _pool(row: Row) -> Row:
    return {
        "pool": row["pool"],
        "parameters": f"{row['parameters']:,}",
        "down": size(row["bytes_down"]),
        "up": size(row["bytes_up"]),
        "operations": si(row["flops"], "FLOP"),
        "memory": size(row["memory_bytes"]),
        "rounds of a client": f"{row['rounds_of_a_client']:.1f}",
        "slowest device that can": _seconds(row["round_seconds"]),
    }


def _seat(row: Row) -> Row:
    return {
        "device": row["device"],
        "share": percent(row["share"]),
        "pool": row["pool"],
        "can carry it": "yes" if row["carries"] else f"no: {row['obstacle']}",
        "a round": _seconds(row["seconds_a_round"]),
        "in all": duration(3600 * row["hours_in_all"]),
        "bytes in all": size(row["bytes_in_all"]),
        "operations in all": si(row["flops_in_all"], "FLOP"),
    }


def _reach(pools: Sequence[Row]) -> list[str]:
    """For each pool, the share of the devices that could carry its model beside the share of clients that it has."""
    lines = []
    for row in pools:
        can, has = row["share_of_devices"], row["share_of_clients"]
        line = f"{row['pool']}: {percent(can)} of the devices can carry its model; the config gives it {percent(has)} of the clients"
        lines.append(f"{line}, which is more than can take part" if has > can + 0.005 else line)
    return lines


def _further(sizes: Sequence[Row], largest: str) -> list[str]:
    if not sizes:
        return [f"Other sizes are not looked at: the model of {largest} is not one of this package, and its widths are not known."]
    rows = [
        {
            "widths": f"x {row['rate']:g}",
            "parameters": f"{row['parameters']:,}",
            "a round, up and down": size(row["bytes_down"] + row["bytes_up"]),
            "operations": si(row["flops"], "FLOP"),
            "memory": size(row["memory_bytes"]),
            "devices": percent(row["share_of_devices"]),
            "slowest": _seconds(row["round_seconds"]),
            "worth trying": "yes" if row["worth_trying"] else "",
        }
        for row in sizes
    ]
    head = f"A further pool with the model of {largest} at other widths, and the devices that could carry it; a size is worth trying if"
    return [head, "no larger one here reaches as many devices:", tables.render(rows)]


def _server(server: Row, takes: str) -> list[str]:
    steps = f"{server['distillation_steps']:,} distillation steps" if server["distillation_steps"] else "no distillation"
    lines = [
        f"The server: {steps}, {si(server['flops'], 'FLOP')}, about {size(server['memory_bytes'])} of models and optimizers,",
        f"{size(server['bytes_in_and_out'])} to and from clients over the run.",
    ]
    return [*lines, f"As a simulation: {takes}."] if takes else lines


def _seconds(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds:.2g} s" if seconds < 60 else duration(seconds)


def draw(found: Row, path: Path) -> None:
    """The picture of cost against reach, as path.png and path.svg."""
    with drawing.style():
        save(picture(found), path)


def picture(found: Row) -> Figure:
    """Share of the devices that can carry a model, over what a round costs one of them: seconds on the slowest, bytes, memory."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    panels = (("round_seconds", "seconds a round, slowest device"), ("bytes", "bytes a round, up and down"), ("memory_bytes", "memory"))
    figure, axes = grid(len(panels), 3, 2.9, sharey=True)
    pools = [(row["pool"], row, COLOURS[i % len(COLOURS)]) for i, row in enumerate(found["pools"])]
    for ax, (what, title) in zip(axes, panels, strict=True):
        ax.set_title(title, fontsize=9)
        sizes = [(at, row) for row in found["sizes"] if (at := _cost(row, what)) is not None]
        ax.plot(
            [at for at, _ in sizes], [100 * row["share_of_devices"] for _, row in sizes], color=MUTED, linewidth=1, marker=".", zorder=2
        )
        for at, row in sizes[::2]:
            ax.annotate(f"x {row['rate']:g}", (at, 100 * row["share_of_devices"]), xytext=(3, 5), textcoords="offset points", fontsize=7)
        for name, row, colour in pools:
            if (at := _cost(row, what)) is not None:
                ax.scatter([at], [100 * row["share_of_devices"]], color=colour, s=36, zorder=3, label=name)
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _, of=what: f"{value:g}" if of == "round_seconds" else si(value, "B")))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_ylim(-4, 110)
        ax.tick_params(axis="y", labelcolor=INK)
    axes[0].set_ylabel("% of the devices that can carry it")
    axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    return figure


def _cost(row: Row, what: str) -> float | None:
    return row["bytes_down"] + row["bytes_up"] if what == "bytes" else row[what]
