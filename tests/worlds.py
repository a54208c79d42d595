"""A federation for tests whose numbers can be worked out by hand; that of Gaussian classes is `fedcodist.testing`'s."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from fedcodist.distill import Distiller
from fedcodist.engines.compiled import Compiled
from fedcodist.federation import Federation
from fedcodist.methods import (
    AKD,
    DSFL,
    FD,
    HFD,
    TAKFL,
    FAug,
    FedAvg,
    FedDF,
    FedMD,
    Local,
    MergedCodist,
    PeriodicCodist,
    QuPeD,
    SteadyCodist,
)
from fedcodist.methods.digests import Digest
from fedcodist.objectives.classify import Classify
from fedcodist.pool import Learns, Pool
from fedcodist.schedule import Constant
from fedcodist.task import Task
from fedcodist.testing import TASK, finish, same_bits
from fedcodist.testing import federation as gauss_federation
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


SHORT = Distiller(steps=4, batch=10)


def methods() -> dict:
    """Every method, as short as it gets."""
    return {
        "fedavg": FedAvg(),
        "periodic": PeriodicCodist(period=2, distill=SHORT),
        "merged": MergedCodist(alpha=Constant(0.5), distill=SHORT),
        "steady": SteadyCodist(alpha=Constant(0.5), distill=SHORT),
        "feddf": FedDF(distill=SHORT),
        "takfl": TAKFL(period=2, distill=SHORT, self_temperature=2.0),
        "local_only": Local(),
        "fd": FD(),
        "fedmd": FedMD(rows=20, digest=Digest(batch=8)),
        "hfd": HFD(),
        "faug": FAug(samples=4, added=6),
        "akd": AKD(period=2, ensemble=True),
        "quped": QuPeD(bits=1, freeze=3),
        "dsfl": DSFL(rows=20, digest=Digest(batch=8, loss="kl")),
    }


__all__ = ["SCALAR", "SHORT", "TASK", "finish", "gauss_federation", "methods", "same_bits", "scalar_federation"]
