"""Learning from targets on public rows, at a client or at the server, and what models say of such rows: FedMD's and DS-FL's common part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedcodist import keys, tree
from fedcodist.settings import checked, setting
from fedcodist.types import Array, Key, Model, Objective, Params

if TYPE_CHECKING:
    from fedcodist.federation import Federation

EPS = 1e-5  # Adam's, as in a codistillation: a smaller one turns rounding errors into steps


@tree.node("lr")
@dataclass(frozen=True)
@checked
class Digest:
    """Passes of Adam with fresh state over public rows and their targets: a distribution for `kl`, logits for the others."""

    epochs: int = setting(1, ge=1, le=10_000)  # passes over the public rows of a round
    batch: int = setting(256, ge=1, le=10**6)  # public rows in one step
    lr: float = setting(1e-3, gt=0, le=1e3)  # Adam's learning rate
    loss: Literal["l1", "l2", "kl"] = "l1"  # the distance from the target

    def __call__(self, model: Model, objective: Objective, params: Params, x: Array, target: Array, key: Any) -> Params:
        batches, optimizer = -(-len(x) // self.batch), optax.adam(1.0, eps=EPS)

        def step(b: Any, carry: Any) -> Any:
            params, opt, order = carry
            at = b * self.batch + jnp.arange(self.batch)
            rows, real = order[jnp.minimum(at, len(x) - 1)], at < len(x)
            seen = objective.inputs(jnp.asarray(x)[rows], None)

            def loss(params: Params) -> Array:
                far = distance(self.loss, model.apply(params, seen, None), jnp.asarray(target)[rows])
                counts = objective.mask(seen) * real.reshape(-1, *[1] * (far.ndim - 1))
                return jnp.sum(far * counts) / jnp.maximum(jnp.sum(counts), 1)

            update, opt = optimizer.update(jax.grad(loss)(params), opt, params)
            return tree.add(params, tree.scale(update, self.lr)), opt, order

        def epoch(e: Any, carry: Any) -> Any:
            return jax.lax.fori_loop(0, batches, step, (*carry, jax.random.permutation(jax.random.fold_in(key, e), len(x))))[:2]

        return jax.lax.fori_loop(0, self.epochs, epoch, (params, optimizer.init(params)))[0]


@partial(jax.jit, static_argnums=(0, 1))
def taught(model: Model, objective: Objective, digest: Digest, params: Params, x: Array, target: Array, key: Any) -> Params:
    """A server's model after it learned from the target."""
    return digest(model, objective, params, x, target, key)


def distance(loss: str, logits: Array, target: Array) -> Array:
    """Of each prediction from its target, without the last axis. That of `l1` has no gradient where there is no difference.

    >>> [round(float(distance(loss, jnp.zeros(2), jnp.array([1.0, 0.5]))), 3) for loss in ("l1", "l2", "kl")]
    [0.75, 0.625, 1.04]
    """
    if loss == "kl":
        return -jnp.sum(target * jax.nn.log_softmax(logits), -1)
    apart = logits - target
    return jnp.mean(apart * jax.lax.stop_gradient(jnp.sign(apart)) if loss == "l1" else apart**2, -1)


def said(model: Model, objective: Objective, params: Params, x: Array, batch: int) -> Array:
    """The logits of these rows, [rows, ..., classes], a batch at a time."""
    batches = jnp.minimum(jnp.arange(-(-len(x) // batch) * batch), len(x) - 1).reshape(-1, batch)
    logits = jax.lax.map(lambda rows: model.apply(params, objective.inputs(jnp.asarray(x)[rows], None), None), batches)
    return jnp.concatenate(logits)[: len(x)]


def era(mean: Array, temperature: float) -> Array:
    """Entropy reduction aggregation: the softmax of mean probabilities over a temperature; as they are, if that is 0.

    >>> [[round(float(p), 3) for p in era(jnp.array([0.7, 0.3]), t)] for t in (0.1, 0.0)]
    [[0.982, 0.018], [0.7, 0.3]]
    """
    return jax.nn.softmax(mean / temperature) if temperature else mean


def drawn(fed: Federation, rows: int, t: int, key: Key) -> np.ndarray:
    """Which public rows a round is about; evenly of all labels, where the public data has labels."""
    order, y = keys.permutation(keys.derive(key, "public rows", t), len(fed.task.public.x)), fed.task.public.y
    if y is not None and np.ndim(y) == 1:
        turn, seen = np.zeros(len(order), np.int64), np.asarray(y)[order]
        for label in np.unique(seen):
            turn[seen == label] = np.arange(np.count_nonzero(seen == label))
        order = order[np.argsort(turn, kind="stable")]
    return np.sort(order[:rows])
