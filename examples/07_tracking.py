"""MLflow, Weights & Biases, or a tracker of your own: the training loop is a generator, so the body of the `for` is the callback.

`TRACK=mlflow python examples/07_tracking.py`, or `TRACK=wandb`, each of which you have to install; otherwise values are printed.
Neither needs an account or a network: try them with MLFLOW_TRACKING_URI=sqlite:///mlflow.db, and with WANDB_MODE=offline.
"""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import fedcodist as fc
from fedcodist.config import plain
from fedcodist.reports.scalars import scalars


class Tracker(Protocol):
    """From a name and a config to a function that takes the values of a round; whatever ends the loop ends the tracking."""

    def __call__(self, name: str, config: dict[str, Any]) -> AbstractContextManager[Callable[[dict[str, float], int], Any]]: ...


@contextmanager
def printed(name, config):
    print(f"{name}: {config['rounds']} rounds of {config['method']['kind']}")
    shown = ("held_out/accuracy/small", "held_out/accuracy/large", "test/accuracy/small", "test/accuracy/large")
    yield lambda values, t: print(f"round {t:2d}:", *(f"{tag} {values[tag]:.1%}" for tag in shown if tag in values))


@contextmanager
def in_mlflow(name, config):
    import mlflow

    mlflow.set_experiment("fedcodist")
    with mlflow.start_run(run_name=name):
        mlflow.log_params({"method": config["method"]["kind"], "rounds": config["rounds"]})
        yield lambda values, t: mlflow.log_metrics(values, step=t)


@contextmanager
def in_wandb(name, config):
    import wandb

    with wandb.init(project="fedcodist", name=name, config=config) as run:
        yield lambda values, t: run.log(values, step=t)


trackers: dict[str, Tracker] = {"": printed, "mlflow": in_mlflow, "wandb": in_wandb}
wanted = os.environ.get("TRACK", "")
tracker = trackers.get(wanted) or sys.exit(f"TRACK: got {wanted!r}; allowed mlflow | wandb, or none")

experiment = fc.load("quick/toy", seed=1)
with tracker("toy with seed 1", plain(experiment.config)) as log:
    for step in fc.train(experiment):
        log(scalars({"pools": step.info, "held_out": step.evaluate()}), step.t)  # {"held_out/accuracy/small": 0.7, ...}
    log(scalars({"test": step.evaluate("test")}), step.t)
