"""`docs/results.md`, the page for readers: the answer, the paper's tables in short, how they were made, and their limitations.

Every table is shown at the largest budget that has it; all the others, settings, costs, studies and provenance are on the page with
everything (`page`). All numbers come from result files, and those in sentences are held against the tables of this page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedcodist.reports import tables
from fedcodist.reports.arms import dig
from fedcodist.reproduce import claims, figures, paper, sections, studies, study_sections
from fedcodist.reproduce.numbers import DASH, show_gain, show_ids
from fedcodist.reproduce.sections import LINE

Result = Mapping[str, Any]
LEAD = (
    "A gain is the difference to plain FedAvg on the same seeds, clients and initial models, in points of test accuracy, with a 95 % "
    "interval over seeds in brackets. The paper gives neither seeds nor intervals. [A second page]({all}) has all tables in full."
)
RULE = (
    "A gain is reproduced if its interval lies above zero. It is not reproduced if its interval does not lie above zero and ends below the "
    "paper's gain. Anything else is not decidable. A claim is reproduced if all of its parts are. [All rules and parts]({all})."
)
METHOD = (
    "CIFAR-100 has 315 clients of 100 images, drawn by Pachinko allocation, 13,500 public images without labels, 5,000 held-out and 10,000 "
    "test images. |P_H| is the number of examples in the large model's pool; the small model has all clients. "
    "StackExchange replaces Stack Overflow, and Reddit replaces C4 ([data](data.md)); accuracy on text is the strictest of "
    "[three definitions](paper.md) of next-word accuracy. Settings were tuned on held-out data and on a seed that no table uses; the "
    "methods were tuned with the rates that were found for FedAvg ([details](tune.md)). Accuracy is that of the last round, and the test "
    "split is read once. [A list](paper.md) says what was chosen where the paper leaves something open; [deviations](deviations.md) are "
    "listed as well."
)
AGAIN = (
    "`fedcodist data prepare cifar100`, then `fedcodist reproduce table1 --budget {budget}` runs Table 1 again. The command resumes "
    "unfinished runs and skips finished ones."
)
CAVEATS = (
    "A seed determines the initial models, cohorts and batches. The clients' examples, the clients of a pool, and the test set are the "
    "same for all seeds, so the intervals do not cover other splits of the data. With another 10,000 test images, a number would differ by "
    "about half a point.",
    "The means of rows with different seeds should not be compared; their paired gains can be. Seeds beyond those of a budget were added "
    "after the first results were known, which the intervals do not take into account.",
    "Cells may come from several machines, but every gain is between runs on the same machine.",
    "Both methods had at most as many trials as FedAvg, starting from FedAvg's rates, in runs that are shorter than those of the tables "
    "where the [tuning page](tune.md) says so. All columns use the settings that were tuned for one of them.",
    "Many intervals are shown: of twenty intervals without an effect, one excludes zero by chance.",
)


def render(found: Sequence[Result], story: str = "", everything: str = "all-results.md", beside: str = "results/") -> str:
    """The page. `story`: the sentences below the verdicts."""
    shown = [r for r in found if r["decides"]]
    if not shown:
        return "# Results\n\nThere are none yet: `fedcodist reproduce table1 --budget smoke` makes some in a few minutes.\n"
    parts = ["# Results", _fill(LEAD.format(all=everything)), "## The answer", _verdicts(shown)]
    body = ["\n\n".join(part) for part in (*_tables(shown, beside), _studies(shown, everything)) if part]
    if story:
        study_sections.check(story, "\n".join([parts[-1], *body]), f"{study_sections.FINDINGS}, {study_sections.ANSWER}")
        parts.append(story)
    parts += [_fill(RULE.format(all=everything)), *body, "## How it was run", _fill(METHOD)]
    parts += [_fill(f"Budget {name}: {says}.") for name, says in {r["budget"]: r["says"] for r in shown}.items()]
    parts += [_fill(AGAIN.format(budget=shown[0]["budget"])), "## Limitations"]
    return "\n\n".join([*parts, "\n".join(_fill(f"- {caveat}", "  ") for caveat in CAVEATS)]) + "\n"


def _verdicts(found: Sequence[Result]) -> str:
    """A row for each claim, by the largest budget that ran a part of it."""
    best: dict[str, dict[str, str]] = {}
    for budget in dict.fromkeys(r["budget"] for r in found):
        mine = [r for r in found if r["budget"] == budget]
        for verdict in claims.judge(mine):
            if any(part.ours for part in verdict.parts) and verdict.claim.name not in best:
                best[verdict.claim.name] = _verdict(verdict, _rounds(mine, verdict.claim.name))
    return tables.render(list(best.values()), "md")


def _verdict(v: claims.Verdict, rounds: str) -> dict[str, str]:
    mine = [part for part in v.parts if part.ours]
    return {
        "claim": f"({v.claim.name}) {v.claim.text}",
        "paper": "; ".join(part.paper for part in mine if part.paper) or DASH,
        "ours": "; ".join(part.ours for part in mine),
        "rounds": rounds,
        "verdict": v.verdict.removesuffix(claims.HERE),
    }


def _rounds(found: Sequence[Result], claim: str) -> str:
    """The rounds of the runs that a claim is judged by."""
    name = claim.partition(",")[0]
    cells = [cell for r in found if name in claims.SPEAKS_OF[r["table"]] for cell in r["cells"] if cell["seeds"]]
    images = name not in ("iv", "v")
    return sections.span([cell["rounds"] for cell in cells if (cell["family"] == "images") == images]) if cells else DASH


def _tables(found: Sequence[Result], beside: str) -> Iterator[list[str]]:
    """Each table and figure of the paper, at the largest budget that has runs of it."""
    done = set()
    for table in paper.TABLES:
        if table in ("studies", "rivals"):
            continue
        for r in (r for r in found if r["table"] == table):
            for family in r["families"]:
                mine = [cell for cell in r["cells"] if cell["family"] == family and cell["seeds"]]
                if r["families"][family]["paper_data"] is None or not mine or (table, family) in done:
                    continue
                done.add((table, family))
                rounds = sections.span([cell["rounds"] for cell in mine])
                data = r["families"][family]["data"].partition(",")[0]
                yield [f"## {TITLES[table]}: {data}, {rounds} rounds", *MAKERS[table](r, family, mine), *_picture(r, family, beside)]


TITLES = {"table1": "Table 1", "table2": "Table 2, pools of different domains", "figure3": "Figure 3", "figure4": "Figure 4, public data"}


def _table_1(r: Result, family: str, mine: Sequence[Mapping[str, Any]]) -> list[str]:
    """All columns in one table, with the rows that the paper has."""
    of = r["families"][family]
    rows = []
    for column in of["columns"]:
        balanced = ", balanced" if column == of.get("balanced") else ""
        size = f"{int(column):,}{balanced}" if column.isdigit() else column
        for cell in mine:
            if cell["row"] in paper.METHODS and cell["column"] == column:
                rows.append({f"|P_H|, {of['unit']}": size} | _row(r, cell))
    return [tables.render(rows, "md")]


def _table_2(r: Result, family: str, mine: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for domain, ours in r["families"][family]["domains"].items():
        rows += [{"test sentences": figures.domain_name(domain, ours)} | _row(r, cell, ours, public=False) for cell in mine]
    lead = f"The small model learns answers only, the large one questions only; mixed is {sections.mixed(r, family)}."
    return [_fill(lead), tables.render(rows, "md")]


def _figure_3(r: Result, family: str, mine: Sequence[Mapping[str, Any]]) -> list[str]:
    return [sections.spikes(r, family).rstrip("\n")]


def _figure_4(r: Result, family: str, mine: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        {"public images": f"{figures.public(cell, r):,}"} | _row(r, cell, public=False, printed=False) for cell in mine if cell["public"]
    ]
    return [tables.render(rows, "md")]


MAKERS = {"table1": _table_1, "table2": _table_2, "figure3": _figure_3, "figure4": _figure_4}


def _row(r: Result, cell: Mapping[str, Any], domain: str = "all", public: bool = True, printed: bool = True) -> dict[str, str]:
    """Both models of a cell: accuracy, gain, and in parentheses the paper's gain."""
    row = {"method": sections.row_name(cell["row"])}
    row |= {"public data": sections.public(r, cell)} if public else {}
    row["seeds"] = show_ids(cell["seeds"])
    twin = next((other for other in r["cells"] if other["id"] == cell["twin"]), None)
    for pool in paper.POOLS:
        told = dig(dict(cell), "accuracy", pool, domain) or {}
        theirs, base = (dig(dict(of or {}), "paper", pool, domain) for of in (cell, twin))
        beside = f" ({100 * (theirs - base):+.1f})" if printed and theirs is not None and base is not None else ""
        row[f"{pool}, %"] = f"{100 * told['mean']:.1f}" if told else DASH
        gain = show_gain(told.get("gain"))
        row[f"{pool}: gain (paper's)" if printed else f"{pool}: gain"] = f"{gain}{beside}" if gain else DASH
    return row


def _picture(r: Result, family: str, beside: str) -> list[str]:
    stem = f"{r['table']}-{r['budget']}"
    there = [name for name in figures.names(r) if name in (stem, f"{stem}-{family}")]
    return [f"![{TITLES[r['table']]}]({beside}{name}.svg)" for name in there]


def _studies(found: Sequence[Result], everything: str) -> list[str]:
    """A row for each study: its question, and the first sentence of what was found."""
    rows: dict[str, dict[str, str]] = {}
    for r in (r for r in found if r["table"] == "studies"):
        for name in studies.STUDIES:
            if name not in rows and (said := study_sections.first_sentence(r, name)):
                title = study_sections.TITLES[name]
                link = title.lower().replace("'", "").replace(" ", "-")
                rows[name] = {"question": f"[{title}]({everything}#{link})", "found": said}
    return ["## Beyond the paper", tables.render(list(rows.values()), "md")] if rows else []


def _fill(text: str, indent: str = "") -> str:
    return textwrap.fill(text, LINE, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
