"""A Haiku network in a config: `function` names the Python function that builds it, here one of this very file.

The function is called with the shape of a row, the number of classes and all other keys of the table, and `from_haiku` makes a model of a
function of the inputs. In a file of its own, `nets.py` beside the config, its name would be "nets:build".
"""

import haiku as hk
import jax

import fedcodist as fc
from fedcodist.models import from_haiku


def build(shape, classes, width=32):
    """A wide layer with dropout in training, and a narrow one."""

    def network(x, is_training):
        x = jax.nn.relu(hk.Linear(width)(x))
        if is_training:
            x = hk.dropout(hk.next_rng_key(), 0.2, x)
        return hk.Linear(classes)(x)

    return from_haiku(network, shape)


experiment = fc.load("quick/toy", ['pools.large.model={ function = "__main__:build", width = 64 }', "rounds=15"])

for step in fc.train(experiment):
    if step.t % 5 == 0:
        scores = {pool: f"{metrics['all']['accuracy']:.1%}" for pool, metrics in step.evaluate("held_out").items()}
        print(f"round {step.t:2d}: held-out accuracy {scores}")
