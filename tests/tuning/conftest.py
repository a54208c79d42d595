"""A small config, the command line on it, and trainings that are made up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tuned import TEXT

from fedcodist import config
from fedcodist.cli import tune as tune_cli
from fedcodist.cli.arguments import Parser
from fedcodist.errors import Failure
from fedcodist.tuning import trial


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def base(file) -> config.Config:
    return config.read(file)


@pytest.fixture
def read(file):
    return lambda *assignments: config.read(file, assignments)


@pytest.fixture
def call(capsys, file, tmp_path):
    """`fedcodist tune small.toml ...`: (exit code, stdout, stderr)."""

    def call(*argv: object, config: Path = file) -> tuple[int, str, str]:
        parser = Parser(prog="fedcodist tune")
        parser.add_argument("config")
        parser.add_argument("--set", action="append", default=[])
        parser.add_argument("--clamp", action="store_true")
        parser.add_argument("--format", default="table")
        parser.add_argument("--quiet", action="store_true")
        tune_cli.add(parser)
        try:
            code = tune_cli.run(parser.parse_args([str(config), "--out", str(tmp_path / "out"), *map(str, argv)]))
        except Failure as failure:
            code = failure.code
            print("\n".join(f"error: {line}" for line in failure.lines), file=sys.stderr)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def pretend(monkeypatch):
    """Trainings whose accuracy in round t is `accuracy(config, t)`, of all pools or of each; a negative one diverges. Counts rounds."""

    def pretend(accuracy):
        trained = []

        def perform(job, task):
            curve = []
            for t in range(1, job.config.rounds + 1):
                value = accuracy(job.config, t)
                value = value if isinstance(value, dict) else dict.fromkeys(job.config.pools, value)
                if min(value.values()) < 0:
                    return trial.Outcome(curve, t, t, 0.1, diverged=f"the server model of pool small is not finite in round {t}")
                trained.append(job.number)
                curve.append((t, value))
                if (yield trial.Report(t, curve[-1][1])) and t < job.config.rounds:
                    return trial.Outcome(curve, t, t, 0.1, pruned=True)
            steps = job.config.method.distill.steps if job.config.method.distill else 0
            return trial.Outcome(curve, job.config.rounds, job.config.rounds, 0.1, server_flops=float(steps))

        monkeypatch.setattr(trial, "perform", perform)
        return trained

    return pretend
