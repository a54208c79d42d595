"""Distillation losses by name: what a student is asked to match. One technique, one file."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from fedcodist import imports, settings
from fedcodist.registry import Registry
from fedcodist.settings import Problem, SettingError
from fedcodist.techniques.activations import Features, Plain, Seeing, Technique
from fedcodist.techniques.bregman import Bregman
from fedcodist.techniques.crd import CRD
from fedcodist.techniques.fitnets import FitNets
from fedcodist.techniques.functions import Loss, js, kl, mse_logits, reverse_kl
from fedcodist.techniques.hinton import Hinton
from fedcodist.techniques.subclass import Subclasses

LOSSES = Registry("losses", kl, reverse_kl, js, mse_logits, Hinton, FitNets, CRD, Subclasses, Bregman)

__all__ = [
    "CRD",
    "LOSSES",
    "Bregman",
    "Features",
    "FitNets",
    "Hinton",
    "Plain",
    "Seeing",
    "Subclasses",
    "Technique",
    "named",
    "read",
    "resolve",
    "technique",
]


def read(value: Any, path: str, problems: list[Problem]) -> Any:
    """A loss from a config: its name, "module:function", or a table with a kind and its keys."""
    if not isinstance(value, Mapping):
        return value  # the Distiller checks it
    if value == {"kind": (kind := value.get("kind"))} and isinstance(kind, str) and inspect.isfunction(LOSSES.get(kind)):
        return kind
    return settings.read_kind({kind: part for kind, part in LOSSES.items() if inspect.isclass(part)}, value, path, problems)


def named(loss: Any) -> Any:
    """A loss as a Distiller holds it: a function's name stays a name, a technique's becomes the technique. SettingError for others."""
    try:
        found = resolve(loss)
    except ValueError as error:
        allowed = f"{' | '.join(LOSSES)} | module:function"
        raise SettingError([Problem("Distiller.loss", repr(loss), allowed, str(error))]) from None
    return found if isinstance(found, Technique) else loss


def technique(loss: Any) -> Technique:
    """Any loss as a technique: its name, "module:function", a function or a technique."""
    found = resolve(loss)
    if isinstance(found, Technique):
        return found
    return Seeing(found) if "features" in inspect.signature(found).parameters else Plain(found)


def resolve(loss: Any) -> Loss | Technique:
    """A loss by its name, by "module:function", or itself. ValueError, if it names none."""
    if not isinstance(loss, str):
        return loss
    if loss in LOSSES:
        found: Any = LOSSES[loss]
        return typing.cast(Loss | Technique, found() if inspect.isclass(found) else found)
    return imports.function(loss) if all(loss.partition(":")) else _unknown(loss)


def _unknown(loss: str) -> Any:
    raise ValueError(settings.nearest(loss, LOSSES))
