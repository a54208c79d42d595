"""Pages in a headless Chromium, for tests/browser and for the pictures in docs/pictures.

    python -m tools.browser --install                                         Debian's Chromium, where this user may install it
    python -m tools.browser runs/demo/report.html report.png --width 1200     a screenshot of the top of a page

The browser gets a fresh profile and speaks to this machine alone; a page is served on 127.0.0.1, because scripts of a page that is opened
from a file may load nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
HOW = "apt-get install chromium, as root on Debian or Ubuntu, or any Chromium or Chrome on the PATH"


@dataclass
class Seen:
    """What came of opening a page."""

    messages: list[str] = field(default_factory=list)  # of the console, errors of scripts, and requests that failed
    elsewhere: list[str] = field(default_factory=list)  # requests to other hosts
    wide: list[str] = field(default_factory=list)  # elements that make the page wider than its window


def find() -> str | None:
    """The browser's program."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def served(root: Path) -> Iterator[str]:
    """The address under which the files of a directory are served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A running browser with a profile of its own."""
    from playwright.sync_api import sync_playwright

    program = find()
    if program is None:
        raise SystemExit(f"Chromium was not found; install it: {HOW}")
    with tempfile.TemporaryDirectory() as profile, sync_playwright() as play:
        browser = play.chromium.launch_persistent_context(
            profile, executable_path=program, headless=True, args=list(FLAGS), env={**os.environ, "HOME": profile}
        )
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Any, url: str, width: int = 1400, height: int = 900, dark: bool = False) -> tuple[Any, Seen]:
    """The page, loaded, and what came of it."""
    page, seen, host = browser.new_page(), Seen(), urlsplit(url).netloc

    def watch(request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != host:
            seen.elsewhere.append(request.url)

    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.on("console", lambda message: seen.messages.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.messages.append(f"error: {error}"))
    page.on("request", watch)
    page.on("response", lambda response: seen.messages.append(f"{response.status}: {response.url}") if response.status >= 400 else None)
    page.goto(url, wait_until="load")
    page.wait_for_timeout(100)  # for what scripts do once the page is loaded
    seen.wide += page.evaluate(WIDE)
    return page, seen


WIDE = """() => {
  const width = document.documentElement.scrollWidth, limit = document.documentElement.clientWidth;
  const inside = e => e.parentElement && (getComputedStyle(e.parentElement).overflowX !== "visible" || inside(e.parentElement));
  const found = [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > limit + 1 && !inside(e));
  const named = found.slice(0, 5).map(e => `${e.tagName} ${e.className} ${e.textContent.slice(0, 60)}`);
  return width <= limit ? [] : [`the page is ${width} wide`, ...named];
}"""


def install() -> int:
    """Debian's Chromium, or a sentence on why not."""
    if find():
        return 0
    if not shutil.which("apt-get") or os.geteuid() != 0:
        print(f"Chromium is not here, and this user may not install it. Pages cannot be tested without: {HOW}.", file=sys.stderr)
        return 1
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"],
    ):
        if subprocess.run(command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}).returncode:
            print(f"Chromium could not be installed: {' '.join(command)} failed. Pages cannot be tested without: {HOW}.", file=sys.stderr)
            return 1
    return 0


def main() -> int:
    """Install, or take a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?", type=Path)
    parser.add_argument("picture", nargs="?", type=Path)
    parser.add_argument("--install", action="store_true", help="install Chromium if it is missing")
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--whole", action="store_true", help="all of the page, not its top")
    given = parser.parse_args()
    if given.install:
        return install()
    if given.page is None or given.picture is None:
        parser.error("a page and a picture are needed, or --install")
    with served(given.page.parent) as address, chromium() as browser:
        page, seen = open_page(browser, f"{address}/{given.page.name}", given.width, given.height, given.dark)
        page.screenshot(path=str(given.picture), full_page=given.whole)
    print(*seen.messages, *seen.elsewhere, *seen.wide, sep="\n", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
