"""A Flax network beside a built-in one: `from_flax` makes a model, which is two pure functions, of a module.

The pool `large` trains a Linen module with dropout; `train` is true in training and false in evaluation. The pool `small` trains a built-in
MLP. The two teach each other. An NNX module goes as `from_flax(lambda rngs: Net(..., rngs=rngs), shape)`.
"""

from flax import linen as nn

import fedcodist as fc
from fedcodist.models import from_flax
from fedcodist.servers import Adam
from fedcodist.tasks.toy import Toy


class Net(nn.Module):
    """A wide layer, dropout, a narrow one."""

    classes: int

    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.Dense(64)(x))
        x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(self.classes)(nn.relu(nn.Dense(16)(x)))


task = Toy(clients=20, public=400).load()
features = task.public.x.shape[1:]
models = {"small": fc.MLP((16,)).build(features, task.classes), "large": from_flax(Net(task.classes), features)}
work, server = fc.LocalSGD(lr=0.1, batch=10), Adam().optimizer()
pools = {
    name: fc.Pool(name, model, task.clients, cohort=5, work=work, server=server, lr=fc.Constant(0.02)) for name, model in models.items()
}
method = fc.MergedCodist(fc.Constant(0.7), fc.Distiller(steps=8, batch=50))

for step in fc.train(fc.Experiment(fc.Federation(task, pools), method, rounds=15)):
    if step.t % 5 == 0:
        scores = {pool: f"{metrics['all']['accuracy']:.1%}" for pool, metrics in step.evaluate("held_out").items()}
        print(f"round {step.t:2d}: held-out accuracy {scores}")
