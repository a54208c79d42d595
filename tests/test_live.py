"""`fedcodist watch`: what it shows of a run, and whom it lets in."""

import contextlib
import json
import os
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fedcodist import runs
from fedcodist.cli import main
from fedcodist.errors import ConfigError
from fedcodist.live import serving, snapshot
from fedcodist.storage import lock

pytest.importorskip("fastapi", reason="the extra `watch`")
TOKEN = "a-secret-of-enough-length"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    given = ["--set", "rounds=4", "--set", "evaluate_every=2", "--out", str(root), "--quiet"]
    assert main.main(["run", "quick/toy", *given]) == 0
    return root


@contextlib.contextmanager
def served(paths, token=None, hosts=serving.LOOPBACK):
    """The address of a real server in a thread."""
    import uvicorn

    from fedcodist.live.app import application

    server = uvicorn.Server(uvicorn.Config(application(paths, token, hosts), port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def get(url, **headers):
    try:
        with urllib.request.build_opener(Stay()).open(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


class Stay(urllib.request.HTTPRedirectHandler):
    """Redirects are answers here."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        return None


def first_event(url):
    with urllib.request.urlopen(f"{url}/events", timeout=60) as stream:
        return json.loads(stream.readline().decode().removeprefix("data: "))


def test_a_snapshot_says_what_the_journal_says(root):
    (path,) = runs.find(root)
    journal, (found,) = runs.read(path).rounds, snapshot.snapshot([path])["runs"]
    assert (found["method"], found["seed"], found["state"], found["round"], found["rounds"]) == ("MergedCodist", 0, "finished", 4, 4)
    small = next(pool for pool in found["pools"] if pool["pool"] == "small")
    assert small["curve"] == [(row["round"], 100 * row["held_out"]["small"]["all"]["accuracy"]) for row in journal if "held_out" in row]
    assert small["every_round"] and small["lessons"] == []
    before, after = journal[-1]["pools"]["small"]["agreement"]["large"]
    assert small["teachers"] == [{"teacher": "large", "before": before, "after": after}]
    assert small["clients"] == journal[-1]["pools"]["small"]["clients"]


def test_a_run_is_training_while_its_process_lives(root, tmp_path):
    (path,) = runs.find(root)
    held, _ = lock.take(tmp_path / "run.lock", "run")
    assert lock.is_held(tmp_path / "run.lock")
    lock.release(held)
    assert not lock.is_held(tmp_path / "run.lock")
    gone = json.dumps({"pid": 2**22 + 1, "host": os.uname().nodename, "boot": lock._boot()})
    (tmp_path / "run.lock").write_text(gone)
    assert not lock.is_held(tmp_path / "run.lock") and not lock.is_held(path / "no.lock")


def test_looking_takes_no_lock(tmp_path):
    held, _ = lock.take(tmp_path / "run.lock", "run")
    lock.is_held(tmp_path / "run.lock")
    with pytest.raises(lock.Busy):
        lock.take(tmp_path / "run.lock", "run")
    lock.release(held)
    lock.release(lock.take(tmp_path / "run.lock", "run")[0])


def test_time_left_is_by_the_last_rounds():
    timing = [{"seconds": 99.0}, {"seconds": 1.0, "evaluate_seconds": 1.0}, {"seconds": 2.0}, {"seconds": 2.0}]
    run = runs.Recorded(Path(), {}, {}, [], timing, None)
    assert snapshot._left(run, 4, 10) == 12.0 and snapshot._left(run, 4, None) is None


def test_the_page_and_its_events(root):
    with served([str(root)]) as url:
        for path, kind in (("/", "text/html"), ("/watch.js", "text/javascript"), ("/watch.css", "text/css")):
            status, headers, body = get(url + path)
            assert status == 200 and headers["content-type"].startswith(kind) and body
            assert "default-src 'none'" in headers["content-security-policy"]
        assert get(f"{url}/etc/passwd")[0] == 404 and get(f"{url}/docs")[0] == 404
        assert first_event(url)["runs"][0]["state"] == "finished"
        assert get(url, Host="evil.example:80")[0] == 421  # a page elsewhere whose name was made to resolve to this machine


def test_a_token_is_asked_for(root):
    with served([str(root)], TOKEN) as url:
        assert get(url)[0] == 403 and get(f"{url}/events")[0] == 403 and get(f"{url}/?token=wrong")[0] == 403
        status, headers, _ = get(f"{url}/?token={TOKEN}")
        assert status == 303 and "HttpOnly" in headers["set-cookie"] and "SameSite=strict" in headers["set-cookie"]
        assert get(url, Cookie=f"fedcodist={TOKEN}")[0] == 200


def test_off_loopback_both_are_needed(tmp_path):
    serving.check_place("127.0.0.1", None, None, None)
    serving.check_place("0.0.0.0", TOKEN, "a.crt", "a.key")
    for token, certificate, missing in (
        (None, None, "--token-file and --certificate"),
        (TOKEN, None, "--certificate"),
        (None, "a", "--token-file"),
    ):
        with pytest.raises(ConfigError, match=f"--host: got 0.0.0.0; allowed a loopback address, or another one with {missing}"):
            serving.check_place("0.0.0.0", token, certificate, certificate)
    (tmp_path / "short").write_text("abc")
    with pytest.raises(ConfigError, match="--token-file: got 3 characters; allowed at least 16"):
        serving.read_token(str(tmp_path / "short"))


def test_a_port_that_is_taken_is_told(root, capsys):
    with served([str(root)]) as url:
        assert main.main(["watch", str(root), "--port", url.rpartition(":")[2]]) == 6
    assert "allowed one that is free on 127.0.0.1" in capsys.readouterr().err
