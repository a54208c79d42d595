"""The studies that go beyond the paper: which cells they have, what is shared with the paper's tables, and what the page says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_reproduce import ROUNDS, TINY, cell_of, command, result_of, run_of

from fedcodist import config
from fedcodist.cli import arguments
from fedcodist.errors import DataError
from fedcodist.reports import report
from fedcodist.reproduce import cells, claims, page, results, running, sections, selection, studies, study_sections
from fedcodist.reproduce.budgets import BUDGETS, PAPER, SMALL, SMOKE
from fedcodist.runs import session
from fedcodist.schedule import After, Constant, Cosine, Every, Linear

TRIALS = json.loads((Path(__file__).parent.parent / "docs/measured/tuning-images-small.json").read_text())


@pytest.fixture
def untuned(tmp_path, monkeypatch) -> Path:
    """A directory in the place of the tuned settings."""
    monkeypatch.setattr(cells, "TUNED", tmp_path)
    return tmp_path


@pytest.fixture
def tiny(monkeypatch, untuned):
    monkeypatch.setitem(BUDGETS, "smoke", TINY)
    monkeypatch.setattr(arguments, "prepare_jax", lambda: None)
    monkeypatch.setattr(report, "available", lambda: False)


def by_id(budget: str = "small") -> dict[str, cells.Cell]:
    return {cell.id: cell for cell in selection.cells("studies", budget)}


# -- cells --


def test_schedules_are_made_from_the_alpha_that_was_tuned(untuned):
    (untuned / "images-merged-small.toml").write_text(
        "[pools.small.work]\nlr = 0.03\n[pools.large.work]\nlr = 0.02\n[method]\nalpha = 0.8\n"
    )
    found = by_id()
    alpha = {cell.row: cell.config.method.alpha for cell in found.values() if cell.method == "merged" and cell.column == "4700"}
    assert alpha.pop("merged") == alpha.pop("merged-three") == alpha.pop("merged-rates") == Constant(0.8)
    assert alpha == {
        "merged-every-2": Every(2, 0.8),
        "merged-every-5": Every(5, 0.8),
        "merged-every-10": Every(10, 0.8),
        "merged-warm-up": Linear(1.0, 0.8),
        "merged-after": After(100, 0.8),
        "merged-cool-down": Cosine(0.8, 1.0),
    }
    assert found["images/merged-own-alpha/6300/in-domain"].config.method.alpha == {"small": Constant(0.8), "large": Constant(0.9)}
    mine = [cell for cell in found.values() if cell.family == "images" and cell.method == "merged"]
    assert len(mine) == 11 and all(cell.tuned and cell.config.pools["small"].work.lr == 0.03 for cell in mine)
    assert found["images/merged-three/4700/in-domain"].config.pools["quarter"].work.lr == 0.03  # it is like the small one
    assert not found["images/periodic-three/4700/in-domain"].tuned


def test_alpha_by_pool_gives_schedules_by_pool():
    made = studies.schedules(studies.settled({"small": Constant(0.5), "large": Linear(1.0, 0.97)}), 30)
    assert made["every-2"] == {"small": Every(2, 0.5), "large": Every(2, 0.97)}
    assert made["warm-up"] == {"small": Linear(1.0, 0.5), "large": Linear(1.0, 0.97)}
    assert made["after"]["small"] == After(10, 0.5)
    assert studies.own_alpha({"small": Constant(0.5), "large": Constant(0.9)}) == {"small": Constant(0.5), "large": Constant(0.95)}
    assert studies.own_alpha({"small": Constant(0.5)})["large"] == Constant(1.0)  # it was not taught at all


def test_three_pools_are_nested_and_a_quarter_a_half_and_the_full_width(untuned):
    made = by_id()["images/merged-three/4700/in-domain"].config
    models = {name: (pool.model.filters, pool.model.dense) for name, pool in made.pools.items()}
    assert models == {"small": ((16, 32, 32), (64, 128)), "large": ((32, 64, 64), (128, 256)), "quarter": ((8, 16, 16), (32, 64))}
    clients = {name: pool.clients for name, pool in made.pools.items()}
    assert clients == {"small": config.Choice(share=0.5), "large": config.Choice(take=47), "quarter": config.Choice()}
    assert made.membership == "nested" and made.pools["quarter"].cohort == 20
    assert by_id()["images/merged-three/4700/in-domain"].twin == "images/fedavg-three/4700"
    text = studies.halved(config.read("study/stackexchange-fedavg").pools["small"].model)
    assert (text.layers, text.embed, text.hidden) == (1, 48, 35)


def test_gates_change_the_gate_alone(untuned):
    found = by_id()
    for family in ("language", "library"):
        for method in ("periodic", "merged"):
            plain = found[f"{family}/{method}/shift"].config.method
            for gate, name in ((0.5, "0.5"), (2.0, "2")):
                cell = found[f"{family}/{method}-gate-{name}/shift"]
                assert cell.config.method.distill.gate == gate and plain.distill.gate == 0
                assert config.plain(cell.config) | {"method": 0} == config.plain(found[f"{family}/{method}/shift"].config) | {"method": 0}
                assert (cell.twin, cell.studies) == (f"{family}/fedavg/shift", {"gate": f"{family}/{method}/shift"})


def test_rows_of_the_papers_tables_are_the_same_runs(untuned, tmp_path):
    def paths(*tables: str) -> set[Path]:
        return {job.path for table in tables for job in running.jobs(selection.cells(table, "small"), tmp_path)}

    more = paths("studies") - paths("table1", "table2")
    # 6 schedules, own alphas, three pools, 8 gates and 3 rows of other rates, and the last column's other seeds of two cells
    assert len(more) == 3 * (6 + 1 + 3 + 8 + 3) + 2 * 2
    assert all(cell.paper == {} for cell in by_id().values() if "-" in cell.row)
    assert by_id()["images/merged/4700/in-domain"].paper["large"]["all"] == 33.15


def test_seeds_and_order(untuned, tmp_path):
    found = by_id()
    seeds = {cell.id: cell.seeds for cell in found.values()}
    assert set(seeds.values()) == {SMALL.seeds}
    assert {cell.seeds for cell in studies.all_cells(SMOKE)} == {SMOKE.seeds}
    assert {cell.seeds for cell in studies.all_cells(PAPER)} == {PAPER.seeds}
    order = [job.cell.id for job in running.jobs(found.values(), tmp_path)]
    assert order[:2] == ["images/fedavg/4700", "images/merged/4700/in-domain"] and "images/fedavg-rates/4700" in order[2:4]
    assert order[-1] == "images/merged-three/4700/in-domain"


def test_the_large_model_has_its_own_rates_and_all_else_stays():
    found = by_id()
    for method, public in (("fedavg", ""), ("periodic", "/in-domain"), ("merged", "/in-domain")):
        tuned, other = (found[f"images/{method}{way}/4700{public}"] for way in ("", "-rates"))
        pools = {name: (pool.work.lr, pool.server.lr) for name, pool in other.config.pools.items()}
        assert pools == {"small": (0.03, 0.003), "large": (0.0114, 0.00311)}
        assert config.plain(other.config) | {"pools": 0} == config.plain(tuned.config) | {"pools": 0}
        assert other.twin == ("images/fedavg-rates/4700" if public else "") and other.studies == {"rates": tuned.id}
    best = max(TRIALS["methods"]["fedavg"]["trials"], key=lambda trial: trial["accuracy large"])
    assert studies.LARGE_BEST["small"] == {"work": best["pools.large.work.lr"], "server": best["pools.large.server.lr"]}
    assert not any("rates" in cell.studies for cell in studies.all_cells(SMOKE))  # nothing was tuned for it


def test_a_study_is_chosen_by_its_name_with_what_it_is_compared_with(untuned):
    every = list(by_id().values())
    assert [cell.id for cell in selection.choose(every, ["own-alpha"])] == [
        "images/fedavg/6300",
        "images/merged/6300/in-domain",
        "images/merged-own-alpha/6300/in-domain",
    ]
    chosen = [cell.id for cell in selection.choose(every, ["images/merged-every-5/*"])]
    assert chosen == ["images/fedavg/4700", "images/merged/4700/in-domain", "images/merged-every-5/4700/in-domain"]
    assert {cell.seeds for cell in selection.choose(every, ["gate"], [7])} == {(7,)}


def test_shipped_configs_are_the_cells_of_the_small_budget(untuned):
    known = {config.identity(cell.config): cell.id for cell in by_id().values()}
    there = {name: known.get(config.identity(config.read(name))) for name in config.shipped() if name.startswith("study/cifar-")}
    shorter = ["rounds=120", "pools.small.cohort=10", "method.distill.batch=16"]  # on text the budget is smaller than the configs
    there["gated"] = known.get(config.identity(config.read("study/stackexchange-shift-merged-gated", shorter)))
    assert len(there) == 11 and set(there.values()) == {
        *(f"images/merged-{way}/4700/in-domain" for way in studies.schedules(0.5, 300)),
        *(f"images/{method}-three/4700/in-domain" for method in ("periodic", "merged")),
        "images/fedavg-three/4700",
        "images/merged-own-alpha/6300/in-domain",
        "language/merged-gate-0.5/shift",
    }
    gated = config.read("study/stackexchange-shift-periodic-gated")
    assert gated.method.distill.gate == 0.5
    assert config.plain(gated)["pools"] == config.plain(config.read("study/stackexchange-shift-periodic"))["pools"]


def test_rows_have_names(untuned):
    for budget in BUDGETS:
        said = {cell.row: study_sections.row_name(cell.row) for cell in selection.cells("studies", budget)}
        assert len(set(said.values())) == len(said) and not any(
            "-" in name.partition(",")[2].replace("-down", "").replace("-up", "") for name in said.values()
        )
    assert study_sections.row_name("merged-every-2") == "MergedCodist, every 2nd round"


# -- results by hand --

PLAIN, EVERY = "images/merged/4700/in-domain", "images/merged-every-5/4700/in-domain"
ALPHA = {"method": {"alpha": {"kind": "constant", "value": 0.5}}}


def hand() -> dict:
    """Two studies by hand: a fifth of the cost at half a point less; a gate that gives the small model its other domain."""
    made = [
        cell_of("images/fedavg/4700", {"small": [0.30, 0.32], "large": [0.28, 0.28]}, studies={"cost": "", "pools": ""}, distilled=0),
        cell_of(
            PLAIN, {"small": [0.34, 0.36], "large": [0.30, 0.32]}, "images/fedavg/4700", studies={"cost": "", "pools": ""}, distilled=300
        ),
        cell_of(EVERY, {"small": [0.33, 0.36], "large": [0.30, 0.31]}, "images/fedavg/4700", studies={"cost": PLAIN}, distilled=60),
        cell_of("images/merged-warm-up/4700/in-domain", {}, "images/fedavg/4700", studies={"cost": PLAIN}, distilled=0),
        cell_of("images/fedavg-three/4700", {"quarter": [0.2], "small": [0.25], "large": [0.28]}, studies={"pools": ""}, distilled=0),
        cell_of("images/merged-three/4700/in-domain", {"quarter": [0.21], "small": [0.27], "large": [0.31]}, studies={"pools": ""}),
        cell_of("language/merged/shift", {"small": {"question": [0.2], "all": [0.2]}}, studies={"gate": ""}),
        cell_of(
            "language/merged-gate-0.5/shift", {"small": {"question": [0.26], "all": [0.22]}}, studies={"gate": "language/merged/shift"}
        ),
    ]
    made[0]["cost"], made[1]["cost"], made[2]["cost"] = ({"server_flops": flops} for flops in (0, 5_000, 1_000))
    made[1]["settings"] = ALPHA
    made[1]["accuracy"]["small"]["all"]["gain"] = {"difference": 0.04, "low": 0.03, "high": 0.05, "seeds": 2}
    found = result_of("studies", *made)
    found["families"]["language"]["domains"] = {"questions": "question", "mixed": "all"}
    return found


def test_server_cost_and_differences_by_hand():
    r = hand()
    of = {cell["id"]: cell for cell in r["cells"]}
    assert study_sections.server_share(r, of[EVERY], PLAIN) == 0.2
    assert study_sections.server_share(r, of["images/fedavg/4700"], PLAIN) == 0
    assert study_sections.server_share(r, of["images/merged-warm-up/4700/in-domain"], PLAIN) is None
    assert study_sections.server_share(r, of[EVERY], "nothing") is None
    # 0.33 - 0.34 and 0.36 - 0.36: mean -0.005, standard error 0.005, t(1) = 12.706.
    difference = study_sections.against(r, of[EVERY], PLAIN, "small")
    assert difference.mean == pytest.approx(-0.005) and difference.high == pytest.approx(-0.005 + 12.7062 * 0.005, abs=1e-6)
    assert study_sections.against(r, of[PLAIN], "", "small") is None


def rows(text: str, *start: str) -> list[list[str]]:
    cut = ([part.strip() for part in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| "))
    return [row for row in cut if row[: len(start)] == list(start)]


def test_the_section_on_cost():
    text = study_sections.study(hand(), "cost")
    assert "**images, |P_H| = 4,700 examples, 300 rounds, plain alpha 0.5**" in text and "first 100 of 300 rounds" in " ".join(text.split())
    head = ["method", "seeds", "small", "small: gain", "small: against plain", "large", "large: gain", "large: against plain"]
    assert rows(text)[0] == [*head, "server FLOPs", "rounds that distil"]
    assert rows(text, "FedAvg")[0][-2:] == ["0.0 %", "0"]
    assert rows(text, "MergedCodist")[0] == [
        "MergedCodist", "0, 1", "35.00", "+4.00 [3.00, 5.00]", "–", "31.00", "–", "–", "100.0 %", "300",
    ]  # fmt: skip
    assert rows(text, "MergedCodist, every 5th round")[0] == [
        "MergedCodist, every 5th round", "0, 1", "34.50", "–", "-0.50 [-6.85, 5.85]", "30.50", "–", "-0.50 [-6.85, 5.85]", "20.0 %", "60",
    ]  # fmt: skip
    assert rows(text, "MergedCodist, warm-up")[0][2:] == ["not run", "–", "–", "not run", "–", "–", "–", "–"]


def test_the_section_on_pools_shows_every_model():
    text = study_sections.study(hand(), "pools")
    assert [row[:5] for row in rows(text)[1:]] == [
        ["quarter width", "three", "FedAvg", "0", "20.00"],
        ["quarter width", "three", "MergedCodist", "0", "21.00"],
        ["half width", "two", "FedAvg", "0, 1", "31.00"],
        ["half width", "two", "MergedCodist", "0, 1", "35.00"],
        ["half width", "three", "FedAvg", "0", "25.00"],
        ["half width", "three", "MergedCodist", "0", "27.00"],
        ["full width", "two", "FedAvg", "0, 1", "28.00"],
        ["full width", "two", "MergedCodist", "0, 1", "31.00"],
        ["full width", "three", "FedAvg", "0", "28.00"],
        ["full width", "three", "MergedCodist", "0", "31.00"],
    ]


def test_the_section_on_gates_goes_by_domain():
    text = study_sections.study(hand(), "gate")
    assert rows(text, "questions", "MergedCodist, gate 0.5")[0][2:6] == ["0", "26.00", "–", "+6.00"]
    assert rows(text, "mixed", "MergedCodist, gate 0.5")[0][2:6] == ["0", "22.00", "–", "+2.00"]
    assert rows(text, "mixed", "MergedCodist")[0][5] == "–"
    assert study_sections.shown(hand()) == ["cost", "pools", "gate"]


def test_what_a_cell_is_compared_with_brings_its_own_twin():
    chosen = {cell.id for cell in selection.choose(selection.cells("studies", "small"), ["images/periodic-rates"])}
    assert chosen == {f"images/{row}/4700{more}" for row, more in (("fedavg", ""), ("fedavg-rates", ""), ("periodic", "/in-domain"),
                                                                   ("periodic-rates", "/in-domain"))}  # fmt: skip


def ship(folder: Path, *found: dict) -> None:
    (folder / "results").mkdir(parents=True, exist_ok=True)
    for r in found:
        (folder / f"results/{r['table']}-{r['budget']}.json").write_text(results.dump(r))


def test_the_page_has_the_studies_and_no_claims_of_them(tmp_path):
    ship(tmp_path, hand())
    text = page.render(page.load(tmp_path / "results"))
    assert "## Studies that go beyond the paper, budget small" in text and "### Three pools against two" in text
    assert "claims, budget" not in text and claims.judge([hand()]) == []
    known = page.blocks(page.load(tmp_path / "results"))
    assert {"studies-small", "studies-small/cost", "studies-small/gate"} <= set(known) and "claims-small" not in known
    assert "20.0 %" in known["studies-small/cost"]() and all(block().strip() for block in known.values())
    ship(tmp_path, result_of("table1", cell_of(PLAIN, {"small": [0.3]})))
    assert "claims, budget small" in page.render(page.load(tmp_path / "results"))


def test_a_study_of_which_nothing_was_run_names_the_command():
    r = hand()
    for cell in r["cells"]:
        if "-" in cell["row"]:
            cell.update(state="none", seeds=[], accuracy={})
    text = study_sections.table(r, "cost")
    assert "|---" not in text and "Not run; `fedcodist reproduce studies --budget small --cell 'cost'` does it." in text


def test_findings_stand_below_their_table(tmp_path):
    ship(tmp_path, hand())
    without = page.render(page.load(tmp_path / "results"))
    file = tmp_path / "results/findings.md"
    file.write_text(
        "# Findings\n\n## studies-small/cost\n\nOne round in 5 costs 20.0 %\nand half a point.\n\n## studies-paper/cost\n\nNot yet.\n"
    )
    text = page.render(page.load(tmp_path / "results"))
    place = text.index("One round in 5 costs 20.0 %\nand half a point.\n")
    assert text.index("every 5th round") < place < text.index("### Three pools") and "Not yet" not in text
    assert text.replace("\nOne round in 5 costs 20.0 %\nand half a point.\n", "") == without
    page.write(tmp_path)
    assert page.check(tmp_path) == []
    file.write_text(file.read_text().replace("half a", "some"))
    assert page.check(tmp_path) == ["results.md", "all-results.md"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "## studies-small/cost\n\nIt costs 19.9 %.\n",
            r"findings.md, studies-small/cost: got the number 19.9; allowed numbers of its own",
        ),
        ("## studies-small/cost\n\nIt gains +0.50 points.\n", r"got the number \+0.50; allowed numbers of its own"),  # it loses them
        ("## studies-small/cost\n\nIt loses -4.00 points.\n", r"got the number -4.00; allowed numbers of its own"),
        ("## studies-small/cost\n\nIt gains +4.00\n[-6.85, 5.85].\n", r"got the number \+4.00 \[-6.85, 5.85\]; allowed"),  # another's
        (
            "## studies-small/costs\n\nNothing.\n",
            r"findings.md: got the heading 'studies-small/costs'; .*did you mean studies-small/cost\?",
        ),
        ("## studies-small/cost\n\nA.\n\n## studies-small/cost\n\nB.\n", r"findings.md: got the heading 'studies-small/cost' twice"),
    ],
)
def test_findings_that_would_be_wrong_are_refused(tmp_path, text, said):
    ship(tmp_path, hand())
    (tmp_path / "results/findings.md").write_text(text)
    with pytest.raises(DataError, match=said):
        page.check(tmp_path)


def test_the_rounds_that_distilled_are_counted(tiny):
    cell = by_id("smoke")["images/merged-every-2/6/in-domain"]
    journal = [{"round": t, "pools": {"small": {"codistilled": t % 2 == 0}, "large": {"codistilled": t == 3}}} for t in range(1, 9)]
    found = results._cell("studies", cell, [run_of("merged", seed, 0.5, journal) for seed in (0, 1)], [])
    assert found["distilled"] == 5 and found["studies"] == {"cost": "images/merged/6/in-domain"}
    assert "studies" not in results._cell("table1", cell, [], [])


# -- end to end --


def test_the_studies_are_run_and_share_runs_with_the_tables(tiny, tmp_path, monkeypatch, capsys):
    trained = []
    perform = session.perform
    monkeypatch.setattr(
        session,
        "perform",
        lambda made, *more, **most: trained.append((made.config.name, made.method.kind)) or perform(made, *more, **most),
    )
    assert command("table1", "--cell", "images/merged/6/in-domain", "--seeds", "0", "--out", str(tmp_path), "--quiet") == 0
    assert len(trained) == 2
    some = ["cost", "own-alpha", "images/merged-three/*", "language/merged*"]  # PeriodicCodist in three pools takes long to compile
    again = ["studies", *(word for name in some for word in ("--cell", name)), "--seeds", "0", "--out", str(tmp_path), "--quiet"]
    assert command(*again) == 0
    assert len(trained) == len(set(trained)) == 8 + 3 + 2 + 4
    said = capsys.readouterr().out
    assert "images/merged-three/6/in-domain" in said and "claims" not in said.rpartition("images/fedavg/6 ")[2]
    result = results.read(tmp_path / "studies-smoke/results.json")
    of = {cell["id"]: cell for cell in result["cells"]}
    assert {name for name, cell in of.items() if not cell["seeds"]} == {name for name in of if "/periodic" in name}
    assert {name: of[f"images/merged{name}/6/in-domain"]["distilled"] for name in ("", "-every-2", "-every-5", "-every-10", "-after")} == {
        "": ROUNDS, "-every-2": 4, "-every-5": 1, "-every-10": 0, "-after": 6,
    }  # fmt: skip
    every = of["images/merged-every-2/6/in-domain"]
    assert study_sections.server_share(result, every, "images/merged/6/in-domain") == 0.5
    same = ("small", "large")
    assert [of["images/merged-every-10/6/in-domain"]["accuracy"][p]["all"]["gain"]["difference"] for p in same] == [0, 0]  # plain FedAvg
    three = of["images/merged-three/6/in-domain"]
    assert list(three["accuracy"]) == ["quarter", "small", "large"] and three["accuracy"]["quarter"]["all"]["gain"]["seeds"] == 1
    assert of["language/merged-gate-0.5/shift"]["accuracy"]["small"]["first"]["test"] != []
    text = (tmp_path / "studies-smoke/results.md").read_text()
    assert all(f"### {title}" in text for name, title in study_sections.TITLES.items() if name != "rates")  # which is of tuned cells
    assert "small 0.5, large 0.9" in text
    before = json.dumps(result)
    assert command(*again) == 0
    assert len(trained) == 17 and json.dumps(results.read(tmp_path / "studies-smoke/results.json")) == before
    assert command("studies", "--list", "--cell", "cost", "--seeds", "0", "--out", str(tmp_path)) == 0
    assert "8 of 8 runs are done" in capsys.readouterr().out


def test_budgets_have_what_studies_need():
    for budget in (SMOKE, SMALL, PAPER):
        assert list(studies.families(budget)) == ["images", *budget.shifted] and "images" not in budget.shifted
    assert set(studies.STUDIES) == set(study_sections.TITLES) == set(study_sections.QUESTIONS) == set(study_sections.TABLES)
    assert sections.row_name("merged") == "MergedCodist"
