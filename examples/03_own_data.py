"""Your own data, without writing code for it: one .npz file with a row for each example, and a config that names it.

The columns are x, y, client and, if there are any, domain. Whole clients are set aside as public data (whose labels are dropped), for
held-out accuracy and for the test. Here the file is made up: 40 sensors in two places, of which one reads systematically higher.
"""

import tempfile
from pathlib import Path

import numpy as np

import fedcodist as fc

CONFIG = """
rounds = 20
task   = { kind = "arrays", path = "DIR/sensors.npz", public = 0.3, held_out = 0.2, test = 0.1 }

[pools.watch]
model   = { kind = "mlp", hidden = [4] }
cohort  = 5
work    = { kind = "local_sgd", lr = 0.1, batch = 10 }
server  = { kind = "adam", lr = 0.02 }

[pools.phone]
like    = "watch"
model   = { kind = "mlp", hidden = [32] }
clients = { take = 6 }          # few people have the better device

[method]
kind    = "merged"
alpha   = 0.7
distill = { steps = 8, batch = 32 }
"""

rng = np.random.default_rng(0)
n = 40 * 25
y, client = rng.integers(0, 3, n), np.repeat(np.arange(40), 25)
place = np.where(client % 2 == 0, "indoors", "outdoors")
x = rng.normal(size=(n, 5)) + 3 * np.eye(3, 5)[y] + (place == "outdoors")[:, None]

with tempfile.TemporaryDirectory() as directory:
    np.savez(Path(directory) / "sensors.npz", x=x.astype(np.float32), y=y, client=client, domain=place)
    config = Path(directory) / "sensors.toml"
    config.write_text(CONFIG.replace("DIR", directory))
    experiment = fc.load(config, seed=1)

task = experiment.federation.task
print(f"{len(task.clients)} clients, {len(task.public.x)} public rows, domains {', '.join(task.domains)}; notes: {'; '.join(task.notes)}")
*_, last = fc.train(experiment)
for pool, metrics in last.evaluate("held_out").items():
    print(f"{pool}: held-out accuracy " + ", ".join(f"{domain} {m['accuracy']:.1%}" for domain, m in metrics.items()))
