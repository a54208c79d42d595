"""Networks of other libraries as a `Model`: Flax (Linen and NNX), Equinox, Haiku, and Keras on its JAX backend.

A Model is stateless: parameters go in and logits come out. Dropout is supported, by the key that `apply` is given in training and not in
evaluation. State that training changes beside the parameters, as of batch normalisation, is refused by name: clients would have to agree
on it, and their means are not the mean's. Group normalisation has none. The libraries are imported when an adapter is called.
"""

from __future__ import annotations

import importlib
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fedcodist import keys
from fedcodist.errors import ConfigError
from fedcodist.settings import Problem, SettingError
from fedcodist.types import Array, Key, Model, Params

TRAINING = {"train": True, "training": True, "is_training": True, "deterministic": False}  # {an argument: its value in training}


def from_flax(network: Any, shape: tuple[int, ...], dtype: str = "float32") -> Model:
    """Of a Linen module, or of a function `rngs -> nnx.Module`, for inputs of this shape (one row's) and type.

    A Linen module may take `train`, `training`, `is_training` or `deterministic`; NNX modules are put into training or evaluation mode.
    """
    _library("flax")
    from flax import linen

    if not isinstance(network, linen.Module):
        return _from_nnx(network)
    zeros = np.zeros((1, *shape), dtype)
    mode = _mode(network.__call__)

    def variables(key: Any) -> Any:
        return network.init(key, zeros, **_said(mode, False))

    def init(key: Key) -> Params:
        return variables(key)["params"]

    def apply(params: Params, x: Array, key: Any = None) -> Array:
        # One key stands for every stream of random numbers that the module asks for.
        return network.apply({"params": params}, x, rngs=key, **_said(mode, key is not None))  # type: ignore[return-value]

    known = jax.eval_shape(variables, keys.root(0))
    _refuse("from_flax", _paths({name: tree for name, tree in known.items() if name != "params"}))
    return Model(init, apply)


def _from_nnx(make: Callable[[Any], Any]) -> Model:
    from flax import nnx

    def split(key: Any) -> tuple[Any, ...]:
        return nnx.split(make(nnx.Rngs(jnp.asarray(key))), nnx.Param, nnx.RngState, ...)

    graph, *parts = split(keys.root(0))
    like, draws, rest = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), parts)
    _refuse("from_flax", ("/".join(map(str, path)) for path, _ in nnx.to_flat_state(rest)))

    def init(key: Key) -> Params:
        return nnx.to_pure_dict(split(key)[1])

    def apply(params: Params, x: Array, key: Any = None) -> Array:
        state = jax.tree.map(lambda leaf: leaf, like)  # a copy
        nnx.replace_by_pure_dict(state, params)
        network = nnx.merge(graph, state, _drawn(draws, keys.root(0) if key is None else key))
        (network.eval if key is None else network.train)()
        return network(x)

    return Model(init, apply)


def _drawn(draws: Any, key: Any) -> Any:
    """The state of NNX's random numbers, from a key: each stream its own, and all counts at zero."""
    leaves, structure = jax.tree.flatten(draws)
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    own = [jax.random.wrap_key_data(jax.random.fold_in(key, i)) for i in range(len(leaves))]
    made = [own[i] if is_key[i] else jnp.zeros(leaf.shape, leaf.dtype) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, made)


def from_equinox(make: Callable[[Key], Any]) -> Model:
    """Of `make(key)`, which gives an Equinox module for one example, as is the way of Equinox: rows are mapped over.

    Its floating-point arrays are the parameters. If it takes a `key`, each row has one in training, and None in evaluation, when
    `inference` is set as well.
    """
    equinox: Any = _library("equinox")
    network = make(keys.root(0))
    leaves = jax.tree_util.tree_flatten_with_path(network, is_leaf=lambda leaf: isinstance(leaf, equinox.nn.StateIndex))[0]
    _refuse("from_equinox", (_path(path) for path, leaf in leaves if isinstance(leaf, equinox.nn.StateIndex)))
    modes = {training: equinox.nn.inference_mode(network, not training) for training in (False, True)}
    rest = {training: equinox.partition(module, equinox.is_inexact_array)[1] for training, module in modes.items()}
    keyed = "key" in inspect.signature(type(network).__call__).parameters

    def init(key: Key) -> Params:
        return equinox.filter(make(key), equinox.is_inexact_array)

    def apply(params: Params, x: Array, key: Any = None) -> Array:
        module = equinox.combine(params, rest[key is not None])
        if not keyed:
            return jax.vmap(module)(x)
        if key is None:
            return jax.vmap(lambda row: module(row, key=None))(x)
        return jax.vmap(lambda row, own: module(row, key=own))(x, jax.random.split(key, len(x)))

    return Model(init, apply)


def from_haiku(function: Callable[..., Any], shape: tuple[int, ...], dtype: str = "float32") -> Model:
    """Of a function of the inputs that calls Haiku's modules, such as `lambda x: hk.nets.MLP([64, 10])(x)`; it may take `is_training`."""
    haiku: Any = _library("haiku")
    zeros = np.zeros((1, *shape), dtype)
    mode = _mode(function)
    network = haiku.transform_with_state(function)

    def both(key: Any) -> tuple[Params, Any]:
        return network.init(key, zeros, **_said(mode, True))  # in training, where a module that has state makes it

    def init(key: Key) -> Params:
        return both(key)[0]

    def apply(params: Params, x: Array, key: Any = None) -> Array:
        return network.apply(params, {}, key, x, **_said(mode, key is not None))[0]

    _refuse("from_haiku", _paths(jax.eval_shape(both, keys.root(0))[1]))
    return Model(init, apply)


def from_keras(make: Callable[[], Any], shape: tuple[int, ...], dtype: str = "float32") -> Model:
    """Of `make()`, which gives a Keras model or layer; Keras must run on JAX (KERAS_BACKEND=jax, which a config's own model sets).

    Parameters are drawn by building it again under the seed of the key, so initializers with a seed of their own always draw the same.
    """
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "jax")
    keras: Any = _library("keras")
    if keras.backend.backend() != "jax":
        raise SettingError([Problem("from_keras", f"the backend {keras.backend.backend()}", "jax", "export KERAS_BACKEND=jax")])

    def build(seed: int) -> Any:
        before = random.getstate()
        random.seed(seed)  # what Keras draws the seeds of its layers from
        try:
            with jax.ensure_compile_time_eval():  # also while a program is traced: its variables hold values
                network = make()
                network(np.zeros((1, *shape), dtype))
        finally:
            random.setstate(before)
        return network

    def drawn(key: Any) -> Params:
        seed = int(np.asarray(key, np.uint64) @ np.array([2**32, 1], np.uint64))
        return {name: np.asarray(variable.value) for name, variable in _named(build(seed).trainable_variables)}

    network = build(0)
    seeds = [i for i, variable in enumerate(network.non_trainable_variables) if "seed_generator" in variable.path]
    other = [v for i, v in enumerate(network.non_trainable_variables) if i not in seeds]
    _refuse("from_keras", (variable.path for variable in other))
    names = [name for name, _ in _named(network.trainable_variables)]
    shapes = {name: jax.ShapeDtypeStruct(v.shape, v.dtype) for name, v in _named(network.trainable_variables)}
    start = [np.asarray(variable.value) for variable in network.non_trainable_variables]

    def init(key: Key) -> Params:
        if isinstance(key, jax.core.Tracer):
            return jax.pure_callback(drawn, shapes, key)
        return jax.tree.map(jnp.asarray, drawn(key))

    def apply(params: Params, x: Array, key: Any = None) -> Array:
        rest = start if key is None else [jax.random.fold_in(key, i).astype(own.dtype) for i, own in enumerate(start)]
        return network.stateless_call([params[name] for name in names], rest, x, training=key is not None)[0]

    return Model(init, apply)


def _named(variables: Iterable[Any]) -> list[tuple[str, Any]]:
    """By their number: Keras counts the names of layers on with every model that it builds."""
    return [(f"{i:03d}_{variable.name}", variable) for i, variable in enumerate(variables)]


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        said = f"the package {name}, which cannot be imported ({error}): pip install 'fedcodist[models]'"
        raise ConfigError(f"from_{name} needs {said}") from None


def _mode(call: Callable[..., Any]) -> str | None:
    """The name of the argument that says whether it is training."""
    return next((name for name in inspect.signature(call).parameters if name in TRAINING), None)


def _said(mode: str | None, training: bool) -> dict[str, Any]:
    return {mode: TRAINING[mode] == training} if mode else {}


def _paths(tree: Any) -> Iterable[str]:
    return (_path(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0])


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _refuse(adapter: str, state: Iterable[str]) -> None:
    """Refuse state beside the parameters."""
    if found := list(state):
        some = ", ".join(found[:2]) + (f" and {len(found) - 2} more" if len(found) > 2 else "")
        allowed = "parameters alone: GroupNorm or LayerNorm in the place of BatchNorm"
        raise SettingError([Problem(adapter, f"state that is not trained ({some})", allowed)])
