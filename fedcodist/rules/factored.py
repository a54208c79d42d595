"""Models whose layers are a shared basis times coefficients of each width's own, as FLANC has them.

A layer's inputs are cut into groups of c channels. All groups share a basis of n filters, [3, 3, c, n] or [c, n], and coefficients, which
are [groups, n, outputs], mix what the filters see. A narrower width has fewer groups and outputs, and the same basis. The layer that gives
the logits, biases and embeddings are each width's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from fedcodist import keys
from fedcodist.types import Array, Model, Params, Spec, Tree


@dataclass(frozen=True)
class Factored:
    """`of`, factored, at these rates: a basis has `channels` of a layer's input channels, rounded to what divides them at every rate, and
    `filters` of its outputs. As a pool's model it has the coefficients of all rates, and speaks with the widest; with `only` it is one
    rate's."""

    of: Any
    rates: tuple[float, ...]
    channels: float
    filters: float
    only: float | None = None

    @lru_cache  # one model for one description: equal experiments share compiled programs
    def build(self, shape: tuple[int, ...], classes: int) -> Model:
        """For inputs of this shape."""
        wide = self.of.build(shape, classes)
        subs = {rate: wide.narrow(rate).model for rate in self.rates}
        shapes = {rate: jax.eval_shape(sub.init, keys.root(0)) for rate, sub in subs.items()}
        bases = self._bases(shapes, wide.head)
        said = self.only if self.only is not None else max(self.rates)

        def own(rate: float, key: Any) -> Params:
            found = dict(subs[rate].init(key))
            for i, (name, basis) in enumerate(sorted(bases.items())):
                groups, outputs = shapes[rate][name]["w"].shape[-2] // basis[-2], shapes[rate][name]["w"].shape[-1]
                mix = _normal(jax.random.fold_in(key, i), (groups, basis[-1], outputs), groups * basis[-1])
                found[name] = {"b": found[name]["b"], "mix": mix}
            return found

        def init(key: Any) -> Params:
            at = [jax.random.fold_in(key, i) for i in range(len(bases) + len(self.rates))]
            named = zip(at, sorted(bases.items()), strict=False)
            basis = {name: _normal(k, shape, math.prod(shape[:-1])) for k, (name, shape) in named}
            each = {rate: own(rate, k) for rate, k in zip(self.rates, at[len(bases) :], strict=True)}
            return {"basis": basis, "own": each[said] if self.only else {f"{rate:g}": of for rate, of in each.items()}}

        def apply(params: Params, x: Array, key: Any = None) -> Array:
            mine = params["own"] if self.only else params["own"][f"{said:g}"]
            return subs[said].apply(composed(params["basis"], mine), x, key)

        return Model(init, apply, spec=Spec(self, shape, classes))

    def at(self, rate: float) -> Factored:
        """One rate's."""
        return replace(self, only=rate)

    def _bases(self, shapes: dict[float, Tree], head: str) -> dict[str, tuple[int, ...]]:
        """{layer: the shape of its basis}."""
        widest, found = shapes[max(self.rates)], {}
        for name in (n for n, layer in widest.items() if isinstance(layer, dict) and n != head):
            *window, inputs, outputs = widest[name]["w"].shape
            common = math.gcd(*(of[name]["w"].shape[-2] for of in shapes.values()))
            most = max(1, round(self.channels * inputs))
            group = max(n for n in range(1, common + 1) if common % n == 0 and n <= most)
            found[name] = (*window, group, max(1, round(self.filters * outputs)))
        return found


def composed(basis: Tree, own: Params) -> Params:
    """The parameters of a network from a basis and its coefficients."""

    def layer(name: str) -> Tree:
        if name not in basis:
            return own[name]
        w = jnp.einsum("...cn,gno->...gco", basis[name], own[name]["mix"])
        return {"w": w.reshape(*w.shape[:-3], -1, w.shape[-1]), "b": own[name]["b"]}

    return {name: layer(name) for name in own}


def _normal(key: Any, shape: tuple[int, ...], fan_in: int) -> Array:
    return jax.random.truncated_normal(key, -2.0, 2.0, shape) * fan_in**-0.5
