"""One checkpoint, a directory that is there whole or not at all (R3).

Tensors go into one safetensors file a pool, under their path in the state (`opt/0/mu/dense0/w`). `COMMIT.json` is written last and lists
size and SHA-256 of every file; only then is the directory renamed to its number. Every file is synced before the rename and the parent
after it. Deliberately absent: pickle, time stamps, and any choice of which checkpoint to use or keep (directory.py).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fedcodist.types import Params, State, Tree
from fedcodist.storage.durable import CheckpointError, Damaged, check_name, make_directory, read_file, rename, sync_directory, write_file
from fedcodist.storage.sealed import seal, unseal

COMMIT = "COMMIT.json"


def encode(tree: Tree) -> bytes:
    """A pytree of arrays as safetensors: equal trees give equal bytes."""
    from safetensors.numpy import save

    tensors: dict[str, np.ndarray] = {}
    for name, leaf in named(tree):
        if name in tensors:
            raise ValueError(f"two tensors are called {name}")
        tensors[name] = np.asarray(leaf, order="C")  # ascontiguousarray would turn shape () into (1,)
    return save({name: tensors[name] for name in sorted(tensors)})


def load(template: State, files: Mapping[str, bytes]) -> State:
    """The state in these files (by pool), if names, shapes and dtypes are those of the template (values or eval_shape's)."""
    import jax
    import jax.numpy as jnp
    from safetensors import SafetensorError, deserialize

    def restore(leaf: Any, data: bytes, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        array = np.frombuffer(data, dtype).reshape(shape)
        if isinstance(leaf, bool | int | float):
            return type(leaf)(array.item())
        # numpy stays numpy: what a resumed round computes with must be the same kind of thing as without the stop
        return array if isinstance(leaf, np.ndarray) else array[()] if isinstance(leaf, np.generic) else jnp.asarray(array)

    odd = [f"pool {pool}: only in the checkpoint" for pool in sorted(set(files) - set(template))]
    odd += [f"pool {pool}: not in the checkpoint" for pool in sorted(set(template) - set(files))]
    state = {}
    for pool in sorted(set(template) & set(files)):
        try:
            stored = dict(deserialize(files[pool]))
        except SafetensorError as error:
            raise Damaged(f"{pool}.safetensors: {error}") from error
        wanted = dict(named(template[pool]))
        for name in sorted(set(stored) | set(wanted)):
            there = _dtype_name(stored[name]["dtype"], stored[name]["shape"]) if name in stored else "nothing"
            here = _describe(wanted[name]) if name in wanted else "nothing"
            if there != here:
                odd.append(f"{pool}/{name}: {there} in the checkpoint, {here} here")
        if not odd:
            leaves = [restore(leaf, stored[name]["data"], *_shape(leaf)) for name, leaf in wanted.items()]
            state[pool] = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(template[pool]), leaves)
    if odd:
        raise CheckpointError("another model: " + "; ".join(odd[:3]) + (f"; and {len(odd) - 3} more" if len(odd) > 3 else ""))
    return state


def parameters(template: Params, pool: str, data: bytes) -> Params:
    """Only the parameters in a pool's file, if names, shapes and dtypes are those of the template."""
    from safetensors.numpy import load as tensors

    stored = {name.removeprefix("params/"): array for name, array in tensors(data).items() if name.split("/")[0] == "params"}
    wanted = named(template)
    found = {name: _describe(array) for name, array in stored.items()}
    for name, leaf in wanted:
        name = name or "params"  # a model whose parameters are one array
        if found.pop(name, "nothing") != _describe(leaf):
            raise CheckpointError(f"another model: {pool}/{name}: allowed {_describe(leaf)}, as the config describes it")
    if found:
        raise CheckpointError(f"another model: {pool}/{next(iter(found))}: only in the checkpoint")
    leaves = [stored[name or "params"] for name, _ in wanted]
    import jax

    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def size_bytes(template: State) -> int:
    """Bytes of the tensors of a state, or of its shapes: for the free-space check before a run."""
    return sum(_shape(leaf)[1].itemsize * int(np.prod(_shape(leaf)[0])) for tree in template.values() for _, leaf in named(tree))


def named(tree: Tree) -> list[tuple[str, Any]]:
    """The leaves of a tree with their paths, such as `opt/0/mu/dense0/w`."""
    import jax

    pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in pairs]


def _shape(leaf: Any) -> tuple[tuple[int, ...], np.dtype]:
    if hasattr(leaf, "dtype"):
        return tuple(leaf.shape), np.dtype(leaf.dtype)
    return (), np.asarray(leaf).dtype


def _describe(leaf: Any) -> str:
    shape, dtype = _shape(leaf)
    return f"{dtype.name}{list(shape)}"


def _dtype_name(code: str, shape: list[int]) -> str:
    words = {"F": "float", "I": "int", "U": "uint", "C": "complex", "BF": "bfloat"}
    kind, bits = re.fullmatch(r"([A-Z]+)(\d*)(?:_.*)?", code).groups()  # type: ignore[union-attr]
    return ("bool" if code == "BOOL" else words.get(kind, kind.lower()) + bits) + f"{list(shape)}"


def write(parent: Path, round: int, state: State, facts: Mapping[str, Any]) -> Path:
    """Commit the state after a round. Whatever fails or is killed on the way leaves the other checkpoints as they were."""
    for pool in state:
        check_name("pool", pool)
    final, temporary = parent / f"{round:06d}", parent / f".tmp-{round}-{os.getpid()}"
    make_directory(temporary)
    files = {}
    for pool in sorted(state):
        data = encode(state[pool])
        write_file(temporary / f"{pool}.safetensors", data)
        files[f"{pool}.safetensors"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_file(temporary / COMMIT, seal({**facts, "round": round, "files": files}))
    sync_directory(temporary)
    if os.path.lexists(final):  # left by a commit of this process whose last sync failed: never taken for saved
        rename(final, parent / f".trash-{round}-{os.getpid()}")
    rename(temporary, final)
    sync_directory(parent)
    return final


def verify(directory: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The commit record and the files by pool, every byte of them verified; or Damaged."""
    commit = unseal(directory / COMMIT, exact=True)
    try:
        if f"{commit['round']:06d}" != directory.name:
            raise Damaged(f"{COMMIT}: is of round {commit['round']}")
        files = {}
        for name, want in commit["files"].items():
            data = read_file(directory / name, want["bytes"])
            if hashlib.sha256(data).hexdigest() != want["sha256"]:
                raise Damaged(f"{name}: sha256 differs")
            files[name.removesuffix(".safetensors")] = data
        return commit, files
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Damaged(f"{COMMIT}: incomplete") from error
