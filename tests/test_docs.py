"""Docs that can go stale, and are not allowed to."""

import ast
import dataclasses
import inspect
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

import fedcodist
from fedcodist import config
from fedcodist.methods import METHODS, MergedCodist
from tools import config_page, make_site

ROOT = Path(__file__).parent.parent
CODE = "\n".join(path.read_text("utf-8") for path in (ROOT / "fedcodist").rglob("*.py"))


def test_deviations_are_listed_where_they_are_made():
    listed = set(re.findall(r"^\| (D\d+) \|", (ROOT / "docs/deviations.md").read_text("utf-8"), re.M))
    assert set(re.findall(r"DEVIATION (D\d+)", CODE)) == listed


def test_every_question_and_rule_that_the_code_names_is_explained():
    explained = (ROOT / "docs/paper.md").read_text("utf-8") + (ROOT / "docs/runs.md").read_text("utf-8")
    named = set(re.findall(r"\b[AR]\d{1,2}\b", CODE))
    assert {name for name in named if not re.search(rf"\b{name}\b", explained)} == set()


def test_the_methods_page_shows_the_round_as_it_is():
    source = textwrap.dedent(inspect.getsource(MergedCodist.round)).strip()
    assert source in (ROOT / "docs/methods/merged.md").read_text("utf-8")


def test_the_readme_is_read_in_five_minutes():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 120 and len(text.split()) <= 900


def test_configs_on_pages_are_read(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text("def build(shape, classes, width): ...\n", "utf-8")  # of the page on own models
    monkeypatch.syspath_prepend(tmp_path)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [block for page in pages for block in re.findall(r"```toml\n(like = .*?)```", page.read_text("utf-8"), re.S)]
    assert len(found) >= 3
    for block in found:
        (tmp_path / "page.toml").write_text(block, "utf-8")
        assert config.read(tmp_path / "page.toml").pools


@dataclass
class Spoken:
    said: int = 1  # behind
    # above,
    # on two lines
    above: int = 2
    silent: int = 3


def test_the_sentence_of_a_key_stands_behind_it_or_above_it():
    assert config_page.sentences(Spoken) == {"said": "Behind.", "above": "Above, on two lines.", "silent": ""}


def test_every_key_of_a_config_has_a_sentence():
    assert config_page.undocumented() == []
    keys = {field.name for cls in config_page.classes() for field in dataclasses.fields(cls) if field.init}
    assert all(f"| `{key}` |" in (ROOT / "docs/config.md").read_text("utf-8") for key in keys)


def test_every_page_is_in_the_navigation():
    named = [page for pages in make_site.navigation().values() for page in pages]
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb")}
    assert there - set(named) - make_site.NOT_PAGES == set()
    assert len(named) == len(set(named)) and set(make_site.made_pages()) <= set(named)


def test_a_link_that_leaves_the_site_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(make_site, "PAGES", tmp_path)
    make_site._write("a/b.md", "[x](../speed.md#y) [z](https://z.org) [q](../../SECURITY.md)", ROOT / "docs/rules/index.md")
    assert (tmp_path / "a/b.md").read_text() == "[x](../speed.md#y) [z](https://z.org) [q](../project/security.md)"
    with pytest.raises(SystemExit, match=r"docs/index\.md: a link to \.\./Makefile, which is not on the site"):
        make_site._write("b.md", "[m](../Makefile)", ROOT / "docs/index.md")


def test_a_dead_link_and_a_foreign_script_are_faults(tmp_path):
    (tmp_path / "a.html").write_text("<a href='b.html#here'>b</a><a href='c.html'>c</a><script src='https://x.org/x.js'></script>")
    (tmp_path / "b.html").write_text("<a href='a.html'>a</a><a href='#there'>there</a><h1 id='there'>b</h1>")
    assert list(make_site.faults(tmp_path)) == [
        "a.html links to b.html#here, where there is no such heading",
        "a.html links to c.html, which is not there",
        "a.html loads https://x.org/x.js",
    ]


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
