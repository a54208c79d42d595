"""Settings for `reproduce` from studies of `fedcodist tune`.

    python tools/make_tuned.py images small STUDIES

STUDIES holds the studies of fedavg, periodic and merged, as `tune --name` leaves them; a method without one stays as it is. Of each
winner the rates, the weights, the temperatures and alpha go to fedcodist/configs/tuned, where `reproduce` lays them over its cells; all
trials go to docs/measured, from which `make docs` says how the settings were found. Numbers are rounded to three digits on the way: nobody
tuned more than that. A study that has fewer trials than it was asked for is told in docs/measured, and none of its settings are shipped; it
does not take the place of one whose settings are.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from fedcodist.config import toml
from fedcodist.reproduce.results import dump

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("fedavg", "periodic", "merged")
RATES = (("work", "lr"), ("server", "lr"))
TEACHING = (("learns", "lr"), ("learns", "decay"), ("learns", "self_weight"), ("teaches", "temperature"))
DIGITS = 3


def settings(best: dict[str, Any]) -> dict[str, Any]:
    """What `reproduce` lays over a cell: of the whole config of a winner only what a search may have changed."""
    teaches = best["method"]["kind"] != "fedavg"
    pools: dict[str, Any] = {}
    for name, pool in best["pools"].items():
        for part, key in (*RATES, *(TEACHING if teaches else ())):
            pools.setdefault(name, {}).setdefault(part, {})[key] = _short(pool[part][key])
    alpha = best["method"].get("alpha")
    return {"pools": pools} | ({"method": {"alpha": _short(alpha)}} if alpha is not None else {})


def _ships(key: str) -> bool:
    return key.startswith("method.alpha") or tuple(key.split(".")[2:]) in (*RATES, *TEACHING)


def _short(value: Any) -> Any:
    """With few digits, at any depth."""
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def study(place: Path) -> dict[str, Any]:
    """A study in short: its best config's settings, and what every trial came to."""
    best = tomllib.loads((place / "best.toml").read_text("utf-8"))
    rows = [json.loads(line) for line in (place / "trials.jsonl").read_text("utf-8").splitlines()]
    stored = json.loads((place / "study.json").read_text("utf-8"))
    about, asked = stored["study"], stored.get("trials")
    if asked is None:
        sys.exit(f"{place}: does not say how many trials it was asked for; the same fedcodist tune command again writes it down")
    kept = ("trial", "state", "value", "accuracy small", "accuracy large", "trained")
    searched = [key for key in rows[0] if key.startswith(("pools.", "method."))]
    if odd := [key for key in searched if not _ships(key)]:
        sys.exit(f"{place}: {odd[0]} was searched, and is nothing that `reproduce` lays over its cells")
    won = max((row for row in rows if row["state"] == "complete"), key=lambda row: row["value"])
    return {
        "rounds": best["rounds"],
        "asked": asked,
        "seed": about["seed"],
        "data": about["data"],
        "space": {name: {key: of for key, of in range.items() if of} for name, range in about["space"].items()},
        "best": won["trial"],
        "start": all(won[key] == rows[0][key] for key in searched),  # whether the best is the config as it was, tried again or not
        "settings": settings(best),
        "trials": [
            {key: _short(row[key]) for key in row if key in kept or key.startswith(("pools.", "method."))}
            | ({"pruned at round": row["rounds"]} if row["state"] == "pruned" else {})
            for row in rows
            if row["state"] != "lost"  # interrupted, and tried again
        ],
    }


def main() -> int:
    """Read the studies, write the settings and the trials."""
    if len(sys.argv) != 4:
        sys.exit((__doc__ or "").strip())
    family, budget, studies = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    found = {method: study(studies / method) for method in METHODS if (studies / method / "best.toml").is_file()}
    shipped = {method: ROOT / "fedcodist/configs/tuned" / f"{family}-{method}-{budget}.toml" for method in found}
    unfinished = {method: one for method, one in found.items() if len(one["trials"]) < one["asked"]}
    for method, one in unfinished.items():
        said = f"{method}: {len(one['trials'])} of {one['asked']} trials"
        if shipped[method].is_file():
            sys.exit(f"{said}, and settings of a complete study are shipped: nothing was written")
        print(f"{said}: no settings are shipped")
    for method in (method for method in found if method not in unfinished):
        one, path = found[method], shipped[method]
        said = f"# The best of {len(one['trials'])} trials of {one['rounds']} rounds on seed {one['seed']}, by held-out accuracy alone.\n"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{said}{toml.text(one['settings'])}\n", "utf-8")
        print(path.relative_to(ROOT))
    file = f"docs/measured/tuning-{family}-{budget}.json"
    known = json.loads((ROOT / file).read_text("utf-8"))["methods"] if (ROOT / file).is_file() else {}
    methods = {method: one for method in METHODS if (one := found.get(method) or known.get(method))}
    (ROOT / file).write_text(dump({"family": family, "budget": budget, "methods": methods}) + "\n", "utf-8")
    print(f"{file}: now run make docs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
