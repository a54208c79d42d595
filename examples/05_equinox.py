"""An Equinox network beside a built-in one: `from_equinox` makes a model of a function of a key that gives a module.

The pool `large` trains an Equinox module, whose floating-point arrays are its parameters; the pool `small` trains a built-in MLP, and the
two teach each other.
"""

import equinox as eqx
import jax

import fedcodist as fc
from fedcodist.models import from_equinox
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


task = Toy(clients=20, public=400).load()
(features,), classes = task.public.x.shape[1:], task.classes
models = {"small": fc.MLP((16,)).build((features,), classes), "large": from_equinox(lambda key: Net(features, classes, key))}
work, server = fc.LocalSGD(lr=0.1, batch=10), Adam().optimizer()
pools = {
    name: fc.Pool(name, model, task.clients, cohort=5, work=work, server=server, lr=fc.Constant(0.02)) for name, model in models.items()
}
method = fc.MergedCodist(fc.Constant(0.7), fc.Distiller(steps=8, batch=50))

for step in fc.train(fc.Experiment(fc.Federation(task, pools), method, rounds=15)):
    if step.t % 5 == 0:
        scores = {pool: f"{metrics['all']['accuracy']:.1%}" for pool, metrics in step.evaluate("held_out").items()}
        print(f"round {step.t:2d}: held-out accuracy {scores}")
