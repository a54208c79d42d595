"""FedJAX's side: its federated_averaging with a haiku model. Crops and flips are drawn inside the gradient, image by image, as we do."""

from __future__ import annotations

import sys
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np

if not hasattr(jax, "tree_map"):  # FedJAX 0.0.17 still calls them; jax took them away
    jax.tree_map, jax.tree_leaves = jax.tree_util.tree_map, jax.tree_util.tree_leaves

import fedjax
import haiku as hk

from benches import workload as w


def network(size: str) -> hk.Transformed:
    """The paper's CNN."""
    filters, dense = w.CNNS[size]

    def forward(x: jnp.ndarray) -> jnp.ndarray:
        for i, width in enumerate(filters):
            x = jax.nn.relu(hk.Conv2D(width, 3)(x))
            if i < 2:
                x = hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return hk.nets.MLP((*dense, w.CLASSES))(hk.Flatten()(x))

    return hk.without_apply_rng(hk.transform(forward))


def see(x: jnp.ndarray, rng: jnp.ndarray) -> jnp.ndarray:
    """Each image cropped and flipped by its own draw, then standardised."""
    where, coin = jax.random.split(rng)
    corner = jax.random.randint(where, (len(x), 2), 0, w.IMAGE - w.CROP + 1)
    # Whole rows at a time: a gather of single pixels takes twice as long.
    crop = jax.vmap(lambda image, at: jax.lax.dynamic_slice(image, (at[0], at[1], 0), (w.CROP, w.CROP, 3)))(x, corner)
    x = jnp.where(jax.random.bernoulli(coin, 0.5, (len(x), 1, 1, 1)), crop[:, :, ::-1], crop).astype(jnp.float32)
    x = x - x.mean((1, 2, 3), keepdims=True)
    return x / jnp.maximum(jnp.sqrt((x**2).mean((1, 2, 3), keepdims=True)), (3 * w.CROP**2) ** -0.5)


def main() -> None:
    """Answer the driver's turns."""
    work, _ = w.asked()  # XLA takes the cores that the process may use
    net = network(work.size)
    clients = {}
    for k in range(work.clients):
        x, y = w.examples(k)
        clients[k] = fedjax.ClientDataset({"x": x, "y": y})

    def loss(params: hk.Params, batch: dict, rng: jnp.ndarray) -> jnp.ndarray:
        said = jax.nn.log_softmax(net.apply(params, see(batch["x"], rng)))
        return -jnp.mean(jnp.take_along_axis(said, batch["y"][:, None], 1))

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(w.CLIENT_LR),
        fedjax.optimizers.adam(w.SERVER_LR, eps=w.SERVER_EPS),
        fedjax.ShuffleRepeatBatchHParams(batch_size=w.BATCH, num_epochs=1, drop_remainder=False),
    )
    params = net.init(jax.random.PRNGKey(0), jnp.zeros((1, w.CROP, w.CROP, 3)))
    state, rng, key = algorithm.init(params), np.random.default_rng(0), jax.random.PRNGKey(1)

    def one_round() -> None:  # its algorithm does not tell the loss
        nonlocal state, key
        key, *keys = jax.random.split(key, work.cohort + 1)
        cohort = rng.choice(work.clients, work.cohort, replace=False)
        state, _ = algorithm.apply(state, [(int(k), clients[k], at) for k, at in zip(cohort, keys)])
        jax.block_until_ready(state.params)

    parameters = sum(leaf.size for leaf in jax.tree_util.tree_leaves(params))
    versions = {"fedjax": version("fedjax"), "haiku": hk.__version__, "jax": jax.__version__, "python": sys.version.split()[0]}
    w.serve(one_round, parameters, versions)


if __name__ == "__main__":
    main()
