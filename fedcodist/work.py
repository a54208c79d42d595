"""What a client does: some epochs of SGD on its own data, and the gradient (before minus after) that it sends back.

One function serves every engine. It takes data that may be padded (`n` real rows in front), so a compiled program can hold clients of
many sizes; loops have dynamic bounds, so padding costs memory and no time. The last batch of an epoch is short, never
topped up (DEVIATION D4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedcodist import native, tree
from fedcodist.registry import Registry
from fedcodist.settings import checked, setting
from fedcodist.types import Array, Data, Model, Objective, Params, Reply


@tree.node("lr")
@dataclass(frozen=True)
@checked
class LocalSGD:
    """FedAvg's client: `epochs` passes of SGD with a constant learning rate."""

    kind: ClassVar[str] = "local_sgd"
    lr: float = setting(0.03, gt=0, le=1e3)  # learning rate of the clients' SGD, the same in all rounds
    epochs: int = setting(1, ge=1, le=10_000)  # passes over a client's examples in a round
    batch: int = setting(20, ge=1, le=10**6)  # examples in one SGD step
    shuffle: bool = True  # whether each epoch has an order of its own
    augment: bool = True  # whether training images are cropped and flipped at random, where the task says how

    def __call__(self, model: Model, objective: Objective, sent: Params, data: Data, key: Any) -> Reply:
        return reply(sent, data, *descend(self, model, objective, sent, data, key))


@tree.node("lr", "mu")
@dataclass(frozen=True)
@checked
class Prox(LocalSGD):
    """FedProx (Li et al. 2020): LocalSGD on the loss plus mu/2 |w - sent|^2. With mu = 0 it is LocalSGD."""

    kind: ClassVar[str] = "prox"
    mu: float = setting(0.01, ge=0, le=1e3)  # weight of the squared distance from the model that was sent; 0 is `local_sgd`

    def __call__(self, model: Model, objective: Objective, sent: Params, data: Data, key: Any) -> Reply:
        def pull(params: Params) -> Params:  # the gradient of mu/2 |w - sent|^2
            return tree.scale(tree.sub(params, sent), self.mu)

        return reply(sent, data, *descend(self, model, objective, sent, data, key, pull))


WORKS = Registry("works", LocalSGD, Prox)


def reply(sent: Params, data: Data, params: Params, loss: Array) -> Reply:
    """What a client sends after its training: its gradient, weighted by its examples."""
    return Reply(tree.sub(sent, params), data.n.astype(jnp.float32), {"loss": loss})


def steps(how: LocalSGD, data: Data) -> Array:
    """How many steps of SGD the client takes; the last batch of an epoch may be short."""
    return how.epochs * ((data.n + how.batch - 1) // how.batch)


def descend(
    how: LocalSGD,
    model: Model,
    objective: Objective,
    sent: Params,
    data: Data,
    key: Any,
    pull: Callable[[Params], Params] | None = None,
    prox: Callable[[Params], Params] | None = None,
    primal: Callable[[Params, Array], Params] | None = None,
) -> tuple[Params, Array]:
    """SGD from `sent` over the client's data: the parameters after it, and the mean loss on the way.

    `pull` gives a gradient to add to that of the loss, `prox` maps the parameters after each step, and `primal`
    gives the model of the parameters after so many steps, at which the gradient is taken.
    """
    batches = (data.n + how.batch - 1) // how.batch

    def loss(params: Params, x: Array, y: Array, real: Array, key: Any) -> Array:
        of_row = objective.loss(model.apply(params, x, key), y)  # [batch]
        return jnp.sum(jnp.where(real, of_row, 0.0)) / jnp.maximum(jnp.sum(real), 1)

    def epoch(e: Array, carry: tuple[Params, Array]) -> tuple[Params, Array]:
        order = _order(jax.random.fold_in(key, 2 * e), len(data.x), data.n, how.batch, how.shuffle)

        def step(b: Array, carry: tuple[Params, Array]) -> tuple[Params, Array]:
            params, total = carry
            rows = jax.lax.dynamic_slice(order, (b * how.batch,), (how.batch,))
            real = b * how.batch + jnp.arange(how.batch) < data.n
            drop, distort = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, 2 * e + 1), b))
            x = objective.inputs(data.x[rows], distort if how.augment else None)
            at = params if primal is None else primal(params, e * batches + b)
            value, grad = jax.value_and_grad(loss)(at, x, data.y[rows], real, drop)
            if pull is not None:
                grad = tree.add(grad, pull(params))
            # The rate depends on the whole gradient: otherwise XLA begins updates early, and for that copies all parameters in every step.
            lr = how.lr + 0.0 * sum(g[(0,) * g.ndim] for g in jax.tree.leaves(grad))
            params = jax.tree.map(lambda p, g: p - lr * g, params, grad)
            return params if prox is None else prox(params), total + value * jnp.sum(real)

        return jax.lax.fori_loop(0, batches, step, carry)

    params, total = jax.lax.fori_loop(0, how.epochs, epoch, (sent, jnp.zeros(())))
    return params, total / jnp.maximum(data.n * how.epochs, 1)


def _order(key: Any, padded: int, n: Array, batch: int, shuffle: bool) -> Array:
    """The rows in the order of this epoch, real ones first; long enough for whole batches."""
    rows = jnp.arange(padded)
    if shuffle:
        # Counter-based bits: the draw of row i does not depend on the padding, so padded and unpadded clients shuffle alike.
        bits = native.bits(key, (padded,))
        rows = jnp.argsort(jnp.where(rows < n, bits, jnp.uint32(2**32 - 1)), stable=True)
    return jnp.pad(rows, (0, -padded % batch))
