"""The ranking of a study's trials, and the trials as rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedcodist.runs.session import DivergedRun
from fedcodist.tuning import dotted
from fedcodist.tuning.study import Search, Trial


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """The best first: by value, complete trials before those that were stopped, and those that failed last."""
    order = ("complete", "pruned", "diverged", "refused")
    return sorted((t for t in trials if t.state in order), key=lambda t: (order.index(t.state), -t.value, t.number))


def tried(trials: Iterable[Trial]) -> int:
    """The number of trials in a study."""
    return sum(trial.state != "lost" for trial in trials)


def winner(trials: Iterable[Trial]) -> Trial | None:
    """The complete trial with the highest mean accuracy; the first of equal ones."""
    return next((trial for trial in ranked(trials) if trial.state == "complete"), None)


def require_winner(search: Search, trials: Sequence[Trial]) -> Trial:
    """The winner; if there is none, an error that says why."""
    best = winner(trials)
    if best is None:
        failed = [trial.outcome for trial in trials if trial.outcome.failed]
        why = failed[0].failed if failed else "no trial is complete"
        cure = "; smaller learning rates are the usual cure" if any(outcome.diverged for outcome in failed) else ""
        raise DivergedRun(f"tune {search.config.method.kind}: no trial came to its end: {why}{cure}")
    return best


def winners(search: Search, trials: Sequence[Trial]) -> list[Trial]:
    """The trials that are trained again on fresh seeds: the winner, and with it the rest of the front if that is searched."""
    best = winner(trials)
    rest = front(trials) if search.objective == "pareto" else []
    return [] if best is None else [best, *(trial for trial in rest if trial.number != best.number)]


def best_first(search: Search, trials: Sequence[Trial]) -> list[Trial]:
    """The trials to show: the front if that is searched, else all by rank."""
    return front(trials) if search.objective == "pareto" else ranked(trials)


def front(trials: Iterable[Trial]) -> list[Trial]:
    """The complete trials that no other matches in every pool's accuracy and in server cost and beats in one; the cheapest first."""

    def goods(trial: Trial) -> tuple[float, ...]:
        return *(trial.outcome.accuracy[pool] for pool in sorted(trial.outcome.accuracy)), -trial.outcome.server_flops

    def beats(a: Trial, b: Trial) -> bool:
        return goods(a) != goods(b) and all(x >= y for x, y in zip(goods(a), goods(b), strict=True))

    complete = [trial for trial in trials if trial.state == "complete"]
    return sorted((t for t in complete if not any(beats(o, t) for o in complete)), key=lambda t: (t.outcome.server_flops, -t.value))


def rows(search: Search, trials: Iterable[Trial]) -> list[dict[str, Any]]:
    """Trials as flat rows: how each ended, each pool's accuracy, and every searched key."""
    keys = [key for range in search.space.values() for key in range.keys]
    found = []
    for trial in trials:
        outcome = trial.outcome
        row = {"method": search.config.method.kind, "trial": trial.number, "state": trial.state, "value": trial.value}
        row |= {f"accuracy {pool}": outcome.accuracy.get(pool) for pool in search.config.pools}
        row |= {"server_flops": outcome.server_flops, "rounds": outcome.rounds, "trained": outcome.trained}
        found.append(row | {"seconds": round(outcome.seconds, 3)} | {key: trial.get(key) for key in keys})
    return found


def parameters(search: Search, best: Trial) -> list[dict[str, Any]]:
    """Every parameter with its range, and for each key that it sets the config's value and the trial's."""
    return [
        {
            "parameter": name,
            "range": str(range),
            "was": [dotted.get(search.config, key) for key in range.keys],
            "best": [best.get(key) for key in range.keys],
        }
        for name, range in search.space.items()
    ]
