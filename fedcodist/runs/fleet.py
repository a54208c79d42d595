"""What a federation asks of each class of devices, before anything is trained: bytes, operations, memory, seconds, and who can take part.

Bytes and operations are those that `cost` counts on the programs themselves. A device computes at a share of its peak, and gives a share of
its memory; it can carry a model if training fits into that memory and a round ends before the deadline. Memory is counted, not measured:
the parameters three times (as sent, as trained, and their gradient), what the backward pass keeps of a batch, and the client's data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax

from fedcodist import native, tree
from fedcodist.clients import sizes
from fedcodist.errors import ConfigError
from fedcodist.federation import Federation
from fedcodist.pool import Pool
from fedcodist.runs import cost
from fedcodist.runs.devices import Device
from fedcodist.train import Experiment
from fedcodist.types import Method

RATES = tuple(2.0**power for power in range(-2, 11))  # of every width of the largest pool's model, up to one that nobody can carry


@dataclass(frozen=True)
class Assumed:
    """What is assumed of every device."""

    efficiency: float = 0.1  # the share of its peak at which it trains
    memory: float = 0.25  # the share of its memory that training may use
    deadline: float = 600.0  # seconds that a round may take

    def __post_init__(self) -> None:
        for flag, value, most in (("efficiency", self.efficiency, 1), ("memory-share", self.memory, 1), ("deadline", self.deadline, 1e9)):
            if not 0 < value <= most:
                raise ConfigError(f"--{flag}: got {value:g}; allowed a number > 0 and <= {most:g}")


@dataclass(frozen=True)
class Demand:
    """What a pool asks of one client in a round."""

    parameters: int
    bytes_down: float
    bytes_up: float
    flops: float
    memory_bytes: float

    def seconds(self, device: Device, assumed: Assumed) -> float:
        """How long a round takes there: its link down, its training, its link up."""
        training = self.flops / (assumed.efficiency * device.gflops * 1e9)
        return training + 8e-6 * (self.bytes_down / device.down_mbps + self.bytes_up / device.up_mbps)

    def obstacle(self, device: Device, assumed: Assumed) -> str:
        """Why the device cannot carry it: "memory", "time", or nothing."""
        if self.memory_bytes > assumed.memory * device.memory_mb * 2**20:
            return "memory"
        return "time" if self.seconds(device, assumed) > assumed.deadline else ""


def fleet(experiment: Experiment, devices: Sequence[Device], assumed: Assumed) -> dict[str, Any]:
    """{pools, devices, sizes, server, assumed}: rows for each pool, each device in each pool, each further size, and the server's needs."""
    fed, rounds = experiment.federation, experiment.rounds
    everyone = len(set().union(*(pool.ids for pool in fed.pools.values())))
    usual = cost.of_average(fed, experiment.method, 1)
    demands = {name: _demand(fed, experiment.method, name, usual) for name in fed.names}
    pools, seats = [], []
    for name in fed.names:
        pool, demand = fed.pools[name], demands[name]
        turns = rounds * pool.cohort / len(pool.clients)
        able = _able(demand, devices, assumed)
        pools.append(
            {
                "pool": name,
                **asdict(demand),
                "rounds_of_a_client": turns,
                "share_of_clients": len(pool.clients) / everyone,
                "share_of_devices": math.fsum(device.share for device in able),
                "round_seconds": max((demand.seconds(device, assumed) for device in able), default=None),
            }
        )
        seats += [_seat(device, name, demand, turns, assumed) for device in devices]
    return {
        "pools": pools,
        "devices": seats,
        "sizes": _sizes(fed, devices, assumed),
        "server": _server(experiment),
        "assumed": asdict(assumed),
    }


def _seat(device: Device, pool: str, demand: Demand, turns: float, assumed: Assumed) -> dict[str, Any]:
    """What a device would have to do in a pool."""
    seconds, obstacle = demand.seconds(device, assumed), demand.obstacle(device, assumed)
    return {
        "device": device.device,
        "share": device.share,
        "pool": pool,
        "carries": not obstacle,
        "obstacle": obstacle,
        "seconds_a_round": seconds,
        "memory_bytes": demand.memory_bytes,
        "bytes_in_all": turns * (demand.bytes_down + demand.bytes_up),
        "flops_in_all": turns * demand.flops,
        "hours_in_all": turns * seconds / 3600,
    }


def _able(demand: Demand, devices: Sequence[Device], assumed: Assumed) -> list[Device]:
    """The devices that there are and that can carry it."""
    return [device for device in devices if device.share and not demand.obstacle(device, assumed)]


def _demand(fed: Federation, method: Method, name: str, usual: dict[str, Any]) -> Demand:
    pool, size = fed.pools[name], cost.parameters(fed)[name]
    moved, flops = usual["client_bytes"][name] / pool.cohort, usual["client_flops"][name] / pool.cohort
    return Demand(size, moved / 2, moved / 2, flops, memory_bytes(fed, pool))


def memory_bytes(fed: Federation, pool: Pool) -> float:
    """What training takes on a device of an average client: see the module."""
    rows = fed.task.held_out
    batch = getattr(pool.work, "batch", 1)
    x, y = (jax.ShapeDtypeStruct((batch, *a.shape[1:]), a.dtype) for a in (rows.x, rows.y))
    params = pool.shapes
    objective, model = fed.task.objective, pool.model

    def kept(params: Any, x: Any, y: Any) -> Any:
        return jax.vjp(lambda p: objective.loss(model.apply(p, objective.inputs(x), None), y).sum(), params)[1]

    with native.portable():
        residuals = jax.tree.leaves(jax.eval_shape(kept, params, x, y))
    examples = sizes(pool.clients)
    average = sum(examples.values()) / max(len(examples), 1)
    row = sum(math.prod(a.shape[1:]) * a.dtype.itemsize for a in (x, y))
    return 3 * 4 * tree.size(params) + sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in residuals) + average * row


def _sizes(fed: Federation, devices: Sequence[Device], assumed: Assumed) -> list[dict[str, Any]]:
    """The largest pool's model at other widths, if it is one of this package: what it would ask of a client, and of whom it can be asked.
    Worth trying are the sizes that no larger one with the same reach makes pointless."""
    largest = fed.pools[fed.names[-1]]
    part = largest.model.spec.part if largest.model.spec else None
    if not getattr(part, "widths", ()):
        return []
    found = []
    for rate in RATES:
        model = scaled(part, rate).build(largest.model.spec.shape, largest.model.spec.classes)  # type: ignore[union-attr]
        pool = Pool(largest.name, model, largest.clients, largest.cohort, largest.work)
        only = replace(fed, pools={pool.name: pool}, topology="none")
        flops = cost.training_flops(only, pool.name) * getattr(pool.work, "epochs", 1) * _mean(sizes(pool.clients).values())
        size = tree.size(pool.shapes)
        demand = Demand(size, 4.0 * size, 4.0 * size, flops, memory_bytes(only, pool))
        able = _able(demand, devices, assumed)
        slowest = max((demand.seconds(device, assumed) for device in able), default=None)
        reach = math.fsum(device.share for device in able)
        found.append({"rate": rate, **asdict(demand), "share_of_devices": reach, "round_seconds": slowest})
        if not able:
            break
    for row, wider in zip(found, [*found[1:], None], strict=True):
        row["worth_trying"] = row["share_of_devices"] > (wider["share_of_devices"] if wider else 0.0)
    return found


def scaled(part: Any, rate: float) -> Any:
    """A model's description with this share of every width.

    >>> from fedcodist.models import CNN
    >>> scaled(CNN(), 2.0).filters
    (32, 64, 64)
    """

    def times(width: Any) -> Any:
        return tuple(map(times, width)) if isinstance(width, tuple) else math.ceil(rate * width)

    return replace(part, **{name: times(getattr(part, name)) for name in part.widths})


def _server(experiment: Experiment) -> dict[str, Any]:
    """Operations and memory of the server: models with their optimizers' states, and the students of a distillation with Adam's."""
    fed, method = experiment.federation, experiment.method
    expected = cost.expected(fed, method, experiment.rounds)
    students = sum(cost.parameters(fed).values()) if method.distill is not None else 0
    return {
        "flops": sum(expected["server_flops"].values()),
        "distillation_steps": expected["server_steps"],
        "public_rows_a_lesson": method.distill.steps * method.distill.batch if method.distill is not None else 0,
        "memory_bytes": 4 * (3 * sum(cost.parameters(fed).values()) + 3 * students),
        "bytes_in_and_out": sum(expected["client_bytes"].values()),
    }


def _mean(values: Any) -> float:
    values = list(values)
    return sum(values) / max(len(values), 1)
