"""One compilation cache for all tests and workers: compiling is most of their time."""

import os
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".cache" / "xla"
os.environ["FEDCODIST_CACHE"] = str(CACHE)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402

jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
