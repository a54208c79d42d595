"""The demo's report and every page of the site in Chromium; `make test-browser` makes both first."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urldefrag, urljoin

import pytest

from tools import browser

pytest.importorskip("playwright", reason="the extra `browser`; make test-browser installs it")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(browser.find() is None, reason=f"no Chromium: {browser.HOW}")]

ROOT = Path(__file__).parent.parent.parent
SITE, REPORT = ROOT / "build/site", ROOT / "runs/demo"
PHONE, DESK = 400, 1400
PAGES = {"report.html": REPORT} | {str(path.relative_to(SITE)): SITE for path in sorted(SITE.rglob("*.html")) if path.name != "404.html"}


@pytest.fixture(scope="module")
def opened():
    with browser.chromium() as running:
        yield running


@pytest.fixture(scope="module")
def address():
    with browser.served(SITE) as site, browser.served(REPORT) as report:
        yield {SITE: site, REPORT: report}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_quiet_alone_and_fits(name, opened, address):
    root = PAGES[name]
    if not (root / name).is_file():
        pytest.skip("make test-browser runs the demo and builds the site")
    for width in (PHONE, DESK):
        page, seen = browser.open_page(opened, f"{address[root]}/{name}", width)
        links = page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
        page.close()
        assert (seen.messages, seen.elsewhere, seen.wide) == ([], [], []), f"{width} pixels"
    inside = {urldefrag(urljoin(page.url, link)).url for link in links if link.startswith(address[root])}
    dead = [link for link in inside if opened.request.get(link).status != 200]
    assert dead == []


def test_what_a_page_must_not_do_is_seen(tmp_path, opened):
    wide = "<div style='width:900px'>too wide</div>"
    page = f"<!doctype html><title>x</title><script>console.log('hello')</script><img src='http://127.0.0.1:9/x.png'>{wide}"
    (tmp_path / "bad.html").write_text(page, "utf-8")
    with browser.served(tmp_path) as root:
        opened_page, seen = browser.open_page(opened, f"{root}/bad.html", PHONE)
        opened_page.close()
    assert "log: hello" in seen.messages and seen.elsewhere == ["http://127.0.0.1:9/x.png"] and "too wide" in seen.wide[-1]
