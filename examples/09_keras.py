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
    """Two dense layers with dropout between them."""

    def network():
        layers = keras.layers
        return keras.Sequential([layers.Dense(width, activation="relu"), layers.Dropout(0.2), layers.Dense(classes)])

    return from_keras(network, shape)


experiment = fc.load("quick/toy", ['pools.large.model={ function = "__main__:build", width = 64 }', "rounds=15"])

for step in fc.train(experiment):
    if step.t % 5 == 0:
        scores = {pool: f"{metrics['all']['accuracy']:.1%}" for pool, metrics in step.evaluate("held_out").items()}
        print(f"round {step.t:2d}: held-out accuracy {scores}")
