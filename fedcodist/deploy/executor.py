"""A SuperNode's SuperExec that forks: each message still has a process of its own, but one that has imported everything already.

Flower starts a new Python for each message, which on a small device takes longer than the training. A SuperNode finds this program under
the name `flower-superexec`; all of it is Flower's, but for the one function that starts a process. What a process is told, its token too,
stays in memory instead of standing in its command line. Nothing is imported here that starts threads or opens a device.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAM = "flower-superexec"
SCRIPT = """#!{python}
from fedcodist.deploy.executor import main

main()
"""


def install(directory: Path) -> Path:
    """A directory with this program under the name that a SuperNode looks for."""
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / PROGRAM
    path.write_text(SCRIPT.format(python=sys.executable), "utf-8")
    path.chmod(stat.S_IRWXU)
    return directory


def main() -> None:
    """Flower's program, with processes that are forked."""
    from flwr.supercore.cli import flower_superexec  # pyright: ignore[reportMissingImports]

    # Flower tells this process by SIGINT that its SuperNode is gone; started in the background it would have been told to ignore that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor  # pyright: ignore[reportMissingImports]

        _import()
        SubprocessExecutor.launch, SubprocessExecutor.reconcile = _launch, _reap
    except ImportError as error:  # another version of Flower: then each message starts a Python, as ever
        print(f"messages have processes of Flower's own: {error}", file=sys.stderr)
    sys.exit(flower_superexec())


def _import() -> None:
    """What every message needs. A fork would not survive JAX's threads, so none may run yet."""
    from jax._src import xla_bridge

    import fedcodist.deploy.apps  # noqa: F401

    assert not xla_bridge.backends_are_initialized()


def _launch(self: Any, spec: Any) -> Any:
    from flwr.supercore.constant import TaskType  # pyright: ignore[reportMissingImports]
    from flwr.supercore.superexec.executor import LaunchResult  # pyright: ignore[reportMissingImports]

    if spec.task_type != TaskType.CLIENT_APP:
        return LaunchResult.failed(f"a device runs no {spec.task_type}")
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        _be_client(spec)
    return LaunchResult.accepted()


def _reap(self: Any) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _be_client(spec: Any) -> None:
    """The new process: Flower's function for one message, and its end."""
    code = 1
    try:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_DFL)
        from flwr.supercore.exit import exit_handler  # pyright: ignore[reportMissingImports]
        from flwr.supercore.tls import validate_and_resolve_root_certificates  # pyright: ignore[reportMissingImports]
        from flwr.supernode.runtime.run_clientapp import run_clientapp  # pyright: ignore[reportMissingImports]

        exit_handler.registered_exit_handlers.clear()  # they close the connections of the process that this one was forked from
        run_clientapp(
            runtime_api_address=spec.runtime_api_address,
            token=spec.token,
            insecure=spec.insecure,
            certificates=validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
            parent_pid=spec.parent_pid,
            runtime_dependency_install=spec.runtime_dependency_install,
        )
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
