"""Fetching a published file from a server of our own: whole, interrupted, changed, too long, refused."""

from __future__ import annotations

import hashlib
import http.server
import re
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_prepare import home, release, tar  # noqa: F401  # home is a fixture

from fedcodist.cli import main
from fedcodist.data import download, store
from fedcodist.data.datasets import Cifar100Files
from fedcodist.data.download import NetworkError, fetch
from fedcodist.data.published import Published
from fedcodist.errors import DataError
from fedcodist.storage.durable import StorageError

DATA = bytes(i * i % 251 for i in range(300_000))


class Server(http.server.ThreadingHTTPServer):
    """Gives `data` in one of several ways, and remembers what it was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.data, self.manner, self.asked = DATA, "", []

    def published(self, **other: Any) -> Published:
        """The file, as somebody published it."""
        usual = {
            "address": f"http://127.0.0.1:{self.server_port}/some/file.bin",
            "bytes": len(DATA),
            "sha256": hashlib.sha256(DATA).hexdigest(),
        }
        return Published(**{**usual, **other})


class Answer(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is to be printed."""

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.manner != "no range" else 0
        rest = server.data[start:]
        match server.manner:
            case "missing":
                self.send_error(404)
                return
            case "moved":
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.1:{server.server_port}/elsewhere")
                self.end_headers()
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.data) - 1}/{len(server.data)}")
        if server.manner != "no length":
            self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if server.manner in ("cut", "reset"):
            self.wfile.write(rest[: len(rest) // 3])
            self.wfile.flush()
            if server.manner == "reset":  # the connection ends with a reset and not in order
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        if server.manner == "waits":
            self.wfile.write(rest[: len(rest) // 3])
            self.wfile.flush()
            server.release.wait(20)  # type: ignore[attr-defined]
            return
        self.wfile.write(rest)


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    running.handle_error = lambda request, address: None  # type: ignore[method-assign]  # who hung up is of no interest
    running.release = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield running
    running.release.set()  # type: ignore[attr-defined]
    running.shutdown()
    running.server_close()
    thread.join()


def there(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def get(server: Server, place: Path, **other: Any) -> Path:
    return fetch(server.published(**other), place, lambda done, total, what: None)


def test_a_whole_file_is_fetched_once(server, tmp_path):
    said: list[tuple[int, int | None, str]] = []
    found = fetch(server.published(), tmp_path / "in", lambda *progress: said.append(progress))
    assert found == tmp_path / "in" / "file.bin" and found.read_bytes() == DATA and there(tmp_path / "in") == ["file.bin"]
    assert said[-1] == (300_000, 300_000, "bytes of file.bin") and server.asked == [None]
    assert get(server, tmp_path / "in") == found and server.asked == [None], "what is there is not asked for"


@pytest.mark.parametrize("manner", ["cut", "reset"])
def test_an_interrupted_file_goes_on_where_it_was(server, tmp_path, manner, monkeypatch):
    monkeypatch.setattr(download, "CHUNK", 10_000)
    server.manner = manner
    with pytest.raises(NetworkError) as caught:
        get(server, tmp_path)
    assert caught.value.code == 10 and len(caught.value.lines) == 1 and server.published().address in str(caught.value)
    assert there(tmp_path) == ["file.bin.partial"], "what has arrived never has the file's name"
    have = (tmp_path / "file.bin.partial").stat().st_size
    assert have == 100_000 if manner == "cut" else 0 <= have <= 100_000
    if manner == "reset":  # how much of it came is the kernel's affair
        (tmp_path / "file.bin.partial").write_bytes(DATA[:12_345])
        have = 12_345
    server.manner = ""
    assert get(server, tmp_path).read_bytes() == DATA
    assert server.asked == [None, f"bytes={have}-"] and there(tmp_path) == ["file.bin"]


def test_a_server_that_waits_for_ever_is_the_network_and_what_came_is_kept(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(download, "CHUNK", 10_000)
    server.manner = "waits"
    with pytest.raises(NetworkError, match="timed out"):
        get(server, tmp_path)
    assert (tmp_path / "file.bin.partial").stat().st_size == 100_000


def test_a_server_that_cannot_go_on_begins_again(server, tmp_path):
    (tmp_path / "file.bin.partial").write_bytes(b"x" * 1000)
    server.manner = "no range"
    assert get(server, tmp_path).read_bytes() == DATA
    assert server.asked == ["bytes=1000-"]


def test_an_answer_without_a_length(server, tmp_path):
    server.manner = "no length"
    assert get(server, tmp_path).read_bytes() == DATA


def test_a_wrong_digest(server, tmp_path):
    server.data = DATA[:-1] + b"!"
    with pytest.raises(DataError) as caught:
        get(server, tmp_path)
    said = str(caught.value)
    assert caught.value.code == 3 and hashlib.sha256(server.data).hexdigest() in said and hashlib.sha256(DATA).hexdigest() in said
    assert there(tmp_path) == ["file.bin.wrong"] and (tmp_path / "file.bin.wrong").read_bytes() == server.data
    server.data = DATA
    assert get(server, tmp_path).read_bytes() == DATA and server.asked == [None, None], "the wrong one is not continued"


def test_a_partial_file_of_other_bytes_is_not_used(server, tmp_path):
    (tmp_path / "file.bin.partial").write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="SHA-256"):
        get(server, tmp_path)
    assert there(tmp_path) == ["file.bin.wrong"]
    (tmp_path / "file.bin.partial").write_bytes(b"x" * 400_000)
    with pytest.raises(DataError, match=r"400000 bytes; allowed 300000 bytes"):
        get(server, tmp_path)
    assert get(server, tmp_path).read_bytes() == DATA


@pytest.mark.parametrize("manner", ["", "no length"])
def test_too_long_an_answer_is_not_written_to_the_end(server, tmp_path, manner, monkeypatch):
    monkeypatch.setattr(download, "CHUNK", 10_000)
    server.data, server.manner = DATA * 9, manner
    with pytest.raises(DataError, match="310000 bytes; allowed 300000 bytes"):
        get(server, tmp_path)
    assert there(tmp_path) == ["file.bin.wrong"] and (tmp_path / "file.bin.wrong").stat().st_size == 310_000
    server.data, server.manner = DATA, ""
    assert get(server, tmp_path).read_bytes() == DATA


def test_too_short_a_file(server, tmp_path):
    server.data = DATA[:-5]
    with pytest.raises(NetworkError, match=r"299995 of 300000 bytes came; the same command goes on from there"):
        get(server, tmp_path)


@pytest.mark.parametrize("manner, says", [("missing", "Not Found"), ("moved", "sent on to http://127.*, which is not https")])
def test_a_server_that_does_not_have_it(server, tmp_path, manner, says):
    server.manner = manner
    with pytest.raises(NetworkError, match=says):
        get(server, tmp_path)
    assert there(tmp_path) == [] and len(server.asked) == 1


def test_a_file_that_is_there_but_is_another(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"short")
    with pytest.raises(DataError, match=r"file\.bin: got 5 bytes; allowed 300000 bytes \(remove it to fetch it again\)"):
        get(server, tmp_path)
    (tmp_path / "file.bin").write_bytes(b"x" * 300_000)
    with pytest.raises(DataError, match="not the published file"):
        get(server, tmp_path)
    assert server.asked == [] and (tmp_path / "file.bin").read_bytes() == b"x" * 300_000


def test_a_file_without_a_known_digest_is_not_fetched(server, tmp_path):
    with pytest.raises(DataError, match="no SHA-256 that is public knowledge; allowed a file that you fetch yourself, and --from PATH"):
        get(server, tmp_path, sha256="")
    assert server.asked == [] and there(tmp_path) == []


def test_no_room(server, tmp_path, monkeypatch):
    with pytest.raises(StorageError, match="this needs about"):
        get(server, tmp_path, bytes=2**60)
    assert server.asked == [] and there(tmp_path) == []


# -- through the command line --


def test_fetch_and_prepare(server, home, tmp_path, monkeypatch, capsys):  # noqa: F811
    folder = release(tmp_path / "files")
    packed = tar(tmp_path / "file.tar.gz", {path.name: path.read_bytes() for path in folder.iterdir()}).read_bytes()
    server.data = packed
    address = f"http://127.0.0.1:{server.server_port}/cifar-100-binary.tar.gz"
    offer = Published(address, len(packed), hashlib.sha256(packed).hexdigest())
    monkeypatch.setattr(Cifar100Files, "published", (offer,))
    assert main.main(["data", "prepare", "cifar100", "--quiet"]) == 3
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: data prepare cifar100: got no --from; allowed --from PATH, with cifar-100-binary .*\n", said)
    assert address in said and offer.sha256 in said and "--fetch" in said and server.asked == []
    assert main.main(["data", "prepare", "cifar100", "--fetch", "--quiet"]) == 0
    assert there(home) == ["cifar100", "downloads"] and len(server.asked) == 1
    digest = store.open_store("cifar100").digest
    assert main.main(["data", "prepare", "cifar100", "--again", "--quiet"]) == 0, "what was fetched needs no --fetch"
    assert len(server.asked) == 1 and store.open_store("cifar100").digest == digest
    (home / "downloads" / "cifar-100-binary.tar.gz").write_bytes(packed[:-1] + b"!")
    assert main.main(["data", "prepare", "cifar100", "--quiet"]) == 3
    assert "not the published file" in capsys.readouterr().err


def test_no_network(home, monkeypatch, capsys):  # noqa: F811
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/cifar-100-binary.tar.gz"
    monkeypatch.setattr(Cifar100Files, "published", (Published(address, 1_234_567, "0" * 64),))
    assert main.main(["data", "prepare", "cifar100", "--fetch", "--quiet"]) == 10
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith(f"error: {address}: ") and "refused" in said[0]
    assert said[0].endswith(f"fetch {address} (1,234,567 bytes) elsewhere, then --from PATH") and store.stores() == {}
