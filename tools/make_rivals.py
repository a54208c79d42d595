"""Settings for the rows of `fedcodist reproduce rivals`, from short studies of equal length on held-out data.

    python tools/make_rivals.py configs BUDGET STUDIES [--rounds N] [--trials N]
    python tools/make_rivals.py settings BUDGET STUDIES

The first writes the config of each row to STUDIES/configs and prints the `fedcodist tune` command of each: the same number of trials and
rounds, the same seed (100, which no table uses), and the rates of clients and server alone, for all rows alike. The second takes the
best of each study that is complete to fedcodist/configs/tuned, where `reproduce rivals` lays it over the row. Rows that are tuned already
with the paper's tables (fedavg, periodic, merged) are left out.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from fedcodist.config import plain, toml
from fedcodist.reproduce import rivals
from fedcodist.reproduce.budgets import BUDGETS
from tools import make_tuned

SEARCHED = ("*.work.lr", "*.server.lr")


def rows(budget: str) -> list[rivals.Row]:
    """Those that are there and have no study of their own with the paper's tables."""
    family = BUDGETS[budget].families[rivals.FAMILY]
    return [row for row in rivals.ROWS if row.there and row.name not in family.methods]


def configs(budget: str, place: Path, rounds: int, trials: int) -> list[str]:
    """Write the configs; the commands."""
    spent = BUDGETS[budget]
    (place / "configs").mkdir(parents=True, exist_ok=True)
    commands = []
    for row in rows(budget):
        made, _ = rivals.made_of(spent, spent.families[rivals.FAMILY], row)
        file = place / "configs" / f"{row.name}.toml"
        file.write_text(toml.text(plain(replace(made, rounds=rounds, name=row.name, seeds=(rivals.TUNED_ON,)))) + "\n", "utf-8")
        only = " ".join(f"--only '{pattern}'" for pattern in SEARCHED)
        commands.append(f"fedcodist tune {file} --space rates {only} --trials {trials} --seed {rivals.TUNED_ON} --out {place}")
    return commands


def settings(budget: str, place: Path) -> list[Path]:
    """The files that were written."""
    spent, written = BUDGETS[budget], []
    for row in rows(budget):
        if not (place / row.name / "best.toml").is_file():
            continue
        one = make_tuned.study(place / row.name)
        if len(one["trials"]) < one["asked"]:
            print(f"{row.name}: {len(one['trials'])} of {one['asked']} trials: no settings are shipped")
            continue
        pools = {name: {part: pool[part] for part in ("work", "server")} for name, pool in one["settings"]["pools"].items()}
        path = rivals.tuned_file(spent, spent.families[rivals.FAMILY], row.name)
        said = f"# The best of {len(one['trials'])} trials of {one['rounds']} rounds on seed {one['seed']}, by held-out accuracy alone.\n"
        path.write_text(f"{said}{toml.text({'pools': pools})}\n", "utf-8")
        written.append(path)
    return written


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("configs", "settings"))
    parser.add_argument("budget", choices=tuple(BUDGETS))
    parser.add_argument("studies", type=Path)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--trials", type=int, default=8)
    args = parser.parse_args()
    found = configs(args.budget, args.studies, args.rounds, args.trials) if args.what == "configs" else settings(args.budget, args.studies)
    print("\n".join(map(str, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
