"""What a run costs: parameters, bytes over the wire, and floating-point operations of clients and server.

Operations are counted on the program itself: the matrix products and convolutions of the traced functions, scans times their length.
A product of [m, k] and [k, n] is 2 m k n; everything else is small beside it and is left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import keys, native, tree
from fedcodist.clients import sizes
from fedcodist.engines.threads import cores
from fedcodist.errors import Failure
from fedcodist.federation import Federation
from fedcodist.pool import Pool
from fedcodist.types import Data, Info, Method, Model, Work


class NoMemory(Failure):
    """The models are larger than this machine."""

    code = 9


def parameters(fed: Federation) -> dict[str, int]:
    """How many numbers each pool's model has."""
    return {name: tree.size(_params(fed, name)) for name in fed.names}


def forward_flops(fed: Federation, pool: str) -> float:
    """Of one example through a pool's model."""
    model, objective = fed.pools[pool].model, fed.task.objective
    return count(lambda p, x: model.apply(p, objective.inputs(x), None), _params(fed, pool), _rows(fed)[0]) / 8


def training_flops(fed: Federation, pool: str) -> float:
    """Of one example's forward and backward pass in a client's work."""
    model, objective = fed.pools[pool].model, fed.task.objective

    def grad(params: Any, x: Any, y: Any) -> Any:
        return jax.grad(lambda p: objective.loss(model.apply(p, objective.inputs(x), None), y).sum())(params)

    return count(grad, _params(fed, pool), *_rows(fed)) / 8


def work_flops(fed: Federation, model: Model, work: Work, batch: int) -> float:
    """Of one example in one step of any work with batches of so many: the step's operations are in its loops, which are counted once."""
    x, y = (jax.ShapeDtypeStruct((batch, *a.shape[1:]), a.dtype) for a in _rows(fed))

    def step(sent: Any, x: Any, y: Any, key: Any) -> Any:
        return work(model, fed.task.objective, sent, Data(x, y, jnp.int32(batch)), key).value

    key = jax.ShapeDtypeStruct((2,), "uint32")
    return count(step, jax.eval_shape(model.init, key), x, y, key) / batch


def of_rounds(fed: Federation, method: Method, rounds: Iterable[Mapping[str, Info]]) -> dict[str, Any]:
    """The cost of rounds that were run, from what each pool's info says happened: {what: {pool: amount}}."""
    size, forward = parameters(fed), {name: forward_flops(fed, name) for name in fed.names}
    training = {name: training_flops(fed, name) for name in fed.names}
    other = {name: _others(fed, name) for name in fed.names}
    client_bytes, client_flops, server_flops, steps = (_zeros(fed) for _ in range(4))
    distill = method.distill
    for pools in rounds:
        for name, info in pools.items():
            asked = info["clients"] + info.get("dropped", 0)
            # As the pool's rule has it, or else the model down and its gradient up, in float32.
            client_bytes[name] += info.get("client_bytes", 2 * 4 * size[name] * asked)
            epochs = getattr(fed.pools[name].work, "epochs", 1)
            if "trained" not in info:
                client_flops[name] += training[name] * info["examples"] * epochs
            else:
                client_flops[name] += sum(other[name][what] * examples for what, examples in info["trained"].items()) * epochs
            client_flops[name] += forward[name] * info.get("predicted", 0) + training[name] * info.get("digested", 0)
            server_flops[name] += forward[name] * info.get("server_predicted", 0) + training[name] * info.get("server_digested", 0)
        students = [name for name, info in pools.items() if info.get("codistilled") or "guard" in info]
        if not students or distill is None:
            continue
        for name in students:
            taken = pools[name].get("steps", distill.steps * method.lessons(fed, name))
            server_flops[name] += taken * distill.batch * training[name]
            steps[name] += taken
            if judged := pools[name].get("guard"):
                server_flops[name] += forward[name] * fed.judged() * (len(judged) if isinstance(judged, list) else 1)  # type: ignore[attr-defined]
        for name, many in method.speakers(fed, students, pools).items():  # a frozen model speaks once for all of its students
            server_flops[name] += many * distill.steps * distill.batch * forward[name]
    return {
        "client_bytes": client_bytes,
        "client_flops": client_flops,
        "server_flops": server_flops,
        "server_steps": sum(steps.values()),
    }


def expected(fed: Federation, method: Method, rounds: int) -> dict[str, Any]:
    """The cost of a run before it is run: cohorts of average clients, distillation where the method will do it."""
    average = _average(fed, method)
    return of_rounds(fed, method, [_round(fed, method, average, t) for t in range(1, rounds + 1)])


def of_average(fed: Federation, method: Method, t: int) -> dict[str, Any]:
    """The cost of round t with cohorts of average clients, and their {pool: examples}."""
    average = _average(fed, method)
    return of_rounds(fed, method, [_round(fed, method, average, t)]) | {
        "examples": {name: info["examples"] for name, info in average.items()}
    }


def _average(fed: Federation, method: Method) -> dict[str, dict[str, Any]]:
    cohorts = {name: fed.pools[name].cohort for name in fed.names}
    means = {name: _mean_size(fed.pools[name].clients) for name in fed.names}
    return {name: {"clients": n, "examples": means[name] * n, **_expects(fed, method, fed.pools[name])} for name, n in cohorts.items()}


def _expects(fed: Federation, method: Method, pool: Pool) -> Info:
    return method.expects(fed, pool) if method.asks else pool.rule.expects(fed, pool)


def _round(fed: Federation, method: Method, average: Mapping[str, Info], t: int) -> dict[str, Info]:
    students = {name for name in method.students(fed.names, t) if method.asks or fed.table[name]}
    guarded = {name: {"guard": [None] * method.lessons(fed, name)} for name in students if hasattr(fed, "judged")}
    return {name: {**info, "codistilled": name in students, **guarded.get(name, {})} for name, info in average.items()}


def _others(fed: Federation, name: str) -> dict[str, float]:
    """{what clients train besides the pool's model: operations of one example}."""
    pool = fed.pools[name]
    work: Any = pool.work
    batch = getattr(work, "batch", 8)
    once = replace(pool, work=replace(work, epochs=1)) if hasattr(work, "epochs") else pool
    return {what: work_flops(fed, model, work, batch) for what, (model, work) in once.rule.trains(once).items()}


def _zeros(fed: Federation) -> dict[str, Any]:
    return dict.fromkeys(fed.names, 0)


def _mean_size(clients: Mapping[str, Any]) -> float:
    counts = sizes(clients).values()
    return sum(counts) / max(len(counts), 1)


def memory_bytes(fed: Federation, workers: int) -> int:
    """A low estimate of what training holds at once: states before and after a round, gradients, each worker's client, students."""
    copies = 2 * 3 + 2 + 4 * workers + 4
    return 4 * copies * sum(parameters(fed).values())


def check_memory(fed: Federation) -> None:
    """Refuse a model that cannot fit before anything is written (R11)."""
    needs = memory_bytes(fed, getattr(fed.engine, "workers", 0) or cores())
    try:
        has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return  # a system that does not say
    if needs > has:
        sizes = ", ".join(f"{name} {count:,}" for name, count in parameters(fed).items())
        raise NoMemory(
            f"memory: got models of {sizes} parameters, which need {needs / 1e9:.1f} GB; allowed this machine's {has / 1e9:.1f} GB"
        )


def count(function: Any, *args: Any) -> float:
    """Floating-point operations of a function's matrix products and convolutions, for arguments of these shapes.

    >>> import jax.numpy as jnp
    >>> count(lambda a, b: a @ b, jnp.zeros((2, 3)), jnp.zeros((3, 5)))
    60.0
    """
    with native.portable():  # the operations of the model, whatever computes them
        return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contract, _), _ = equation.params["dimension_numbers"]
            inner = math.prod(equation.invars[0].aval.shape[d] for d in contract)
            total += 2.0 * math.prod(equation.outvars[0].aval.shape) * inner
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            out_feature = equation.params["dimension_numbers"].rhs_spec[0]
            total += 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) / kernel[out_feature]
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        if equation.primitive.name == "cond":  # one of its branches is taken
            times = 1 / len(equation.params["branches"])
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    total += times * _count(inner)
    return total


def _params(fed: Federation, pool: str) -> Any:
    start = fed.pools[pool].start
    return start if start is not None else jax.eval_shape(fed.pools[pool].model.init, keys.root(0))


def _rows(fed: Federation) -> tuple[Any, Any]:
    data = fed.task.held_out
    return tuple(jax.ShapeDtypeStruct((8, *a.shape[1:]), a.dtype) for a in (data.x, data.y))  # type: ignore[return-value]
