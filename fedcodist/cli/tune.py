"""`fedcodist tune`: search a config's rates and knobs on held-out data, the twin's with as many trials, and confirm the winners."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from fedcodist.errors import ConfigError, Interrupted
from fedcodist.reports.progress import Live

EXAMPLE = "fedcodist tune quick/toy --twin --space distillation --trials 20"
HELP = "Search a config's rates and knobs on held-out data. The same command again goes on, or shows what was found."
T = TypeVar("T")


def add(tune: Any, once: Any) -> None:
    """The flags of `tune`, besides CONFIG, --set, --clamp and --format."""
    tune.add_argument("--trials", type=int, default=30, action=once, metavar="N", help="how many, stopped ones too (default: 30)")
    tune.add_argument(
        "--space",
        default="all",
        action=once,
        metavar="SPACE",
        help="rates, distillation or all of the paper's ranges, or a TOML file of your own (default: all)",
    )
    tune.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="only parameters that match, as in '*.lr'; may be repeated"
    )
    tune.add_argument(
        "--objective",
        choices=("mean", "pareto"),
        default="mean",
        action=once,
        help="the pools' mean accuracy, or the front of each pool's accuracy and the server's cost (default: mean)",
    )
    tune.add_argument("--twin", action="store_true", help="tune plain FedAvg too, first, with as many trials, and compare the winners")
    tune.add_argument(
        "--rates-from",
        choices=("twin",),
        action=once,
        help="fix the rates to those of the tuned twin (default with --twin and a space without them)",
    )
    tune.add_argument(
        "--confirm", type=int, action=once, metavar="N", help="train the winners again on N fresh seeds (default: 3 with --twin, else 0)"
    )
    tune.add_argument("--seed", type=int, action=once, metavar="N", help="of all trials and suggestions (default: the config's first)")
    tune.add_argument("--no-prune", action="store_true", help="train every trial to its end")
    tune.add_argument(
        "--jobs", type=int, default=1, action=once, metavar="N", help="worker processes, which share the threads (default: 1)"
    )
    tune.add_argument("--workers", type=int, action=once, metavar="N", help="threads (default: one a core); changes no result")
    tune.add_argument("--out", default="studies", action=once, metavar="DIR", help="where studies are kept (default: studies)")
    tune.add_argument("--name", action=once, help="of the study's directory (default: the config's)")
    tune.add_argument("--restart", action="store_true", help="set aside what these studies have found, deleting nothing, and begin again")
    tune.add_argument("--top", type=int, default=10, action=once, metavar="N", help="trials to show (default: 10)")


def tune(args: argparse.Namespace) -> int:
    """Tune, and print what was found."""
    try:
        return _tune(args)
    except Interrupted as interrupted:
        print("interrupted: every trial that is over is saved; the same command goes on from there", file=sys.stderr)
        return interrupted.code


def _tune(args: argparse.Namespace) -> int:
    from fedcodist.cli import main
    from fedcodist.tuning import space, tune

    for flag, least in (("trials", 1), ("jobs", 1), ("top", 1), ("confirm", 0), ("seed", 0)):
        value = getattr(args, flag)
        if value is not None and not least <= value < 2**63:
            raise ConfigError(f"--{flag}: got {value}; allowed an integer >= {least}")
    base = main.read_config(args)
    seed = args.seed if args.seed is not None else (base.seeds or (0,))[0]
    search = tune.Search(base, _space(args, base), args.trials, seed, args.objective, not args.no_prune, args.clamp)
    paired = base.method.kind != "fedavg"
    for flag in ("twin", "rates_from"):
        if not paired and getattr(args, flag):
            raise ConfigError(f"--{flag.replace('_', '-')}: got it for fedavg; allowed for a method that has a twin: fedavg is the twin")
    twin = tune.twin(search)
    # A method whose rates are not searched stands on its twin's, or the twin would be the only one with tuned rates.
    fixed = paired and (args.rates_from or (args.twin and not space.federated(search.space)))
    if fixed and not space.without(search.space, twin.space):
        raise ConfigError("--rates-from: got a space that has nothing else; allowed distillation | all, or a file")
    main.prepare_jax()
    task = base.task.load()
    tune.check(search, task)  # or the method could be refused after its twin is tuned
    arms: list[tuple[Any, list[Any]]] = []
    first = best = None
    with Screen(args.quiet) as screen:
        for note in task.notes:
            screen.say(f"data: {note}")
        if args.twin:
            arms.append((twin, _study(args, twin, task, screen)))
        if fixed:
            found = arms[0][1] if arms else tune.trials(twin, args.out, task)
            best = _winner(twin, found)
            first = best if args.restart else tune.stands_on(search, twin, found, args.out) or best
            search = tune.rated(search, twin, first)
            screen.say(f"rates of {search.config.method.kind}: those of trial {first.number} of its twin")
        arms.append((search, _study(args, search, task, screen)))
        if args.twin and (more := tune.tried(arms[1][1])) > tune.tried(arms[0][1]):
            screen.say(f"{search.config.method.kind} has had {more} trials by now, and its twin gets as many")
            arms[0] = twin, _study(args, replace(twin, trials=more), task, screen)
            best = best and _winner(*arms[0])
        many = args.confirm if args.confirm is not None else 3 if args.twin else 0
        winners = [_winner(one, found) for one, found in arms]
        confirmed: list[list[Any]] = []
        if many:
            seeds = tune.fresh(seed, many)
            screen.say(f"fresh seeds: {', '.join(map(str, seeds))}")
            confirmed = _confirm(args, arms, seeds, task, screen)
    _print(args, arms, winners, confirmed, _older(search, first, best) if fixed else "")
    return 0


def _older(search: Any, first: Any, best: Any) -> str:
    if first.number == best.number:
        return ""
    return (
        f"{_label(search)} stands on the rates of trial {first.number} of its twin, with which it was begun, and trial {best.number} is "
        "better by now: a gain is not one at equal rates. Another --name tunes both afresh."
    )


def _confirm(args: argparse.Namespace, arms: Sequence[tuple[Any, list[Any]]], seeds: list[int], task: Any, screen: Screen) -> list[Any]:
    """For each arm, its winners with their outcomes by fresh seed, the best mean first."""
    from fedcodist.tuning import tune

    chosen = [tune.winners(search, found) for search, found in arms]
    configs = [trial.config for of_arm in chosen for trial in of_arm]
    outcomes = iter(screen.follow(tune.confirm(configs, seeds, args.out, jobs=args.jobs, task=task, clamp=args.clamp), "fresh seeds"))
    return [[(trial, next(outcomes)) for trial in of_arm] for of_arm in chosen]


def _space(args: argparse.Namespace, base: Any) -> Any:
    from fedcodist import settings
    from fedcodist.tuning import space

    if args.space in space.PRESETS:
        found = space.preset(base, args.space)
    elif Path(args.space).suffix == ".toml" or Path(args.space).exists():
        found = space.read(args.space, base)
    else:
        hint = settings.nearest(args.space, space.PRESETS)
        raise ConfigError(str(settings.Problem("--space", settings.show(args.space), f"{' | '.join(space.PRESETS)}, or a TOML file", hint)))
    return space.only(found, args.only)


def _study(args: argparse.Namespace, search: Any, task: Any, screen: Screen) -> list[Any]:
    from fedcodist.tuning import tune

    events = tune.run(search, args.out, jobs=args.jobs, task=task, restart=args.restart)
    return screen.follow(events, f"tune {search.config.method.kind}")


def _winner(search: Any, found: list[Any]) -> Any:
    from fedcodist.runs.session import DivergedRun
    from fedcodist.tuning import tune

    best = tune.winner(found)
    if best is None:
        failed = [trial.outcome for trial in found if trial.outcome.failed]
        why = failed[0].failed if failed else "no trial is complete"
        cure = "; smaller learning rates are the usual cure" if any(outcome.diverged for outcome in failed) else ""
        raise DivergedRun(f"tune {search.config.method.kind}: no trial came to its end: {why}{cure}")
    return best


# What is printed


def _print(args: argparse.Namespace, arms: Sequence[tuple[Any, list[Any]]], winners: list[Any], confirmed: list[Any], older: str) -> None:
    from fedcodist.reports import tables
    from fedcodist.tuning import tune

    shown = [(search, _best(search, found)[: args.top]) for search, found in arms]
    fresh = _fresh(arms, confirmed)
    if args.format == "json":
        trials = [row for search, found in shown for row in tune.rows(search, found)]
        print(json.dumps({"trials": trials, "fresh": fresh, "notes": [older] if older else []}, indent=2))
        return
    if args.format != "table":
        blocks = [tables.render([row for search, found in shown for row in tune.rows(search, found)], args.format)]
        print("\n\n".join(blocks + ([tables.render(fresh, args.format)] if fresh else [])))
        if older:
            print(f"note: {older}", file=sys.stderr)
        return
    print(tables.render([row for search, found in shown for row in _for_eyes(search, found)]))
    for (search, _), best in zip(arms, winners, strict=True):
        print(f"\n{_label(search)}: trial {best.number}" + (", the config's own values" if best.own else ""))
        print(tables.render(_parameters(search, best)))
    if fresh:
        print(f"\nThe winners on {fresh[0]['seeds']} fresh seeds, held-out data; they won on another one, which may be easier or harder")
        print(tables.render(_fresh_for_eyes(fresh)))
    if older:
        print(f"\nnote: {older}")
    print()
    for search, _ in arms:
        print(f"best: {tune.place(args.out, search.config) / tune.BEST}")
    if len(arms) > 1:
        print("\nOn the test split, on seeds that no trial has seen:")
        for search, _ in arms:
            print(shlex.join(["fedcodist", "run", str(tune.place(args.out, search.config) / tune.BEST), *["--clamp"][: search.clamp]]))
        print(shlex.join(["fedcodist", "compare", *(f"runs/{tune.tuned_name(best)}/{best.config.method.kind}" for best in winners)]))


def _best(search: Any, found: list[Any]) -> list[Any]:
    from fedcodist.tuning import tune

    return tune.front(found) if search.objective == "pareto" else tune.ranked(found)


def _label(search: Any) -> str:
    from fedcodist.reports.arms import label

    return label(search.config.method.kind)


def _for_eyes(search: Any, found: Sequence[Any]) -> list[dict[str, Any]]:
    rows = []
    for trial in found:
        row = {"method": _label(search), "trial": str(trial.number), "state": trial.state, "held-out, %": f"{100 * trial.value:.2f}"}
        row |= {pool: f"{100 * trial.outcome.accuracy[pool]:.2f}" if trial.outcome.accuracy else "" for pool in search.config.pools}
        if search.objective == "pareto":
            row["server, GFLOP"] = f"{trial.outcome.server_flops / 1e9:,.3f}"
        rows.append(row | {"rounds": str(trial.outcome.rounds), "seconds": f"{trial.outcome.seconds:.1f}"})
    return rows


def _parameters(search: Any, best: Any) -> list[dict[str, Any]]:
    from fedcodist.tuning import space

    rows = []
    for name, range in search.space.items():
        was, now = (
            ", ".join(dict.fromkeys(_number(get(key)) for key in range.keys))
            for get in (lambda key: space.get(search.config, key), best.get)
        )
        rows.append({"parameter": name, "range": str(range), "was": was, "best": now})
    return rows


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


def _fresh(arms: Sequence[tuple[Any, list[Any]]], confirmed: list[Any]) -> list[dict[str, Any]]:
    """Each arm's winners and pools on the fresh seeds, beside the value that won, and the paired gain over the twin's best."""
    from fedcodist.reports import statistics

    rows = []
    for nth, ((search, _), of_arm) in enumerate(zip(arms, confirmed, strict=False)):
        for (trial, seeds), pool in product(of_arm, search.config.pools):
            values = [_accuracy(seeds[seed], pool) for seed in sorted(seeds)]
            row = {"method": _label(search), "trial": trial.number, "pool": pool}
            row |= {"won with": trial.outcome.accuracy[pool], "seeds": len(values)}
            row |= {"accuracy": fmean(values), "spread": statistics.spread(values), "gain": None, "low": None, "high": None}
            row["failed"] = sum(bool(outcome.failed) for outcome in seeds.values())
            if nth:
                _, twin = confirmed[0][0]
                gains = [value - _accuracy(twin[seed], pool) for value, seed in zip(values, sorted(seeds), strict=True)]
                low, high = statistics.t_interval(gains) or (None, None)
                row |= {"gain": fmean(gains), "low": low, "high": high}
            rows.append(row)
    return rows


def _accuracy(outcome: Any, pool: str) -> float:
    return 0.0 if outcome.failed else outcome.accuracy[pool]


def _fresh_for_eyes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from fedcodist.reports.units import points

    told = []
    for row in rows:
        spread = "" if row["spread"] is None else f" +- {points(row['spread'])}"
        interval = "" if row["low"] is None else f" [{points(row['low'])}, {points(row['high'])}]"
        seen = {"method": row["method"], "trial": str(row["trial"]), "pool": row["pool"], "won with, %": points(row["won with"])}
        seen["fresh seeds, %"] = points(row["accuracy"]) + spread + (f" ({row['failed']} failed)" if row["failed"] else "")
        told.append(seen | {"gain, points": "" if row["gain"] is None else points(row["gain"], sign=True) + interval})
    return told


# While it works


class Screen(Live):
    """One live line a study on stderr: trials, time left, the best so far, rounds of those that run. Elsewhere a line a trial."""

    def __init__(self, quiet: bool = False):
        super().__init__(quiet, ("best", "running"), done="{task.fields[done]}", seconds=600.0)

    def follow(self, events: Generator[Any, None, T], title: str) -> T:
        """Draw all events; returns what the generator does."""
        bar, begun, before = None, time.monotonic(), 0
        running: dict[Any, tuple[int, int]] = {}
        with closing(events):  # an interrupted study ends its workers before anything else happens
            while True:
                try:
                    event = next(events)
                except StopIteration as end:
                    return end.value
                for note in event.notes:
                    self.say(f"note: {note}")
                if event.kind == "opened":
                    before = event.done
                    if self.progress is not None:
                        bar = self.progress.add_task(
                            f"{title:14}", total=event.of, completed=event.done, done=event.done, best="", running=""
                        )
                if event.kind == "round":
                    running[_which(title, event.job)] = event.t, event.job.config.rounds
                if event.kind == "over":
                    running.pop(_which(title, event.job), None)
                    left = (time.monotonic() - begun) / (event.done - before) * (event.of - event.done)
                    if self.progress is None or event.outcome.failed:
                        self.say(_line(title, event, left))
                if self.progress is not None and bar is not None:
                    part = sum(t / rounds for t, rounds in running.values())
                    said = "  ".join(f"{which}: round {t}/{rounds}" for which, (t, rounds) in running.items())
                    best = f"best {100 * event.best[0]:.1f}% (trial {event.best[1]})" if event.best else ""
                    self.progress.update(bar, completed=event.done + part, done=event.done, best=best, running=said)


def _which(title: str, job: Any) -> str:
    return f"trial {job.number}" if title.startswith("tune") else f"{job.config.method.kind} seed {job.seed}"


def _line(title: str, event: Any, left: float) -> str:
    """One training that is over."""
    outcome, rounds = event.outcome, event.job.config.rounds
    if outcome.diverged:
        how = f"diverged: {outcome.diverged}"
    elif outcome.refused:
        how = f"refused: {outcome.refused}"
    elif outcome.pruned:
        how = f"{100 * outcome.value:.1f}%, stopped in round {outcome.rounds} of {rounds}"
    else:
        how = f"{100 * outcome.value:.1f}%"
    best = f"; best {100 * event.best[0]:.1f}% (trial {event.best[1]})" if event.best else ""
    wait = f"; {_time(left)} left" if event.done < event.of else ""
    return f"{title}: {event.done} of {event.of}: {_which(title, event.job)}: {how}{best}{wait}"


def _time(seconds: float) -> str:
    """For eyes.

    >>> _time(5), _time(600), _time(20_000)
    ('5 s', '10 min', '5.6 h')
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
