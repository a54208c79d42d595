"""Networks of a user's own, as a config names them: of every library with dropout, with batch normalisation if asked, and broken ones."""

from __future__ import annotations

import os

import jax.numpy as jnp

from fedcodist import Model, models


def linen(shape, classes, norm=False):
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.relu(nn.Dense(6)(x))
            x = nn.BatchNorm(use_running_average=not train)(x) if norm else x
            return nn.Dense(classes)(nn.Dropout(0.5, deterministic=not train)(x))

    return models.from_flax(Net(), shape)


def nnx(shape, classes, norm=False):
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.last = nnx.Linear(*shape, 6, rngs=rngs), nnx.Linear(6, classes, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)
            self.norm = nnx.BatchNorm(6, rngs=rngs) if norm else None

        def __call__(self, x):
            x = nnx.relu(self.first(x))
            return self.last(self.drop(x if self.norm is None else self.norm(x)))

    return models.from_flax(lambda rngs: Net(rngs), shape)


def equinox(shape, classes, norm=False):
    import equinox as eqx

    class Net(eqx.Module):
        net: eqx.nn.MLP
        drop: eqx.nn.Dropout
        norm: eqx.nn.BatchNorm | None

        def __init__(self, key):
            self.net, self.drop = eqx.nn.MLP(*shape, classes, 6, 1, key=key), eqx.nn.Dropout(0.5)
            self.norm = eqx.nn.BatchNorm(classes, "batch", mode="batch") if norm else None

        def __call__(self, x, key):
            return self.net(self.drop(x, key=key))

    return models.from_equinox(Net)


def haiku(shape, classes, norm=False):
    import haiku as hk

    def net(x, is_training):
        x = hk.Linear(6)(x)
        x = hk.BatchNorm(True, True, 0.9)(x, is_training) if norm else x
        return hk.Linear(classes)(hk.dropout(hk.next_rng_key(), 0.5, x) if is_training else x)

    return models.from_haiku(net, shape)


def keras(shape, classes, norm=False):
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    of = keras.layers
    return models.from_keras(
        lambda: keras.Sequential([of.Dense(6), *([of.BatchNormalization()] if norm else []), of.Dropout(0.5), of.Dense(classes)]), shape
    )


def linear(shape, classes, outputs=0, dtype="float32", scale=1.0):
    def init(key):
        return {"w": jnp.zeros((*shape, outputs or classes), dtype)}

    return Model(init, lambda params, x, key=None: scale * x @ params["w"])


def fails(shape, classes, when):
    if when == "building":
        raise RuntimeError("no way\nat all")

    def apply(params, x, key=None):
        assert key is None, "not in training"
        return x @ params["w"]

    return linear(shape, classes)._replace(apply=apply)


def nothing(shape, classes):
    return None
