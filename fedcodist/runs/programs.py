"""Compiled programs are kept on disk, so that a second process starts in seconds."""

from __future__ import annotations

import os
import warnings


def cache() -> None:
    """Keep them where FEDCODIST_CACHE says (if it is empty, nowhere), or in the user's cache."""
    import jax

    place = os.environ.get("FEDCODIST_CACHE")
    if place is None:
        home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and os.path.join(os.environ["HOME"], ".cache"))
        place = os.path.join(home, "fedcodist") if home else ""
    try:
        if place:
            os.makedirs(place, mode=0o700, exist_ok=True)
    except OSError:
        return
    if place and os.access(place, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", place)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        # JAX writes an entry in place: another process may read half of it, and then compiles for itself, which is all that is to be done.
        warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
