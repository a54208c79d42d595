"""The live page in Chromium while a real run trains, after it is killed, and after it goes on."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tools import browser

pytest.importorskip("playwright", reason="the extra `browser`; make test-browser installs it")
pytest.importorskip("fastapi", reason="the extra `watch`")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(browser.find() is None, reason=f"no Chromium: {browser.HOW}")]
STATE = "() => [...document.querySelectorAll('#progress tr')].map(row => [...row.cells].map(cell => cell.textContent))"


def test_it_follows_a_run_through_a_kill_and_its_resume(tmp_path):
    fedcodist = [sys.executable, "-m", "fedcodist"]
    command = [*fedcodist, "run", "quick/toy", "--set", "rounds=3000", "--set", "evaluate_every=50", "--out", str(tmp_path), "--quiet"]
    watch = subprocess.Popen([*fedcodist, "watch", str(tmp_path), "--port", "0"], stdout=subprocess.PIPE, text=True)
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        assert watch.stdout is not None
        address = watch.stdout.readline().split(" at ")[1].split()[0]
        with browser.chromium() as opened:
            page, seen = browser.open_page(opened, address)

            def rounds_of(state: str, more_than: int) -> int:
                """The round that the page shows, once the run is in this state and further than that."""
                deadline = time.monotonic() + 120
                while time.monotonic() < deadline:
                    for row in page.evaluate(STATE):
                        if row[3] == state and int(row[4].split()[0]) > more_than:
                            return int(row[4].split()[0])
                    time.sleep(0.2)
                raise AssertionError(f"the page never showed a run that is {state} after round {more_than}: {page.evaluate(STATE)}")

            training = rounds_of("training", 100)
            run.kill()
            run.wait()
            stopped = rounds_of("stopped", training - 1)
            run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            assert rounds_of("training", stopped) > stopped
            assert page.evaluate("() => document.querySelectorAll('#panels polyline').length") == 2
            page.set_viewport_size({"width": 400, "height": 900})
            assert (seen.messages, seen.elsewhere, page.evaluate(browser.WIDE)) == ([], [], [])
    finally:
        for process in (run, watch):
            process.kill()
            process.wait()
