"""The notebooks run, and what they show is what they print, but for the digits, which another processor may round otherwise."""

from __future__ import annotations

import json
import re

import pytest

from tools import notebooks

BOOKS = sorted(notebooks.FOLDER.glob("*.ipynb"))


def shown(cells):
    texts = [text for cell in cells for text in cell.get("outputs", [])]
    return [re.sub(r"[+-]?\d+(\.\d+)?", "#", "".join(text.get("text") or text["data"]["text/plain"])) for text in texts]


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path):
    kept = json.loads(path.read_text("utf-8"))
    assert kept["nbformat"] == 4 and path.stat().st_size < 20_000
    assert shown(notebooks.run(path)) == shown(kept["cells"]) != []


def test_a_cell_gives_what_it_prints_and_its_last_value():
    scope = {}
    printed, value = notebooks._outputs("x = 2\nprint(x)\nx + 1", scope, "cell")
    assert (printed["text"], value["data"]["text/plain"]) == (["2\n"], ["3"])
    assert notebooks._outputs("y = x", scope, "cell") == []
