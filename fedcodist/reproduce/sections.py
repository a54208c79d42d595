"""The parts of the results page, each from result files: Markdown tables of the paper's numbers beside ours, settings, cost, provenance.

Deliberately absent: the page around them (`page`) and any number that is not in a result file or in `paper`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedcodist.reports import tables
from fedcodist.reports.arms import dig, label
from fedcodist.reports.units import si
from fedcodist.reproduce import claims, figures, paper
from fedcodist.reproduce.cells import SELF_TEMPERATURE
from fedcodist.reproduce.numbers import DASH, LINE, show_accuracy, show_difference, show_gain, show_ids, show_seeds

Result = Mapping[str, Any]
WAYS = {
    "to-large": "the small model teaches the large one only",
    "to-small": "the large model teaches the small one only",
    "self": f"each model hears only itself, at temperature {SELF_TEMPERATURE}",
    "all": "the large model on all clients: an upper bound",
}


def overview(found: Sequence[Result]) -> str:
    """What each result file is of, and what is missing in it."""
    rows = []
    for r in found:
        cells = r["cells"]
        rounds = [cell["rounds"] for cell in cells if cell["seeds"]] or [r["rounds"]]
        rows.append(
            {
                "what": f"`reproduce {r['table']} --budget {r['budget']}`",
                "data": "; ".join(family["data"] for family in r["families"].values()),
                "rounds (paper)": f"{span(rounds)} ({r['paper_rounds']:,})",
                "number of seeds": span([len(cell["seeds"]) for cell in cells]),
                "settings": _tuned(cells),
                "cells finished": f"{sum(cell['state'] == 'done' for cell in cells)} of {len(cells)}",
                "runs": str(len({(cell["run"], seed) for cell in cells for seed in cell["seeds"]})),
            }
        )
    said = [tables.render(rows, "md"), ""]
    said += [f"Budget {name}: {says}." for name, says in {r["budget"]: r["says"] for r in found}.items()]
    wrong = {f"{c['id']}, seed {seed}": why for r in found for c in r["cells"] for seed, why in c.get("diverged", {}).items()}
    if wrong:
        said += ["", "Not finished, because they diverged:", "", *(f"- {title}: {why}" for title, why in sorted(wrong.items()))]
    return "\n".join(said) + "\n"


def claims_block(found: Sequence[Result]) -> str:
    """A verdict on each claim, and the rules of it."""
    rows = [{"claim": f"({v.claim.name}) {v.claim.text}", "verdict": v.verdict, "because": v.why} for v in claims.judge(found)]
    return f"{textwrap.fill(claims.SAID, LINE)}\n\n{tables.render(rows, 'md')}\n"


def table_1(r: Result, family: str, column: str, short: bool = False) -> str:
    """One column of one half of Table 1; the central one has the rows that the paper does not, those that were not run in a line. In
    `short` only what the paper has and was run."""
    central = _central_of(r["families"][family])
    mine = [c for c in r["cells"] if c["family"] == family and (c["column"] == column or (c["column"] == "all" and column == central))]
    if none := not_run(r, mine, f"{family}/*/{column}*"):
        return none
    if short:
        mine = [cell for cell in mine if cell["row"] in paper.METHODS and cell["seeds"]]
    rows, idle = [], []
    for cell in mine:
        if cell["state"] == "none" and cell["row"] not in paper.METHODS:
            idle.append(row_name(cell["row"]))
            continue
        rows.append({"method": row_name(cell["row"]), "public data": public(r, cell), "seeds": show_seeds(cell)} | _numbers(r, cell, "all"))
    rest = f"\nNot run, and not in the paper: {'; '.join(idle)}.\n" if idle else ""
    return f"{tables.render(rows, 'md')}\n{_warning(r, mine)}{rest}"


def _warning(r: Result, cells: Sequence[Mapping[str, Any]]) -> str:
    """Where rows differ in their seeds: what the gains are on those that all have."""
    shared = _shared(cells)
    if shared is None:
        return ""
    if not shared:
        return "\nRows differ in their seeds and share none, so their means are not to be compared.\n"
    told = [
        f"{row_name(cell['row'])} ({public(r, cell)}) {' / '.join(_gain_on(shared, r, cell, pool) for pool in paper.POOLS)}"
        for cell in cells
        if cell["seeds"] and cell["public"]
    ]
    said = f"Rows differ in their seeds, so their means are not to be compared. Gains on seed {show_ids(shared)}, small / large: "
    return f"\n{textwrap.fill(said + '; '.join(told), LINE)}.\n"


def table_2(r: Result, family: str) -> str:
    """Accuracy by domain; the small model learns the first one only, the large model the second."""
    mine = [cell for cell in r["cells"] if cell["family"] == family]
    if none := not_run(r, mine, f"{family}/*"):
        return none
    rows = []
    for domain, ours in r["families"][family]["domains"].items():
        for cell in mine:
            shown = figures.domain_name(domain, ours)
            rows.append({"test sentences": shown, "method": row_name(cell["row"]), "seeds": show_seeds(cell)} | _numbers(r, cell, ours))
    return f"{_beside(r, family)}{tables.render(rows, 'md')}\n"


def not_run(r: Result, cells: Sequence[Mapping[str, Any]], names: str) -> str:
    """Where none of these cells was run: what runs them, in the place of a table of dashes."""
    if any(cell["state"] != "none" for cell in cells):
        return ""
    return f"Not run; `fedcodist reproduce {r['table']} --budget {r['budget']} --cell '{names}'` does it.\n"


def _beside(r: Result, family: str) -> str:
    """A line that says of what data the paper's numbers are, where they are of other data than ours, and of what mixed is the mean."""
    of = r["families"][family]
    beside = "" if of["paper_data"] in (None, of["data"]) else f"The paper's numbers are of {of['paper_data']}, ours of {of['data']}. "
    return f"{textwrap.fill(f'{beside}Mixed is {mixed(r, family)}.', LINE)}\n\n"


def mixed(r: Result, family: str) -> str:
    """All of the test, in words: domains that no pool learns may be in it."""
    known = {domain for c in r["cells"] if c["family"] == family for of in c["accuracy"].values() for domain in of}
    others = sorted(known - {*r["families"][family]["domains"].values()})
    whole = "all sentences of the test"
    return f"{whole}, among them {' and '.join(f'{name}s' for name in others)}, which neither pool learns" if others else whole


def spikes(r: Result, family: str) -> str:
    """What one codistillation of PeriodicCodist does to held-out accuracy, in points, by rounds after it."""
    cell = next((c for c in r["cells"] if c["family"] == family and c.get("spikes")), None)
    if cell is None:
        return "No finished run of PeriodicCodist yet.\n"
    rows, seeds = [], 0
    for pool in paper.POOLS:
        for domain, ours in r["families"][family]["domains"].items():
            changes = dig(cell["spikes"], pool, ours)
            if changes:
                seeds = len(changes["0"])  # those that have a twin
                told = {("at it" if k == "0" else f"+{k}"): show_difference(claims.over(values)) for k, values in changes.items()}
                rows.append({"model": pool, "held-out sentences": figures.domain_name(domain, ours)} | told)
    lead = (
        "Change since the round before a codistillation, less what FedAvg gained in the same rounds: for each seed the mean over the "
        f"codistillations that have all of these rounds, then over {_many(seeds, 'seed')}, with the 95 % interval over these:"
    )
    return f"{textwrap.fill(lead, LINE)}\n\n{tables.render(rows, 'md')}\n"


def figure_4(r: Result) -> str:
    """Accuracy by the number of public images; where sizes differ in their seeds, also the gain on those that all have."""
    rows, shared = [], _shared(r["cells"])
    for cell in r["cells"]:
        count = DASH if not cell["public"] else f"{figures.public(cell, r):,}"
        rows.append(
            {"method": row_name(cell["row"]), "public images": count, "seeds": show_seeds(cell)} | _numbers(r, cell, "all", printed=False)
        )
        if shared:
            rows[-1] |= {f"{pool}: gain on seed {show_ids(shared)}": _gain_on(shared, r, cell, pool) for pool in paper.POOLS}
    lead = "The paper averages the 25 best tuning runs of each size and prints no numbers; here every size has the same settings."
    if shared:
        lead += f" Sizes differ in their seeds: compare them on seed {show_ids(shared)}, which all have."
    return f"{textwrap.fill(lead, LINE)}\n\n{tables.render(rows, 'md')}\n"


def _shared(cells: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """The seeds that all cells with results have, where some have others too; None where all have the same, and means can be compared."""
    seeds = [set(cell["seeds"]) for cell in cells if cell["seeds"]]
    shared = set.intersection(*seeds) if seeds else set()
    return sorted(shared) if any(mine != shared for mine in seeds) else None


def _gain_on(seeds: Sequence[int], r: Result, cell: Mapping[str, Any], pool: str) -> str:
    """The gain of a cell on some of its seeds."""
    each = claims.gains({other["id"]: other for other in r["cells"]}, cell["id"], pool)
    return show_difference(claims.over([each[seed] for seed in seeds if seed in each]))


def ensembles(r: Result, family: str) -> str:
    """The accuracy of both models together, where results have it."""
    rows = []
    for cell in r["cells"]:
        told = dig(dict(cell), "ensemble", "all")
        if told and cell["family"] == family and _central(r, cell):
            row = {"method": row_name(cell["row"]), "public data": public(r, cell), "seeds": show_seeds(cell)}
            rows.append(row | {"test accuracy, %": show_accuracy(told)})
    return tables.render(rows, "md") + "\n" if rows else ""


def costs(r: Result, family: str) -> str:
    """Bytes over the wire and work on the server, in the central column, or with shifted pools."""
    rows = []
    for cell in r["cells"]:
        if cell["family"] == family and cell["cost"] and _central(r, cell):
            cost = cell["cost"]
            rows.append({"method": row_name(cell["row"]), "public data": public(r, cell)})
            rows[-1] |= {"client bytes": si(cost.get("client_bytes", 0), "B"), "client FLOPs": si(cost.get("client_flops", 0))}
            rows[-1] |= {"server FLOPs": si(cost.get("server_flops", 0)), "server steps": f"{cost.get('server_steps', 0):,.0f}"}
    return tables.render(rows, "md") + "\n" if rows else ""


def counts(r: Result, family: str) -> str:
    """Accuracy on text by the looser counts, in the central column or with shifted pools, where results have them."""
    rows = []
    for cell in r["cells"]:
        of_pool = {pool: dig(dict(cell), "accuracy", pool, "all", "looser") for pool in paper.POOLS}
        if cell["family"] == family and all(of_pool.values()) and _central(r, cell):
            row = {"method": row_name(cell["row"]), "public data": public(r, cell), "seeds": show_seeds(cell)}
            for pool, looser in of_pool.items():
                row[f"{pool}: any token may be guessed"] = f"{100 * looser['accuracy_no_eos']:.2f}"
                row[f"{pool}: ends of sentences count too"] = f"{100 * looser['accuracy_nonpad']:.2f}"
            rows.append(row)
    return tables.render(rows, "md") + "\n" if rows else ""


def settings(r: Result, family: str) -> str:
    """The rates, weights and temperatures of the paper's own rows, in the central column; small and large model where they differ."""
    rows = []
    for cell in r["cells"]:
        used = cell["settings"]
        paper_row = cell["row"] in paper.METHODS and cell["public"] != "out-of-domain"
        if not used or not cell["seeds"] or cell["family"] != family or not paper_row or not _central(r, cell):
            continue
        pools = [used[pool] for pool in used if pool != "method"]
        row = {"method": row_name(cell["row"]), "settings": "tuned" if cell["tuned"] else "untuned"}
        for key in ("client_lr", "server_lr"):
            row[key.replace("_", " ")] = _each(pools, key)
        method = used["method"]
        distill = method.get("distill")
        if distill:
            taught = {"distill_lr": "distillation lr", "distill_decay": "its decay", "distill_self_weight": "self-weight"}
            row |= {said: _each(pools, key) for key, said in taught.items()} | {"temperature": _each(pools, "temperature")}
            row["steps x batch"] = f"{distill['steps']} x {distill['batch']}" + (
                f", every {p} rounds" if (p := method.get("period")) else ""
            )
            row["alpha"] = show_schedule(method.get("alpha"))
        rows.append(row)
    return tables.render(rows, "md") + "\n" if rows else ""


def _each(pools: Sequence[Mapping[str, Any]], key: str) -> str:
    """A setting of each pool; once if they share it."""
    return " / ".join(dict.fromkeys(DASH if pool.get(key) is None else f"{pool[key]:.3g}" for pool in pools))


def show_schedule(alpha: Any) -> str:
    """alpha in words."""
    if not isinstance(alpha, dict):
        return DASH
    kind = alpha.get("kind")
    if kind is None:
        return ", ".join(f"{pool} {show_schedule(inner)}" for pool, inner in alpha.items())
    return (
        f"{alpha['value']:.3g}" if kind == "constant" else f"{kind} " + ", ".join(f"{k} {v:.3g}" for k, v in alpha.items() if k != "kind")
    )


def provenance(found: Sequence[Result]) -> str:
    """Versions, processors, digests."""
    rows = []
    for r in found:
        of = r["provenance"]
        where = [
            f"{e.get('cpu')}, {_many(e.get('cores') or 0, 'core')}, Python {e.get('python')}, jax {e.get('jax')}"
            for e in of["environments"]
        ]
        rows.append(
            {
                "file": f"{r['table']}-{r['budget']}.json",
                "fedcodist": of["version"],
                "commits of the runs": _commits(of),
                "computed on": "; ".join(dict.fromkeys(where)) or DASH,
                "data, SHA-256": "; ".join(f"{name} {str(digest)[:12]}" for name, digest in of["data"].items()) or DASH,
            }
        )
    lead = "The files hold the whole digests and, for each cell, its run directory and the digest of its config and data."
    return f"{tables.render(rows, 'md')}\n\n{lead}\n"


def _commits(of: Mapping[str, Any]) -> str:
    """By which commits the runs were made, as far as they know.

    >>> _commits({"commits": ["0123456789abcdef"], "uncommitted": 1})
    '0123456789ab; not known of at most 1 run'
    """
    unknown = [f"not known of at most {_many(of['uncommitted'], 'run')}"] if of["uncommitted"] else []
    return "; ".join([*(name[:12] for name in of["commits"]), *unknown]) or DASH


def row_name(row: str) -> str:
    """A row in words.

    >>> row_name("merged-to-small")
    'MergedCodist, the large model teaches the small one only'
    """
    method, _, way = row.partition("-")
    return label(method) + (f", {WAYS.get(way, way)}" if way else "")


def display(r: Result, chosen: Collection[str]) -> list[dict[str, Any]]:
    """Rows for a terminal: what each of the chosen cells reached, pool by pool and domain by domain."""
    rows = []
    for cell in (cell for cell in r["cells"] if cell["id"] in chosen):
        if not cell["seeds"]:
            rows.append({"cell": cell["id"], "seeds": 0, "pool": "", "domain": "", "test accuracy, %": "not run"})
        for pool, of_pool in cell["accuracy"].items():
            for domain, told in of_pool.items():
                if domain != "all" and r["table"] in ("table1", "figure4"):
                    continue
                where = {"cell": cell["id"], "seeds": len(cell["seeds"]), "pool": pool, "domain": domain}
                number = dig(cell["paper"], pool, domain)
                printed = "" if number is None else f"{100 * number:.2f}"
                rows.append(
                    where | {"test accuracy, %": show_accuracy(told), "paper": printed, "gain, points": show_gain(told.get("gain"))}
                )
    return rows


def _numbers(r: Result, cell: Mapping[str, Any], domain: str, printed: bool = True) -> dict[str, str]:
    """The paper's and our numbers of both models."""
    found = {}
    twin = next((other for other in r["cells"] if other["id"] == cell["twin"]), None)
    paper_data = r["families"][cell["family"]]["paper_data"]
    for pool in paper.POOLS:
        told = dig(dict(cell), "accuracy", pool, domain)
        if printed and paper_data:
            number, base = (dig(dict(c or {}), "paper", pool, domain) for c in (cell, twin))
            gain = "" if number is None or base is None else f" ({100 * (number - base):+.2f})"
            found[f"{pool}: paper"] = DASH if number is None else f"{100 * number:.2f}{gain}"
        found[f"{pool}: ours"] = show_accuracy(told) if told else "not run"
        found[f"{pool}: gain"] = show_gain((told or {}).get("gain")) or DASH
    return found


def public(r: Result, cell: Mapping[str, Any]) -> str:
    outside = r["families"][cell["family"]]["outside_data"]
    return {"": DASH, "out-of-domain": outside or "out-of-domain"}.get(cell["public"], cell["public"])


def column_name(family: Mapping[str, Any], column: str, r: Result) -> str:
    """A column in words, and the paper's column that stands beside it."""
    clients = next((c["clients"] for c in r["cells"] if c["column"] == column and c["clients"]), None)
    shown = f"{int(column):,}" if column.isdigit() else column
    size = f"|P_H| = {shown} {family['unit']}" + (f" ({clients} clients)" if clients and family["unit"] != "clients" else "")
    theirs = list(paper.IMAGE_SIZES if family["paper_data"] == paper.IMAGES_DATA else paper.LANGUAGE_SIZES)
    if column == family.get("balanced"):
        return f"{size}, the balanced column; the paper's numbers are of its own, |P_H| = {paper.central(theirs)}"
    if family["paper_data"] in (None, family["data"]):
        return size
    places = paper.in_place(family["columns"], family.get("balanced"))
    beside = theirs[places.index(column)] if len(theirs) == len(places) else theirs[1]
    return f"{size}; the paper's numbers are of {family['paper_data']} with |P_H| = {beside}"


def _tuned(cells: Sequence[Mapping[str, Any]]) -> str:
    """Which settings were tuned: all, none, or those of some families and methods."""
    yes, no = ({f"{cell['family']}/{cell['method']}" for cell in cells if cell["tuned"] == tuned} for tuned in (True, False))
    return "untuned" if not yes else "tuned" if not no else f"tuned: {', '.join(sorted(yes))}; untuned: {', '.join(sorted(no))}"


def _central(r: Result, cell: Mapping[str, Any]) -> bool:
    """Whether it is of the central column, or of a table that has no columns."""
    return cell["column"] in ("all", "shift", _central_of(r["families"][cell["family"]]))


def _central_of(family: Mapping[str, Any]) -> str:
    return paper.central(paper.in_place(family["columns"], family.get("balanced")))


def span(counts: Sequence[int]) -> str:
    known = sorted(set(counts))
    return DASH if not known else f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
