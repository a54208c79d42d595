"""Small federations for tests: one whose numbers can be worked out by hand, and one of Gaussian classes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from fedcodist.distill import Distiller
from fedcodist.engines.compiled import Compiled
from fedcodist.federation import Federation
from fedcodist.methods import FedAvg, FedDF, MergedCodist, PeriodicCodist
from fedcodist.models import MLP
from fedcodist.objective import Classify
from fedcodist.pool import Learns, Pool
from fedcodist.schedule import Constant, Linear
from fedcodist.server import Adam
from fedcodist.task import Task
from fedcodist.train import Experiment, train
from fedcodist.types import Examples, Model, Split
from fedcodist.work import LocalSGD

# -- by hand: one parameter w, logits (0, w x), so p(1) = sigmoid(w x) and the gradient of a row is (p - y) x --

SCALAR = Model(
    init=lambda key: {"w": jnp.zeros(())},
    apply=lambda params, x, key=None: jnp.stack([jnp.zeros(len(x)), params["w"] * x[:, 0]], -1),
)
ANNA = Examples(np.array([[1.0]], np.float32), np.array([1], np.int32))
BERT = Examples(np.array([[2.0]] * 3, np.float32), np.array([0] * 3, np.int32))


def scalar_federation(start_a: float = 0.0, start_b: float = 2.0, engine=None, learns: Learns | None = None, **pool) -> Federation:
    """Two pools of the scalar model, a at `start_a` and b at `start_b`, both on Anna and Bert; one public example, x = 1."""
    rows = Split(np.array([[1.0], [-1.0]], np.float32), np.array([1, 0], np.int32))
    task = Task("scalar", Classify(), {"anna": ANNA, "bert": BERT}, Examples(np.array([[1.0]], np.float32)), rows, rows, 2)
    learns = learns or Learns(lr=0.1, decay=1.0, self_weight=0.0)
    given = {"cohort": 2, "work": LocalSGD(lr=1.0, batch=3), "learns": learns} | pool
    pools = {
        name: Pool(name, SCALAR, task.clients, start={"w": jnp.float32(start)}, **given) for name, start in (("a", start_a), ("b", start_b))
    }
    return Federation(task, pools, engine=engine or Compiled(), rounds=1)


# -- Gaussian classes, ragged clients --


def rows(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    y = rng.integers(0, 3, n).astype(np.int32)
    return (rng.normal(size=(n, 4)) + 2 * np.eye(3, 4)[y]).astype(np.float32), y


def gauss_task() -> Task:
    rng = np.random.default_rng(0)
    clients = {f"c{i:02d}": Examples(*rows(rng, 3 + 2 * i)) for i in range(8)}
    splits = [Split(*rows(rng, 60), client=np.arange(60) % 4, domain=np.arange(60) % 2) for _ in range(2)]
    return Task("gauss", Classify(), clients, Examples(rows(rng, 50)[0]), *splits, classes=3, domains=("even", "odd"))


TASK = gauss_task()
WIDTHS = {"small": 4, "large": 12, "huge": 20, "third": 4}  # the third is as wide as the first: its programs are compiled already


def gauss_federation(names=("small", "large"), engine=None, topology="complete", rounds: int = 4, task: Task = TASK, **pool) -> Federation:
    """Nested pools of MLPs: every second name trains on the first half of the clients only."""
    pools = {}
    for i, name in enumerate(names):
        clients = task.clients if i % 2 == 0 else {c: task.clients[c] for c in list(task.clients)[:5]}
        given = {
            "clients": clients,
            "cohort": 3,
            "work": LocalSGD(lr=0.1, batch=4),
            "server": Adam().optimizer(),
            "lr": Linear(0.05, 0.0, over=rounds),
            "learns": Learns(lr=0.01, self_weight=0.1),
        } | pool
        width = WIDTHS.get(name, 4 + 8 * i)
        pools[name] = Pool(name, MLP((width,)).build((4,), 3), **given)
    return Federation(task, pools, topology, engine or Compiled(), rounds)


SHORT = Distiller(steps=4, batch=10)


def methods() -> dict:
    """Every method, as short as it gets."""
    return {
        "fedavg": FedAvg(),
        "periodic": PeriodicCodist(period=2, distill=SHORT),
        "merged": MergedCodist(alpha=Constant(0.5), distill=SHORT),
        "feddf": FedDF(distill=SHORT),
    }


def finish(fed: Federation, method, rounds: int = 4, seed: int = 0):
    """The last step of a run."""
    return list(train(Experiment(fed, method, rounds, seed)))[-1]


def same_bits(a, b) -> bool:
    """Whether two trees are equal to the bit."""
    import jax

    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


__all__ = ["SCALAR", "SHORT", "TASK", "finish", "gauss_federation", "methods", "same_bits", "scalar_federation"]
