"""The systems that codistillation is compared with, as cells like those of the paper's tables: same clients, seeds, rounds and cohorts.

Three parts: `global`, accuracy on the global test; `personal`, models that live at clients, on each client's own data; and `inside`, a rule
within pools with MergedCodist between them, beside each of the two alone. A row whose method or rule is not there is left out. Rates are
those that were tuned for FedAvg, unless `configs/tuned` has a file `rivals-ROW-BUDGET.toml`, which tools/make_rivals.py writes from short
studies of equal length on held-out data. Deliberately absent: what is shown of it (`rival_sections`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedcodist import config, settings
from fedcodist.config import toml
from fedcodist.methods import METHODS
from fedcodist.reports.compare import QUARTILES
from fedcodist.reproduce import cells, paper
from fedcodist.reproduce.budgets import Budget, Family, spent_on
from fedcodist.reproduce.cells import Cell
from fedcodist.rules import RULES

FAMILY, TUNED_ON = "images", 100  # the seed of all tuning, which no table uses
PARTS = ("global", "personal", "inside")
HALF = 0.5  # the width of the small model, as a share of the large one's
PERSONAL = {"held_out": 0.1, "test": 0.2}  # shares of each client's examples
Pools = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A system. `method` is the kind of a family's method that its settings begin with, `over` what it has instead."""

    name: str
    says: str
    method: str = "fedavg"
    over: Callable[[Pools, Setup], Any] = lambda pools, setup: None  # changes the pools, and may give a table of the method
    part: str = "global"
    needs: tuple[tuple[Mapping[str, Any], str], ...] = ()  # (registry, kind)
    heavy: bool = False  # more than 15 minutes a run at the paper's length: one seed
    alone: tuple[str, str] = ("", "")  # of `inside`: the rows of the rule alone and of MergedCodist alone

    @property
    def there(self) -> bool:
        """Whether all that it needs is installed."""
        return all(kind in registry for registry, kind in self.needs)


@dataclass(frozen=True)
class Setup:
    """What rows are made from: how many clients carry the large model, and the distillations of the family's methods."""

    carriers: int
    period: int
    rare: Mapping[str, Any]  # PeriodicCodist's distillation
    often: Mapping[str, Any]  # MergedCodist's


def all_cells(budget: Budget) -> list[Cell]:
    """A cell for each row that is there."""
    return [_cell(budget, row) for row in ROWS if row.there]


def missing() -> list[str]:
    """The rows that are not there."""
    return [row.name for row in ROWS if not row.there]


def seen(run: Any, cell: Cell) -> Any:
    """A run whose models have the names of the pools that they stand for, and whose accuracies on clients' own data stand beside the
    global ones, as domains."""
    if not cell.rival or not isinstance(run.result, dict):
        return run
    names, result = {of: pool for pool, of in cell.rival["models"].items()}, dict(run.result)
    for split in ("test", "held_out"):
        told = {names.get(model, model): dict(domains) for model, domains in (result.get(split) or {}).items()}
        for pool, domains in (result.get(f"personal_{split}") or {}).items():
            own = domains.get("all", {})
            of = told.setdefault(names.get(pool, pool), {})
            for what, domain in {"accuracy": "personal", **{q: f"personal {q}" for q in QUARTILES}}.items():
                of[domain] = {"accuracy": own.get(f"personal_{what}")}
        result[split] = told
    return replace(run, result=result)


def _cell(budget: Budget, row: Row) -> Cell:
    family = budget.families[FAMILY]
    column = family.balanced or family.central
    made, tuned = made_of(budget, family, row)
    twin = {"global": "fedavg", "personal": "local", "inside": "fedavg"}[row.part]
    models = {pool: pool if pool in made.pools else f"large@{HALF:g}" for pool in paper.POOLS}
    parts = [made.method, *(pool.rule for pool in made.pools.values())]
    seeds = spent_on(family, budget).seeds
    return Cell(
        id=f"{FAMILY}/{row.name}/{column}",
        family=FAMILY,
        row=row.name,
        method=made.method.kind,
        column=column,
        public="" if made.method.distill is None else "in-domain",
        clients=family.columns[column],
        config=made,
        seeds=seeds[:1] if row.heavy else seeds,
        rank=PARTS.index(row.part) + 3 * row.heavy,
        twin="" if row.name == twin else f"{FAMILY}/{twin}/{column}",
        tuned=tuned,
        rival={
            "says": row.says,
            "part": row.part,
            "models": models,
            "consumes": list(dict.fromkeys(what for part in parts for what in part.consumes)),
            "secure": all(part.secure for part in parts),
            "own_settings": row.name in family.methods or tuned_file(budget, family, row.name).is_file(),
            "alone": [f"{FAMILY}/{name}/{column}" for name in row.alone if name],
        },
    )


def made_of(budget: Budget, family: Family, row: Row) -> tuple[config.Config, bool]:
    """The config of a row, and whether settings were tuned for it."""
    column = family.balanced or family.central
    rare, often = (config.read(family.config, [*family.given, f"method={family.methods[m]}"]).method for m in ("periodic", "merged"))
    setup = Setup(family.columns[column], rare.period, settings.plain(rare.distill), settings.plain(often.distill))
    plain, tuned = cells.configured(budget, FAMILY, family, row.method, cells.take_clients(family, column))
    pools, method = settings.plain(plain)["pools"], settings.plain(plain)["method"]
    method = row.over(pools, setup) or method
    given = [*family.given, f"pools={toml.inline(pools)}", f"method={toml.inline(method)}"]
    if row.part == "personal":
        given.append(f"personal={toml.inline(PERSONAL)}")
    path = tuned_file(budget, family, row.name)
    made = config.read(family.config, given)
    return (cells.lay_over(made, path, family.config, given), True) if path.is_file() else (made, tuned)


def tuned_file(budget: Budget, family: Family, row: str) -> Path:
    """Where settings stand that were tuned for a row."""
    return cells.TUNED / f"rivals-{row}-{spent_on(family, budget).name}.toml"


# -- what rows have instead of FedAvg --


def _rule(kind: str, **keys: Any) -> Callable[[Pools, Setup], None]:
    def over(pools: Pools, setup: Setup) -> None:
        for pool in pools.values():
            pool["rule"] = {"kind": kind, **keys}

    return over


def _work(**keys: Any) -> Callable[[Pools, Setup], None]:
    def over(pools: Pools, setup: Setup) -> None:
        for pool in pools.values():
            pool["work"] |= keys

    return over


def _server(kind: str, **keys: Any) -> Callable[[Pools, Setup], None]:
    def over(pools: Pools, setup: Setup) -> None:
        for pool in pools.values():
            pool["server"] = {"kind": kind, "lr": pool["server"]["lr"], "decay": pool["server"]["decay"], **keys}

    return over


def _widths(setup: Setup) -> list[dict[str, Any]]:
    """The clients of the large pool carry the whole, all others half the width, which is the small model."""
    return [{"rate": 1.0, "clients": {"take": setup.carriers}}, {"rate": HALF}]


def _narrowed(kind: str, **keys: Any) -> Callable[[Pools, Setup], None]:
    """One pool of all clients in the place of two, whose cohort is as large as both: its narrow model stands for the small one."""

    def over(pools: Pools, setup: Setup) -> None:
        large = _nested(pools["large"], setup, kind, **keys)
        large["cohort"] += pools.pop("small")["cohort"]

    return over


def _nested(large: dict[str, Any], setup: Setup, kind: str, **keys: Any) -> dict[str, Any]:
    large |= {"clients": {}, "rule": {"kind": kind, "widths": _widths(setup), **keys}}
    return large


def _wide(pools: Pools, setup: Setup) -> None:
    """HeteroFL in the large pool alone, on all clients."""
    _nested(pools["large"], setup, "heterofl")


def _feddf(pools: Pools, setup: Setup) -> dict[str, Any]:
    for pool in pools.values():
        pool["server"] = {"kind": "average", "lr": 1.0}
    return {"kind": "feddf", "distill": dict(setup.often)}


def _method(kind: str, **keys: Any) -> Callable[[Pools, Setup], dict[str, Any]]:
    return lambda pools, setup: {"kind": kind, **keys}


def _takfl(pools: Pools, setup: Setup) -> dict[str, Any]:
    return {"kind": "takfl", "period": setup.period, "distill": dict(setup.rare)}


def _ftg(pools: Pools, setup: Setup) -> None:
    for pool in pools.values():
        pool["rule"] = {"kind": "fedftg"}


M, R = METHODS, RULES
ROWS = (
    Row("fedavg", "FedAvg, with Adam at the server"),
    Row("periodic", "PeriodicCodist", "periodic"),
    Row("merged", "MergedCodist", "merged"),
    Row("fedprox", "FedProx, mu .01", over=_work(kind="prox", mu=0.01)),
    Row("fedyogi", "FedYogi", over=_server("fedyogi")),
    Row("feddualavg", "FedDualAvg", over=_rule("feddualavg"), needs=((R, "feddualavg"),)),
    Row("scaffold", "SCAFFOLD", over=_rule("scaffold"), needs=((R, "scaffold"),)),
    Row("heterofl", "HeteroFL, one pool", over=_narrowed("heterofl"), needs=((R, "heterofl"),)),
    Row("splitmix", "Split-Mix, bases of half the width, one pool", over=_narrowed("splitmix", rate=HALF), needs=((R, "splitmix"),)),
    Row("fedrescue", "FedResCuE, one pool", over=_narrowed("fedrescue"), needs=((R, "fedrescue"),)),
    Row("flanc", "FLANC, one pool", over=_narrowed("flanc", weight=0.01), needs=((R, "flanc"),)),
    Row("takfl", "TAKFL", "periodic", over=_takfl, needs=((M, "takfl"),)),
    Row("feddf", "FedDF, as many steps as MergedCodist", "merged", over=_feddf, needs=((M, "feddf"),), heavy=True),
    Row("fedftg", "FedFTG", over=_ftg, needs=((R, "fedftg"),), heavy=True),
    Row("local", "Local, no collaboration", part="personal", over=_method("local_only"), needs=((M, "local_only"),)),
    Row("fd", "FD", part="personal", over=_method("fd"), needs=((M, "fd"),)),
    Row("fedmd", "FedMD", part="personal", over=_method("fedmd", rows=1000), needs=((M, "fedmd"),), heavy=True),
    Row("dsfl", "DS-FL", part="personal", over=_method("dsfl"), needs=((M, "dsfl"),), heavy=True),
    Row("quped", "QuPeD", part="personal", over=_method("quped"), needs=((M, "quped"),)),
    Row("heterofl-large", "HeteroFL in the large pool", part="inside", over=_wide, needs=((R, "heterofl"),)),
    Row(
        "merged-heterofl",
        "HeteroFL in the large pool, MergedCodist between",
        "merged",
        over=_wide,
        part="inside",
        needs=((R, "heterofl"),),
        alone=("heterofl-large", "merged"),
    ),
    Row(
        "merged-scaffold",
        "SCAFFOLD in both pools, MergedCodist between",
        "merged",
        over=_rule("scaffold"),
        part="inside",
        needs=((R, "scaffold"),),
        alone=("scaffold", "merged"),
    ),
)
BY_NAME = {row.name: row for row in ROWS}
