"""The live page as an ASGI application: three files and a stream of server-sent events, and nothing that writes."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse

from fedcodist import runs
from fedcodist.live import snapshot

FILES = {"/": ("watch.html", "text/html"), "/watch.js": ("watch.js", "text/javascript"), "/watch.css": ("watch.css", "text/css")}
EVERY = 1.0  # seconds between looks at the files
ALIVE = 15.0  # seconds after which a comment keeps an idle connection open
COOKIE = "fedcodist"
SOURCES = ("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src data:")
HEADERS = {
    "Content-Security-Policy": "; ".join((*SOURCES, "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'")),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def application(paths: Sequence[str], token: str | None = None, hosts: Sequence[str] = (), secure: bool = False) -> FastAPI:
    """The page of the runs at or under these paths; runs that appear later are shown too. `hosts` are the names by which it may be asked,
    against pages elsewhere whose own name resolves to this machine. With a token it is opened with ?token=..., which becomes a cookie."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def guarded(request: Request, following: Callable) -> Any:
        asked = (request.headers.get("host") or "").rsplit(":", 1)[0].strip("[]")
        if hosts and asked not in hosts:
            answer: Any = PlainTextResponse(f"this page is served as {', '.join(hosts)}", 421)
        elif token is None or _same(request.cookies.get(COOKIE), token):
            answer = await following(request)
        elif request.url.path == "/" and _same(request.query_params.get("token"), token):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, token, httponly=True, secure=secure, samesite="strict")
        else:
            answer = PlainTextResponse("open this page with ?token=..., what is in its --token-file", 403)
        answer.headers.update(HEADERS)
        return answer

    for path, (name, kind) in FILES.items():
        app.get(path)(_file(name, kind))

    @app.get("/events")
    async def events(request: Request) -> StreamingResponse:
        return StreamingResponse(changes(paths, request.is_disconnected), media_type="text/event-stream")

    return app


def _same(given: str | None, token: str) -> bool:
    return hmac.compare_digest((given or "").encode(), token.encode())


def _file(name: str, kind: str) -> Callable:
    content = (resources.files("fedcodist.live") / "page" / name).read_bytes()

    async def send() -> Response:
        return Response(content, media_type=kind)

    return send


async def changes(paths: Sequence[str], gone: Callable) -> AsyncIterator[str]:
    """Events with the state of all runs: one at once, and one whenever something has changed."""
    known, quiet = None, 0.0
    while not await gone():
        found = await asyncio.to_thread(_find, paths)
        seen = await asyncio.to_thread(snapshot.signature, found)
        if seen != known:
            known, quiet = seen, 0.0
            yield f"data: {json.dumps(await asyncio.to_thread(snapshot.snapshot, found))}\n\n"
        elif quiet >= ALIVE:
            quiet = 0.0
            yield ": alive\n\n"
        await asyncio.sleep(EVERY)
        quiet += EVERY


def _find(paths: Sequence[str]) -> list[Path]:
    return [run for path in paths for run in runs.find(path)]
