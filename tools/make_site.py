"""Build the documentation site from docs/ into build/site, offline; fail on a dead link and on anything that a page loads from elsewhere.

The pages are those of docs/, in the order of docs/nav.toml. Beside them stand pages made from the repository's other texts, the examples,
the notebooks and, by mkdocstrings, the public names of the package; links that lead out of docs/ are turned to these. Deliberately absent:
scripts, fonts and diagrams that a browser would fetch from another host.
"""

from __future__ import annotations

import html.parser
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fedcodist.config import toml

ROOT = Path(__file__).parent.parent
DOCS, BUILD, SITE = ROOT / "docs", ROOT / "build/docs", ROOT / "build/site"
PAGES = BUILD / "pages"
NOT_PAGES = {"results/findings.md"}  # read into results.md
PROJECT = {"project/contributing.md": "CONTRIBUTING.md", "project/security.md": "SECURITY.md", "project/changelog.md": "CHANGELOG.md"}
API = {"reference/api.md": "fedcodist", "reference/testing.md": "fedcodist.testing"}
EXAMPLES = "reference/examples.md"
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
MERMAID = re.compile(r"\n```mermaid\n.*?\n```\n", re.DOTALL)  # its script would come from another host; the table above it says the same
CONFIG = """
[project]
site_name = "fedcodist"
site_description = "Federated learning where devices differ"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = {nav}
extra_css = ["style.css"]
[project.theme]
language = "en"
font = false
features = [
  "content.code.copy", "navigation.sections", "navigation.tabs", "navigation.tabs.sticky", "navigation.top", "search.highlight",
  "toc.follow",
]
[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark mode"
[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Switch to light mode"
[project.plugins.search]
[project.plugins.mkdocstrings.handlers.python]
paths = [{root}]
[project.plugins.mkdocstrings.handlers.python.options]
show_source = false
show_root_heading = true
show_root_full_path = false
show_symbol_type_heading = true
show_category_heading = false
heading_level = 2
members_order = "source"
separate_signature = true
show_signature_annotations = true
docstring_section_style = "list"
merge_init_into_class = true
extensions = [{extension}]
[project.markdown_extensions]
attr_list = {{}}
md_in_html = {{}}
tables = {{}}
toc.permalink = true
pymdownx.highlight = {{}}
pymdownx.superfences = {{}}
"""
STYLE = """
.md-grid { max-width: 76rem; }
.md-typeset table:not([class]) { font-size: .66rem; }
.md-typeset table:not([class]) :is(th, td) { min-width: 0; padding: .6em .9em; }
.md-typeset :is(td, th):first-child code { white-space: nowrap; }
.md-typeset :is(h1, h2, h3, p, li) { overflow-wrap: break-word; }
.md-typeset :is(p, li) > code { overflow-wrap: anywhere; }
"""


def navigation() -> dict[str, list[str]]:
    """{section: its pages}, whether they are there or not."""
    return tomllib.loads((DOCS / "nav.toml").read_text("utf-8"))


def made_pages() -> list[str]:
    """The pages that are not in docs/."""
    return [*PROJECT, *API, EXAMPLES, "benches/README.md"]


def prepare() -> None:
    """Write the pages as the generator takes them."""
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(DOCS, PAGES, ignore=shutil.ignore_patterns("nav.toml", "findings.md", ".*"))
    for page in sorted(DOCS.rglob("*.md")):
        if str(page.relative_to(DOCS)) not in NOT_PAGES:
            _write(str(page.relative_to(DOCS)), page.read_text("utf-8"), page)
    for book in sorted(DOCS.rglob("*.ipynb")):
        _write(str(book.relative_to(DOCS).with_suffix(".md")), notebook(book), book)
    for place, name in PROJECT.items():
        _write(place, (ROOT / name).read_text("utf-8"), ROOT / name)
    for page in sorted((ROOT / "benches").glob("**/*.md")):
        if ".peers" not in page.parts:
            _write(str(page.relative_to(ROOT)), page.read_text("utf-8"), page)
    for picture in sorted((ROOT / "benches/results").glob("*.svg")):
        shutil.copy(picture, PAGES / "benches/results")
    _write(EXAMPLES, "\n\n".join(["# Examples", *map(_example, sorted((ROOT / "examples").glob("*.py")))]), ROOT / "README.md")
    for place, name in API.items():
        _write(place, api(name), ROOT / "README.md")
    (PAGES / "style.css").write_text(STYLE, "utf-8")
    nav = []
    for section, pages in navigation().items():
        there = [_page(page) for page in pages if (PAGES / _page(page)).is_file()]
        nav += [{section: there if section != "Home" else there[0]}] if there else []
    config = CONFIG.format(nav=toml.inline(nav), root=json.dumps(str(ROOT)), extension=json.dumps(str(ROOT / "tools/griffe_docstrings.py")))
    (BUILD / "zensical.toml").write_text(config, "utf-8")


def api(name: str) -> str:
    """A page of all public names of a module, for mkdocstrings."""
    module = __import__(name, fromlist=["__doc__"])
    public = getattr(module, "__all__", None) or [
        n for n, v in vars(module).items() if getattr(v, "__module__", "") == name and n[0] != "_"
    ]
    lead = (module.__doc__ or "").strip()
    return "\n\n".join([f"# Python: {name}", lead, *(f"::: {name}.{public_name}" for public_name in public)]) + "\n"


def notebook(path: Path) -> str:
    """A notebook as a page: its texts, its code, and what that printed."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"]).strip()
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            text = "".join(output.get("text") or output.get("data", {}).get("text/plain", "")).rstrip()
            parts += [f"```text\n{text}\n```"] if text else []
    return "\n\n".join(parts) + "\n"


def _example(path: Path) -> str:
    return f"## {path.name}\n\n```python\n{path.read_text('utf-8').rstrip()}\n```"


def _page(name: str) -> str:
    return name.removesuffix(".ipynb") + ".md" if name.endswith(".ipynb") else name


def _write(place: str, text: str, source: Path) -> None:
    """A page, its links turned to where their targets are on the site."""
    text = MERMAID.sub("\n", text)
    text = LINK.sub(lambda link: _turned(link[1], link[2] or "", place, source), text)
    (PAGES / place).parent.mkdir(parents=True, exist_ok=True)
    (PAGES / place).write_text(text, "utf-8")


def _turned(link: str, anchor: str, place: str, source: Path) -> str:
    target = (source.parent / link).resolve()
    where = next((page for page, name in PROJECT.items() if target == ROOT / name), None)
    if where is None and target.is_relative_to(DOCS):
        where = _page(str(target.relative_to(DOCS)))
    if where is None and target == ROOT / "README.md":
        where = "index.md"
    if where is None and target.is_relative_to(ROOT / "benches"):
        where = str(target.relative_to(ROOT)) if target.suffix in (".md", ".svg") else "benches/README.md"
    if where is None and target.is_relative_to(ROOT / "examples"):
        where, anchor = EXAMPLES, f"#{target.name.replace('.', '').lower()}" if target.suffix else ""
    if where is None:
        raise SystemExit(
            f"{source.relative_to(ROOT)}: a link to {link}, which is not on the site; write it as code, or add it to tools/make_site.py"
        )
    return posixpath.relpath(where, posixpath.dirname(place) or ".") + anchor


class _Found(html.parser.HTMLParser):
    """The links, ids and loaded files of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.ids |= {has[name] for name in ("id", "name") if name in has}
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
        elif tag != "a":
            rel = has.get("rel", "")
            loads = [
                has[name]
                for name in ("src", "href", "data", "poster")
                if name in has and rel not in ("canonical", "alternate", "prev", "next")
            ]
            self.loaded += [] if tag in ("use", "base") else loads


def faults(site: Path) -> Iterator[str]:
    """Dead links and anchors, and what would be loaded from elsewhere."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = _Found()
        pages[path].feed(path.read_text("utf-8"))
    for path, found in pages.items():
        name = path.relative_to(site)
        for link in [*found.links, *found.loaded]:
            parts = urlsplit(link)
            if parts.scheme in ("data", "mailto", "javascript"):
                continue
            if parts.netloc:
                if link in found.loaded:
                    yield f"{name} loads {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if path.name == "404.html" and parts.path.startswith("/"):
                continue
            if not target.is_file():
                yield f"{name} links to {link}, which is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids | {"__codelineno"}:
                yield f"{name} links to {link}, where there is no such heading"
    for path in sorted(site.rglob("*.css")):
        for url in re.findall(r"url\([\"']?(https?:[^)\"']+)", path.read_text("utf-8")):
            yield f"{path.relative_to(site)} loads {url}"


def main() -> int:
    """Prepare, build, check."""
    prepare()
    shutil.rmtree(SITE, ignore_errors=True)
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "-f", "zensical.toml"],
        cwd=BUILD,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if built.returncode:
        return built.returncode
    (BUILD / "site").rename(SITE)
    found = list(faults(SITE))
    for fault in found:
        print(fault, file=sys.stderr)
    pages = len(list(SITE.rglob("*.html")))
    print(f"{SITE.relative_to(ROOT)}/index.html: {pages} pages" + (f", {len(found)} faults" if found else ""))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
