"""Rows as text: a table for the terminal; JSON, CSV, Markdown or LaTeX for everything else."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

FORMATS = ("table", "json", "csv", "md", "latex")


def render(rows: Sequence[Mapping[str, Any]], form: str = "table", title: str = "") -> str:
    """Rows with the same keys, in one of FORMATS.

    >>> print(render([{"pool": "small", "accuracy": 0.5}], "md"))
    | pool | accuracy |
    |---|---|
    | small | 0.5 |
    >>> render([{"pool": "small", "accuracy": 0.5}], "csv").splitlines()
    ['pool,accuracy', 'small,0.5']
    """
    if form == "json":
        return json.dumps(list(rows), indent=2, ensure_ascii=True)
    heads = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_text(row.get(head)) for head in heads] for row in rows]
    if form == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([heads, *([safe_cell(cell) for cell in line] for line in cells)])
        return out.getvalue().rstrip("\n")
    if form == "md":
        lines = [heads, ["---"] * len(heads), *cells]
        bar = ["| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines]
        return "\n".join(b.replace("| --- |", "|---|").replace(" --- |", "---|") if i == 1 else b for i, b in enumerate(bar))
    if form == "latex":
        body = [" & ".join(map(_latex, line)) + r" \\" for line in cells]
        columns = "".join("r" if _is_number(rows[0].get(h)) else "l" for h in heads) if rows else "l" * len(heads)
        head = " & ".join(map(_latex, heads)) + r" \\"
        return "\n".join([rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])
    return _grid(heads, cells, rows, title)


def _grid(heads: list[str], cells: list[list[str]], rows: Sequence[Mapping[str, Any]], title: str) -> str:
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)] if heads else []
    right = [
        any(_is_number(row.get(head)) for row in rows) or all(_looks_number(line[i]) for line in cells) for i, head in enumerate(heads)
    ]

    def line(values: list[str]) -> str:
        return "  ".join(v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True)).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1)) if widths else ""
    return "\n".join([*([title, ""] if title else []), line(heads), rule, *map(line, cells)])


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return " ".join(str(value).split())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _looks_number(text: str) -> bool:
    return bool(text) and text[0] in "+-0123456789"


def safe_cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula.

    >>> safe_cell("=1+1"), safe_cell("@x"), safe_cell("-3.5"), safe_cell(-2)
    ("'=1+1", "'@x", '-3.5', -2)
    """
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return "'" + value
    return value


def _latex(text: str) -> str:
    for char in "\\&%$#_{}":
        text = text.replace(char, {"\\": r"\textbackslash "}.get(char, "\\" + char))
    return text.replace("~", r"\textasciitilde ").replace("^", r"\textasciicircum ")
