"""Whether a pool's model fits its task: found by tracing it, before anything is trained.

What is refused is told in one line, with the pool and the shape that is wanted: a builder or a network that raises, parameters that are no
floating-point numbers, and logits of another shape.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import keys
from fedcodist.models.own import Own, told
from fedcodist.objectives.classify import Classify
from fedcodist.objectives.next_token import NextToken
from fedcodist.settings import Problem, SettingError
from fedcodist.task import Spec
from fedcodist.types import Model

ROWS = 2, 3  # in evaluation and in training: two numbers, for a network that only takes one


def fitted(spec: Spec, part: Any, name: str, problems: list[Problem]) -> Model | None:
    """The model of a pool, or None and a problem."""
    own = isinstance(part, Own)
    title = part.function if own else type(part).kind
    model, wrong = None, ""
    expected = (Exception,) if own else (TypeError, ValueError, IndexError)  # somebody's own code may raise anything
    try:
        model = part.build(spec.inputs, spec.classes)
        wrong = _wrong(spec, model, own)
    except SettingError as error:
        wrong = f"which is refused ({error})"
    except expected as error:
        wrong = f"which raised {told(error)}"
    if wrong:
        seen = jax.eval_shape(spec.objective.inputs, spec.x.rows(1))
        wanted = f"a model for inputs of {'x'.join(map(str, seen.shape[1:]))} {seen.dtype} and {spec.classes} classes"
        problems.append(Problem(f"pools.{name}.model", f"{title}, {wrong}" if own else title, wanted))
    return model


def _wrong(spec: Spec, model: Model, own: bool) -> str:
    """What is wrong with a model; what it raises is wrong too."""
    params = jax.eval_shape(model.init, keys.root(0))
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return f"whose parameter {jax.tree_util.keystr(path, simple=True, separator='/')} is {leaf.dtype}, not floating-point"

    def logits(params: Any, x: Any, key: Any) -> Any:
        return model.apply(params, spec.objective.inputs(x), key)

    def loss(params: Any, x: Any, y: Any, key: Any) -> Any:
        return spec.objective.loss(logits(params, x, key), y)

    few, more = ROWS
    said = jax.eval_shape(lambda p, x: logits(p, x, None), params, spec.x.rows(few))
    if isinstance(spec.objective, Classify | NextToken):
        shape = (few, *spec.y.shape, spec.classes)
        if not hasattr(said, "shape"):
            return f"whose output is a {type(said).__name__}, not an array of logits"
        if said.shape != shape or not jnp.issubdtype(said.dtype, jnp.floating):
            return f"whose logits for {few} rows are {said.dtype}{list(said.shape)}, not float32{list(shape)}"
    if jax.eval_shape(lambda p, x, y: loss(p, x, y, None), params, spec.x.rows(few), spec.y.rows(few)).shape != (few,):
        return "whose logits do not give a loss a row"
    if own:  # our own models need no second look
        key = jax.ShapeDtypeStruct((2,), "uint32")
        jax.eval_shape(jax.grad(lambda *a: loss(*a).sum()), params, spec.x.rows(more), spec.y.rows(more), key)
    return ""
