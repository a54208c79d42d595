"""Server optimizers of optax: `adam` is the paper's FedAdam, with bias correction and eps 1e-5 (A13); `average` is plain FedAvg; any other
one goes by its name."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import optax

from fedcodist.settings import Problem, SettingError, check, checked, nearest, setting

Decay = Literal["linear", "none"]


@dataclass(frozen=True)
@checked
class Average:
    """Plain FedAvg: the new model is the weighted mean of the clients' models (lr = 1)."""

    kind: ClassVar[str] = "average"
    lr: float = setting(1.0, gt=0, le=1e3)  # server learning rate; 1 takes the clients' mean as it is
    decay: Decay = "none"  # whether the rate falls linearly to zero over the run

    @lru_cache
    def optimizer(self) -> optax.GradientTransformation:
        return optax.sgd(1.0)


@dataclass(frozen=True)
@checked
class Momentum:
    """FedAvgM: server SGD with momentum."""

    kind: ClassVar[str] = "momentum"
    lr: float = setting(1.0, gt=0, le=1e3)  # server learning rate
    momentum: float = setting(0.9, ge=0, lt=1)  # the fraction of the last step that is kept
    nesterov: bool = False  # Nesterov's form of momentum
    decay: Decay = "linear"  # whether the rate falls linearly to zero over the run

    @lru_cache
    def optimizer(self) -> optax.GradientTransformation:
        return optax.sgd(1.0, momentum=self.momentum, nesterov=self.nesterov)


@dataclass(frozen=True)
@checked
class Adam:
    """The paper's FedAdam: Adam with bias correction, and a learning rate that falls linearly to zero."""

    kind: ClassVar[str] = "adam"
    lr: float = setting(0.01, gt=0, le=1e3)  # server learning rate
    b1: float = setting(0.9, ge=0, lt=1)  # decay of the mean of gradients
    b2: float = setting(0.999, ge=0, lt=1)  # decay of the mean of squared gradients
    eps: float = setting(1e-5, gt=0, le=1)  # added to the root
    decay: Decay = "linear"  # whether the rate falls linearly to zero over the run

    @lru_cache
    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(1.0, b1=self.b1, b2=self.b2, eps=self.eps)


@dataclass(frozen=True)
class Optax:
    """Any other optimizer of optax by its name, e.g. `{ kind = "optax", name = "lion", args = { b1 = 0.95 } }`."""

    kind: ClassVar[str] = "optax"
    name: str  # the optimizer's name in optax
    lr: float = setting(0.01, gt=0, le=1e3)  # server learning rate
    args: dict[str, float] = field(default_factory=dict)  # the optimizer's other arguments
    decay: Decay = "linear"  # whether the rate falls linearly to zero over the run

    def __post_init__(self) -> None:
        check(self)
        makers = optax_optimizers()
        if self.name not in makers:
            allowed = f"an optimizer of optax: {', '.join(makers)}"
            raise SettingError([Problem("Optax.name", repr(self.name), allowed, nearest(self.name, makers))])
        known = inspect.signature(makers[self.name]).parameters
        unknown = [a for a in self.args if a not in known or a == "learning_rate"]
        if unknown:
            allowed = ", ".join(k for k in known if k != "learning_rate")
            raise SettingError([Problem(f"Optax.args.{a}", "an unknown key", allowed, nearest(a, known)) for a in unknown])

    def optimizer(self) -> optax.GradientTransformation:
        return _of_optax(self.name, tuple(sorted(self.args.items())))


def optax_optimizers() -> dict[str, Any]:
    """The optimizers of optax that need nothing but a learning rate and numbers."""
    makers = {name: maker for name, maker in vars(optax).items() if name.islower() and not name.startswith("_")}
    return {name: maker for name, maker in sorted(makers.items()) if _is_optimizer(maker)}


def _is_optimizer(maker: Any) -> bool:
    if not inspect.isfunction(maker):
        return False
    params = inspect.signature(maker).parameters
    required = [p.name for p in params.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return required == ["learning_rate"]


@lru_cache
def _of_optax(name: str, args: tuple[tuple[str, float], ...]) -> optax.GradientTransformation:
    return optax_optimizers()[name](learning_rate=1.0, **dict(args))
