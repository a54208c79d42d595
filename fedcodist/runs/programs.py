"""Compiled programs are kept on disk, so that a second process starts in seconds."""

from __future__ import annotations

import warnings

import jax

from fedcodist.storage import cache


def keep() -> None:
    """Keep them where FEDCODIST_CACHE says (if it is empty, nowhere), or in the user's cache."""
    if (place := cache.writable()) is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    # JAX writes an entry in place: another process may read half of it, and then compiles for itself, which is all that is to be done.
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
