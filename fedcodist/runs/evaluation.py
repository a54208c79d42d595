"""In which rounds the models are evaluated on held-out data."""

from __future__ import annotations

import math

from fedcodist.config import Config


def interval(config: Config) -> int:
    """Rounds between two evaluations: the config's, or as many as give about twenty evaluations."""
    return config.evaluate_every or max(1, math.ceil(config.rounds / 20))


def is_regular(config: Config, t: int) -> bool:
    """Whether round t ends an interval, or the training."""
    return t % interval(config) == 0 or t == config.rounds


def is_due(config: Config, t: int) -> bool:
    """Whether a run evaluates round t: at regular intervals, and around lessons that change a model at once."""
    return is_regular(config, t) or _is_around(config, t)


def _is_around(config: Config, t: int) -> bool:
    """Whether round t is the one before such a lesson, or one of `evaluate_after` rounds later. Without these, whether a jump
    that soon fades is seen would depend on where the regular rounds happen to fall."""
    if not config.evaluate_after or not config.method.leaps:
        return False
    names = list(config.pools)
    return any(lesson > 0 and config.method.students(names, lesson) for lesson in (t + 1, *(t - k for k in config.evaluate_after)))
