"""Flower's two apps. Each message starts a process for the client's: it reads the site, answers, and is gone; compiled programs stay."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedcodist.deploy import device, site
from fedcodist.deploy.grid import GridPost, parcel, record
from fedcodist.engines.roll import QUERY
from fedcodist.engines.wire import Parcel
from fedcodist.errors import ConfigError
from fedcodist.runs import programs

QUERY_SECONDS = 300.0
SITE, DIRECTORY = "site", "directory"  # keys of a node's config and of a run's


def answer(kind: str, question: Parcel, path: Path) -> Parcel:
    """What the device of this site file answers, within the time that it is given."""
    with watchdog(QUERY_SECONDS if kind == QUERY else device.seconds(question)):
        mine = site.read(path)
        examples = site.load(mine, path)
        return device.introduce(question, examples, mine.attributes, str(path)) if kind == QUERY else device.work(question, examples)


@contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """End this process if the body takes longer: the kernel does, whatever the body hangs in. Its SuperNode is then free for the next."""
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def server_app() -> Any:
    """The ServerApp: the directory of its server stands in the run's config."""
    from flwr.serverapp import ServerApp  # pyright: ignore[reportMissingImports]

    from fedcodist.deploy.serving import serve

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        programs.keep()
        serve(GridPost(grid), Path(str(context.run_config[DIRECTORY])))

    return app


def client_app() -> Any:
    """The ClientApp: the site's file stands in its node's config, where the server cannot change it."""
    from flwr.app import Message  # pyright: ignore[reportMissingImports]
    from flwr.clientapp import ClientApp  # pyright: ignore[reportMissingImports]

    app = ClientApp()

    def reply(message: Any, context: Any) -> Any:
        where = context.node_config.get(SITE)
        if not where:
            raise ConfigError("node config: got no site; allowed site='FILE' (fedcodist deploy node starts a node with it)")
        programs.keep()
        said = answer(message.metadata.message_type.split(".", 1)[0], parcel(message.content), Path(str(where)))
        return Message(record(said), reply_to=message)

    app.query()(reply)
    app.train()(reply)
    return app
