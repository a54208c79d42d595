"""One page about runs: the results and their intervals, who taught whom, what it cost, and the commands that reproduce it.

`write` makes a single HTML file that needs nothing else: pictures and style are inside, there is no script, and its policy forbids the
browser to load anything. Names and notes come from files, so everything is escaped. A run that crashed, a run without a twin or a file
that is not ours gives a smaller page that says so, never an error.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fedcodist import runs
from fedcodist.config import toml
from fedcodist.reports import compare, drawing, plots
from fedcodist.reports.arms import (
    COSTS,
    TWIN,
    Arm,
    cost_of,
    dig,
    domains_of,
    group,
    headline,
    is_finished,
    kind_of,
    name_of,
    number,
    parameters_of,
    pools_of,
    rounds_done,
    rounds_planned,
    rows_of,
    seed_of,
    twin_of,
)  # fmt: skip
from fedcodist.reports.curves import gradients_of, lost_of, taught
from fedcodist.reports.distributions import label_counts
from fedcodist.reports.profiles import profile
from fedcodist.reports.statistics import ONE_SEED, extra_cost, mean, paired
from fedcodist.reports.tables import safe_cell
from fedcodist.reports.units import interval, plural, points, si
from fedcodist.reports.verdicts import alone, outcome, verdict
from fedcodist.storage import durable

FIELDS = ("run", "seed", "method", "round", "pool", "domain", "metric", "value")
BADGES = {
    "gain": "gain",
    "loss": "loss",
    "mixed": "mixed",
    "unclear": "no clear difference",
    "hint": "one seed",
    "none": "not compared",
}
WHY = {"gain": "interval above zero", "loss": "interval below zero", "unclear": "interval contains zero", "hint": ONE_SEED}
DASH = "–"


NO_PLOTS = "This report has no plots because matplotlib is not installed: pip install 'fedcodist[plots]', then fedcodist report."


def available() -> bool:
    """Whether plots can be drawn here: they need matplotlib."""
    return importlib.util.find_spec("matplotlib") is not None


def write_below(place: Path) -> Path:
    """Write the report about all runs below a directory into it, so that a report on few runs never replaces one on more."""
    return write([runs.read(path) for path in runs.find_all([place])], place)


def write(recorded: list[Any], out: Path) -> Path:
    """Write report.html, rows.csv and plots/ about these runs into a directory; returns the page's path. Without matplotlib the page has
    no plots."""
    arms = group(recorded)
    out.mkdir(parents=True, exist_ok=True)
    drawn = plots.draw(arms, out / "plots") if available() else None
    durable.publish(out / "rows.csv", rows_csv(recorded).encode("utf-8", "replace"))
    page = out / "report.html"
    durable.publish(page, render(recorded, drawn).encode("utf-8", "replace"))
    return page


def render(recorded: Sequence[Any], drawn: Mapping[str, drawing.Picture] | None) -> str:
    """The page as text, around plots that are drawn already: {name: picture}; None where they cannot be drawn."""
    import jinja2
    from markupsafe import Markup

    template = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["minus"] = minus
    figures = {
        name: {"whole": Markup(drawing.inline(picture.svg, name)), "panels": picture.panels}  # noqa: S704  # matplotlib escapes its texts
        for name, picture in (drawn or {}).items()
    }
    shown = content(recorded)
    if drawn is None:
        shown["banners"] = [*shown["banners"], NO_PLOTS]
    return environment.from_string(template).render(**shown, figures=figures, dash=DASH)


def content(recorded: Sequence[Any]) -> dict[str, Any]:
    """The contents of the page as plain values."""
    arms = group(recorded)
    colours = dict(zip((arm.label for arm in arms), drawing.colours(arms), strict=True))
    return {
        "title": ", ".join(dict.fromkeys(arm.name for arm in arms)) or "no runs",
        "facts": facts(arms),
        "headline": headline(recorded),
        "banners": banners(recorded, arms),
        "verdicts": verdicts(arms),
        "results": results(arms, colours),
        "personal": [row | {"colour": colours[row["method"]]} for row in compare.personal(recorded)],
        "transfer": transfer(arms, colours),
        "steps": [{"label": arm.label, "colour": colours[arm.label], "rows": rows} for arm in arms if (rows := gradients_of(arm))],
        "labels": [{"pool": pool, **of[pool]} for of in [label_counts(arms)] for pool in pools_of(recorded) if pool in of],
        "lost": [{"label": arm.label, "colour": colours[arm.label], "rows": rows} for arm in arms if (rows := lost_of(arm))],
        "evaluated": bool(domains_of(recorded)),
        "cost": costs(arms, colours),
        "profile": profile(arms, colours),
        "configs": [{"label": arm.label, "file": f"{_file(arm)}.toml", "text": runnable(arm.runs[0].config)} for arm in arms],
        "runs": [run_row(arm, run, colours[arm.label]) for arm in arms for run in arm.runs],
        "notes": notes(arms),
        "commands": commands(arms),
        "number": _number,
        "count": _count,
        "points": points,
        "percent": _percent,
    }


def facts(arms: Sequence[Arm]) -> list[str]:
    """The line under the title."""
    runs = [run for arm in arms for run in arm.runs]
    tasks = dict.fromkeys(str(kind) for run in runs if (kind := dig(run.config, "task", "kind")))
    seeds = {seed_of(run) for run in runs}
    planned = sorted({n for run in runs if (n := rounds_planned(run))})
    parts = [f"task {', '.join(tasks)}"] if tasks else []
    parts += [plural(len(arms), "method" if len({arm.name for arm in arms}) == 1 else "arm"), plural(len(pools_of(runs)), "pool")]
    parts += [plural(len(seeds), "seed"), plural(len(runs), "run")]
    return parts + ([f"{DASH.join(f'{n:,}' for n in planned[:: max(len(planned) - 1, 1)])} rounds"] if planned else [])


def banners(runs: Sequence[Any], arms: Sequence[Arm]) -> list[str]:
    """Warnings that qualify everything below them."""
    lines = [] if arms else ["There are no runs here: nothing to report."]
    for arm in arms:
        for run in arm.runs:
            if not is_finished(run):
                planned, done = rounds_planned(run), rounds_done(run)
                of = f" of {planned}" if planned else ""
                stopped = f"stopped after round {done}{of}" if done else "has no recorded round"
                lines.append(f"Partial report: {arm.label}, seed {seed_of(run)}, {stopped} and has no result.")
    if any("Partial" in text for text in lines):
        lines.append("Unfinished runs are thin lines that end in a cross; no table of results counts them. The same command again goes on.")
    damaged = [arm for arm in arms if any(str(note).startswith("left out") for run in arm.runs for note in run.notes or ())]
    if damaged:
        lines.append(f"Damaged files were left out of {', '.join(arm.label for arm in damaged)}: see the notes at the end.")
    counted = sum(len(arm.runs) for arm in arms)
    if counted < len(runs):
        lines.append(f"{len(runs) - counted} of {len(runs)} runs repeat a method and seed of their experiment; the last of each is shown.")
    return lines


def verdicts(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """A verdict on each method, with a tile for each pool."""
    found = []
    for arm in arms:
        twin = twin_of(arm, arms)
        if arm.kind == TWIN:
            if any(twin_of(other, arms) is arm for other in arms):
                continue  # the verdicts on the other methods mention it
            found.append({"label": arm.label, "tone": "none", "badge": BADGES["none"], "text": alone(arm.runs), "tiles": []})
            continue
        domain = headline([*arm.runs, *(twin.runs if twin else ())])
        rows = [row for row in (paired(twin.runs, arm.runs) if twin else ()) if row["domain"] == domain]
        tones = {outcome(row) for row in rows} or {"none"}
        tone = tones.pop() if len(tones) == 1 else "mixed"
        tiles = [{"pool": row["pool"], **_gain(row)} for row in rows]
        badge = "no twin" if twin is None else BADGES[tone]
        text = verdict(twin.runs if twin else [], arm.runs)
        found.append({"label": arm.label, "tone": tone, "badge": badge, "text": text, "tiles": tiles})
    return found


def results(arms: Sequence[Arm], colours: dict[str, str]) -> list[dict[str, Any]]:
    """For each pool and domain a row for each method: accuracy, spread, gain over the twin and a drawing of its interval."""
    runs = [run for arm in arms for run in arm.runs]
    reached = {(row["method"], row["pool"], row["domain"]): row for row in compare.results(runs)}
    gains = {}
    for arm in arms:
        if twin := twin_of(arm, arms):
            gains |= {(arm.label, row["pool"], row["domain"]): row for row in paired(twin.runs, arm.runs)}
    owned = {row["method"] for row in compare.personal(runs)}  # whoever has no row below was measured there alone
    axis = span(list(gains.values()))
    size, found = parameters_of(runs), []
    for pool in pools_of(runs):
        lines = []
        for domain in domains_of(runs) or ["all"]:
            rows = []
            for arm in arms:
                if pool not in pools_of(arm.runs):
                    continue
                row, gain = reached.get((arm.label, pool, domain)), gains.get((arm.label, pool, domain))
                absent = "models at the clients" if arm.label in owned else "no result"
                without = "" if arm.kind == TWIN else absent if row is None else "no twin: run with --twin"
                if arm.kind != TWIN and gain is None and twin_of(arm, arms) and row is not None:
                    without = "no shared seed"
                rows.append(
                    {"label": arm.label, "colour": colours[arm.label], "twin": arm.kind == TWIN, "without": without}
                    | {"value": row and row["accuracy"], "spread": row and row["spread"], "seeds": row["seeds"] if row else 0}
                    | {"gain": gain and _gain(gain), "forest": gain and forest(gain, *axis)}
                )
            if any(row["value"] is not None for row in rows) or domain == "all":
                lines.append({"domain": domain, "rows": rows})
        if lines:
            found.append({"pool": pool, "parameters": size.get(pool), "domains": lines})
    return found


def span(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """The ends of an axis for differences and their intervals, with zero on it. It is scaled to the differences: an interval from two
    seeds can be ten times as wide, and is cut off with an arrow."""
    far = 3 * max((abs(row["difference"]) for row in rows), default=0.0) or 0.01
    ends = [v for row in rows for v in (row["low"], row["high"], row["difference"]) if v is not None]
    low, high = max(-far, min([0.0, *ends])), min(far, max([0.0, *ends]))
    return min(low, -0.12 * high), max(high, -0.12 * low) or 0.01


def forest(row: dict[str, Any], least: float, most: float) -> dict[str, Any]:
    """Where a difference and its interval stand on an axis of 0 to 100; what is outside is cut."""

    def place(value: float) -> float:
        return round(3 + 94 * (max(least, min(most, value)) - least) / (most - least), 2)

    found = {"zero": place(0.0), "dot": place(row["difference"]), "low": None, "high": None, "cut_low": False, "cut_high": False}
    if row["low"] is not None:
        found |= {"low": place(row["low"]), "high": place(row["high"])}
        found |= {"cut_low": row["low"] < 1.0001 * least, "cut_high": row["high"] > 1.0001 * most}
    return found


def transfer(arms: Sequence[Arm], colours: dict[str, str]) -> list[dict[str, Any]]:
    """Who teaches whom, for each method that teaches."""
    found = []
    for arm in arms:
        rows = taught(arm, twin_of(arm, arms)) if arm.kind != TWIN else []
        if rows:
            rows = [row | {"gain": row["gain"] and _gain(row["gain"])} for row in rows]
            found.append({"label": arm.label, "colour": colours[arm.label], "rows": rows})
    return found


def costs(arms: Sequence[Arm], colours: dict[str, str]) -> list[dict[str, Any]]:
    """The mean cost of a run of each arm: in all, by pool, and beyond the twin's."""
    found = []
    for arm in (arm for arm in arms if arm.finished):
        twin, cells = twin_of(arm, arms), {}
        for what in COSTS:
            unit = "B" if what == "client_bytes" else ""
            total = mean(cost_of(run, what) for run in arm.finished)
            pools = pools_of(arm.finished)
            of_pool = {p: mean(number(dig(run.result, "cost", what, p)) for run in arm.finished) for p in pools}
            more = extra_cost(twin.runs, arm.runs, what) if twin else None
            cells[what] = {
                "total": None if total is None else si(total, unit),
                "pools": [f"{pool} {si(value, unit)}" for pool, value in of_pool.items() if value is not None],
                "extra": None if more is None else "0 extra" if abs(more[0]) < 0.5 else f"{'+' if more[0] > 0 else ''}{si(more[0], unit)}",
                "free": more is not None and abs(more[0]) < 0.5,
            }
        if any(cell["total"] is not None for cell in cells.values()):
            label = {"label": arm.label, "colour": colours[arm.label], "compared": twin is not None}
            found.append(label | {"cells": cells, "seconds": _median(_seconds(run) for run in arm.finished)})
    return found


def runnable(config: Mapping[str, Any]) -> str:
    """A run's config as a file that `fedcodist run` takes; the digest of its data, which is no key of a config, as a comment."""
    text = toml.text({key: value for key, value in config.items() if key != "data"})
    return f"# data: {config['data']}\n{text}" if config.get("data") else text


def run_row(arm: Arm, run: Any, colour: str) -> dict[str, Any]:
    """One line about one run. Only the end of its path is shown, since a page may be published."""
    done, planned = rounds_done(run), rounds_planned(run)
    return {
        "label": arm.label,
        "colour": colour,
        "seed": seed_of(run),
        "place": "/".join(run.path.parts[-3:]),
        "rounds": f"{done:,}" + (f" of {planned:,}" if planned and planned != done else ""),
        "seconds": _seconds(run),
        "finished": is_finished(run),
    }


def notes(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Each distinct note once, with the runs that have it unless all do."""
    having: dict[str, list[str]] = {}
    total = sum(len(arm.runs) for arm in arms)
    for arm in arms:
        for run in arm.runs:
            for note in dict.fromkeys([*_environment(run), *map(str, run.notes or ())]):
                having.setdefault(note, []).append(f"{arm.label} seed {seed_of(run)}")
    return [{"text": note, "runs": [] if len(who) == total else who} for note, who in having.items()]


def commands(arms: Sequence[Arm]) -> list[str]:
    """The commands that make these runs and this page again, from the configs that the page shows."""
    lines, places = [], {}
    for arm in arms:
        parts = arm.runs[0].path.parts
        root = parts[-4] if len(parts) >= 4 and parts[-4] != "/" else "runs"
        lone = arm.kind == TWIN and not any(twin_of(other, arms) is arm for other in arms)
        if arm.kind != TWIN or lone:
            seeds = ",".join(str(seed_of(run)) for run in arm.runs)
            words = ["fedcodist", "run", f"{_file(arm)}.toml", *(["--twin"] if twin_of(arm, arms) else []), "--seeds", seeds]
            lines.append(shlex.join(words + (["--out", root] if root != "runs" else [])))
        places[f"{root}/{arm.name}"] = None
    return lines + ([shlex.join(["fedcodist", "report", *places])] if places else [])


def rows_csv(runs: Iterable[Any]) -> str:
    """Every measured value of every evaluated round, a row each."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(FIELDS)
    for run in runs:
        name, seed, kind = name_of(run), seed_of(run), kind_of(run)
        for row in rows_of(run):
            for pool, of_pool in (row.get("held_out") or {}).items():
                for domain, metrics in of_pool.items() if isinstance(of_pool, dict) else ():
                    for metric, value in metrics.items() if isinstance(metrics, dict) else ():
                        table.writerow([safe_cell(v) for v in (name, seed, kind, row["round"], pool, domain, metric, value)])
    return text.getvalue()


def minus(text: str) -> str:
    """The text with typographic minus signs before numbers, and intervals that stay on one line."""
    return re.sub(r"(?<=\d), (?=[−\d.]+\])", ",\N{NO-BREAK SPACE}", re.sub(r"(?<![\w.-])-(?=\d)", "−", str(text)))


def _gain(row: dict[str, Any]) -> dict[str, Any]:
    """A paired row, ready to be shown."""
    tone = outcome(row)
    shown = {"text": points(row["difference"], sign=True), "interval": interval(row["low"], row["high"])}
    return {"tone": tone, **shown, "why": WHY[tone], "seeds": row["seeds"]}


def _environment(run: Any) -> list[str]:
    """Where a run was made, in one line, if that was recorded."""
    known = getattr(run, "environment", None)
    pairs = [f"{key} {value}" for key, value in known.items() if value not in ("", None)] if isinstance(known, dict) else []
    return [", ".join(pairs)] if pairs else []


def _file(arm: Arm) -> str:
    """A file name for an arm's config."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{arm.name}-{arm.kind}").strip("-.") or "config"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _seconds(run: Any) -> float | None:
    known = [s for row in run.timing or () if (s := number(dig(row, "seconds"))) is not None]
    return sum(known) if known else None


def _number(value: float | None, digits: int = 3) -> str:
    return DASH if value is None else minus(f"{value:.{digits}g}")


def _count(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return DASH if value is None else points(value)
