"""The one door from outside: HTTPS for devices' requests, and nothing else.

Flower serves what devices need, what starts experiments, and what runs them on one port, and asks nobody who wants to start one for a name.
So its own port stays on loopback, and this process, which holds the certificate for the outside address, passes on `/v1/fleet/` alone.
"""

from __future__ import annotations

import argparse
import ssl
import sys
from typing import Any

PASSED = "/v1/fleet/"
HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authorization", "proxy-authenticate"}
MOST_BYTES = 2**30  # of one request


class Front:
    """An ASGI application that passes devices' requests to the server on loopback."""

    def __init__(self, port: int, authority: str) -> None:
        self._base, self._authority, self._client = f"https://127.0.0.1:{port}", authority, None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            return
        raw = scope.get("raw_path") or scope["path"].encode()
        # As it was sent, not as it is decoded: no escape and no dots may lead elsewhere behind this door.
        if not raw.startswith(PASSED.encode()) or b"%" in raw or b".." in raw or b"//" in raw or b"\\" in raw:
            await _say(send, 403, b"only devices are served here")
            return
        body, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body.append(message.get("body", b""))
            size += len(body[-1])
            if size > MOST_BYTES:
                await _say(send, 413, b"too much")
                return
            if not message.get("more_body"):
                break
        await self._pass(scope, raw, b"".join(body), send)

    async def _pass(self, scope: Any, raw: bytes, body: bytes, send: Any) -> None:
        import httpx  # pyright: ignore[reportMissingImports]

        headers = [(name, value) for name, value in scope["headers"] if name.decode().lower() not in HOP | {"host", "content-length"}]
        url = self._base + raw.decode("ascii") + (f"?{scope['query_string'].decode('ascii')}" if scope["query_string"] else "")
        assert self._client is not None
        try:
            reply = await self._client.send(self._client.build_request(scope["method"], url, headers=headers, content=body), stream=True)
            try:
                content = b"".join([part async for part in reply.aiter_raw()])
            finally:
                await reply.aclose()
        except httpx.HTTPError:
            await _say(send, 503, b"the server is not there")
            return
        kept = [(name.lower(), value) for name, value in reply.headers.raw if name.decode().lower() not in HOP | {"content-length"}]
        await send(
            {"type": "http.response.start", "status": reply.status_code, "headers": [*kept, (b"content-length", b"%d" % len(content))]}
        )
        await send({"type": "http.response.body", "body": content})

    async def _live(self, receive: Any, send: Any) -> None:
        import httpx  # pyright: ignore[reportMissingImports]

        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                context = ssl.create_default_context(cafile=self._authority)
                self._client = httpx.AsyncClient(verify=context, trust_env=False, timeout=httpx.Timeout(300.0, connect=10.0))
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self._client is not None:
                    await self._client.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _say(send: Any, status: int, text: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": text})


def main() -> None:
    """python -m fedcodist.deploy.front: serve until ended."""
    parser = argparse.ArgumentParser()
    for name in ("host", "certificate", "key", "authority"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("port", "behind"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    import uvicorn  # pyright: ignore[reportMissingImports]

    front = Front(args.behind, args.authority)
    uvicorn.run(
        front,
        host=args.host,
        port=args.port,
        ssl_certfile=args.certificate,
        ssl_keyfile=args.key,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
    )


if __name__ == "__main__":
    sys.exit(main())
