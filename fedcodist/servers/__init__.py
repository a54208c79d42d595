"""Server optimizers, each under its own name. All are optax transformations built for learning rate 1: a pool multiplies the update by
its own schedule, so that any optax optimizer fits and a restart of its state leaves the schedule alone (A29). They are cached: equal
experiments then share the compiled server step."""

from typing import Any

from fedcodist.registry import Registry
from fedcodist.schedule import Constant, Linear
from fedcodist.servers.optimizers import Adam, Average, Momentum, Optax
from fedcodist.servers.reddi import FedAdagrad, FedAdam, FedYogi
from fedcodist.types import Schedule

SERVERS = Registry("servers", Average, Momentum, Adam, FedAdam, FedYogi, FedAdagrad, Optax)

__all__ = ["SERVERS", "Adam", "Average", "FedAdagrad", "FedAdam", "FedYogi", "Momentum", "Optax", "rate"]


def rate(server: Any, rounds: int) -> Schedule:
    """The learning rate of this server over the rounds of a run."""
    return Linear(server.lr, 0.0, over=rounds) if server.decay == "linear" else Constant(server.lr)
