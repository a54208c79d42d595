"""A distillation loss of your own, and who teaches whom by hand.

Three pools: `watch` and `phone` learn from the `laptop` three times as much as from each other, and nobody teaches the laptop. The loss
compares the square roots of probabilities (the squared Hellinger distance), which caps how much one confident mistake can cost.
"""

import jax
import jax.numpy as jnp

import fedcodist as fc
from fedcodist.servers import Adam
from fedcodist.tasks.toy import Toy


def hellinger(target, logits):
    """Any function of the target's and the student's logits, one number a prediction: [..., classes] -> [...]."""
    # exp(log_softmax / 2), not sqrt(softmax): the gradient of a square root at zero is infinite
    p, q = (jnp.exp(jax.nn.log_softmax(z) / 2) for z in (target, logits))
    return 0.5 * jnp.sum((p - q) ** 2, -1)


topology = {"watch": {"laptop": 3, "phone": 1}, "phone": {"laptop": 3, "watch": 1}}  # {student: {teacher: weight}}; brought to sum 1
task = Toy(clients=20, public=400).load()
everyone = list(task.clients)
pools = {}
for name, width, owners in (("watch", 4, everyone), ("phone", 16, everyone[:12]), ("laptop", 64, everyone[:6])):
    pools[name] = fc.Pool(
        name,
        fc.MLP((width,)).build(task.public.x.shape[1:], task.classes),
        task.clients.only(owners),
        cohort=4,
        work=fc.LocalSGD(lr=0.1, batch=10),
        server=Adam().optimizer(),
        lr=fc.Constant(0.02),
    )
fed = fc.Federation(task, pools, topology)
print("who teaches whom:", fed.table)

for method in (fc.FedAvg(), fc.MergedCodist(fc.Constant(0.7), fc.Distiller(steps=8, batch=50, loss=hellinger))):
    *_, last = fc.train(fc.Experiment(fed, method, rounds=15))
    scores = {pool: f"{metrics['all']['accuracy']:.1%}" for pool, metrics in last.evaluate("held_out").items()}
    print(f"{method.kind}: held-out accuracy {scores}")
    for pool, seen in last.info.items():
        if "agreement" in seen:
            agreed = ", ".join(f"{teacher} {100 * after:.0f} %" for teacher, (_before, after) in seen["agreement"].items())
            print(f"  {pool} guesses like its teachers: {agreed}")
