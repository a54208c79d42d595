"""The 3x3 convolutions of the paper's CNN, one by one: the native kernels beside the portable form and the processor's own limit.

    python -m benches.conv [--valid] [--layers 0 1]

Everything is on one core and in turn, so that whatever else the machine does hits all alike; what counts is the best of many rounds, as a
share of the limit in the same run: a loop of independent multiply-adds on registers (fma.cpp).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

if hasattr(os, "sched_setaffinity"):  # before JAX counts the cores
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])

import jax
import jax.numpy as jnp
import numpy as np

from benches import environments, machine
from fedcodist import native
from fedcodist.models.layers import im2col3x3

BATCH, REPEATS = 20, 8  # convolutions in one program: its start must not count
LIMIT_SECONDS = 0.02


class Layer(NamedTuple):
    """A convolution of the small or the large model; `side` of its input."""

    side: int
    channels: int
    filters: int
    padding: str = "SAME"

    @property
    def flops(self) -> int:
        side = self.side - (0 if self.padding == "SAME" else 2)
        return 2 * BATCH * side * side * 9 * self.channels * self.filters

    def __str__(self) -> str:
        return f"{self.channels} -> {self.filters}, {self.side}x{self.side} {self.padding}"


LAYERS = [Layer(24, 3, 16), Layer(12, 16, 32), Layer(6, 32, 32), Layer(24, 3, 32), Layer(12, 32, 64), Layer(6, 64, 64)]
VALID = [Layer(s, c, f, "VALID") for s, c, f in [(32, 3, 16), (30, 16, 32), (14, 32, 32), (32, 3, 32), (30, 32, 64), (14, 64, 64)]]


def programs(layer: Layer, conv: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Forward, input gradient and weight gradient, each REPEATS times in one compiled program."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(BATCH, layer.side, layer.side, layer.channels)), jnp.float32)
    w = jnp.asarray(rng.normal(size=(3, 3, layer.channels, layer.filters)), jnp.float32)
    b = jnp.zeros(layer.filters)
    grad = jnp.ones_like(conv(x, w, b, layer.padding))

    def gradients(x: Any, w: Any, b: Any, grad: Any) -> Any:
        return jax.vjp(lambda *args: conv(*args, layer.padding), x, w, b)[1](grad)

    steps = {
        "forward": lambda x, w, b, grad: conv(x, w, b, layer.padding),
        "input gradient": lambda *args: gradients(*args)[0],
        "weight gradient": lambda *args: gradients(*args)[1:],
    }

    def program(step: Callable[..., Any]) -> Callable[[], Any]:
        def again(_: Any, carry: Any) -> Any:
            return jax.lax.optimization_barrier((carry[0], step(*carry[0])))

        args = (x, w, b, grad)
        run = jax.jit(lambda args: jax.lax.fori_loop(0, REPEATS, again, (args, jax.tree.map(jnp.zeros_like, step(*args))))[1])
        return lambda: jax.block_until_ready(run(args))

    return {name: program(step) for name, step in steps.items()}


def main() -> None:
    """Measure in turn, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=40, help="of everything in turn, of which the best counts (40)")
    parser.add_argument("--layers", type=int, nargs="+", help="only these, from 0")
    parser.add_argument("--valid", action="store_true", help="the layers of the 32/valid layout")
    args = parser.parse_args()
    if not native.path():
        parser.error(f"native convolutions: {native.describe()}")
    fma, why_not = machine.build_fma(environments.MADE)
    if fma is None:
        parser.error(why_not)
    runs: dict[tuple[str, str, str], Callable[[], Any]] = {}
    work: dict[tuple[str, str, str], float] = {}
    layers = VALID if args.valid else LAYERS
    for layer in [layers[i] for i in args.layers] if args.layers else layers:
        for form, conv in {"native": native.conv3x3, "portable": portable}.items():
            for name, run in programs(layer, conv).items():
                runs[str(layer), name, form], work[str(layer), name, form] = run, float(REPEATS * layer.flops)
    best, top = dict.fromkeys(runs, float("inf")), 0.0
    for turn in range(args.rounds + 1):  # the first one compiles
        for key, run in runs.items():
            best[key] = min(best[key], seconds(run)) if turn else best[key]
        top = max(top, 1e9 * machine.fma_now(fma, 1, LIMIT_SECONDS))
    print(f"{native.describe()}, limit {top / 1e9:.0f} GFLOP/s on one core\n")
    print("| convolution | | native GFLOP/s | % of the limit | portable GFLOP/s | native / portable |\n|---|---|---|---|---|---|")
    for layer, name, form in runs:
        if form == "native":
            ours, theirs = (work[layer, name, f] / best[layer, name, f] for f in ("native", "portable"))
            print(f"| {layer} | {name} | {ours / 1e9:.0f} | {ours / top:.0%} | {theirs / 1e9:.0f} | {ours / theirs:.2f} |")


def portable(x: Any, w: Any, b: Any, padding: str) -> Any:
    """The form without kernels, called like them."""
    return im2col3x3({"w": w, "b": b}, x, padding)


def seconds(run: Callable[[], Any]) -> float:
    """How long it took."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
