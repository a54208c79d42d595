"""Studies that go beyond the paper, as cells like those of its tables: what teaching in every round buys, a third pool, teachers that speak
only where they are sure, an alpha for each pool, and rates that are the large model's own best.

- `cost`: MergedCodist whose alpha changes with the round. A round with alpha = 1 is plain FedAvg and costs the server nothing.
- `pools`: models of a quarter, a half and the full width in three nested pools, against the paper's two.
- `gate`: under domain shift each teacher's weight is multiplied, example by example, by exp(-entropy / gate).
- `own-alpha`: in the largest column, where the large model is the stronger one, it has an alpha of its own and listens less.
- `rates`: rates are tuned for the mean of both models; here the large one has those of the trial that was best for itself, so that its
  gain is not due to a baseline that was tuned for another model.

Cells of Tables 1 and 2 that a study compares with are taken as they are, so their runs are shared. Settings that were tuned are laid over
a cell first; schedules and gates come on top, made from the alpha that is found there. Deliberately absent: words about what came out
(`study_sections`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fedcodist import config, settings
from fedcodist.config import toml
from fedcodist.reproduce import cells
from fedcodist.reproduce.budgets import Budget, Family
from fedcodist.reproduce.cells import Cell
from fedcodist.schedule import After, Constant, Cosine, Every, Linear
from fedcodist.types import Schedule

STUDIES = ("cost", "pools", "gate", "own-alpha", "rates")
RANKS = {"rates": 0, "cost": 1, "own-alpha": 2, "gate": 3, "pools": 4}  # which studies are run first
FAMILY = "images"  # of all studies but `gate`, which is of the domain-shifted families
EVERY = (2, 5, 10)
START = 1.0  # alpha at the start of a warm-up, when teachers are still bad
FIRST = 3  # FedAvg for the first one of so many parts of the rounds
GATES = (0.5, 2.0)  # nats
LISTENS_LESS = 0.9  # the stronger model's alpha
LARGE_BEST = {"small": {"work": 0.0114, "server": 0.00311}}  # {budget: rates of the FedAvg trial with the best large model of images}
HALF = "pools.small.clients={ share = 0.5 }"


def all_cells(budget: Budget) -> list[Cell]:
    """The cells of all studies, each once; one of several studies has the most seeds and the first rank that they ask for."""
    found: dict[str, Cell] = {}
    for cell in (*_cost(budget), *_pools(budget), *_gate(budget), *_own_alpha(budget), *_rates(budget)):
        known = found.get(cell.id, cell)
        seeds = max(known.seeds, cell.seeds, key=len)
        found[cell.id] = replace(cell, seeds=seeds, rank=min(known.rank, cell.rank), studies={**known.studies, **cell.studies})
    return list(found.values())


def families(budget: Budget) -> dict[str, Family]:
    """The families that studies are of. The images are never domain-shifted, so no name is taken twice."""
    return {FAMILY: budget.families[FAMILY], **budget.shifted}


def settled(alpha: Any) -> Any:
    """The value that alpha comes to in the end, or stays at in the rounds that distil: what schedules are made from. A table by pool gives
    a table by pool.

    >>> settled(Constant(0.5)), settled(Linear(0.95, 0.6)), settled({"small": Every(2, 0.3), "large": Constant(0.9)})
    (0.5, 0.6, {'small': 0.3, 'large': 0.9})
    """
    if isinstance(alpha, Mapping):
        return {pool: settled(inner) for pool, inner in alpha.items()}
    return alpha.end if isinstance(alpha, Linear | Cosine) else alpha.value


def schedules(alpha: Any, rounds: int) -> dict[str, Any]:
    """{row: alpha as a function of the round} of the study on cost, from a number or a table of numbers by pool.

    >>> made = schedules(0.5, rounds=300)
    >>> made["every-5"], made["after"]
    (Every(k=5, value=0.5, otherwise=1.0), After(k=100, value=0.5, otherwise=1.0))
    >>> made["warm-up"], made["cool-down"]
    (Linear(start=1.0, end=0.5, over=0), Cosine(start=0.5, end=1.0, over=0))
    """
    if isinstance(alpha, Mapping):
        by_pool = {pool: schedules(value, rounds) for pool, value in alpha.items()}
        return {row: {pool: made[row] for pool, made in by_pool.items()} for row in schedules(1.0, rounds)}
    found: dict[str, Schedule] = {f"every-{k}": Every(k, alpha) for k in EVERY}
    found["warm-up"] = Linear(START, alpha)
    found["after"] = After(rounds // FIRST, alpha)
    found["cool-down"] = Cosine(alpha, 1.0)
    return found


def own_alpha(alpha: Any) -> dict[str, Any]:
    """The shared alpha for the small model, and for the large one a value nearer to 1: 0.9, or half of the way where that is more.

    >>> own_alpha(Constant(0.5)), own_alpha(Constant(0.9))["large"]
    ({'small': Constant(value=0.5), 'large': Constant(value=0.9)}, Constant(value=0.95))
    """
    each = alpha if isinstance(alpha, Mapping) else {"small": alpha, "large": alpha}
    listens = settled(each.get("large", Constant(1.0)))
    return {**each, "large": Constant(max(LISTENS_LESS, round((1 + listens) / 2, 4)))}


def halved(model: Any) -> Any:
    """A model of half the width.

    >>> from fedcodist.models import MODELS
    >>> half = halved(MODELS["cnn"](filters=(16, 32, 32), dense=(64, 128)))
    >>> half.filters, half.dense
    ((8, 16, 16), (32, 64))
    """
    widths = {name: value for name in ("filters", "dense", "hidden", "embed") if (value := getattr(model, name, None)) is not None}
    return replace(model, **{name: _half(value) for name, value in widths.items()})


def _half(width: Any) -> Any:
    return tuple(map(_half, width)) if isinstance(width, tuple) else max(1, width // 2)


def _cost(budget: Budget) -> Iterator[Cell]:
    family = budget.families[FAMILY]
    column = family.central
    plain = cells.codistilled(budget, FAMILY, family, column, "merged", "in-domain")
    yield from _joined(budget, "cost", [cells.fedavg(budget, FAMILY, family, column), plain])
    made = schedules(settled(plain.config.method.alpha), plain.config.rounds)
    yield from _joined(budget, "cost", (_other(plain, row, alpha=alpha) for row, alpha in made.items()), plain.id)


def _pools(budget: Budget) -> Iterator[Cell]:
    family = budget.families[FAMILY]
    column = family.central
    two = _central(budget)
    yield from _joined(budget, "pools", two)
    small = config.read(family.config, family.given).pools["small"].model
    quarter = {"like": "small", "model": settings.plain(halved(small)), "clients": {}}
    given = (*cells.take_clients(family, column), HALF, f"pools.quarter={toml.inline(quarter)}")
    for cell in two:
        made, tuned = cells.configured(budget, FAMILY, family, cell.method, given)
        twin = f"{FAMILY}/fedavg-three/{column}" if cell.twin else ""
        three = replace(_renamed(cell, "three"), config=made, tuned=tuned, twin=twin)
        yield from _joined(budget, "pools", [three])


def _gate(budget: Budget) -> Iterator[Cell]:
    for cell in cells.table_2(budget):
        yield from _joined(budget, "gate", [cell])
        if cell.method != "fedavg":
            ways = {f"gate-{gate:g}": replace(cell.config.method.distill, gate=gate) for gate in GATES}
            yield from _joined(budget, "gate", (_other(cell, way, distill=distill) for way, distill in ways.items()), cell.id)


def _own_alpha(budget: Budget) -> Iterator[Cell]:
    family = budget.families[FAMILY]
    column = family.in_place[-1]
    shared = cells.codistilled(budget, FAMILY, family, column, "merged", "in-domain")
    yield from _joined(budget, "own-alpha", [cells.fedavg(budget, FAMILY, family, column), shared])
    yield from _joined(budget, "own-alpha", [_other(shared, "own-alpha", alpha=own_alpha(shared.config.method.alpha))], shared.id)


def _rates(budget: Budget) -> Iterator[Cell]:
    """Where tuning has found such rates."""
    if budget.name not in LARGE_BEST:
        return
    for cell in _central(budget):
        yield from _joined(budget, "rates", [cell])
        large = cell.config.pools["large"]
        large = replace(large, **{part: replace(getattr(large, part), lr=lr) for part, lr in LARGE_BEST[budget.name].items()})
        other = replace(_renamed(cell, "rates"), config=replace(cell.config, pools={**cell.config.pools, "large": large}))
        twin = f"{FAMILY}/fedavg-rates/{cell.column}" if cell.twin else ""
        yield from _joined(budget, "rates", [replace(other, twin=twin)], cell.id)


def _central(budget: Budget) -> list[Cell]:
    """FedAvg and both methods in the central column, with in-domain data."""
    family = budget.families[FAMILY]
    taught = [cells.codistilled(budget, FAMILY, family, family.central, method, "in-domain") for method in ("periodic", "merged")]
    return [cells.fedavg(budget, FAMILY, family, family.central), *taught]


def _joined(budget: Budget, study: str, rows: Iterable[Cell], against: str = "") -> Iterator[Cell]:
    """Cells as rows of a study, with its seeds; `against` is the cell that they are compared with besides their FedAvg twin."""
    yield from (replace(cell, seeds=budget.seeds, rank=RANKS[study], studies={study: against}) for cell in rows)


def _other(cell: Cell, way: str, **changes: Any) -> Cell:
    """The cell with other settings of its method; whatever was tuned stays."""
    method = replace(cell.config.method, **changes)
    return replace(_renamed(cell, way), config=replace(cell.config, method=method))


def _renamed(cell: Cell, way: str) -> Cell:
    """Another row in the place of this one; the paper has no numbers of it."""
    row = f"{cell.row}-{way}"
    return replace(cell, id=cell.id.replace(f"/{cell.row}/", f"/{row}/", 1), row=row, paper={})
