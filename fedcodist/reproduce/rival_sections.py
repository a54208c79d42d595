"""What the page says of codistillation beside other systems, from result files alone: accuracies, what each costs and consumes, which rows
no other row beats, and whether the gains of a rule and of codistillation add up.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedcodist.reports import tables
from fedcodist.reports.arms import dig
from fedcodist.reports.compare import QUARTILES
from fedcodist.reports.units import si
from fedcodist.reproduce import claims, paper
from fedcodist.reproduce.numbers import DASH, LINE, show_accuracy, show_difference, show_gain, show_seeds

Result = Mapping[str, Any]
Cell = Mapping[str, Any]
COSTS = {"client_bytes": "bytes", "client_flops": "client operations", "server_flops": "server operations"}
LEADS = {
    "global": "Every row has the same clients, seeds, rounds and cohorts. A system of one pool asks as many clients a round as the two "
    "pools of the others together; its model of half the width stands for the small one. Gains are over FedAvg, seed by seed. Settings are "
    "those that were tuned for FedAvg, PeriodicCodist and MergedCodist, or for the row itself where it says so. A system that takes more "
    "than a quarter of an hour a run at the paper's length has one seed.",
    "personal": "Models that live at clients, each measured on its own client's test data, which it does not train on; these numbers "
    "are not to be compared with the global ones. Gains are over Local, which exchanges nothing.",
    "inside": "A rule within pools, and MergedCodist between them: if gains add up, both together gain what the rule alone and "
    "MergedCodist alone gain over FedAvg. The columns at the end are the difference to that sum, seed by seed.",
}
HEADS = {"global": "Global accuracy", "personal": "Personal accuracy", "inside": "Do gains add up?"}


def section(r: Result) -> str:
    """All tables of the comparison, those that have a row."""
    made = tables_of(r)
    parts = [f"### {HEADS[name]}\n\n{_fill(LEADS[name])}\n\n{made[name]}" for name in HEADS if name in made]
    if "global" in made:
        parts.insert(1, f"### When which is the better choice\n\n{made['choice']}")
    idle = [cell["row"] for cell in r["cells"] if not cell["seeds"]]
    if idle:
        command = f"`fedcodist reproduce rivals --budget {r['budget']}`"
        parts.append(_fill(f"Not run: {', '.join(idle)}; {command} does it."))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def tables_of(r: Result) -> dict[str, str]:
    """{part: its table}, of those that have results; and `choice`, the sentences about the first."""
    makers = {"global": _global, "personal": _personal, "inside": _inside}
    found = {name: tables.render(rows, "md") for name, make in makers.items() if (rows := list(make(r, run_rows(r, name))))}
    if "global" in found:
        found["choice"] = "\n".join(_fill(f"- {said}", "  ") for said in choices(r))
    return found


def run_rows(r: Result, part: str) -> list[Cell]:
    """The cells of a part that have results."""
    return [cell for cell in r["cells"] if cell["rival"]["part"] == part and cell["seeds"]]


def mean_of(cell: Cell, pool: str) -> float | None:
    """Its mean accuracy on the global test."""
    return dig(dict(cell), "accuracy", pool, "all", "mean")


def front(rows: Sequence[Cell], pool: str, cost: str) -> list[Cell]:
    """The rows that no other row beats: none is both at least as cheap and at least as accurate, and better in one of the two. The cheapest
    comes first."""
    known = [(spent(cell, cost), value, cell) for cell in rows if (value := mean_of(cell, pool)) is not None]
    best = [
        (price, value, cell)
        for price, value, cell in known
        if not any(p <= price and v >= value and (p, v) != (price, value) for p, v, _ in known)
    ]
    return [cell for _, _, cell in sorted(best, key=lambda row: (row[0], row[1]))]


def spent(cell: Cell, cost: str) -> float:
    """One of the costs; `operations` are those of clients and server together."""
    keys = ("client_flops", "server_flops") if cost == "operations" else (cost,)
    return sum(cell["cost"].get(key, 0) for key in keys)


def choices(r: Result) -> Iterator[str]:
    """Sentences about which row is the best under which condition, and about the rows that no other beats."""
    rows = run_rows(r, "global")
    conditions = {
        "of all rows": lambda cell: True,
        "of those that consume nothing beyond the clients' gradients": lambda cell: not cell["rival"]["consumes"],
        "of those that fit secure aggregation": lambda cell: cell["rival"]["secure"],
    }
    for pool in paper.POOLS:
        said = []
        for words, fits in conditions.items():
            among = [cell for cell in rows if fits(cell) and mean_of(cell, pool) is not None]
            if among:
                best = max(among, key=lambda cell: mean_of(cell, pool) or 0.0)
                said.append(f"{words} {_named(best, pool)}")
        yield f"The best {pool} model: {'; '.join(said)}."
    for cost, words in {"client_bytes": "bytes", "operations": "operations of clients and server together"}.items():
        for pool in paper.POOLS:
            names = ", ".join(_named(cell, pool) for cell in front(rows, pool, cost))
            yield f"By {words}, no row is both cheaper and better for the {pool} model than: {names}."
    for pool in paper.POOLS:
        sure = {True: [], False: []}
        for cell in rows:
            gain = dig(dict(cell), "accuracy", pool, "all", "gain") or {}
            if gain.get("low") is not None and (gain["low"] > 0 or gain["high"] < 0):
                sure[gain["low"] > 0].append(cell["rival"]["says"])
        above, below = (", ".join(names) or "none" for names in sure.values())
        yield f"Over FedAvg's {pool} model, with an interval that excludes zero, are: {above}; below it: {below}."


def _named(cell: Cell, pool: str) -> str:
    return f"{cell['rival']['says']} ({100 * (mean_of(cell, pool) or 0.0):.2f} %)"


def _global(r: Result, rows: Sequence[Cell]) -> Iterator[dict[str, str]]:
    for cell in rows:
        row = {"system": cell["rival"]["says"], "seeds": show_seeds(cell)}
        for pool in paper.POOLS:
            told = dig(dict(cell), "accuracy", pool, "all")
            row[f"{pool}, %"] = show_accuracy(told) if told else DASH
            row[f"{pool}: gain"] = show_gain((told or {}).get("gain")) or DASH
        yield row | _costs(cell)


def _personal(r: Result, rows: Sequence[Cell]) -> Iterator[dict[str, str]]:
    for cell in rows:
        row = {"system": cell["rival"]["says"], "seeds": show_seeds(cell)}
        for pool in paper.POOLS:
            told = dig(dict(cell), "accuracy", pool, "personal")
            row[f"{pool}, %"] = show_accuracy(told) if told else DASH
            row[f"{pool}: gain"] = show_gain((told or {}).get("gain")) or DASH
            quartiles = [dig(dict(cell), "accuracy", pool, f"personal {name}", "mean") for name in QUARTILES]
            row[f"{pool}: quartiles of clients"] = " | ".join(DASH if q is None else f"{100 * q:.1f}" for q in quartiles)
        yield row | _costs(cell)


def _costs(cell: Cell) -> dict[str, str]:
    found = {head: si(cell["cost"].get(what, 0), "B" if what == "client_bytes" else "") for what, head in COSTS.items()}
    found["consumes"] = ", ".join(cell["rival"]["consumes"]) or "nothing more"
    found["settings"] = ("its own" if cell["rival"]["own_settings"] else "FedAvg's") if cell["tuned"] else "untuned"
    return found | {"secure aggregation": "yes" if cell["rival"]["secure"] else "no"}


def _inside(r: Result, rows: Sequence[Cell]) -> Iterator[dict[str, str]]:
    known = {cell["id"]: cell for cell in r["cells"]}
    for cell in rows:
        if not cell["rival"]["alone"]:
            continue
        for pool in paper.POOLS:
            both = claims.gains(known, cell["id"], pool)
            rule, merged = (claims.gains(known, name, pool) for name in cell["rival"]["alone"])
            beyond = [value - rule[seed] - merged[seed] for seed, value in both.items() if seed in rule and seed in merged]
            row = {"system": cell["rival"]["says"], "model": pool, "seeds": show_seeds(cell)}
            parts = {"the rule alone": rule, "MergedCodist alone": merged, "both": both}
            row |= {f"gain of {what}": show_difference(claims.over(list(gains.values()))) for what, gains in parts.items()}
            yield row | {"beyond the sum": show_difference(claims.over(beyond)), "so": _verdict(claims.over(beyond))}


def _verdict(beyond: claims.Difference | None) -> str:
    if beyond is None or beyond.low is None or beyond.high is None:
        return "not decidable"
    return "more than the sum" if beyond.low > 0 else "less than the sum" if beyond.high < 0 else "not told from the sum"


def _fill(text: str, indent: str = "") -> str:
    return textwrap.fill(text, LINE, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
