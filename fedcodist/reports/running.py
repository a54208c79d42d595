"""`fedcodist.run`: what the command `run` does, from Python. The same run directories, resuming, comparison and report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcodist import config as configs
from fedcodist import runs, settings
from fedcodist.config import Config
from fedcodist.config.builder import assigned
from fedcodist.errors import ConfigError, Interrupted
from fedcodist.reports import compare, report, tables, verdicts
from fedcodist.reports.screen import Screen
from fedcodist.runs import batch
from fedcodist.runs.recorded import Recorded
from fedcodist.runs.trained import OpenRun, open_run
from fedcodist.settings import Problem
from fedcodist.task import Task
from fedcodist.train import Experiment


@dataclass(frozen=True, eq=False)
class Results:
    """Runs that are over, seed by seed: of each the baseline first, if there is one."""

    runs: tuple[Recorded, ...]
    report: Path

    @property
    def paths(self) -> list[Path]:
        """The run directories."""
        return [run.path for run in self.runs]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What `compare` shows, as plain tables: test accuracies, gains and costs."""
        return compare.results(list(self.runs))

    @property
    def verdicts(self) -> list[str]:
        """What the runs say of the methods, a sentence each; nothing of one method alone."""
        kinds = {run.config["method"]["kind"] for run in self.runs}
        return list(verdicts.verdicts(list(self.runs))) if len(kinds) > 1 else []

    def open(self, nth: int = -1) -> OpenRun:
        """The nth run, to use its models; by default the last one, which is of the config's own method."""
        return open_run(self.paths[nth])

    def __repr__(self) -> str:
        return tables.render(compare.display(self.rows), "table")


def arms(base: Config, twin: bool) -> list[Config]:
    """The config, after its baseline on the same seeds, clients and batches if that is wanted and another one."""
    other = configs.twin(base)
    return [other, base] if twin and other != base else [base]


def train(these: Sequence[Config], root: Path, seeds: Sequence[int], screen: Screen, task: Task, **how: Any) -> list[Recorded]:
    """Train every arm with every seed, drawn on the screen, and read the runs back."""
    paths = screen.follow(batch.perform(these, task, seeds, root, **how), [arm for _ in seeds for arm in these])
    return [runs.read(path) for path in paths]


def run(
    what: str | Path | Config | Experiment,
    out: str | Path = "runs",
    *,
    seeds: Sequence[int] | None = None,
    twin: bool = False,
    clamp: bool = False,
    strict: bool = False,
    restart: bool = False,
    profile: bool = False,
    quiet: bool = False,
    **keys: Any,
) -> Results:
    """Train a config with every seed, as `fedcodist run` does: the same call again resumes what is unfinished and skips what is done.

    `what` is a TOML file, a shipped config's name, a Config, or an experiment that was loaded from one; `seeds` are the config's or the
    experiment's, `twin` trains plain FedAvg beside it, `keys` override the config of a file, as in `rounds=2`, and `name` names the runs.
    """
    base, task, own = _config(what, keys)
    root = Path(out)
    chosen = [own] if seeds is None and own is not None else list(seeds) if seeds is not None else batch.choose_seeds(base, root)[0]
    wrong = [seed for seed in chosen if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0]
    if wrong or not chosen or len(set(chosen)) < len(chosen):
        raise ConfigError(str(Problem("seeds", settings.show(list(chosen)), "whole numbers from 0, each once")))
    if strict and (said := configs.warnings(base)):
        raise ConfigError("\n".join(said))
    how = {"clamp": clamp, "strict": strict, "restart": restart, "profile": profile}
    try:
        with Screen(quiet) as screen:
            found = train(arms(base, twin), root, chosen, screen, task or base.task.load(), **how)
    except Interrupted:
        raise KeyboardInterrupt from None  # as Python has it; every completed round is saved
    return Results(tuple(found), report.write_below(root / base.name))


def _config(what: Any, keys: dict[str, Any]) -> tuple[Config, Task | None, int | None]:
    """The config, and of an experiment its task and its seed."""
    if isinstance(what, str | Path):
        return configs.read(what, assigned(keys)), None, None
    if keys:
        raise ConfigError(str(Problem("run", f"the key {next(iter(keys))} for what is read already", "keys beside the path of a config")))
    if isinstance(what, Config):
        return what, None, None
    if isinstance(what, Experiment) and isinstance(what.config, Config):
        return what.config, what.federation.task, what.seed
    got = "an experiment made by hand" if isinstance(what, Experiment) else f"a {type(what).__name__}"
    raise ConfigError(
        str(Problem("run", got, "a path, a Config or an experiment of fedcodist.load", "fedcodist.train trains any experiment"))
    )
