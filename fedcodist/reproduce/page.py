"""The page with everything that was run, and marked blocks of other pages, from result files alone: no number on them is typed by hand.

A block is what stands between `<!-- results: NAME -->` and `<!-- end -->`, where NAME is one of `blocks`. `check` says which pages differ
from what the result files give. Figures are only linked here, and drawn by `figures`; the page that readers
see first is made by `front`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcodist.errors import data_error
from fedcodist.reproduce import claims, clocks, figures, front, paper, results, rival_sections, sections, study_sections
from fedcodist.reproduce.budgets import BUDGETS
from fedcodist.settings import nearest
from fedcodist.storage import durable

Result = Mapping[str, Any]
PAGE, EVERYTHING, FOLDER = "results.md", "all-results.md", "results"
MARK = re.compile(r"(<!-- results: (?P<name>[^>]*?) -->\n).*?(?=<!-- end -->)", re.DOTALL)
TITLES = {
    "table1": "Table 1: three sizes of the large model's pool, in-domain and out-of-domain public data",
    "table2": "Table 2: pools of different domains",
    "figure3": "Figure 3: pools of different domains, round by round",
    "figure4": "Figure 4: how much public data is enough",
    "studies": "Studies that go beyond the paper",
    "rivals": "Other systems beside codistillation",
}
INTRO = """# All results

Everything that `fedcodist reproduce` has run: no number in a table is typed by hand, and numbers in findings are checked against their
table. Accuracies are percent on the test set, with the standard deviation over seeds after ±. "Gain" is the paired difference to plain
FedAvg on the same seeds, clients and initial models, in points, with its 95 % interval (Student's t over seeds); one seed gives no
interval. In brackets after the paper's numbers is the paper's gain; it gives no seeds and no intervals. On text accuracy is the share of
next words that are predicted correctly, without ends of sentences, and an unknown word is always an error. |P_H| is the size of the large
model's pool, and a cell is one method on one pool size and one set of public data. The central column is the pool size in the middle, |P_H|
= 4,700 for images, which the paper chose because FedAvg's two models do about equally well there; where ours do not, a balanced column is
the size at which they do.
"""


TABLE_1 = {  # what stands below a table: {its lead: what makes it}
    "Both models together, the mean of their probabilities, in the central column:": sections.ensembles,
    "Settings in the central column:": sections.settings,
    "What a run costs in the central column:": sections.costs,
    "Predicted and real time of the runs:": lambda r, family: clocks.table(_cells(r, family)),
    "The central column by the two other counts of next words (A7):": sections.counts,
}
TABLE_2 = {
    "Settings:": sections.settings,
    "What a run costs:": sections.costs,
    "Predicted and real time of the runs:": lambda r, family: clocks.table(_cells(r, family)),
    "All sentences of the test by the two other counts of next words (A7):": sections.counts,
}


def _cells(r: Result, family: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The cells of a family, each under its name."""
    return [(cell["id"].partition("/")[2], cell) for cell in r["cells"] if cell["family"] == family]


def load(folder: Path) -> list[results.Result]:
    """All result files of a directory, the largest budget first, with the findings beside them that are written by hand."""
    found = [results.read(path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []
    found = study_sections.with_findings(found, folder)
    budgets = list(BUDGETS)[::-1]
    return sorted(found, key=lambda r: (budgets.index(r["budget"]), paper.TABLES.index(r["table"])))


def render(found: Sequence[Result], beside: str = f"{FOLDER}/", drawn: bool = True) -> str:
    """The page. `beside` is where its figures are; without `drawn` they are left out."""
    parts = [INTRO]
    if not found:
        parts.append("There are none yet: `fedcodist reproduce table1 --budget smoke` makes some in a few minutes.\n")
    else:
        parts += ["## What was run\n", sections.overview(found)]
    for budget in dict.fromkeys(r["budget"] for r in found):
        mine = [r for r in found if r["budget"] == budget]
        if any(claims.SPEAKS_OF[r["table"]] for r in mine):
            parts += [f"## The paper's claims, budget {budget}\n", sections.claims_block(mine)]
        parts += [section(r, beside, drawn) for r in mine]
    if found:
        parts += ["## Provenance\n", sections.provenance(found)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def section(r: Result, beside: str = f"{FOLDER}/", drawn: bool = True) -> str:
    """One table or figure under one budget."""
    parts = [f"## {TITLES[r['table']]}, budget {r['budget']}\n"]
    if r["table"] == "studies":
        return "\n".join([*parts, *(study_sections.study(r, name) for name in study_sections.shown(r))])
    pictures = figures.names(r) if drawn else []
    if r["table"] == "rivals":
        return "\n".join([*parts, rival_sections.section(r), *(f"![{TITLES[r['table']]}]({beside}{p}.svg)\n" for p in pictures)])
    for name, family in r["families"].items():
        if len(r["families"]) > 1 or r["table"] == "table1":
            parts.append(f"### {family['data'].partition(',')[0]}\n")
        if r["table"] == "table1":
            for column in family["columns"]:
                parts.append(f"**{sections.column_name(family, column, r)}**\n")
                parts.append(sections.table_1(r, name, column))
            parts += _beside(r, name, TABLE_1)
        elif r["table"] == "table2":
            parts.append(sections.table_2(r, name))
            parts += _beside(r, name, TABLE_2)
        elif r["table"] == "figure3":
            parts.append(sections.spikes(r, name))
        else:
            parts.append(sections.figure_4(r))
        parts += [
            f"![{TITLES[r['table']]}]({beside}{p}.svg)\n" for p in pictures if p == f"{r['table']}-{r['budget']}" or p.endswith(f"-{name}")
        ]
    return "\n".join(parts)


def _beside(r: Result, family: str, what: Mapping[str, Callable[[Result, str], str]]) -> list[str]:
    """Smaller tables with their leads, those that have a row."""
    made = {lead: make(r, family) for lead, make in what.items()}
    return [part for lead, text in made.items() if text for part in (f"{lead}\n", text)]


def blocks(found: Sequence[Result]) -> dict[str, Callable[[], str]]:
    """What can be asked for by `<!-- results: NAME -->`: {name: what makes it}."""
    made: dict[str, Callable[[], str]] = {}
    for budget in dict.fromkeys(r["budget"] for r in found):
        mine = [r for r in found if r["budget"] == budget]
        if any(claims.SPEAKS_OF[r["table"]] for r in mine):
            made[f"claims-{budget}"] = lambda mine=mine: sections.claims_block(mine)
        made[f"overview-{budget}"] = lambda mine=mine: sections.overview(mine)
    for r in found:
        stem = f"{r['table']}-{r['budget']}"
        made[stem] = lambda r=r: section(r, drawn=False)
        if r["table"] == "rivals":
            made |= {f"{stem}/{name}": lambda of=of: of for name, of in rival_sections.tables_of(r).items()}
            continue
        if r["table"] == "studies":
            made |= {f"{stem}/{name}": lambda r=r, name=name: study_sections.table(r, name) for name in study_sections.shown(r)}
            continue
        for name, family in r["families"].items():
            if r["table"] == "table1":
                for c in family["columns"]:
                    made[f"{stem}/{name}/{c}"] = lambda r=r, name=name, c=c: sections.table_1(r, name, c)
                    made[f"{stem}/{name}/{c}/short"] = lambda r=r, name=name, c=c: sections.table_1(r, name, c, short=True)
            elif r["table"] in ("table2", "figure3"):
                made[f"{stem}/{name}"] = lambda r=r, name=name: (sections.table_2 if r["table"] == "table2" else sections.spikes)(r, name)
            else:
                made[f"{stem}/table"] = lambda r=r: sections.figure_4(r)
    return made


def fill(text: str, found: Sequence[Result], where: str = "page") -> str:
    """A page with its marked blocks made again. A block of an unknown name, or without an end, is an error: it would stay as it is."""
    known = blocks(found)
    begun, whole = text.count("<!-- results:"), len(MARK.findall(text))
    if begun != whole:
        raise data_error(
            where, f"{begun} marks of results, {whole} of them with an end", "<!-- results: NAME --> on a line, then <!-- end -->"
        )

    def fresh(match: re.Match[str]) -> str:
        name = match["name"].strip()
        if name not in known:
            raise data_error(where, f"a block of {name}", ", ".join(known) or "none: there are no result files", nearest(name, known))
        return f"{match[1]}\n{known[name]().rstrip()}\n\n"

    return MARK.sub(fresh, text)


def pages(docs: Path, others: Iterable[Path] = ()) -> dict[Path, str]:
    """{path: text} of both pages of results and of every other page with blocks, as the result files in `docs` give them."""
    found = load(docs / FOLDER)
    story = study_sections.written(docs / FOLDER).get(study_sections.ANSWER, "")
    made = {docs / PAGE: front.render(found, story, EVERYTHING, f"{FOLDER}/"), docs / EVERYTHING: render(found)}
    for path in others:
        text = path.read_text("utf-8")
        if "<!-- results:" in text:
            made[path] = fill(text, found, path.name)
    return made


def write(docs: Path, others: Iterable[Path] = (), drawn: bool = False) -> None:
    """Write these pages; with `drawn` the figures too, as SVG only: a repository keeps every version of a PNG for ever."""
    docs.mkdir(parents=True, exist_ok=True)
    if drawn:  # first: words that have gone stale are refused below, and pictures have none
        with tempfile.TemporaryDirectory() as scratch:
            for picture in (p for result in load(docs / FOLDER) for p in figures.draw(result, Path(scratch))):
                shutil.copyfile(picture, docs / FOLDER / picture.name)
    for path, text in pages(docs, others).items():
        durable.publish(path, text.encode())


def check(docs: Path, others: Iterable[Path] = ()) -> list[str]:
    """The pages that are not what the result files give, and the figures that are not there."""
    stale = [path.name for path, text in pages(docs, others).items() if not path.is_file() or path.read_text("utf-8") != text]
    drawn = (docs / FOLDER / f"{name}.svg" for result in load(docs / FOLDER) for name in figures.names(result))
    return stale + [path.name for path in drawn if not path.is_file()]
