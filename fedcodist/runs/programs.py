"""Compiled programs are kept on disk, so that a second process starts in seconds; those of the evaluation are compiled ahead."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import jax

from fedcodist.evaluate import row_sums, sizes
from fedcodist.federation import Federation
from fedcodist.storage import cache
from fedcodist.types import Split, Voice


def keep() -> None:
    """Keep them where FEDCODIST_CACHE says (if it is empty, nowhere), or in the user's cache."""
    if (place := cache.writable()) is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    # JAX writes an entry in place: another process may read half of it, and then compiles for itself, which is all that is to be done.
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")


def compile_evaluation(fed: Federation, models: Mapping[str, Voice]) -> None:
    """Compile what `evaluate` and `ensemble` will need for these models, in parallel and without evaluating anything."""
    several = len(fed.names) > 1 and set(fed.names) <= set(models)  # else there are models at the clients alone
    groups = [[voice] for voice in models.values()] + ([[models[name] for name in fed.names]] if several else [])
    wanted = [(group, fed.task.split(split)) for split in ("held_out", "test") for group in groups]
    list(fed.engine.host.map(lambda one: _compile(fed, *one), wanted))


def _compile(fed: Federation, voices: Sequence[Voice], data: Split) -> None:
    if not len(data.x):
        return  # evaluating it is an error of the data, which is told then
    batch, rows = sizes(fed, voices, data)
    x, y = (jax.ShapeDtypeStruct((rows // batch, batch, *a.shape[1:]), jax.dtypes.canonicalize_dtype(a.dtype)) for a in (data.x, data.y))
    models, params = tuple(voice.model for voice in voices), tuple(voice.params for voice in voices)
    row_sums.lower(models, fed.task.objective, params, x, y).compile()
