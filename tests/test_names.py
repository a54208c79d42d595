"""Nothing outside `methods/` knows a method by name or looks at its attributes: a new one is one file, one page, one registry line."""

import ast
from pathlib import Path

import fedcodist
from fedcodist.methods import METHODS

ROOT = Path(fedcodist.__file__).parent
CLASSES, KINDS = {cls.__name__ for cls in METHODS.values()}, set(METHODS)
OWN = {"alpha", "alpha_of", "period", "restart"}  # fields of methods that are nobody else's business
FREE = {"methods", "reproduce", "__init__.py"}  # reproduce has the paper's own rows, which are of its methods; the last only exports


def named(node: ast.AST) -> str:
    """What a piece of code says that it should not know; sentences may speak of methods."""
    if isinstance(node, ast.Name | ast.alias) and (name := getattr(node, "id", None) or getattr(node, "name", "")) in CLASSES:
        return name
    if isinstance(node, ast.Constant) and node.value in KINDS:
        return repr(node.value)
    if isinstance(node, ast.Attribute) and node.attr in OWN and ast.unparse(node.value).endswith("method"):
        return ast.unparse(node)
    peeks = isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr")
    return ast.unparse(node) if peeks and ast.unparse(node.args[0]).endswith("method") else ""


def test_no_module_outside_methods_names_a_method():
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', '')}: {said}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in FREE
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if (said := named(node))
    ]
    assert not found, "\n".join(found)
