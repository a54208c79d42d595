"""Docs that can go stale, and are not allowed to."""

import inspect
import re
import textwrap
from pathlib import Path

import fedcodist
from fedcodist.methods import METHODS, MergedCodist

ROOT = Path(__file__).parent.parent
CODE = "\n".join(path.read_text("utf-8") for path in (ROOT / "fedcodist").rglob("*.py"))


def test_deviations_are_listed_where_they_are_made():
    listed = set(re.findall(r"^\| (D\d+) \|", (ROOT / "docs/deviations.md").read_text("utf-8"), re.M))
    assert set(re.findall(r"DEVIATION (D\d+)", CODE)) == listed


def test_every_question_and_rule_that_the_code_names_is_explained():
    explained = (ROOT / "docs/paper.md").read_text("utf-8") + (ROOT / "docs/runs.md").read_text("utf-8")
    named = set(re.findall(r"\b[AR]\d{1,2}\b", CODE))
    assert {name for name in named if not re.search(rf"\b{name}\b", explained)} == set()


def test_the_readme_shows_the_round_as_it_is():
    source = textwrap.dedent(inspect.getsource(MergedCodist.round)).strip()
    assert source in (ROOT / "README.md").read_text("utf-8")


def test_every_method_has_a_page():
    assert {path.stem for path in (ROOT / "docs/methods").glob("*.md")} == set(METHODS)


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_public_names_are_sorted_typed_and_documented():
    assert fedcodist.__all__ == sorted(fedcodist.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    for name in fedcodist.__all__:
        assert getattr(fedcodist, name).__doc__, name
    assert (ROOT / "fedcodist/py.typed").exists()


def test_nothing_unsafe_is_called():
    # No pickle, no archives unpacked, no code from strings: by the syntax tree, so that a comment may speak of them.
    import ast

    banned = {"eval", "exec", "extractall", "mktemp"}
    modules = {"pickle", "marshal", "shelve", "joblib", "dill", "cloudpickle", "yaml"}
    for path in (ROOT / "fedcodist").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                keywords = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
                assert name not in banned and not keywords.get("shell") and not keywords.get("allow_pickle"), f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {a.name.split(".")[0] for a in node.names} | {(getattr(node, "module", "") or "").split(".")[0]}
                assert not names & modules, f"{path.name}:{node.lineno}"
