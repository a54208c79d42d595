"""Downloading a published file, resumably and verified.

What has arrived is kept in `<name>.partial` and never used as data; the next call asks the server for the rest. Only a file of the known
size and SHA-256 gets its final name. Deliberately absent: addresses without a digest, and redirects to anything but https.
"""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

from fedcodist.data.published import Progress, Published
from fedcodist.data.store import check_room
from fedcodist.errors import Failure, data_error
from fedcodist.readers import files
from fedcodist.storage.durable import as_storage_error, make_directories, sync_directory

CHUNK = 2**20
TIMEOUT_SECONDS = 30


class NetworkError(Failure):
    """The network failed, and not the data."""

    code = 10


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urllib.parse.urlsplit(newurl).scheme != "https":
            raise urllib.error.URLError(f"sent on to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(published: Published, directory: Path, progress: Progress) -> Path:
    """The path of the file in a directory, which is downloaded if it is not there yet."""
    if not published.sha256 or not published.bytes:
        raise data_error(published.address, "no SHA-256 that is public knowledge", "a file that you fetch yourself, and --from PATH")
    target, partial = directory / published.name, directory / f"{published.name}.partial"
    if target.is_file():
        check(target, published)
        return target
    make_directories(directory)
    check_room(directory, published.bytes)
    _load(published, partial, progress)
    with as_storage_error(partial):
        size = partial.stat().st_size
    if size < published.bytes:
        raise NetworkError(f"{published.address}: {size} of {published.bytes} bytes came; the same command goes on from there")
    try:
        check(partial, published)
    except Failure:
        with as_storage_error(partial):
            partial.rename(target.with_name(f"{target.name}.wrong"))  # kept for inspection, never resumed
        raise
    with as_storage_error(target):
        os.replace(partial, target)
    sync_directory(directory)
    return target


def check(path: Path, published: Published) -> None:
    """DataError unless the file is the published one; it stays where it is."""
    size = path.stat().st_size
    if published.bytes is not None and size != published.bytes:
        raise data_error(str(path), f"{size} bytes", f"{published.bytes} bytes", "remove it to fetch it again")
    with files.open_file(path) as stream:
        found = files.sha256(stream)
    if found != published.sha256:
        raise data_error(str(path), f"SHA-256 {found}", published.sha256, "not the published file")


def _load(published: Published, partial: Path, progress: Progress) -> None:
    """Append what is missing to the partial file; a server that cannot resume sends the file from the beginning."""
    have = partial.stat().st_size if partial.is_file() else 0
    if have >= (published.bytes or 0):
        return
    request = urllib.request.Request(published.address, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310  # a constant of ours, with https
    try:
        with urllib.request.build_opener(_OnlyHttps).open(request, timeout=TIMEOUT_SECONDS) as answer:
            if have and answer.status != 206:
                have = 0
            with as_storage_error(partial):
                file = open(partial, "ab" if have else "wb")  # noqa: SIM115
            with closing(file):
                while have <= (published.bytes or 0) and (chunk := answer.read(CHUNK)):  # if this fails, it is the network
                    have += len(chunk)
                    with as_storage_error(partial):
                        file.write(chunk)
                    progress(have, published.bytes, f"bytes of {published.name}")
                with as_storage_error(partial):
                    file.flush()
                    os.fsync(file.fileno())
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        hint = f"fetch {published.address} ({published.bytes:,} bytes) elsewhere, then --from PATH"
        raise NetworkError(f"{published.address}: {reason}; {hint}") from error
