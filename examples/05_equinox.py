"""An Equinox network beside a built-in one: its arrays are the parameters, and all else is set aside once with `eqx.partition`.

The pool `large` trains an Equinox module, the pool `small` a built-in MLP, and the two teach each other.
"""

import equinox as eqx
import jax

import fedcodist as fc
from fedcodist import keys
from fedcodist.servers import Adam
from fedcodist.tasks.toy import Toy


class Net(eqx.Module):
    """Two hidden layers with a layer norm between them; made for one example, as is the way of Equinox."""

    first: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    rest: eqx.nn.MLP

    def __init__(self, features, classes, key):
        a, b = jax.random.split(key)
        self.first = eqx.nn.Linear(features, 32, key=a)
        self.norm = eqx.nn.LayerNorm(32)
        self.rest = eqx.nn.MLP(32, classes, width_size=32, depth=1, key=b)

    def __call__(self, x):
        return self.rest(self.norm(jax.nn.relu(self.first(x))))


def equinox_model(make):
    """A Model from `make(key)`, which gives an Equinox module."""
    static = eqx.partition(make(keys.root(0)), eqx.is_inexact_array)[1]  # what is no parameter: activations, sizes

    def init(key):
        return eqx.partition(make(key), eqx.is_inexact_array)[0]

    def apply(params, x, key=None):
        return jax.vmap(eqx.combine(params, static))(x)

    return fc.Model(init, apply)


task = Toy(clients=20, public=400).load()
(features,), classes = task.public.x.shape[1:], task.classes
models = {"small": fc.MLP((16,)).build((features,), classes), "large": equinox_model(lambda key: Net(features, classes, key))}
work, server = fc.LocalSGD(lr=0.1, batch=10), Adam().optimizer()
pools = {
    name: fc.Pool(name, model, task.clients, cohort=5, work=work, server=server, lr=fc.Constant(0.02)) for name, model in models.items()
}
method = fc.MergedCodist(fc.Constant(0.7), fc.Distiller(steps=8, batch=50))

for step in fc.train(fc.Experiment(fc.Federation(task, pools), method, rounds=15)):
    if step.t % 5 == 0:
        scores = {pool: f"{metrics['all']['accuracy']:.1%}" for pool, metrics in step.evaluate("held_out").items()}
        print(f"round {step.t:2d}: held-out accuracy {scores}")
