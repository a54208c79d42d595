"""Run the notebooks of docs/notebooks in this process, and with --write keep what their cells print.

    python -m tools.notebooks --write

A cell gives what it prints and the value of its last line, as a notebook shows them. Deliberately absent: a kernel, pictures, and all that
would need more than the package.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs/notebooks"


def run(path: Path) -> list[dict[str, Any]]:
    """The notebook's cells with fresh outputs."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads(path.read_text("utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            cell["outputs"] = _outputs("".join(cell["source"]), scope, path.name)
    return cells


def _outputs(source: str, scope: dict[str, Any], name: str) -> list[dict[str, Any]]:
    tree, printed, value = ast.parse(source, name), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec", dont_inherit=True), scope)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), scope)
    found: list[dict[str, Any]] = []
    if text := printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        shown = {"text/plain": repr(value).splitlines(keepends=True)}
        found.append({"data": shown, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return found


def main() -> int:
    """Run them all."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        cells = run(path)
        if "--write" in sys.argv:
            book = json.loads(path.read_text("utf-8")) | {"cells": cells}
            path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
