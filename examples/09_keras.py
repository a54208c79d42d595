"""A Keras network in a config: `function` names the Python function that builds it, here one of this very file.

Keras must run on JAX, which KERAS_BACKEND says before it is imported. Dropout draws by the key of each step. Layers with state that
training changes, such as BatchNormalization, are refused; GroupNormalization takes their place.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras

import fedcodist as fc
from fedcodist.models import from_keras


def build(shape, classes, width=32):
    """Two dense layers, a normalisation and dropout between them."""

    def network():
        layers = keras.layers
        between = [layers.Dense(width, activation="relu"), layers.GroupNormalization(4), layers.Dropout(0.2)]
        return keras.Sequential([keras.Input(shape), *between, layers.Dense(classes)])

    return from_keras(network, shape)


experiment = fc.load("quick/toy", ['pools.large.model={ function = "__main__:build", width = 64 }', "rounds=15"])

for step in fc.train(experiment):
    if step.t % 5 == 0:
        scores = {pool: f"{metrics['all']['accuracy']:.1%}" for pool, metrics in step.evaluate("held_out").items()}
        print(f"round {step.t:2d}: held-out accuracy {scores}")
