"""What is to be run for a table or figure under a budget: a list of cells, each a config with its seeds. Nothing is loaded or trained.

A cell is a row (a method and its public data) in a column (the size of the large model's pool) of a family (images, language). Its run
directory is named by the identity of its config, so cells of different tables that are the same experiment are one run; the FedAvg twin
of a family and column is one of them. Settings that were tuned for a family, method and budget are laid over every cell of it, if
`configs/tuned` has them. Deliberately absent: running (`running`) and judging (`claims`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedcodist import config
from fedcodist.config import Config, toml
from fedcodist.errors import ConfigError
from fedcodist.reproduce import paper
from fedcodist.reproduce.budgets import Budget, Family, spent_on
from fedcodist.settings import nearest

TUNED = Path(str(resources.files("fedcodist") / "configs" / "tuned"))
TEACHING = {  # rows that the paper does not have: who teaches whom
    "to-large": "topology={ large = { small = 1.0 } }",
    "to-small": "topology={ small = { large = 1.0 } }",
    "self": "topology=self",
}
SELF_TEMPERATURE = 0.5  # of a model that hears only itself: at 1, which may be the tuned one, it would have nothing to learn
LAID_OVER = ("pools", "method")  # all that tuning may have searched
WHOLE_POOL = "pools.large.clients={}"
INTERVAL = 3  # seeds of what a claim is about outside of the columns that have all seeds: enough for an interval


@dataclass(frozen=True)
class Cell:
    """One number of a table, or rather two: the small and the large model's."""

    id: str  # family/row/column/public data
    family: str
    row: str  # the method, and what is special about it
    method: str
    column: str
    public: str  # in-domain, out-of-domain, a number of public examples, or nothing
    clients: int | None  # of the large pool, where the column says so
    config: Config
    seeds: tuple[int, ...]
    rank: int = 0  # lower ones are run first
    twin: str = ""  # the cell of plain FedAvg that it is measured against
    tuned: bool = False
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # {pool: {domain: percent}}
    studies: Mapping[str, str] = field(default_factory=dict)  # {study that it is a row of: the cell that it is compared with there}
    rival: Mapping[str, Any] = field(default_factory=dict)  # of the comparison with other systems: what stands beside its numbers

    @property
    def name(self) -> str:
        """The directory of its runs: equal experiments have equal names, whatever table asks for them."""
        return f"{self.family}-{config.identity(self.config)[:12]}"


def table_1(budget: Budget) -> Iterator[Cell]:
    for name, family in budget.families.items():
        for column in family.columns:
            yield fedavg(budget, name, family, column)
            for public in ("in-domain", "out-of-domain"):
                for method in ("periodic", "merged"):
                    yield codistilled(budget, name, family, column, method, public)
        yield from _extra(budget, name, family)


def fedavg(budget: Budget, name: str, family: Family, column: str) -> Cell:
    made, tuned = configured(budget, name, family, "fedavg", take_clients(family, column))
    return Cell(
        id=f"{name}/fedavg/{column}",
        family=name,
        row="fedavg",
        method="fedavg",
        column=column,
        public="",
        clients=family.columns[column],
        config=made,
        seeds=_seeds(budget, family, column, "in-domain"),
        rank=0 if _is_first(family, column) else 2,
        tuned=tuned,
        paper=_paper_1(name, family, column, "fedavg", ""),
    )


def codistilled(budget: Budget, name: str, family: Family, column: str, method: str, public: str) -> Cell:
    inside = public == "in-domain"
    given = (*take_clients(family, column), *(() if inside else family.outside))
    made, tuned = configured(budget, name, family, method, given)
    return Cell(
        id=f"{name}/{method}/{column}/{public}",
        family=name,
        row=method,
        method=method,
        column=column,
        public=public,
        clients=family.columns[column],
        config=made,
        seeds=_seeds(budget, family, column, public),
        rank=(0 if inside else 1) if _is_first(family, column) else 2,
        twin=f"{name}/fedavg/{column}",
        tuned=tuned,
        paper=_paper_1(name, family, column, method, public),
    )


def _seeds(budget: Budget, family: Family, column: str, public: str) -> tuple[int, ...]:
    """All of them in the columns that claims are about; enough for an interval with in-domain data in the first one, of which one claim
    speaks too."""
    spent = spent_on(family, budget)
    if _is_first(family, column):
        return spent.seeds
    claimed = public == "in-domain" and column == family.in_place[0]
    return max(spent.elsewhere, spent.seeds[:INTERVAL], key=len) if claimed else spent.elsewhere


def _is_first(family: Family, column: str) -> bool:
    """Whether a column is central or balanced: these are run first."""
    return column in (family.central, family.balanced)


def _extra(budget: Budget, name: str, family: Family) -> Iterator[Cell]:
    """Rows that a reader asks for, in the central column: teaching one way only, hearing only oneself, the large model on all clients."""
    column, seeds = family.central, spent_on(family, budget).seeds
    for method in ("periodic", "merged"):
        for kind, who in TEACHING.items():
            made, tuned = configured(budget, name, family, method, (*take_clients(family, column), who))
            if kind == "self":
                made = replace(made, pools={pool: _spoken(of, SELF_TEMPERATURE) for pool, of in made.pools.items()})
            row = f"{method}-{kind}"
            cell = Cell(f"{name}/{row}/{column}/in-domain", name, row, method, column, "in-domain", family.columns[column], made, seeds)
            yield replace(cell, rank=3, twin=f"{name}/fedavg/{column}", tuned=tuned)
    made, tuned = configured(budget, name, family, "fedavg", (WHOLE_POOL,))
    cell = Cell(f"{name}/fedavg-all/all", name, "fedavg-all", "fedavg", "all", "", None, made, seeds)
    yield replace(cell, rank=3, twin=f"{name}/fedavg/{column}", tuned=tuned)


def _spoken(pool: Any, temperature: float) -> Any:
    return replace(pool, teaches=replace(pool.teaches, temperature=temperature))


def table_2(budget: Budget) -> Iterator[Cell]:
    for name, family in budget.shifted.items():
        spent = spent_on(family, budget)
        after = "evaluate_after=[" + ", ".join(map(str, spent.after)) + "]"
        for method in ("fedavg", "periodic", "merged"):
            # Figure 3 is drawn from the same runs, so both ask for its evaluations.
            made, tuned = configured(budget, name, family, method, (f"evaluate_every={spent.every}", after))
            numbers = paper.SHIFT[method] if family.paper else {}
            printed = {pool: {family.domains[d]: pair[i] for d, pair in numbers.items()} for i, pool in enumerate(paper.POOLS)}
            cell = Cell(
                f"{name}/{method}/shift", name, method, method, "shift", "in-domain" if method != "fedavg" else "", None, made, spent.seeds
            )
            yield replace(cell, twin="" if method == "fedavg" else f"{name}/fedavg/shift", tuned=tuned, paper=printed)


def figure_4(budget: Budget) -> Iterator[Cell]:
    name, family = "images", budget.families["images"]
    column = family.central
    yield fedavg(budget, name, family, column)
    ends = (next(iter(family.sizes), ""), *(size for size, given in family.sizes.items() if not given))
    for method in ("periodic", "merged"):
        whole = codistilled(budget, name, family, column, method, "in-domain")
        for size, given in family.sizes.items():
            if not given:
                yield whole  # the in-domain cell of Table 1
                continue
            made, tuned = configured(budget, name, family, method, (*take_clients(family, column), *given))
            seeds = max(budget.elsewhere, budget.seeds[:INTERVAL], key=len) if size in ends else budget.elsewhere
            cell = replace(whole, id=f"{name}/{method}/{column}/{size}", public=size, config=made, tuned=tuned, seeds=seeds, paper={})
            yield replace(cell, rank=0 if size in ends else 1)


def take_clients(family: Family, column: str) -> tuple[str, ...]:
    return (f"pools.large.clients={{ take = {family.columns[column]} }}",)


def _paper_1(name: str, family: Family, column: str, method: str, public: str) -> dict[str, dict[str, float]]:
    """The paper's numbers of the column in the same place; of its central one, in which its models are balanced, beside a balanced one."""
    half = family.half or name
    if not family.paper or half not in paper.TABLE_1:
        return {}
    row, places = paper.TABLE_1[half][method, public], family.in_place
    beside = list(row)[places.index(column)] if len(places) == len(row) and column in places else paper.CENTRAL[half]
    printed = row[beside]
    return {pool: {"all": number} for pool, number in zip(paper.POOLS, printed, strict=True)}


def configured(budget: Budget, name: str, family: Family, method: str, more: Sequence[str]) -> tuple[Config, bool]:
    """The config of a cell, and whether tuned settings were laid over it."""
    given = [*family.given, f"method={family.methods[method]}", *more]
    made = config.read(family.config, given)
    path = TUNED / f"{family.tuned or name}-{method}-{spent_on(family, budget).name}.toml"
    if not path.is_file():
        return made, False
    return lay_over(made, path, family.config, given), True


def lay_over(made: Config, path: Path, source: str, given: Sequence[str]) -> Config:
    """A config with the keys of a TOML file on top, read as strictly as any other. The file may only say what tuning searches: `pools`
    and `method`. It goes key by key; a pool that is `like` another has that one's tuned keys too, unless the file gives it its own."""
    table = toml.read(path).table
    odd = [key for key in table if key not in LAID_OVER]
    if odd:
        hint = nearest(odd[0], LAID_OVER) or "only what was searched"
        raise ConfigError(f"{path.name}: got {odd[0]}; allowed {' and '.join(LAID_OVER)} ({hint})")
    order = {name: place for place, name in enumerate(made.pools)}  # as declared: what others are like comes first
    parts = sorted(_parts(table), key=lambda part: order.get(part[0][1] if len(part[0]) == 3 else "", len(order)))
    given = list(given)
    try:
        for key, value in parts:
            whole = config.plain(made)
            for part in key:
                whole = whole.get(part, {}) if isinstance(whole, dict) else {}
            given.append(f"{'.'.join(key)}={toml.inline(_over(whole, value))}")
            made = config.read(source, given)
    except ConfigError as error:
        raise ConfigError("\n".join(f"{path.name}: {line.replace(' (--set)', '')}" for line in error.lines)) from None
    return made


def _parts(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What is given whole again: pools.NAME.KEY and method.KEY; or whatever stands in the place of such a table, to be refused."""
    for first, inner in table.items():
        for second, value in inner.items() if isinstance(inner, dict) else [("", inner)]:
            if first == "pools" and isinstance(value, dict):
                yield from (((first, second, key), last) for key, last in value.items())
            else:
                yield (first, second) if second else (first,), value


def _over(base: Any, given: Any) -> Any:
    """A table on top of another, key by key. One that says its own `kind`, or that has no key of a table with a kind, as an alpha for each
    pool has none of a schedule's, replaces the other whole."""
    if not isinstance(base, dict) or not isinstance(given, dict) or "kind" in given or ("kind" in base and not given.keys() & base.keys()):
        return given
    return {**base, **{key: _over(base.get(key), value) for key, value in given.items()}}
