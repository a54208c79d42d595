"""What FedFTG's server does without data: a generator looks for inputs on which the model and its clients' models differ, and the model
learns there from them.

Class y of client k counts w[k, y] = n[k, y] / sum_k n[k, y], with n the label counts that the clients of the round have sent.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedcodist import tree
from fedcodist.rules.generator import Generator
from fedcodist.types import Array, Model, Params


class Plan(NamedTuple):
    """How much of it."""

    iterations: int
    steps: int  # of the model, in each iteration
    batch: int


@partial(jax.jit, static_argnums=(0, 1, 2))
def tuned(
    model: Model, generator: Generator, plan: Plan, params: Params, made: Params, members: Params, counts: Array, rates: Any, key: Any
) -> tuple[Params, Params, Array, Array]:
    """The model and the generator after all iterations; the losses of the model's first and last step. `members` are the clients' models,
    stacked, `counts` their label counts, [clients, classes], and `rates` those of the model and the generator."""
    total = counts.sum(0)
    shares = counts / jnp.maximum(total, 1)  # [clients, classes]
    many, adam = len(counts), optax.adam(1.0)

    def drawn(key: Any) -> tuple[Array, Array]:
        noise, label = jax.random.split(key)
        y = jax.random.categorical(label, jnp.log(total), shape=(plan.batch,))
        return jax.random.normal(noise, (plan.batch, generator.noise)), y

    def hard(made: Params, params: Params, member: Params, share: Array, noise: Array, y: Array) -> Array:
        """What the generator descends along for one client: minus the difference, plus the client's error, plus a penalty on sameness."""
        x = generator.apply(made, noise, y)
        said, other = model.apply(params, x, None), model.apply(member, x, None)
        weight = share[y]
        differ = jnp.mean(weight * jnp.mean(jnp.abs(said - other), -1))
        wrong = -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(other), y[:, None], -1)) * jnp.mean(weight)
        return wrong - differ + sameness(noise, x) / many

    def soft(params: Params, x: Array, target: Array) -> Array:
        return -jnp.mean(target * jax.nn.log_softmax(model.apply(params, x, None)))  # over classes too: 1/C of a cross-entropy

    def iteration(carry: Any, key: Any) -> Any:
        params, made, opt = carry
        first, *others = jax.random.split(key, plan.steps + 1)
        noise, y = drawn(first)

        def against(carry: Any, at: Any) -> Any:
            made, opt = carry
            update, opt = adam.update(jax.grad(hard)(made, params, *at, noise, y), opt)
            return (tree.add(made, tree.scale(update, rates[1])), opt), None

        (made, opt), _ = jax.lax.scan(against, (made, opt), (members, shares))

        def learn(params: Params, key: Any) -> tuple[Params, Array]:
            noise, y = drawn(key)
            x = generator.apply(made, noise, y)
            said = jax.lax.map(lambda at: at[1][y][:, None] * jax.nn.softmax(model.apply(at[0], x, None)), (members, shares))
            loss, grad = jax.value_and_grad(soft)(params, x, said.sum(0))
            return tree.sub(params, tree.scale(grad, rates[0])), loss

        params, losses = jax.lax.scan(learn, params, jnp.stack(others))
        return (params, made, opt), losses

    (params, made, _), losses = jax.lax.scan(iteration, (params, made, adam.init(made)), jax.random.split(key, plan.iterations))
    return params, made, losses[0, 0], losses[-1, -1]


def sameness(noise: Array, x: Array) -> Array:
    """Near 1 where inputs are alike though their noise is not: exp(-mean |z_i - z_j| |x_i - x_j|), with mean absolute differences."""
    flat = x.reshape(len(x), -1)
    apart = [jnp.mean(jnp.abs(a[:, None] - a[None]), -1) for a in (noise, flat)]
    return jnp.exp(-jnp.mean(apart[0] * apart[1]))
