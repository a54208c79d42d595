"""The files of a table or figure: what was found, the page that shows it, and the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedcodist.reports import report
from fedcodist.reproduce import elsewhere, figures, page, results, running
from fedcodist.reproduce.cells import Cell
from fedcodist.reproduce.results import Result
from fedcodist.storage import durable

SUMMARY, PAGE = "results.json", "results.md"


def write(table: str, budget: str, every: Sequence[Cell], root: Path, place: Path, draw: bool) -> Result:
    """The result file, the page beside it, and figures if they can be drawn here; all cells, whichever were chosen now."""
    result = results.collect(table, budget, every, root, running.failed(root))
    place.mkdir(parents=True, exist_ok=True)
    durable.replace_file(place / SUMMARY, (results.dump(result) + "\n").encode())
    draw = draw and report.available()
    if draw:
        figures.draw(result, place)
    durable.replace_file(place / PAGE, page.render([result], beside="", drawn=draw).encode())
    return result


def publish(result: Result, docs: Path, name: str) -> None:
    """The result among those of a directory of docs, beside what was run elsewhere, and its page made again."""
    shipped = docs / page.FOLDER / f"{name}.json"
    shipped.parent.mkdir(parents=True, exist_ok=True)
    joined = elsewhere.join(result, results.read(shipped)) if shipped.is_file() else result
    durable.replace_file(shipped, (results.dump(joined) + "\n").encode())  # whole: another machine's hours may be in it
    page.write(docs, drawn=True)
