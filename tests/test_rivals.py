"""Other systems beside codistillation: which rows there are, what is said of them, and that it comes from results alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
from test_reproduce import PLAIN, TINY, command

from fedcodist import config
from fedcodist.cli import arguments
from fedcodist.methods import METHODS
from fedcodist.reproduce import cells, elsewhere, figures, page, results, rival_sections, rivals, running, selection
from fedcodist.reproduce.budgets import BUDGETS, SMALL
from tools import make_rivals

FEW = replace(PLAIN, columns={"4": 4}, given=(*PLAIN.given, "rounds=4"))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(BUDGETS, "smoke", replace(TINY, rounds=4, families={"images": FEW}))
    monkeypatch.setattr(arguments, "prepare_jax", lambda: None)


@dataclass(frozen=True)
class Recorded:
    result: dict


def cell(name, small, large, flops, part="global", consumes=(), secure=True, alone=(), seeds=(0, 1), twin=True):
    """A row of a result file: accuracies by seed, in percent; operations."""
    base = {"small": [0.30, 0.32], "large": [0.33, 0.33]}

    def told(pool, values):
        shares = [round(value / 100, 4) for value in values]
        gains = [round(a - b, 4) for a, b in zip(shares, base[pool], strict=False)]
        found = {"test": shares, "held_out": shares, **results.summary(shares)}
        return found | ({"over_twin": dict(zip("01", gains, strict=False)), "gain": results.gain(gains)} if twin else {})

    rival = {"says": name.title(), "part": part, "models": {}, "consumes": list(consumes), "secure": secure, "own_settings": False}
    return {
        "id": f"images/{name}/4", "family": "images", "row": name, "method": name, "column": "4", "public": "", "seeds": list(seeds),
        "wanted": list(seeds), "state": "done" if seeds else "none", "tuned": False, "twin": "images/fedavg/4" if twin else "",
        "accuracy": {"small": {"all": told("small", small)}, "large": {"all": told("large", large)}} if seeds else {},
        "cost": {"client_bytes": 10 * flops, "client_flops": flops, "server_flops": 0}, "rival": rival | {"alone": list(alone)},
    }  # fmt: skip


MADE = {
    "table": "rivals",
    "budget": "smoke",
    "cells": [
        cell("fedavg", (30, 32), (33, 33), 1e9, twin=False),
        cell("merged", (32, 34), (34, 34), 4e9, consumes=("public data",)),
        cell("wasteful", (31, 33), (31, 31), 5e9, secure=False),
        cell("scaffold", (31, 33), (33, 33), 2e9, consumes=("client state",)),
        cell("never", (), (), 0, seeds=()),
        cell("both", (35, 37), (33, 35), 6e9, "inside", alone=("images/scaffold/4", "images/merged/4")),
    ],
}


def test_rows_are_the_same_experiment_but_for_what_they_are_about():
    by_row = {cell.row: cell for cell in selection.cells("rivals", "small")}
    table = {cell.id: cell for cell in selection.cells("table1", "small")}
    for row, public in (("fedavg", ""), ("periodic", "/in-domain"), ("merged", "/in-domain")):
        assert by_row[row].name == table[f"images/{row}/4700{public}"].name, "the very runs of Table 1"
    plain = by_row["fedavg"].config
    for row, made in ((row, of.config) for row, of in by_row.items()):
        assert (made.rounds, made.task) == (plain.rounds, plain.task), row
        assert sum(pool.cohort for pool in made.pools.values()) == 40, f"{row}: another number of clients a round"
        assert made.pools["large"].model == plain.pools["large"].model
    one = by_row["heterofl"].config.pools
    assert list(one) == ["large"] and [w.clients.take for w in one["large"].rule.widths] == [47, None]
    assert by_row["heterofl"].rival["models"] == {"small": "large@0.5", "large": "large"}
    assert by_row["merged-scaffold"].rival["alone"] == ["images/scaffold/4700", "images/merged/4700"]
    assert by_row["feddf"].seeds == (0,) and by_row["takfl"].seeds == (0, 1, 2)
    assert by_row["local"].config.personal.test == 0.2 and by_row["fd"].twin == "images/local/4700"
    assert by_row["merged-scaffold"].rival["consumes"] == ["public data", "client state"]


def test_a_row_that_is_not_installed_is_left_out(monkeypatch):
    there = {row.name for row in rivals.ROWS if row.there}
    assert {"fedavg", "merged", "heterofl", "local"} <= there and not there & set(rivals.missing())
    monkeypatch.setattr(rivals, "ROWS", (rivals.Row("none", "None", needs=((METHODS, "no such method"),)), rivals.BY_NAME["fedavg"]))
    assert [cell.row for cell in rivals.all_cells(SMALL)] == ["fedavg"] and rivals.missing() == ["none"]


def test_what_no_row_beats():
    rows = rival_sections.run_rows(MADE, "global")
    assert [c["row"] for c in rival_sections.front(rows, "small", "operations")] == ["fedavg", "scaffold", "merged"]
    assert [c["row"] for c in rival_sections.front(rows, "large", "operations")] == ["fedavg", "merged"]  # scaffold is no better there


def test_what_is_said_comes_from_the_results():
    said = rival_sections.tables_of(MADE)
    best, large, *rest = rival_sections.choices(MADE)
    assert best == (
        "The best small model: of all rows Merged (33.00 %); of those that consume nothing beyond the clients' gradients Wasteful "
        "(32.00 %); of those that fit secure aggregation Merged (33.00 %)."
    )
    assert "of those that consume nothing beyond the clients' gradients Fedavg (33.00 %)" in large
    assert rest[0].endswith("for the small model than: Fedavg (31.00 %), Scaffold (32.00 %), Merged (33.00 %).")
    assert rest[-2].endswith("are: Merged, Wasteful, Scaffold; below it: none.") and rest[-1].endswith("are: Merged; below it: Wasteful.")
    assert "Never" not in said["global"] and "| Wasteful" in said["global"]
    # Of the small model the rule gains 1, MergedCodist 2 and both 5; of the large one 0, 1 and 0 or 2.
    small, large = (line for line in said["inside"].splitlines() if line.startswith("| Both"))
    assert "+2.00 [2.00, 2.00] | more than the sum" in small and "not told from the sum" in large
    whole = rival_sections.section(MADE)
    assert "Not run: never; `fedcodist reproduce rivals --budget smoke` does it." in whole and "### Do gains add up?" in whole
    numbers = {n for row in MADE["cells"] for of in row["accuracy"].values() for n in of["all"]["test"]}
    assert numbers and not re.search(r"\bnan\b", whole)


def test_the_picture_joins_what_no_row_beats(tmp_path):
    assert figures.names(MADE) == ["rivals-smoke"]
    (made,) = figures.draw(MADE, tmp_path)
    assert made.name == "rivals-smoke.svg" and made.read_text("utf-8").count("merged") >= 2


def test_settings_of_a_row_come_on_top(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "TUNED", tmp_path)
    commands = make_rivals.configs("small", tmp_path / "studies", rounds=10, trials=2)
    names = [row.name for row in rivals.ROWS if row.there]
    assert len(commands) == len(names) - 3 and all("--seed 100" in one and "--trials 2" in one for one in commands)
    for name in ("heterofl", "feddf", "local"):
        made = config.read(tmp_path / "studies/configs" / f"{name}.toml")
        assert made.rounds == 10 and made.seeds == (100,)
    (tmp_path / "rivals-heterofl-small.toml").write_text("[pools.large.work]\nlr = 0.07\n")
    by_row = {cell.row: cell for cell in selection.cells("rivals", "small")}
    assert by_row["heterofl"].config.pools["large"].work.lr == 0.07 and by_row["heterofl"].rival["own_settings"]
    assert by_row["heterofl"].config.pools["large"].work.epochs == 1 and not by_row["scaffold"].rival["own_settings"]


def test_a_width_stands_for_the_small_model_and_personal_accuracy_beside_the_global():
    row = next(cell for cell in selection.cells("rivals", "small") if cell.row == "heterofl")
    own = {"large": {"all": {"personal_accuracy": 0.5, "personal_median": 0.4}}}
    run = Recorded({"test": {"large": {"all": 1}, "large@0.5": {"all": 2}}, "personal_test": own})
    seen = rivals.seen(run, row).result["test"]
    assert (seen["small"]["all"], seen["large"]["all"]) == (2, 1)
    assert (seen["large"]["personal"]["accuracy"], seen["large"]["personal median"]["accuracy"]) == (0.5, 0.4)
    assert rivals.seen(run, replace(row, rival={})) is run


@pytest.mark.long
def test_rows_run_resume_and_join(tiny, tmp_path):
    wanted = [word for row in ("heterofl", "local") for word in ("--cell", f"images/{row}")]
    assert command("rivals", *wanted, "--seeds", "0", "--out", str(tmp_path), "--quiet") == 0
    place = tmp_path / "rivals-smoke"
    here = results.read(place / "results.json")
    told = {cell["row"]: cell for cell in here["cells"]}
    assert {row for row, cell in told.items() if cell["seeds"]} == {"fedavg", "heterofl", "local"}
    assert {*told["heterofl"]["accuracy"]} == {"small", "large"} and told["heterofl"]["accuracy"]["small"]["all"]["gain"]
    assert "personal" in told["local"]["accuracy"]["small"] and "all" not in told["local"]["accuracy"]["small"]
    assert told["heterofl"]["cost"]["client_bytes"] < told["fedavg"]["cost"]["client_bytes"], "narrow clients are sent narrow models"
    written = (place / "results.md").read_text("utf-8")
    assert "HeteroFL, one pool" in written and "### Personal accuracy" in written and "Not run: periodic" in written
    jobs = running.jobs(selection.choose(selection.cells("rivals", "smoke"), ["images/heterofl"], [0]), tmp_path)
    assert all(running.state(job).done for job in jobs) and running.run(jobs, tmp_path, quiet=True) == {}  # nothing is trained again
    other = {**here, "cells": [{**c, "seeds": [], "accuracy": {}, "state": "none"} for c in here["cells"]]}
    joined = elsewhere.join(other, here)  # this machine has nothing, another one has these
    assert page.section(joined, drawn=False) == page.section(here, drawn=False)
