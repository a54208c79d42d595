"""The paper's LSTM language model, as FedJAX builds it: embed, then `layers` times [LSTM, tanh, project back], then all tokens' logits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedcodist.models.layers import dense, dense_inits
from fedcodist.models.narrow import blocks, dense_places, narrowed, width
from fedcodist.settings import checked, setting
from fedcodist.types import Array, Model, Narrow, Spec


@dataclass(frozen=True)
@checked
class LSTM:
    """With 10,004 tokens: 1,984,348 parameters (the default), or 4,278,644 for layers 2, embed 192, hidden 140."""

    kind: ClassVar[str] = "lstm"
    widths: ClassVar[tuple[str, ...]] = ("embed", "hidden")  # the fields that a wider or narrower one multiplies
    layers: int = setting(1, ge=1, le=100)  # LSTM layers
    embed: int = setting(96, ge=1, le=10**5)  # width of the word embedding and of each layer's output
    hidden: int = setting(70, ge=1, le=10**5)  # units of the state of a layer

    @lru_cache  # one model for one description: equal experiments share compiled programs
    def build(self, shape: tuple[int, ...], classes: int) -> Model:
        """For token ids, [length], of a vocabulary of `classes` tokens."""
        built = _Build(self, classes)
        return Model(built.init, built.apply, built.features, built.narrow, Spec(self, shape, classes), "out")


@dataclass(frozen=True)
class _Build:
    lstm: LSTM
    tokens: int

    def init(self, key: Any) -> dict[str, Any]:
        embed, hidden = self.lstm.embed, self.lstm.hidden
        first, *keys = jax.random.split(key, 2 * self.lstm.layers + 2)
        names = [f"{name}{i}" for i in range(self.lstm.layers) for name in ("lstm", "project")]
        sizes = [(embed + hidden, 4 * hidden), (hidden, embed)] * self.lstm.layers
        layers = zip((*names, "out"), dense_inits(keys, [*sizes, (embed, self.tokens)]), strict=True)
        return {"embed": jax.random.truncated_normal(first, -2.0, 2.0, (self.tokens, embed)), **dict(layers)}

    def apply(self, params: Any, x: Array, key: Any = None) -> Array:
        h = params["embed"][x]  # [batch, length, embed]
        for i in range(self.lstm.layers):
            h = dense(params[f"project{i}"], jnp.tanh(_run(params[f"lstm{i}"], h, self.lstm.hidden)))
        return dense(params["out"], h)

    def features(self, params: Any, x: Array, key: Any = None) -> tuple[Array, dict[str, Array]]:
        h, seen = params["embed"][x], {}
        for i in range(self.lstm.layers):
            seen[f"lstm{i}"] = h = jnp.tanh(_run(params[f"lstm{i}"], h, self.lstm.hidden))
            seen[f"project{i}"] = h = dense(params[f"project{i}"], h)
        return dense(params["out"], h), seen

    def narrow(self, rate: float) -> Narrow:
        part = replace(self.lstm, embed=width(self.lstm.embed, rate), hidden=width(self.lstm.hidden, rate))
        tokens, embed, hidden = np.arange(self.tokens), np.arange(part.embed), np.arange(part.hidden)
        joined = np.concatenate([embed, self.lstm.embed + hidden])  # an LSTM's inputs are [x, h]
        gates = blocks(4, self.lstm.hidden, part.hidden)
        places: dict[str, Any] = {"embed": (tokens, embed), "out": dense_places(embed, tokens)}
        for i in range(part.layers):
            places |= {f"lstm{i}": dense_places(joined, gates), f"project{i}": dense_places(hidden, embed)}
        return narrowed(part.build((), self.tokens), places)


def _run(params: Any, x: Array, hidden: int) -> Array:
    """Haiku's LSTM over [batch, length, features]: gates i, g, f, o from one linear map of [x, h], forget bias +1."""
    features = x.shape[-1]
    from_x = jnp.swapaxes(dense({"w": params["w"][:features], "b": params["b"]}, x), 0, 1)  # all positions in one product
    recurrent = params["w"][features:]

    def step(carry: tuple[Array, Array], from_x: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = carry
        i, g, f, o = jnp.split(from_x + h @ recurrent, 4, -1)
        c = jax.nn.sigmoid(f + 1.0) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[0], hidden))
    return jnp.swapaxes(jax.lax.scan(step, (zero, zero), from_x)[1], 0, 1)
