"""The part of the results page on the studies that go beyond the paper: for each a question, a table and, where somebody has written one,
a paragraph of findings.

Findings are in `findings.md` beside the result files, a paragraph under a heading such as `## studies-small/cost`. They may only name
numbers that stand in the study's own section, or they would go stale with the next run. All else is made from result files alone.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcodist.errors import data_error
from fedcodist.reports import tables
from fedcodist.reports.arms import dig
from fedcodist.reproduce import claims, figures, numbers, paper, sections, studies
from fedcodist.reproduce.budgets import BUDGETS
from fedcodist.reproduce.numbers import DASH
from fedcodist.reproduce.sections import LINE
from fedcodist.settings import nearest

Result = Mapping[str, Any]
FINDINGS, ANSWER = "findings.md", "answer"  # the heading below which the sentences about the verdicts stand
TITLES = {
    "cost": "How much server cost can be saved",
    "pools": "Three pools against two",
    "gate": "Teachers weighted by their confidence",
    "own-alpha": "An alpha for each pool",
    "rates": "The large model's own best rates",
}
QUESTIONS = {
    "cost": "MergedCodist distils in every round. Here its alpha changes with the round; rounds in which it is 1 are plain FedAvg and cost "
    f"the server nothing. The warm-up goes in equal steps from {studies.START} to the plain alpha, the cool-down from there to 1 along "
    'half a cosine: both distil in every round in which alpha is below 1. "Late" is FedAvg for the first {first} of {rounds} rounds. '
    '"Against plain" is the difference to plain MergedCodist, seed by seed; server FLOPs are a share of what it takes.',
    "pools": "A model of a quarter of the width on all clients, one of half the width on half of them, and the full one on the clients of "
    "the large model's pool, each pool a part of the one before; all teach all. With two pools the half-width model has all clients. The "
    "full-width model has the same clients in both. Gains are over FedAvg with as many pools.",
    "gate": "Each teacher's weight is multiplied, example by example, by exp(-entropy / gate), with the entropy of its prediction in nats: "
    "with a small gate the most confident teacher dominates. The small model learns only the first kind of sentences, the large one only "
    'the second; mixed means all test sentences. "Against ungated" is the difference to the same method without a gate, seed by seed.',
    "own-alpha": "With the largest pool the paper's large model is the stronger one, and a shared alpha lets the weaker one teach it as "
    'much as it is taught. Here the small model keeps that alpha and the large one has its own, nearer to 1. "Against shared" is the '
    "difference to MergedCodist with the shared alpha, seed by seed.",
    "rates": "The rates of the tables were tuned for the mean accuracy of both models. Here the large model has the client and server rate "
    "of the FedAvg trial in which it was best, and the small one keeps its own. A remaining gain cannot be due to a FedAvg baseline that "
    'was tuned for another model. Gains are over FedAvg with the same rates. "Against tuned" is the difference to the same method with '
    "the rates of the tables, seed by seed; the last column is that of the two gains.",
}
WIDTHS = {"quarter": "quarter width", "small": "half width", "large": "full width"}
WAYS = {
    "warm-up": "warm-up",
    "cool-down": "cool-down",
    "after": "late",
    "own-alpha": "an alpha for each pool",
    "three": "three pools",
    "rates": "the large model's own rates",
}
NUMBER = r"(?:(?<![\w.])[+-])?\d+(?:[.,]\d+)*"  # with its sign, but not the dash of a range or a name
TOLD = re.compile(rf"{NUMBER}(?: \[{NUMBER}, {NUMBER}\]| ± {NUMBER})?")  # an interval or a spread belongs to its mean


def shown(r: Result) -> list[str]:
    """The studies of a result file."""
    there = {name for cell in r["cells"] for name in cell.get("studies", ())}
    return [name for name in studies.STUDIES if name in there]


def study(r: Result, name: str) -> str:
    """A study's section: the question, the table, the findings."""
    told = table(r, name)
    found = dig(dict(r), "findings", name)
    if found:
        check(found, told, f"{FINDINGS}, {_stem(r['budget'], name)}")
    return f"### {TITLES[name]}\n\n{told}" + (f"\n{found}\n" if found else "")


def table(r: Result, name: str) -> str:
    """The question and the table, for each family that it is of."""
    mine = rows(r, name)
    parts = [textwrap.fill(QUESTIONS[name].format(first=r["rounds"] // studies.FIRST, rounds=r["rounds"]), LINE)]
    families = dict.fromkeys(cell["family"] for cell in mine)
    for family in families:
        told = [cell for cell in mine if cell["family"] == family]
        own = [cell for cell in told if "-" in cell["row"]]  # the others are of the paper's tables
        none = sections.not_run(r, own, name if len(families) == 1 else f"{family}/*-{name}-*").rstrip()
        parts += [f"**{_heading(r, family, told)}**", none or tables.render(TABLES[name](r, told), "md")]
    return "\n\n".join(parts) + "\n"


def rows(r: Result, name: str) -> list[dict[str, Any]]:
    """The cells of a study, in its order."""
    return [cell for cell in r["cells"] if name in cell.get("studies", ())]


def row_name(row: str) -> str:
    """A row in words.

    >>> row_name("merged-every-5"), row_name("periodic-gate-0.5"), row_name("fedavg")
    ('MergedCodist, every 5th round', 'PeriodicCodist, gate 0.5', 'FedAvg')
    """
    method, _, way = row.partition("-")
    if way.startswith("every-"):
        k = way.removeprefix("every-")
        way = f"every {k}{'nd' if k == '2' else 'th'} round"
    return sections.row_name(method) + (f", {WAYS.get(way, way.replace('gate-', 'gate '))}" if way else "")


def server_share(r: Result, cell: Mapping[str, Any], reference: str) -> float | None:
    """A cell's server FLOPs as a share of another's; None where one of them was not run."""
    mine, other = (dig(dict(_cell(r, name) or {}), "cost", "server_flops") for name in (cell["id"], reference))
    return mine / other if mine is not None and other else None


def against(r: Result, cell: Mapping[str, Any], reference: str, pool: str, domain: str = "all") -> claims.Difference | None:
    """The difference to another cell, seed by seed."""
    mine, other = (claims.values_of(c, pool, domain) for c in (cell, _cell(r, reference)))
    return claims.over([value - other[seed] for seed, value in mine.items() if seed in other])


def _cost(r: Result, mine: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    plain = next((cell["studies"]["cost"] for cell in mine if cell["studies"].get("cost")), "")
    found = []
    for cell in mine:
        share = server_share(r, cell, plain)
        spent = {"server FLOPs": DASH if share is None else f"{100 * share:.1f} %"}
        found.append(_row(r, cell, "cost", "plain") | spent | {"rounds that distil": str(cell["distilled"]) if cell["seeds"] else DASH})
    return found


def _pools(r: Result, mine: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each model, pools and method, the models together: what a third pool does is seen beside two."""
    found, methods = [], list(paper.METHODS)
    for pool, width in WIDTHS.items():
        for cell in sorted(mine, key=lambda cell: (cell["row"].endswith("-three"), methods.index(cell["method"]))):
            three = cell["row"].endswith("-three")
            told = dig(dict(cell), "accuracy", pool, "all")
            if told is None and pool == "quarter" and not three:
                continue  # there is no such model
            row = {"model": width, "pools": "three" if three else "two", "method": sections.row_name(cell["method"])}
            gain = numbers.show_gain((told or {}).get("gain")) or DASH
            found.append(row | {"seeds": numbers.show_seeds(cell), "test accuracy, %": _accuracy(told), "gain": gain})
    return found


def _gate(r: Result, mine: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for domain, ours in r["families"][mine[0]["family"]]["domains"].items():
        found += [{"test sentences": figures.domain_name(domain, ours)} | _row(r, cell, "gate", "ungated", ours) for cell in mine]
    return found


def _own_alpha(r: Result, mine: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for cell in mine:
        found.append({"method": "", "alpha": _alpha(cell)} | _row(r, cell, "own-alpha", "shared"))
    return found


def _rates(r: Result, mine: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row says the large model's rates."""
    found, methods = [], list(paper.METHODS)
    for cell in sorted(mine, key=lambda cell: ("-" in cell["row"], methods.index(cell["method"]))):
        rates = [dig(dict(cell), "settings", "large", f"{part}_lr") for part in ("client", "server")]
        told = " / ".join(DASH if rate is None else f"{rate:.3g}" for rate in rates)
        row = {"method": "", "large: client / server lr": told} | _row(r, cell, "rates", "tuned")
        found.append(
            row | {"large: gain against tuned's": numbers.show_difference(_gain_against(r, cell, cell["studies"]["rates"], "large"))}
        )
    return found


def _gain_against(r: Result, cell: Mapping[str, Any], reference: str, pool: str) -> claims.Difference | None:
    """The difference of two gains, seed by seed: that one interval contains zero and the other does not is no difference between them."""
    cells = {c["id"]: c for c in r["cells"]}
    mine, other = (claims.gains(cells, name, pool) for name in (cell["id"], reference))
    return claims.over([value - other[seed] for seed, value in mine.items() if seed in other])


TABLES = {"cost": _cost, "pools": _pools, "gate": _gate, "own-alpha": _own_alpha, "rates": _rates}


def _row(r: Result, cell: Mapping[str, Any], name: str, what: str, domain: str = "all") -> dict[str, Any]:
    """Both models of a cell: accuracy, gain over FedAvg, and the difference to what the study compares with."""
    row = {"method": row_name(cell["row"]), "seeds": numbers.show_seeds(cell)}
    for pool in paper.POOLS:
        told = dig(dict(cell), "accuracy", pool, domain)
        difference = against(r, cell, cell["studies"].get(name, ""), pool, domain)
        row[pool] = _accuracy(told)
        row[f"{pool}: gain"] = numbers.show_gain((told or {}).get("gain")) or DASH
        row[f"{pool}: against {what}"] = numbers.show_difference(difference)
    return row


def _accuracy(told: Mapping[str, Any] | None) -> str:
    return numbers.show_accuracy(told) if told else "not run"


def _alpha(cell: Mapping[str, Any]) -> str:
    return sections.show_schedule(dig(dict(cell), "settings", "method", "alpha")).replace(", over 0", "")  # all rounds


def _heading(r: Result, family: str, mine: Sequence[Mapping[str, Any]]) -> str:
    of, column = r["families"][family], mine[-1]["column"]
    size = f", |P_H| = {int(column):,} {of['unit']}" if column.isdigit() else ""
    plain = next((c for c in mine if c["row"] == "merged" and c["settings"]), None)
    alpha = f", plain alpha {_alpha(plain)}" if plain else ""
    return f"{of['data'].partition(',')[0]}{size}, {mine[-1]['rounds'] or r['rounds']:,} rounds{alpha}"


def _cell(r: Result, name: str) -> Mapping[str, Any] | None:
    return next((cell for cell in r["cells"] if cell["id"] == name), None)


def with_findings(found: Sequence[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Result files, those of studies with the paragraphs that are written about them."""
    known = written(folder)
    told = []
    for r in found:
        mine = {name: text for name in studies.STUDIES if (text := known.get(_stem(r["budget"], name)))}
        told.append({**r, "findings": mine} if mine and r["table"] == "studies" else r)
    return told


def written(folder: Path) -> dict[str, str]:
    """The findings beside result files: {heading: paragraph}."""
    path = folder / FINDINGS
    return read_findings(path.read_text("utf-8")) if path.is_file() else {}


def first_sentence(r: Result, name: str) -> str:
    """The first sentence of what was found in a study, on one line: what the short page says of it."""
    found = " ".join((dig(dict(r), "findings", name) or "").split())
    return re.split(r"(?<=[.!?]) (?=[A-Z])", found, maxsplit=1)[0]


def read_findings(text: str) -> dict[str, str]:
    """{studies-BUDGET/STUDY or answer: its paragraphs} of a findings file. What stands before the first heading is for its writers.

    >>> read_findings("For writers.\\n\\n## studies-small/cost\\n\\nHalf of it\\ncan be saved.\\n")
    {'studies-small/cost': 'Half of it\\ncan be saved.'}
    """
    known = [ANSWER, *(_stem(budget, name) for budget in BUDGETS for name in studies.STUDIES)]
    _, *parts = re.split(r"^## *(.*?) *$", text, flags=re.MULTILINE)
    found: dict[str, str] = {}
    for name, paragraph in zip(parts[::2], parts[1::2], strict=True):
        if name not in known or name in found:
            what = f"the heading {name!r}" + (" twice" if name in found else "")
            raise data_error(FINDINGS, what, f"each of {', '.join(known)} at most once", nearest(name, known))
        found[name] = paragraph.strip()
    return found


def check(paragraph: str, told: str, where: str) -> None:
    """Refuse a number, or a mean with another one's interval, that does not stand in the section itself."""
    there = {n for whole in TOLD.findall(told) for said in (whole, whole.split()[0]) for n in (said, said.lstrip("+"))}
    odd = [said for said in TOLD.findall(" ".join(paragraph.split())) if said not in there]
    if odd:
        raise data_error(
            where, f"the number {odd[0]}", "numbers of its own table, as they stand there", "results change, and so must what is said"
        )


def _stem(budget: str, name: str) -> str:
    return f"studies-{budget}/{name}"
