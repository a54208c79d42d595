"""One compilation cache for all tests and workers: compiling is most of their time."""

import os
import signal
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".cache" / "xla"
os.environ["FEDCODIST_CACHE"] = str(CACHE)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # started under nohup: what the tests start would ignore what they send it
        signal.signal(number, usual)


@pytest.fixture(scope="module")
def prepared():
    """JAX is prepared already, with a cache for small programs too; a command in this process must not do it again as users have it."""
    from fedcodist.cli import arguments

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "prepare_jax", lambda: None)
        yield


@pytest.fixture(autouse=True)
def untimed(monkeypatch):
    """No test knows times that another one measured; those of test_clock.py say where theirs are kept."""
    from fedcodist.runs import clock

    monkeypatch.setattr(clock, "place", lambda: None)
