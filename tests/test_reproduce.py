"""The paper's tables run again: which cells there are, how they are run and resumed, what is said of them, and that pages are not typed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedcodist import config, runs
from fedcodist.cli import arguments, reproduce
from fedcodist.errors import ConfigError, DataError
from fedcodist.reports import report
from fedcodist.reproduce import (
    cells,
    claims,
    clocks,
    elsewhere,
    figures,
    front,
    page,
    paper,
    results,
    running,
    sections,
    selection,
    stores,
    studies,
)
from fedcodist.reproduce.budgets import BUDGETS, PAPER, SMALL, SMOKE, Budget, Family, methods
from fedcodist.reproduce.claims import NOT, OPEN, REPRODUCED, Difference
from fedcodist.runs import session
from fedcodist.tasks import TASKS

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 8
PLAIN = Family(
    data="Gaussian classes",
    config="quick/toy",
    given=(f"rounds={ROUNDS}", "checkpoint_every=1"),
    methods=methods(3, 4, 2, 20),
    columns={"4": 4, "6": 6, "8": 8},
    outside_data="fewer of them",
    outside=("task.public=150",),
    sizes={"60": ("task.public=60",), "100": ("task.public=100",), "200": ()},
)
SHIFTED = replace(
    PLAIN,
    given=(*PLAIN.given, "pools.small.domain=first", "pools.large.domain=second"),
    columns={},
    domains={"answers": "first", "questions": "second", "mixed": "all"},
)
TINY = Budget("smoke", "toys", ROUNDS, 3, (0, 1), (0,), (1, 2), 4, families={"images": PLAIN}, shifted={"language": SHIFTED}, decides=True)
CENTRAL = ["images/periodic/6/in-domain", "images/merged/6/in-domain"]


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(BUDGETS, "smoke", TINY)
    monkeypatch.setattr(arguments, "prepare_jax", lambda: None)


def command(*argv: str) -> int:
    """The verb, with the command line's own parser class."""
    parser = arguments.Parser()
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--format", default="table")
    reproduce.add(parser)
    return reproduce.run(parser.parse_args(argv))


# -- the paper's numbers --


def test_the_papers_numbers_are_those_of_its_tables():
    assert paper.IMAGES["fedavg", ""]["3100"] == (31.84, 24.76)
    assert paper.IMAGES["periodic", "in-domain"]["6300"] == (35.68, 37.20)
    assert paper.IMAGES["merged", "out-of-domain"]["4700"] == (33.45, 31.02)
    assert paper.LANGUAGE["periodic", "in-domain"]["296k"] == (25.95, 26.68)
    assert paper.LANGUAGE["merged", "out-of-domain"]["612k"] == (26.59, 27.67)
    assert paper.SHIFT["merged"] == {"answers": (25.50, 25.29), "questions": (27.65, 30.75), "mixed": (26.45, 27.70)}
    assert [claim.name for claim in paper.CLAIMS] == list(claims.RULES)
    effects = [paper.gain(paper.IMAGES, "periodic", "in-domain", column, "large") for column in ("3100", "4700")]
    assert [round(e, 1) for e in effects] == [6.3, 4.5]
    assert round(paper.shift_gain("merged", "answers", "small"), 1) == -0.5


def test_the_command_line_knows_the_budgets():
    assert list(BUDGETS) == list(reproduce.BUDGETS)


# -- cells --


def test_the_paper_budget_is_the_shipped_configs():
    by_id = {cell.id: cell for table in paper.TABLES for cell in selection.cells(table, "paper")}
    names = {"images": "cifar", "stackoverflow": "stackoverflow"}
    checked = 0
    for name in config.shipped():
        match = re.fullmatch(r"paper/(cifar|stackoverflow)-(fedavg|periodic|merged)-(\w+?)(-cifar10|-c4)?", name)
        if match:
            family = next(f for f, prefix in names.items() if prefix == match[1])
            public = "" if match[2] == "fedavg" else "/out-of-domain" if match[4] else "/in-domain"
            found = by_id[f"{family}/{match[2]}/{match[3]}{public}"]
        elif match := re.fullmatch(r"paper/shift-(\w+)", name):
            found = by_id[f"stackoverflow/{match[1]}/shift"]
        elif (match := re.fullmatch(r"paper/figure4-(\w+)-(\d+)", name)) and match[2] != "13500":
            found = by_id[f"images/{match[1]}/4700/{match[2]}"]
        else:
            continue
        assert config.identity(found.config) == config.identity(config.read(name)), name
        checked += 1
    assert checked == 30 + 3 + 8
    for cell in by_id.values():
        if cell.family != "language" and not cell.rival:
            first = (cell.column in ("4700", "15700", "296k", "all", "shift") and not cell.public.isdigit()) or cell.studies
            assert cell.seeds == ((0, 1, 2, 3, 4) if first else (0, 1, 2)) and cell.config.rounds == 1500, cell.id
    assert all(method.config.method.distill.batch == 128 for name, method in by_id.items() if name.startswith("images/merged"))


def test_the_paper_budget_has_a_balanced_column_and_the_text_that_is_here():
    by_id = {cell.id: cell for cell in selection.cells("table1", "paper")}
    family = PAPER.families["images"]
    assert (family.central, family.balanced, family.in_place) == ("4700", "15700", ["3100", "4700", "6300"])
    for public, where in (("in-domain", "in_domain"), ("out-of-domain", "cifar10")):
        cell = by_id[f"images/periodic/15700/{public}"]
        assert (cell.clients, cell.config.pools["large"].clients.take, cell.config.task.public) == (157, 157, where)
        assert cell.paper == by_id[f"images/periodic/4700/{public}"].paper and cell.twin == "images/fedavg/15700"
    assert by_id["images/fedavg/15700"].paper == {"small": {"all": 31.84}, "large": {"all": 30.57}}
    assert {cell.rank for cell in by_id.values() if cell.column == "15700"} == {0, 1}
    assert by_id["stackoverflow/merged/143k/in-domain"].paper == {"small": {"all": 26.42}, "large": {"all": 26.63}}
    for table in ("table1", "table2"):
        small = {cell.id: cell for cell in selection.cells(table, "small") if cell.family == "language"}
        assert {c.id: c for c in selection.cells(table, "paper") if c.family == "language"} == small, "the very runs of budget small"
    assert {cell.column for cell in studies.all_cells(PAPER) if "own-alpha" in cell.studies} == {"6300"}


def test_the_small_budget_is_a_fifth_of_the_rounds():
    by_id = {cell.id: cell for cell in selection.cells("table1", "small")}
    assert all(cell.config.rounds == {"images": 300, "language": 120}[cell.family] for cell in by_id.values())
    for periodic in (cell.config for cell in by_id.values() if cell.method == "periodic"):
        assert periodic.rounds // periodic.method.period == 7 == paper.ROUNDS // paper.PERIOD and periodic.rounds % periodic.method.period
    assert by_id["language/merged/87/in-domain"].config.pools["large"].cohort == 10
    periodic, merged = (by_id[f"images/{m}/4700/in-domain"] for m in ("periodic", "merged"))
    assert (periodic.config.method.period, periodic.config.method.distill.steps, periodic.config.method.distill.batch) == (40, 200, 64)
    assert (merged.config.method.distill.steps, merged.config.method.distill.batch) == (32, 64)
    assert periodic.seeds == merged.seeds == by_id["images/fedavg/4700"].seeds == (0, 1, 2)
    assert by_id["images/merged/3100/in-domain"].seeds == by_id["images/merged/4700/out-of-domain"].seeds == (0, 1, 2)
    assert by_id["images/merged/6300/in-domain"].seeds == by_id["images/merged/3100/out-of-domain"].seeds == (0,)
    assert by_id["images/merged/4700/out-of-domain"].config.task.public == "cifar10"
    assert by_id["images/merged/3100/in-domain"].config.pools["large"].clients.take == 31
    assert by_id["language/merged/87/out-of-domain"].config.task.public == "reddit"
    assert by_id["images/merged/4700/in-domain"].paper == {"small": {"all": 33.86}, "large": {"all": 33.15}}
    assert "StackOverflow" not in repr(SMALL) and "Stack Overflow" not in repr(SMALL)


def test_smoke_needs_no_prepared_data():
    every = [cell for table in paper.TABLES for cell in selection.cells(table, "smoke")]
    assert {cell.config.task.kind for cell in every} == {"fashion", "stdlib_text"}
    assert all(stores.needed(cell.config.task) == [] for cell in every)
    kinds = {name: {(cell.row, cell.public) for cell in selection.cells("table1", name)} for name in BUDGETS}
    assert kinds["smoke"] == kinds["small"] == kinds["paper"]  # the same table thrice


def test_smoke_has_other_text_and_parts_of_its_images():
    outside = {cell.family: cell.config.task for cell in selection.cells("table1", "smoke") if cell.public == "out-of-domain"}
    inside = {cell.family: cell.config.task for cell in selection.cells("table1", "smoke") if cell.public == "in-domain"}
    assert outside == {family: replace(task, public="out_of_domain") for family, task in inside.items()} and len(outside) == 2
    figure = selection.cells("figure4", "smoke")
    assert [cell.public for cell in figure if cell.method == "merged"] == ["60", "135", "300", "675", "in-domain"]
    assert [cell.config.task.public_size for cell in figure if cell.method == "merged"] == [60, 135, 300, 675, None]
    assert all(cell.config.method.distill.batch <= 60 for cell in figure if cell.method != "fedavg")


def test_extra_rows_are_in_the_central_column():
    found = {
        cell.row: cell
        for cell in selection.cells("table1", "small")
        if cell.family == "images" and cell.row not in ("fedavg", "periodic", "merged")
    }
    teaching = [f"{method}-{way}" for method in ("periodic", "merged") for way in ("to-large", "to-small", "self")]
    assert list(found) == [*teaching, "fedavg-all"]
    assert {cell.column for cell in found.values()} == {"4700", "all"} and {cell.twin for cell in found.values()} == {"images/fedavg/4700"}
    assert found["merged-to-large"].config.topology == {"large": {"small": 1.0}}
    assert found["periodic-self"].config.topology == "self"
    assert {pool.teaches.temperature for pool in found["periodic-self"].config.pools.values()} == {cells.SELF_TEMPERATURE}  # the tuned is 1
    assert found["fedavg-all"].config.pools["large"].clients == config.Choice()


def test_tuned_settings_are_laid_over_every_cell_of_a_family_and_method(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "TUNED", tmp_path)
    file = tmp_path / "images-merged-small.toml"
    file.write_text(
        "[pools.large.work]\nlr = 0.03\n[pools.large.learns]\nlr = 0.5\n[pools.small.learns]\nself_weight = 0.2\n[method]\nalpha = 0.8\n"
    )
    by_id = {cell.id: cell for cell in selection.cells("table1", "small")}
    for name in ("images/merged/3100/in-domain", "images/merged/4700/out-of-domain", "images/merged-to-small/4700/in-domain"):
        made = by_id[name].config
        assert by_id[name].tuned
        work = made.pools["large"].work  # which it has from the small pool: only the rate is another
        assert (work.lr, work.batch, work.epochs) == (0.03, 20, 1)
        assert made.pools["small"].work.lr == 0.1
        assert (made.pools["small"].learns.lr, made.pools["small"].learns.self_weight) == (1e-3, 0.2)
        assert (made.pools["large"].learns.lr, made.pools["large"].learns.self_weight) == (0.5, 0.2)  # it is like the small one
        assert made.method.alpha(1) == 0.8 and made.method.distill.steps == 32
    assert not by_id["images/periodic/4700/in-domain"].tuned and not by_id["language/merged/87/in-domain"].tuned
    (tmp_path / "language-shift-merged-small.toml").write_text("[method]\nalpha = 0.9\n")  # of other pools than Table 1's
    tuned = [
        cell.id for table in ("table1", "table2") for cell in selection.cells(table, "small") if cell.family != "images" and cell.tuned
    ]
    assert tuned == ["language/merged/shift"]
    assert by_id["images/merged/3100/in-domain"].config.pools["large"].clients.take == 31
    file.write_text("[method]\nalpha = { small = 0.8, large = 0.9 }\n")
    alpha = {cell.id: cell for cell in selection.cells("table1", "small")}["images/merged/4700/in-domain"].config.method.alpha
    assert {pool: of(1) for pool, of in alpha.items()} == {"small": 0.8, "large": 0.9}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds = 5\n", r"images-merged-small.toml: got rounds; allowed pools and method"),
        (
            "[pools.small.work]\nlrr = 0.1\nlr = 0.1\n",
            r"images-merged-small.toml: pools.small.work.lrr: got an unknown key; .*did you mean lr\?",
        ),
        ("[pools.small.work]\nlrr = 0.1\n", r"images-merged-small.toml: pools.small.work"),
        ("[pools.smal.work]\nlr = 0.1\n", r"images-merged-small.toml: pools.smal"),
        ("[method]\nalpha = 2.0\n", r"images-merged-small.toml: method.alpha: got 2.0; allowed"),
        ("pools = 3\n", r"images-merged-small.toml: pools"),
        ("[pools.small.server]\nlr = -1.0\n", r"images-merged-small.toml: pools.small.server.lr: got -1.0"),
    ],
)
def test_a_wrong_tuned_file_is_refused(tmp_path, monkeypatch, text, said):
    monkeypatch.setattr(cells, "TUNED", tmp_path)
    (tmp_path / "images-merged-small.toml").write_text(text)
    with pytest.raises(ConfigError, match=said) as error:
        selection.cells("table1", "small")
    assert "--set" not in str(error.value)


def test_choosing_cells(tiny):
    every = selection.cells("table1", "smoke")
    assert selection.choose(every, []) == every
    assert [cell.id for cell in selection.choose(every, ["images/merged/8/*"])] == [
        "images/fedavg/8",  # its twin
        "images/merged/8/in-domain",
        "images/merged/8/out-of-domain",
    ]
    for beginning in ("images/merged/8", "images/merged/8/"):
        assert selection.choose(every, [beginning]) == selection.choose(every, ["images/merged/8/*"])
    assert selection.choose(every, ["images"]) == [cell for cell in every if cell.family == "images"]
    assert {cell.seeds for cell in selection.choose(every, ["images/fedavg/*"], [5, 7])} == {(5, 7)}
    with pytest.raises(ConfigError, match=r"--cell: got 'image/merged'; .*did you mean images/merged\?"):
        selection.choose(every, ["image/merged"])
    with pytest.raises(ConfigError, match=r"--cell: got 'images/merge/8/in-domain'; .*did you mean images/merged/8/in-domain\?"):
        selection.choose(every, ["images/merged/8/*", "images/merge/8/in-domain"])


def test_equal_experiments_are_one_run(tiny, tmp_path):
    table, figure = selection.cells("table1", "smoke"), selection.cells("figure4", "smoke")
    paths = [job.path for job in running.jobs([*table, *figure], tmp_path)]
    assert len(paths) == len(set(paths))
    again = [replace(cell, id=f"other/{cell.id}", row="other") for cell in table]  # whatever a table calls it
    assert {job.path for job in running.jobs(again, tmp_path)} == {job.path for job in running.jobs(table, tmp_path)}
    assert len({cell.name for cell in table}) == len(table)
    alone = {job.path for job in running.jobs(table, tmp_path)}
    more = [job for job in running.jobs(figure, tmp_path) if job.path not in alone]
    assert {job.cell.public for job in more} == {"60", "100"}  # the twin and the whole set are Table 1's
    assert {job.path for job in running.jobs(selection.cells("figure3", "smoke"), tmp_path)} == {
        job.path for job in running.jobs(selection.cells("table2", "smoke"), tmp_path)
    }


def test_the_central_column_comes_first_and_seeds_go_together(tiny, tmp_path):
    order = [(job.cell.id, job.seed) for job in running.jobs(selection.cells("table1", "smoke"), tmp_path)]
    rows = ["images/fedavg/6", "images/periodic/6/in-domain", "images/merged/6/in-domain"]
    assert order[:6] == [(row, seed) for seed in (0, 1) for row in rows]
    assert [name for name, _ in order[6:8]] == ["images/periodic/6/out-of-domain", "images/merged/6/out-of-domain"]
    assert "images/fedavg-all/all" in order[-1]


# -- running --


def test_a_table_is_run_once_and_then_read(tiny, tmp_path, monkeypatch, capsys):
    trained = []
    perform = session.perform
    monkeypatch.setattr(
        session,
        "perform",
        lambda made, root, **more: trained.append((made.config.name, made.seed)) or perform(made, root, **more),
    )
    loaded = []
    toy = TASKS["toy"]
    load = toy.load
    monkeypatch.setattr(toy, "load", lambda self: loaded.append(self) or load(self))
    monkeypatch.setattr(report, "available", lambda: False)
    some = ["--cell", "images/merged*/6/*", "--cell", "images/merged/8/in-domain"]
    assert command("table1", *some, "--out", str(tmp_path), "--format", "json", "--quiet") == 0
    result = json.loads(capsys.readouterr().out)
    assert len(trained) == len(set(trained)) == 4 + 2 + 6 + 2  # no twin is trained twice
    assert len(loaded) == 2  # in-domain and out-of-domain
    by_id = {cell["id"]: cell for cell in result["cells"]}
    twin, merged = by_id["images/fedavg/6"], by_id["images/merged/6/in-domain"]
    assert merged["state"] == "done" and merged["seeds"] == [0, 1] and merged["twin"] == twin["id"]
    small = merged["accuracy"]["small"]["all"]
    gains = [b - a for a, b in zip(twin["accuracy"]["small"]["all"]["test"], small["test"], strict=True)]
    assert small["gain"]["difference"] == pytest.approx(sum(gains) / 2, abs=2e-4)
    assert small["gain"]["low"] < small["gain"]["difference"] < small["gain"]["high"]
    one_way = by_id["images/merged-to-large/6/in-domain"]["accuracy"]["small"]["all"]
    assert one_way["gain"] == {"difference": 0.0, "low": 0.0, "high": 0.0, "seeds": 2}  # a teacher only is its own twin
    assert by_id["images/merged/8/in-domain"]["accuracy"]["small"]["all"]["gain"]["low"] is None
    assert result["provenance"]["version"] and set(result["provenance"]["data"]) == {
        "Gaussian classes",
        "Gaussian classes, public fewer of them",
    }
    text = (tmp_path / "table1-smoke/results.json").read_text()
    assert json.loads(text) == result
    assert str(tmp_path) not in text and not re.search(rf"\b{re.escape(os.uname().nodename)}\b", text)

    trained.clear()
    loaded.clear()
    assert command("figure4", "--cell", "images/merged/*", "--out", str(tmp_path), "--quiet") == 0  # shares all but the smaller sizes
    assert len(trained) == 2 + 1
    trained.clear()
    loaded.clear()
    assert not list(tmp_path.rglob("*.svg"))
    monkeypatch.setattr(report, "available", lambda: True)
    assert command("table1", *some, "--out", str(tmp_path)) == 0
    assert not trained and not loaded
    assert (tmp_path / "table1-smoke/results.json").read_text() == text
    said = capsys.readouterr().out
    assert "(i) " in said and "(vi) " in said and "results.md" in said
    assert (tmp_path / "table1-smoke/table1-smoke-images.svg").is_file()
    assert "(table1-smoke-images.svg)" in (tmp_path / "table1-smoke/results.md").read_text()

    docs = ("--docs", str(tmp_path / "docs"))
    assert command("table1", "--report", "--out", str(tmp_path), *docs) == 0
    assert (tmp_path / "docs/results/table1-smoke.json").read_text() == text
    assert command("table1", "--report", "--out", str(tmp_path / "another machine"), *docs) == 0  # where nothing was run: all is kept
    assert json.loads((tmp_path / "docs/results/table1-smoke.json").read_text())["cells"] == result["cells"]


def test_words_that_new_numbers_make_stale_are_refused_after_these_are_told(tmp_path, capsys):
    docs = tmp_path / "docs"
    assert command("studies", "--report", "--out", str(tmp_path), "--docs", str(docs)) == 0
    assert capsys.readouterr().out
    (docs / "results/findings.md").write_text("## studies-smoke/cost\n\nIt gains 12.34 points.\n")
    with pytest.raises(DataError, match="got the number 12.34"):
        command("studies", "--report", "--out", str(tmp_path), "--docs", str(docs))
    assert not capsys.readouterr().out, "they were stale before: nothing is trained in vain"
    (docs / "results/studies-smoke.json").unlink()
    with pytest.raises(DataError, match="got the number 12.34"):
        command("studies", "--report", "--out", str(tmp_path), "--docs", str(docs))
    assert "images/merged-every-2" in capsys.readouterr().out and (docs / "results/studies-smoke.json").is_file()


def test_listing_says_how_far_each_cell_is(tiny, tmp_path, capsys):
    chosen = selection.choose(selection.cells("table1", "smoke"), CENTRAL)
    jobs = running.jobs(chosen, tmp_path)
    rows, said = running.listing(chosen, tmp_path)
    assert {row["state"] for row in rows} == {"not begun"} and said == "0 of 6 runs are done; time left unknown until a run is over"
    running.run(jobs[:1], tmp_path, quiet=True)
    events = session.perform(config.build(jobs[1].config, jobs[1].seed), tmp_path / "runs")
    for event in events:
        if event.t == 3:
            break
    events.close()
    rows, said = running.listing(chosen, tmp_path)
    states = {row["cell"]: row["state"] for row in rows}
    assert states["images/fedavg/6"] == "1 done, 1 not begun"
    assert states["images/periodic/6/in-domain"] == f"1 at round 3 of {ROUNDS}, 1 not begun"
    assert re.fullmatch(r"1 of 6 runs are done; about \d+ s left", said)
    assert command("table1", "--list", "--cell", "images/fedavg/6", "--out", str(tmp_path)) == 0
    assert "1 of 2 runs are done" in capsys.readouterr().out


def test_listing_says_which_data_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCODIST_DATA", str(tmp_path))
    rows, said = running.listing(selection.choose(selection.cells("table2", "small"), ["*/fedavg"]), tmp_path)
    assert {row["cell"]: row["state"] for row in rows} == {
        "language/fedavg/shift": "not begun, and no data stackexchange",
        "library/fedavg/shift": "not begun",
    }
    told = said.splitlines()
    assert len(told) == 2 and told[1].startswith("data stackexchange: got no store") and "fedcodist data prepare text" in told[1]


def test_the_time_left_is_planned_and_then_measured():
    def job(family, method, name):
        cell = SimpleNamespace(family=family, method=method)
        return running.Job(cell, 0, SimpleNamespace(name=name), Path())  # type: ignore[arg-type]

    plain, merged, text = job("images", "fedavg", "a"), job("images", "merged", "b"), job("language", "fedavg", "c")
    waiting = [(plain, running.State(0, 10, False)), (merged, running.State(5, 10, False)), (text, running.State(0, 10, False))]
    assert running.Pace().left(waiting) == "time left unknown until a run is over"
    expected = {"a": 1.0, "b": 4.0, "c": 10.0}
    pace = running.Pace(expected=expected)
    assert pace.left(waiting[:2]) == "about 30 s left"  # 10 and 20 seconds
    pace.see(plain, 2.0)  # twice as long as expected: so will all others be
    assert pace.left(waiting) == "about 4 min 20 s left"  # 20 + 40 + 200 seconds
    pace.see(merged, 4.0)  # but for those of which more is known
    assert pace.left(waiting[:2]) == "about 40 s left"
    alone = running.Pace()
    alone.see(plain, 2.0)
    assert alone.left(waiting[:1]) == "about 20 s left"


def test_what_this_machine_has_not_timed_is_timed_once_for_a_method(monkeypatch):
    known = {"a": 200.0}
    monkeypatch.setattr(running.clock, "left", lambda made: known.get(made.name))
    monkeypatch.setattr(config, "assemble", lambda made, task, seed: made)
    monkeypatch.setattr(running.timing, "measure", lambda made: known.update({made.name: 400.0}))

    def job(family, method, name, rounds=100):
        made = SimpleNamespace(name=name, rounds=rounds, task=None)
        return running.Job(SimpleNamespace(family=family, method=method), 0, made, Path())  # type: ignore[arg-type]

    monkeypatch.setattr(running.Job, "task", "task")
    alike = [job("images", "fedavg", "a"), job("images", "fedavg", "b", 200)]
    other = [job("images", "merged", "c"), job("images", "merged", "d")]
    assert running.expected(alike) == {"a": 2.0, "b": 2.0} and running.expected([*alike, *other]) == {}
    running._time([*alike, *other, job("language", "fedavg", "short", 15)], {"task": None}, quiet=True)
    assert known == {"a": 200.0, "c": 400.0}, "not b, which is like a, nor d, nor what is sooner over than timed"
    assert running.expected([*alike, *other]) == {"a": 2.0, "b": 2.0, "c": 4.0, "d": 4.0}


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_reproduce import BUDGETS, TINY, command, report
report.available = lambda: False  # drawing is not what is killed here
BUDGETS["smoke"] = TINY
sys.exit(command("table1", "--cell", {first!r}, "--cell", {second!r}, "--out", sys.argv[1], "--quiet"))
"""


def test_killed_in_the_middle_the_same_command_goes_on(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(tests=str(ROOT / "tests"), first=CENTRAL[0], second=CENTRAL[1]))

    def start(out: Path) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, script, out], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def files(out: Path, name: str) -> dict[str, bytes]:
        return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob(name)}

    def rounds(out: Path) -> int:
        return sum(path.read_bytes().count(b"\n") for path in out.glob("runs/*/*/*/rounds.jsonl"))

    straight, killed = tmp_path / "straight", tmp_path / "killed"
    process = start(straight)
    assert process.wait(120) == 0, process.stderr.read()
    process = start(killed)
    deadline = time.monotonic() + 120
    while process.poll() is None and rounds(killed) < 2 * ROUNDS + 2 and time.monotonic() < deadline:
        time.sleep(0.001)  # two runs are over, and the third is in its second round
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    process.stderr.close()
    before = files(killed, "result.json")
    assert 1 <= len(before) < 6
    process = start(killed)
    assert process.wait(120) == 0, process.stderr.read()
    assert len(files(killed, "result.json")) == 6 and before.items() <= files(killed, "result.json").items()
    for name in ("results.json", "rounds.jsonl", "result.json"):
        assert files(killed, name) == files(straight, name)


def test_a_run_that_diverges_is_noted_and_the_others_go_on(tiny, tmp_path, monkeypatch, capsys):
    perform = session.perform

    def diverging(made, root, **more):
        if made.method.kind == "merged" and made.seed == 0:
            raise session.DivergedRun(
                f"the server model of pool small is not finite in round 2 ({runs.run_path(root, made.config.name, 'merged', 0)})"
            )
        yield from perform(made, root, **more)

    monkeypatch.setattr(session, "perform", diverging)
    chosen = [arg for pattern in CENTRAL for arg in ("--cell", pattern)]
    assert command("table1", *chosen, "--out", str(tmp_path), "--quiet") == 7
    result = results.read(tmp_path / "table1-smoke/results.json")
    merged = next(cell for cell in result["cells"] if cell["id"] == "images/merged/6/in-domain")
    assert merged["state"] == "partly" and merged["seeds"] == [1]
    assert merged["diverged"] == {"0": "the server model of pool small is not finite in round 2"}
    assert "diverged" in (tmp_path / "table1-smoke/results.md").read_text()
    running.note(tmp_path, merged["run"] + "/seed-7", "why")  # a seed of another command
    assert command("table1", "--report", "--out", str(tmp_path)) == 0
    result = results.read(tmp_path / "table1-smoke/results.json")
    assert [list(cell["diverged"]) for cell in result["cells"] if cell["diverged"]] == [["0", "7"]]
    running.note(tmp_path, merged["run"] + "/seed-7", None)
    monkeypatch.setattr(session, "perform", perform)
    assert command("table1", *chosen, "--out", str(tmp_path), "--quiet") == 0
    assert not any(cell["diverged"] for cell in results.read(tmp_path / "table1-smoke/results.json")["cells"])


def test_what_has_its_data_is_run_and_the_rest_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDCODIST_DATA", str(tmp_path))
    trained = []
    monkeypatch.setattr(running, "_load", lambda waiting: {job.task: None for job in waiting})
    monkeypatch.setattr(running, "_time", lambda waiting, tasks, quiet: None)
    monkeypatch.setattr(config, "assemble", lambda made, task, seed: made)
    monkeypatch.setattr(session, "perform", lambda made, root: trained.append(made.task.kind) or iter([None]))
    monkeypatch.setattr(running.Screen, "follow", lambda self, events: list(events))
    wanted = running.jobs(selection.choose(selection.cells("table2", "small"), ["*/fedavg/shift"], [0]), tmp_path)
    assert len(wanted) == 2
    running.run(wanted, tmp_path)
    said = capsys.readouterr().err
    assert len(trained) == 1
    assert "left out, 1 of 2 runs whose data is not there:\n  data stackexchange: got no store of this name" in said
    assert "run 1 of 1: library/fedavg/shift, seed 0" in said


def test_a_missing_store_is_told_with_its_command(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCODIST_DATA", str(tmp_path))
    wanted = running.jobs(selection.choose(selection.cells("table1", "paper"), ["stackoverflow/merged/296k/*"]), tmp_path)
    with pytest.raises(DataError) as error:
        running.run(wanted, tmp_path, quiet=True)
    assert [line.partition(":")[0] for line in error.value.lines] == ["data stackoverflow", "data c4"]
    assert "(fedcodist data prepare stackoverflow --from PATH)" in error.value.lines[0]
    assert not (tmp_path / "runs").exists()
    every = {
        store
        for table in paper.TABLES
        for name in ("small", "paper")
        for cell in selection.cells(table, name)
        for store in stores.needed(cell.config.task)
    }
    assert every <= set(stores.PREPARE)


def test_runs_on_other_data_are_not_averaged(tiny, tmp_path, monkeypatch):
    chosen = selection.choose(selection.cells("table1", "smoke"), ["images/fedavg/6"])
    running.run(running.jobs(chosen, tmp_path), tmp_path, quiet=True)
    read = runs.read
    monkeypatch.setattr(runs, "read", lambda path: replace(found := read(path), config={**found.config, "data": str(path)}))
    with pytest.raises(DataError, match="images/fedavg/6: got runs on 2 different data sets; .*--out"):
        results.collect("table1", "smoke", chosen, tmp_path)


def test_other_data_under_an_unfinished_run_is_refused_in_terms_of_this_command(tiny, tmp_path):
    jobs = running.jobs(selection.choose(selection.cells("table1", "smoke"), ["images/fedavg/6"]), tmp_path)[:1]
    made = replace(jobs[0].config, task=replace(jobs[0].config.task, noise=2.0))
    events = session.perform(config.build(made, 0), tmp_path / "runs")
    next(events)
    events.close()
    with pytest.raises(runs.Mismatch, match="use another --out"):
        running.run(jobs, tmp_path, quiet=True)


# -- results by hand --


def run_of(method: str, seed: int, accuracy: float, rounds: list[dict] | None = None, **config_) -> SimpleNamespace:
    metrics = {pool: {"all": {"accuracy": accuracy + shift}} for pool, shift in (("small", 0.0), ("large", 0.1))}
    result = {
        "seed": seed,
        "method": method,
        "test": metrics,
        "held_out": metrics,
        "parameters": {"small": 1, "large": 2},
        "identity": "abc",
    }
    result["cost"] = {"client_bytes": {"small": 5, "large": 6}, "server_flops": {"small": 1, "large": 1}, "server_steps": 4}
    table = {"method": {"kind": method}, "data": "d", **config_}
    return SimpleNamespace(
        path=Path(f"x/{method}/seed-{seed}"),
        config=table,
        environment={},
        rounds=rounds or [],
        timing=[],
        result=result,
        notes=(),
        commits=("c0",) * seed,
    )


def test_a_cell_by_hand(tiny):
    cell = next(c for c in selection.cells("table1", "smoke") if c.id == "images/merged/6/in-domain")
    mine = [run_of("merged", seed, value) for seed, value in ((0, 0.52), (1, 0.56), (2, 0.54))]
    twin = [run_of("fedavg", seed, value) for seed, value in ((0, 0.5), (1, 0.5), (3, 0.9))]  # seed 2 has no twin
    found = results._cell("table1", cell, mine, twin)
    small = found["accuracy"]["small"]["all"]
    assert small["test"] == [0.52, 0.56, 0.54] and small["mean"] == 0.54 and small["spread"] == 0.02
    # Differences 0.02 and 0.06: mean 0.04, standard error 0.02, t(1) = 12.706.
    assert small["gain"] == {
        "difference": 0.04,
        "low": round(0.04 - 12.7062 * 0.02, 4),
        "high": round(0.04 + 12.7062 * 0.02, 4),
        "seeds": 2,
    }
    assert small["over_twin"] == {"0": 0.02, "1": 0.06}
    assert results._cell("table1", cell, mine, [])["accuracy"]["small"]["all"]["over_twin"] == {}  # known to be without a twin
    assert found["cost"] == {"client_bytes": 11, "server_flops": 2, "server_steps": 4}
    assert found["paper"]["small"]["all"] == 0.3386 and "ensemble" not in found
    for run in mine:
        run.result["ensemble"] = {"test": {"all": {"accuracy": 0.6}}, "held_out": {"all": {"accuracy": 0.7}}}
    assert results._cell("table1", cell, mine, twin)["ensemble"]["all"]["mean"] == 0.6


def test_spikes_by_hand():
    def row(t: int, value: float | None, codistilled: bool = False) -> dict:
        found: dict = {"round": t, "pools": {"small": {"codistilled": True} if codistilled else {}}}
        return found if value is None else found | {"held_out": {"small": {"question": {"accuracy": value}}}}

    # Two codistillations, at 3 and 6: +0.20 and +0.10 at once, +0.02 and +0.06 a round later; the one at 9 has no round after it.
    rounds = [row(2, 0.1), row(3, 0.3, True), row(4, 0.12), row(5, 0.2), row(6, 0.3, True), row(7, 0.26), row(8, 0.3), row(9, 0.9, True)]
    run = run_of("periodic", 0, 0.5, rounds, evaluate_after=[1])
    run.config["method"]["period"] = 3
    still = run_of("fedavg", 0, 0.5, [row(1, 0.4), row(9, 0.4)])
    assert results._spikes([run], [still], ["small"])["small"]["question"] == {"0": [0.15], "1": [0.04]}
    climbs = run_of("fedavg", 0, 0.5, [row(1, 0.1), row(9, 0.26)])  # 0.02 a round, in a straight line
    assert results._spikes([run], [climbs], ["small"])["small"]["question"] == {"0": [0.13], "1": [0.0]}
    assert results._spikes([run], [run_of("fedavg", 1, 0.5, still.rounds)], ["small"]) == {"small": {}}  # of another seed


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 99}', '{"schema": 1, "table": "table9", "budget": "small"}'])
def test_what_is_no_result_file_is_refused(tmp_path, text):
    (tmp_path / "table1-small.json").write_text(text)
    with pytest.raises(DataError, match="table1-small.json: got "):
        page.load(tmp_path)


# -- claims --


def cell_of(name: str, values: dict[str, list[float]] | dict[str, dict[str, list[float]]], twin: str = "", **more) -> dict:
    """A cell of a result file with test accuracies {pool: by seed}, or {pool: {domain: by seed}}."""
    family, row, column, *public = name.split("/")
    by_domain = {pool: of if isinstance(of, dict) else {"all": of} for pool, of in values.items()}
    seeds = list(range(max((len(v) for of in by_domain.values() for v in of.values()), default=0)))
    accuracy = {
        pool: {d: {"test": v, "held_out": v, "mean": sum(v) / len(v), "spread": None} for d, v in of.items() if v}
        for pool, of in by_domain.items()
    }
    found = {"id": name, "family": family, "row": row, "method": row.partition("-")[0], "column": column, "public": "".join(public)}
    found |= {
        "twin": twin,
        "seeds": seeds,
        "wanted": seeds,
        "rounds": 300,
        "accuracy": accuracy,
        "tuned": True,
        "state": "done" if seeds else "none",
    }
    return found | {"clients": 47, "run": name, "paper": {}, "cost": {}, "settings": {}} | more


def result_of(table: str, *made: dict, budget: str = "small", **more) -> dict:
    families: dict = {cell["family"]: None for cell in made}
    for name in families:
        columns = [] if table in ("table2", "figure3") else ["3100", "4700", "6300"]
        domains = {"answers": "answer", "questions": "question", "mixed": "all"} if not columns else {}
        families[name] = {"data": name, "paper_data": None, "outside_data": "other", "unit": "examples", "columns": columns}
        families[name] |= {"sizes": ["600", "13500"] if table == "figure4" else [], "domains": domains}
    provenance = {"version": "1", "commits": ["0123456789abcdef"], "uncommitted": 2, "data": {}, "environments": []}
    found = {"schema": 1, "table": table, "budget": budget, "says": "by hand", "rounds": 300, "paper_rounds": 1500, "decides": True}
    return found | {"families": families, "cells": list(made), "provenance": provenance} | more


def told(name: str, *found: dict) -> claims.Verdict:
    return next(v for v in claims.judge(found) if v.claim.name == name)


def verdict(name: str, *found: dict) -> str:
    return told(name, *found).verdict


SURE, NONE, LOSS, WIDE, ONE = [0.04, 0.05, 0.06], [-0.001, 0.0, 0.001], [-0.04, -0.05, -0.06], [-0.2, 0.0, 0.2], [0.05]


def image_cell(method: str, column: str, public: str, small: list[float], large: list[float]) -> list[dict]:
    """A cell with these gains, and its twin at 0.3."""
    base = [0.3] * max(len(small), len(large), 1)
    twin = cell_of(f"images/fedavg/{column}", {"small": base, "large": base})
    values = {"small": [0.3 + g for g in small], "large": [0.3 + g for g in large]}
    return [twin, cell_of(f"images/{method}/{column}/{public}", values, twin["id"])]


def test_what_was_run_elsewhere_is_kept_with_its_own_pairs():
    twin, cell = image_cell("periodic", "4700", "in-domain", SURE, SURE)
    few = image_cell("merged", "4700", "in-domain", ONE, ONE)[1]
    for made in (twin, cell, few):
        made["data"] = "d"
    cell["accuracy"]["small"]["all"]["gain"] = {"difference": 0.05, "low": 0.03, "high": 0.07, "seeds": 3}
    known = result_of("table1", twin, cell, few)
    known["provenance"]["environments"] = [{"cpu": "theirs"}]
    # Here the twin was trained again, and is worse; one cell was not, and another with more seeds than it had.
    again = {**cell_of(twin["id"], {"small": [0.1] * 3, "large": [0.1] * 3}), "data": "d"}
    none = {**cell_of(cell["id"], {}, twin["id"], studies={"pools": ""}), "data": "", "wanted": [0, 1, 2, 3]}
    more = {**cell_of(few["id"], {"small": [0.3, 0.4], "large": [0.3, 0.4]}, twin["id"]), "data": "d"}
    here = result_of("table1", again, none, more)
    here["provenance"] |= {"environments": [{"cpu": "ours"}], "commits": ["ff"], "uncommitted": 0}
    told = elsewhere.join(here, known)
    assert [c["seeds"] for c in told["cells"]] == [[0, 1, 2], [0, 1, 2], [0, 1]] and told["cells"][0] == again and told["cells"][2] == more
    kept = told["cells"][1]
    assert kept["accuracy"]["small"]["all"]["over_twin"] == {"0": 0.04, "1": 0.05, "2": 0.06}  # over 0.3, not over 0.1
    assert kept["state"] == "partly" and kept["studies"] == {"pools": ""} and kept["wanted"] == [0, 1, 2, 3]
    by_id = {c["id"]: c for c in told["cells"]}
    assert claims.gains(by_id, cell["id"], "small") == {0: 0.04, 1: 0.05, 2: 0.06}
    assert told["provenance"]["environments"] == [{"cpu": "ours"}, {"cpu": "theirs"}]
    assert told["provenance"]["commits"] == ["0123456789abcdef", "ff"] and told["provenance"]["uncommitted"] == 2
    known["provenance"]["uncommitted"] = 9
    assert elsewhere.join(here, known)["provenance"]["uncommitted"] == 3  # no more than are kept
    known["provenance"]["uncommitted"] = 2
    assert elsewhere.join(told, told) == told
    # Cells that know their own commits are not guessed at, and as many other seeds do not replace those that are published.
    cell["uncommitted"] = 1
    assert elsewhere.join(here, known)["provenance"]["uncommitted"] == 1
    del cell["uncommitted"]
    # Seeds of two places are added, each with its own gain; of one that both have, ours counts. A curve is of all its seeds: it cannot be.
    others = {**cell_of(cell["id"], {"small": [0.5, 0.2, 0.4], "large": SURE}, twin["id"]), "seeds": [2, 3, 4], "wanted": [0, 1, 2, 3, 4]}
    others["accuracy"]["small"]["all"]["over_twin"] = {"2": 0.01, "3": 0.02, "4": 0.03}
    added = elsewhere.join(result_of("table1", others), known)["cells"][0]
    small = added["accuracy"]["small"]["all"]
    assert added["seeds"] == [0, 1, 2, 3, 4] and added["state"] == "done" and small["test"] == pytest.approx([0.34, 0.35, 0.5, 0.2, 0.4])
    assert small["over_twin"] == {"0": 0.04, "1": 0.05, "2": 0.01, "3": 0.02, "4": 0.03} and small["gain"]["difference"] == 0.03
    assert small["mean"] == pytest.approx(0.358) and small["gain"]["seeds"] == 5
    assert elsewhere.join(result_of("table1", {**others, "curve": {}}), known)["cells"][0]["seeds"] == [0, 1, 2]
    # Other settings are another experiment, and other data is refused.
    assert elsewhere.join(here, result_of("table1", {**cell, "run": "another"})) == here
    known["provenance"]["data"], here["provenance"]["data"] = {"images": "old"}, {"images": "new"}
    with pytest.raises(DataError, match="images: got other data here than in the result file"):
        elsewhere.join(here, known)
    # What diverged here is told, and a cell that is known to have no twin of its own gets no other one's.
    lost = elsewhere.join(result_of("table1", again, {**none, "diverged": {"1": "why"}}), known)["cells"][1]
    assert lost["diverged"] == {"1": "why"}
    for of_pool in more["accuracy"].values():
        of_pool["all"]["over_twin"] = {}
    assert claims.gains({more["id"]: more, twin["id"]: again}, more["id"], "small") == {}


@pytest.mark.parametrize(
    ("central", "smaller", "expected"),
    [
        (SURE, SURE, REPRODUCED),
        (SURE, ONE, OPEN),  # one seed says nothing
        (SURE, [], OPEN),
        (SURE, WIDE, OPEN),
        (SURE, LOSS, NOT),
        (NONE, SURE, NOT),  # so narrow that the paper's 4.5 points would have shown
        (LOSS, SURE, NOT),
        (WIDE, SURE, OPEN),
        (ONE, ONE, OPEN),
        ([], [], OPEN),
    ],
)
def test_claim_i(central, smaller, expected):
    made = [*image_cell("periodic", "4700", "in-domain", SURE, central), *image_cell("periodic", "3100", "in-domain", SURE, smaller)]
    assert verdict("i", result_of("table1", *made)) == expected


@pytest.mark.parametrize(
    ("periodic", "merged", "expected"),
    [(SURE, SURE, REPRODUCED), (SURE, NONE, NOT), (SURE, WIDE, OPEN), (WIDE, LOSS, NOT), (SURE, ONE, OPEN)],
)
def test_claim_ii(periodic, merged, expected):
    made = [*image_cell("periodic", "4700", "in-domain", periodic, WIDE), *image_cell("merged", "4700", "in-domain", merged, WIDE)]
    assert verdict("ii", result_of("table1", *made)) == expected


@pytest.mark.parametrize(
    ("small", "large", "expected"),
    [(SURE, NONE, REPRODUCED), (SURE, LOSS, REPRODUCED), (SURE, SURE, NOT), (NONE, NONE, NOT), (SURE, WIDE, OPEN), (WIDE, NONE, OPEN)],
)
def test_claim_iii(small, large, expected):
    made = [*image_cell("periodic", "4700", "out-of-domain", SURE, NONE), *image_cell("merged", "4700", "out-of-domain", small, large)]
    assert verdict("iii", result_of("table1", *made)) == expected


@pytest.mark.parametrize(
    ("questions", "answers", "expected"),
    [(SURE, NONE, REPRODUCED), (SURE, SURE, REPRODUCED), (SURE, LOSS, NOT), (NONE, NONE, NOT), (SURE, WIDE, OPEN), (ONE, ONE, OPEN)],
)
def test_claim_iv(questions, answers, expected):
    def shift(name: str, twin: str, question: list[float], answer: list[float]) -> dict:
        return cell_of(name, {"small": {"question": [0.2 + g for g in question], "answer": [0.2 + g for g in answer]}}, twin)

    twin = shift("language/fedavg/shift", "", [0.0] * len(questions), [0.0] * len(answers))
    made = [twin, shift("language/merged/shift", twin["id"], questions, answers)]
    assert verdict("iv", result_of("table2", *made)) == expected


@pytest.mark.parametrize(("knows", "said"), [(0.15, True), (0.3, False)])
def test_claim_iv_tells_of_a_teacher_that_knows_less_than_its_student(knows, said):
    fedavg = {"small": {"question": [0.2] * 3, "answer": [0.3] * 3}, "large": {"question": [knows] * 3, "answer": [0.1] * 3}}
    twin = cell_of("language/fedavg/shift", fedavg)
    made = cell_of("language/merged/shift", {"small": {"question": [0.24, 0.25, 0.26], "answer": [0.3] * 3}}, twin["id"])
    found = told("iv", result_of("table2", twin, made))
    assert found.verdict == REPRODUCED, "a remark decides nothing"
    assert ("knows them less well than the small one under FedAvg, 15.0 and 20.0 % (paper 30.3 and 22.6)" in found.why) == said
    assert "3 seeds (paper -0.5; limit: above -2.5, half of the paper's gain on questions): reproduced" in found.why


def test_claim_iii_says_what_hardly_means():
    found = told("iii", result_of("table1", *image_cell("merged", "4700", "out-of-domain", SURE, NONE)))
    assert found.why.endswith("; limit: below the small one's +1.6 in the paper): reproduced")


def test_claim_i_names_the_study_on_rates_and_is_not_changed_by_it():
    table = result_of("table1", *(c for column in ("3100", "4700") for c in image_cell("periodic", column, "in-domain", NONE, SURE)))
    twin, own = image_cell("periodic-rates", "4700", "in-domain", NONE, NONE)
    twin["id"] = own["twin"] = "images/fedavg-rates/4700"
    alone, both = told("i", table), told("i", table, result_of("studies", twin, own))
    assert alone.verdict == both.verdict == REPRODUCED
    assert both.why == f"{alone.why}; with rates that are the large model's own best, a study below: +0.0 [-0.2, 0.2], 3 seeds"


def test_text_is_counted_in_three_ways(tiny):
    cell = next(c for c in selection.cells("table1", "smoke") if c.id == "images/merged/6/in-domain")
    mine = [run_of("merged", seed, 0.5) for seed in (0, 1)]
    assert "looser" not in results._cell("table1", cell, mine, [])["accuracy"]["small"]["all"]
    for run, counted in zip(mine, (0.6, 0.7), strict=True):
        for pool in ("small", "large"):
            run.result["test"][pool]["all"] |= {"accuracy_no_eos": counted, "accuracy_nonpad": counted + 0.1}
    found = results._cell("table1", cell, mine, [])
    assert found["accuracy"]["large"]["all"]["looser"] == {"accuracy_no_eos": 0.65, "accuracy_nonpad": 0.75}
    shown = sections.counts(result_of("table1", {**found, "column": "4700"}), "images")
    assert "| MergedCodist | in-domain | 0, 1 | 65.00 | 75.00 | 65.00 | 75.00 |" in shown
    assert sections.counts(result_of("table1", *image_cell("merged", "4700", "in-domain", SURE, SURE)), "images") == ""


def test_domains_that_no_pool_learns_are_named():
    values = {"small": {"answer": [0.1], "question": [0.1], "comment": [0.1], "all": [0.1]}}
    with_comments = result_of("table2", cell_of("language/fedavg/shift", values))
    assert sections.mixed(with_comments, "language") == "all sentences of the test, among them comments, which neither pool learns"
    del values["small"]["comment"]
    assert sections.mixed(result_of("table2", cell_of("language/fedavg/shift", values)), "language") == "all sentences of the test"


@pytest.mark.parametrize(
    ("at", "later", "expected"),
    [
        (SURE, NONE, REPRODUCED),
        (SURE, [0.01, 0.02, 0.02], REPRODUCED),
        (SURE, SURE, NOT),  # nothing fades
        (LOSS, LOSS, NOT),  # no jump
        (WIDE, NONE, OPEN),
        (SURE, WIDE, OPEN),
        (ONE, [0.0], OPEN),
    ],
)
def test_claim_v(at, later, expected):
    def spikes(at: list[float], later: list[float]) -> dict:
        return {"0": at, "1": at, "20": later, "5": at}

    changes = {"small": {"question": spikes(at, later)}, "large": {"answer": spikes(SURE, NONE)}}
    made = cell_of("language/periodic/shift", {"small": [0.3] * len(at)}, spikes=changes)
    again = {key: value for key, value in made.items() if key != "spikes"}
    assert verdict("v", result_of("table2", again), result_of("figure3", made)) == expected
    assert verdict("v", result_of("figure3", made), result_of("table2", again)) == expected


@pytest.mark.parametrize(
    ("few", "whole", "expected"),
    [
        (SURE, SURE, REPRODUCED),
        ([0.03, 0.04, 0.045], SURE, REPRODUCED),
        (NONE, SURE, NOT),
        (SURE, NONE, OPEN),  # there is no gain to keep
        (WIDE, SURE, OPEN),
        (ONE, ONE, OPEN),
    ],
)
def test_claim_vi(few, whole, expected):
    made = []
    for method in ("periodic", "merged"):
        gains = (few, whole) if method == "merged" else (SURE, SURE)
        for public, gain in zip(("600", "in-domain"), gains, strict=True):
            made += image_cell(method, "4700", public, gain, gain)
    base = cell_of("images/fedavg/4700", {"small": [0.3] * 3, "large": [0.3] * 3})
    assert verdict("vi", result_of("figure4", *made, base)) == expected


def test_embedded_data_decides_nothing():
    made = image_cell("periodic", "4700", "in-domain", SURE, SURE)
    found = claims.judge([result_of("table1", *made, budget="smoke", decides=False)])
    assert {v.verdict for v in found} == {OPEN} and "embedded data decides nothing" in found[0].why
    assert [v.claim.name for v in found] == ["i", "ii", "iii"]  # what Table 1 speaks of


def test_a_verdict_shows_its_numbers():
    made = image_cell("periodic", "4700", "in-domain", SURE, SURE)
    made[1]["tuned"] = False
    why = claims.judge([result_of("table1", *made)])[0].why
    assert why == "large, |P_H| = 3,100: not run; large, |P_H| = 4,700: +5.0 [2.5, 7.5], 3 seeds, untuned (paper +4.5): not decidable"
    less = [0.01, 0.011, 0.012]
    why = claims.judge([result_of("table1", *image_cell("periodic", "4700", "in-domain", SURE, less))])[0].why
    assert why.endswith("+1.1 [0.9, 1.3], 3 seeds (paper +4.5, which is more): reproduced")


@pytest.mark.parametrize("gains", [SURE, NONE])
@pytest.mark.parametrize("whose", [(0, 2), (1, 3)], ids=["the twin's", "its own"])
def test_settings_that_nobody_tuned_decide_nothing(gains, whose):
    made = [*image_cell("periodic", "4700", "in-domain", gains, gains), *image_cell("merged", "4700", "in-domain", gains, gains)]
    assert verdict("ii", result_of("table1", *made)) == (REPRODUCED if gains is SURE else NOT)
    for place in whose:
        made[place]["tuned"] = False
    assert verdict("ii", result_of("table1", *made)) == OPEN


@pytest.mark.parametrize("gains", [SURE, NONE])
@pytest.mark.parametrize("whose", [0, 1], ids=["the twin's", "its own"])
def test_what_is_left_when_a_run_diverged_decides_nothing(gains, whose):
    made = [*image_cell("periodic", "4700", "in-domain", gains, gains), *image_cell("merged", "4700", "in-domain", SURE, SURE)[1:]]
    made[whose]["diverged"] = {"3": "the server model is not finite"}
    found = {v.claim.name: v for v in claims.judge([result_of("table1", *made)])}["ii"]
    assert found.verdict == OPEN and ", 3 seeds, seed 3 diverged (paper +2.5" in found.why


def test_the_numbers_that_decide_are_shown():
    made = [*image_cell("periodic", "4700", "600", SURE, SURE), *image_cell("periodic", "4700", "in-domain", SURE, SURE)[1:]]
    whole = "+5.0 [2.5, 7.5], 3 seeds"
    why = claims.judge([result_of("figure4", *made)])[0].why
    assert f"{whole} with 600 images, {whole} with all; the first less half of the second +2.5 [1.3, 3.7], 3 seeds" in why
    changes = {"small": {"question": {"0": SURE, "20": NONE}}}
    made = [cell_of("language/periodic/shift", {"small": SURE}, spikes=changes)]
    why = claims.judge([result_of("figure3", *made)])[-1].why
    assert why.startswith(f"small on questions: {whole} at once, ") and "; half of the jump less what is left +2.5" in why


def test_rows_of_other_seeds_are_compared_on_those_that_all_have():
    made = [*image_cell("periodic", "4700", "in-domain", SURE, SURE), *image_cell("merged", "4700", "in-domain", ONE, [0.01])[1:]]
    assert "differ in their seeds" not in sections.table_1(result_of("table1", *made[:2]), "images", "4700")
    told = sections.table_1(result_of("table1", *made), "images", "4700").replace("\n", " ")
    assert "Gains on seed 0, small / large: PeriodicCodist (in-domain) +4.00 / +4.00; MergedCodist (in-domain) +5.00 / +1.00." in told
    apart = [made[0], {**made[1], "seeds": [1, 2]}, {**made[2], "seeds": [0]}]
    assert "share none, so their means are not to be compared" in sections.table_1(result_of("table1", *apart), "images", "4700")
    other = image_cell("merged-self", "4700", "in-domain", SURE, SURE)[1]
    told = sections.table_1(result_of("table1", *made[:2], other), "images", "4700", short=True)
    assert "| FedAvg |" in told and "| PeriodicCodist |" in told and "itself" not in told
    sizes = [*made[:2], image_cell("periodic", "4700", "600", ONE, ONE)[1]]
    told = sections.figure_4(result_of("figure4", *sizes))
    assert "compare them on seed 0" in told.replace("\n", " ") and "large: gain on seed 0" in told
    assert next(line for line in told.splitlines() if "| 600 | 0 |" in line).endswith("| +5.00 | +5.00 |")
    assert "on seed" not in sections.figure_4(result_of("figure4", *made[:2]))


def test_one_cell_of_two_experiments_is_refused():
    made, other = (image_cell("periodic", "4700", "in-domain", SURE, SURE) for _ in range(2))
    other[0]["run"] = "images-before-tuning"
    with pytest.raises(DataError, match="images/fedavg/4700: got runs images/fedavg/4700 and images-before-tuning"):
        claims.judge([result_of("table1", *made), result_of("figure4", *other)])
    other[0]["seeds"] = []  # with new settings, and not run yet
    assert claims.judge([result_of("table1", *made), result_of("figure4", *other)])


def test_the_rule_of_a_gain():
    assert claims.lifts(Difference(0.01, -0.005, 0.025, 3), 0.026) == NOT  # neither above zero nor as much as in the paper
    assert claims.lifts(Difference(0.01, -0.005, 0.025, 3), 0.024) == OPEN
    assert claims.lifts(Difference(0.01, 0.005, 0.015, 3), 0.024) == REPRODUCED
    assert claims.is_positive(Difference(-0.01, -0.02, -0.001, 3)) == NOT and claims.is_positive(Difference(0.0, -0.02, 0.02, 3)) == OPEN
    assert claims.over([]) is None and claims.over([0.1]) == Difference(0.1, None, None, 1)


def test_every_codistillation_has_all_rounds_that_are_looked_at():
    for budget in BUDGETS.values():
        for family in budget.shifted.values():
            made = cells.configured(budget, "language", family, "periodic", ())[0]
            last = made.rounds // made.method.period * made.method.period
            after = cells.spent_on(family, budget).after
            assert last + max(after) <= made.rounds and max(after) < made.method.period, budget.name


# -- the page --


def shipped(folder: Path) -> list[dict]:
    """Result files by hand in a docs directory."""
    made = [*image_cell("periodic", "4700", "in-domain", SURE, SURE), *image_cell("merged", "4700", "in-domain", NONE, LOSS)[1:]]
    made[1]["accuracy"]["large"]["all"]["gain"] = {"difference": 0.05, "low": 0.0252, "high": 0.0748, "seeds": 3}
    made[0]["paper"], made[1]["paper"] = {"large": {"all": 0.3057}}, {"large": {"all": 0.3508}}
    table = result_of("table1", *made)
    table["families"]["images"]["paper_data"] = "CIFAR-100"
    sizes = [*image_cell("periodic", "4700", "600", SURE, SURE), *image_cell("periodic", "4700", "in-domain", SURE, SURE)[1:]]
    line = [[t, 0.1 + t / 100, 0.1, 0.2] for t in (1, 2, 3)]
    curve = {"codistilled": [2], **{pool: dict.fromkeys(("answer", "question", "all"), line) for pool in paper.POOLS}}
    changes = {pool: {d: {"0": SURE, "1": NONE} for d in ("answer", "question")} for pool in paper.POOLS}
    shift = [
        cell_of(f"language/{m}/shift", {"small": [0.3], "large": [0.3]}, curve=curve, spikes=changes if m == "periodic" else {})
        for m in METHODS
    ]
    found = [table, result_of("figure4", *sizes), result_of("figure3", *shift)]
    for result in found:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{result['table']}-small.json").write_text(results.dump(result))
    return found


METHODS = ("fedavg", "periodic", "merged")


def test_the_page_says_what_the_files_say(tmp_path):
    shipped(tmp_path / "results")
    text = page.render(page.load(tmp_path / "results"))
    row = next(line for line in text.splitlines() if line.startswith("| PeriodicCodist | in-domain | 0-2 |"))
    assert "| 35.08 (+4.51) | 35.00 | +5.00 [2.52, 7.48] |" in row
    assert "300 (1,500)" in text and "by hand" in text and "| 0123456789ab; not known of at most 2 runs |" in text
    assert "(results/figure4-small.svg)" in text and "(results/figure3-small-language.svg)" in text
    assert "| small | questions | +5.00 [2.52, 7.48] | +0.00 [-0.25, 0.25] |" in text
    assert "| (vi) 600 public images suffice" in text


def test_the_time_of_a_run_stands_beside_what_was_predicted():
    def run(seed, *rows):
        return SimpleNamespace(config={"seed": seed}, result={"seed": seed}, path=Path(f"seed-{seed}"), timing=list(rows))

    first = {"round": 1, "seconds": 2.0, "expected_seconds": 100.0}
    whole = run(0, first, {"round": 2, "seconds": 90.0, "evaluate_seconds": 10.0, "checkpoint_seconds": 3.0})
    resumed = run(1, first, {"round": 2, "seconds": 90.0, "expected_seconds": 50.0})
    unknown = run(2, {"round": 1, "seconds": 2.0}, {"round": 2, "seconds": 90.0})
    assert clocks.taken([whole, resumed, unknown]) == {"0": [100, 105]}
    twin, cell = image_cell("periodic", "4700", "in-domain", SURE, SURE)
    was, here = ({**cell, "data": "d", "clock": clock} for clock in ({"0": [100, 105]}, {"1": [10, 9]}))
    here["seeds"] = [1]
    joined = elsewhere.join(result_of("table1", here), result_of("table1", twin, was))
    assert joined["cells"][0]["clock"] == {"0": [100, 105], "1": [10, 9]}
    text = page.section(result_of("table1", twin, was))
    assert "| periodic/4700/in-domain | 0 | 100 to 100 | 105 to 105 | 1.05 to 1.05 |" in text


def test_the_short_page_has_the_answer_and_the_papers_tables(tmp_path):
    shipped(tmp_path / "results")
    (tmp_path / "results/findings.md").write_text("## answer\n\nThe large model gains +5.00 [2.52, 7.48].\n")
    page.write(tmp_path)
    text = (tmp_path / "results.md").read_text()
    answer = text[text.index("## The answer") : text.index("## Table 1")]
    assert "| (vi) 600 public images suffice" in answer and "| reproduced |" in answer and "\nThe large model gains +5.00" in answer
    assert "| 4,700 | PeriodicCodist | in-domain | 0-2 | 35.0 | – | 35.0 | +5.00 [2.52, 7.48] (+4.5) |" in text
    assert "(results/table1-small-images.svg)" in text and text.index("## Table 1") < text.index("## Limitations")
    (tmp_path / "results/findings.md").write_text("## answer\n\nThe large model gains +5.01 [2.52, 7.48].\n")
    with pytest.raises(DataError, match=r"findings.md, answer: got the number \+5.01"):
        page.check(tmp_path)


def test_the_short_page_has_each_table_at_the_largest_budget_that_ran_it():
    small, large = ([*image_cell("periodic", "4700", "in-domain", *gains)] for gains in ((SURE, SURE), (NONE, SURE)))
    for cell in large:
        cell["rounds"] = 1500
    found = [result_of("table1", *large, budget="paper"), result_of("table1", *small), result_of("figure4", *small)]
    for r in found:
        r["families"]["images"] |= {"columns": [*paper.IMAGE_SIZES], "paper_data": "CIFAR-100"}
    text = front.render(found)
    assert "1,500 rounds\n" in text and text.count("## Table 1") == 1 and "## Figure 4, public data: images, 300 rounds" in text
    assert "\n| 4,700 | PeriodicCodist | in-domain | 0-2 | 30.0 |" in text  # and not small's 35.0


def test_the_shipped_short_page_is_short():
    words = (ROOT / "docs" / page.PAGE).read_text("utf-8").split()
    assert len(words) <= 2_500


def test_a_balanced_column_is_judged_and_shown_beside_the_central_one(tmp_path):
    made = [*image_cell("periodic", "4700", "in-domain", NONE, SURE), *image_cell("periodic", "15700", "in-domain", SURE, NONE)]
    made += image_cell("merged", "4700", "in-domain", NONE, SURE)[1:] + image_cell("merged", "15700", "in-domain", SURE, NONE)[1:]
    made += image_cell("periodic", "3100", "in-domain", SURE, SURE)
    found = result_of("table1", *made, budget="paper")
    found["families"]["images"] |= {"columns": [*paper.IMAGE_SIZES, "15700"], "balanced": "15700", "paper_data": "CIFAR-100"}
    of = {v.claim.name: v.verdict for v in claims.judge([found])}
    assert list(of) == ["i", "i, balanced", "ii", "ii, balanced", "iii", "iii, balanced"]
    assert (of["i"], of["i, balanced"], of["ii"], of["ii, balanced"]) == (REPRODUCED, NOT, NOT, REPRODUCED)
    assert "15,700, where our two models are balanced" in sections.claims_block([found])
    shown = sections.column_name(found["families"]["images"], "15700", found)
    assert shown.endswith("the balanced column; the paper's numbers are of its own, |P_H| = 4700")
    (tmp_path / "table1-paper.json").write_text(results.dump(found))
    (tmp_path / "table1-small.json").write_text(results.dump(result_of("table1", *made[:2])))
    text = page.render(page.load(tmp_path))
    assert text.index("The paper's claims, budget paper") < text.index("budget paper\n\n### images") < text.index("claims, budget small")
    assert "(iii, balanced)" not in text[text.index("claims, budget small") :]


def test_claims_on_text_are_of_the_papers_own_data_where_that_was_run():
    def shift(family, gain):
        twin = cell_of(f"{family}/fedavg/shift", {"small": [0.3] * 3, "large": [0.3] * 3})
        twin["accuracy"] = {pool: {"question": of["all"], "answer": of["all"]} for pool, of in twin["accuracy"].items()}
        cell = cell_of(f"{family}/merged/shift", {"small": [0.3 + g for g in gain], "large": [0.3] * 3}, twin["id"])
        cell["accuracy"]["small"] = {"question": cell["accuracy"]["small"]["all"], "answer": twin["accuracy"]["small"]["answer"]}
        return twin, cell

    ours, theirs = shift("language", LOSS), shift("stackoverflow", SURE)
    assert verdict("iv", result_of("table2", *ours)) == NOT
    assert verdict("iv", result_of("table2", *ours, *theirs)) == REPRODUCED


def test_a_stale_page_fails_the_check(tmp_path):
    shipped(tmp_path / "results")
    other = tmp_path / "README.md"
    other.write_text("before\n<!-- results: table1-small/images/4700 -->\nold\n<!-- end -->\nafter\n")
    assert page.check(tmp_path, [other]) == [
        "results.md", "all-results.md", "README.md", "table1-small-images.svg", "figure3-small-language.svg", "figure4-small.svg",
    ]  # fmt: skip
    page.write(tmp_path, [other], drawn=True)
    assert page.check(tmp_path, [other]) == []
    assert not list(tmp_path.rglob("*.png"))
    text = other.read_text()
    assert text.startswith("before\n<!-- results:") and text.endswith("<!-- end -->\nafter\n") and "+5.00 [2.52, 7.48]" in text
    file = tmp_path / "results/table1-small.json"
    file.write_text(file.read_text().replace("0.0252", "0.0253"))
    assert page.check(tmp_path, [other]) == ["results.md", "all-results.md", "README.md"]
    page.write(tmp_path, [other])
    assert page.check(tmp_path, [other]) == [] and "2.53" in other.read_text()
    other.write_text(other.read_text().replace("2.53", "2.54"))  # typed by hand
    assert page.check(tmp_path, [other]) == ["README.md"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- results: table1-smal -->\n<!-- end -->", r"README.md: got a block of table1-smal; allowed .*did you mean table1-small\?"),
        ("<!-- results: table1-small -->\n", "1 marks of results, 0 of them with an end"),
    ],
)
def test_a_block_that_cannot_be_made_is_refused(tmp_path, text, said):
    shipped(tmp_path / "results")
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(DataError, match=said):
        page.check(tmp_path, [tmp_path / "README.md"])


def test_every_block_can_be_made(tmp_path):
    made = page.blocks(shipped(tmp_path / "results"))
    assert {
        "claims-small",
        "overview-small",
        "table1-small",
        "table1-small/images/4700",
        "figure3-small/language",
        "figure4-small/table",
    } <= set(made)
    assert all(block().strip() for block in made.values())


def test_figures_are_the_same_twice(tmp_path):
    for result in shipped(tmp_path / "results"):
        first = [path.read_bytes() for path in figures.draw(result, tmp_path / "a")]
        assert first and first == [path.read_bytes() for path in figures.draw(result, tmp_path / "b")]


def test_rows_of_ours_that_were_not_run_are_told_in_a_line():
    idle = cell_of("images/merged-self/4700/in-domain", {}, "images/fedavg/4700")
    text = sections.table_1(result_of("table1", *image_cell("merged", "4700", "in-domain", [], []), idle), "images", "4700")
    assert "| MergedCodist | in-domain | – | not run |" in text  # the paper has it
    assert (
        "| MergedCodist, each" not in text
        and "\nNot run, and not in the paper: MergedCodist, each model hears only itself, at temperature 0.5.\n" in text
    )


def test_cells_of_which_none_was_run_name_the_command():
    column = [cell_of(name, {}) for name in ("images/fedavg/3100", "images/merged/3100/in-domain")]
    lead = "Not run; `fedcodist reproduce table1 --budget small --cell"
    assert sections.table_1(result_of("table1", *column), "images", "3100") == f"{lead} 'images/*/3100*'` does it.\n"
    assert all(fnmatch(cell["id"], "images/*/3100*") for cell in column)
    whole = page.section(
        result_of("table2", *(cell_of(f"language/{row}/shift", {}, settings={"method": {}}) for row in ("fedavg", "merged")))
    )
    assert "table2 --budget small --cell 'language/*'` does it" in whole and "|---" not in whole and "Settings" not in whole


def test_rounds_are_those_of_what_was_run():
    made = image_cell("merged", "4700", "in-domain", SURE, SURE)
    made[1]["rounds"] = 1200
    assert "| 300 to 1,200 (1,500) |" in sections.overview([result_of("table2", *made)])
    made[1]["seeds"] = []
    assert "| 300 (1,500) |" in sections.overview([result_of("table2", *made)])


def test_figure_4_is_of_the_seeds_that_all_sizes_have():
    twin = cell_of("images/fedavg/4700", {"small": [0.1, 0.5], "large": [0.2, 0.2]})
    few = cell_of("images/periodic/4700/600", {"small": [0.2], "large": [0.3]}, twin["id"])
    whole = cell_of("images/periodic/4700/in-domain", {"small": [0.2, 0.9], "large": [0.3, 0.3]}, twin["id"])
    ax = figures.sizes(result_of("figure4", twin, few, whole)).axes[0]
    assert ax.get_xlabel() == "public images (1 seed)"
    assert [float(y) for line in ax.lines[:3] for y in line.get_ydata()][:2] == [20, 20]
    assert [10, 10] in [[round(float(y)) for y in line.get_ydata()] for line in ax.lines]  # the twin, of the same seed


def test_without_results_there_is_a_page(tmp_path):
    assert "There are none yet" in page.render([]) and page.load(tmp_path / "nowhere") == []


def test_the_shipped_page_is_not_stale():
    others = [path for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if path.name not in (page.PAGE, page.EVERYTHING)]
    assert page.check(ROOT / "docs", others) == []


def test_the_shipped_figures_are_not_stale(tmp_path):
    for result in page.load(ROOT / "docs" / page.FOLDER):
        for picture in figures.draw(result, tmp_path):
            assert picture.read_text() == (ROOT / "docs" / page.FOLDER / picture.name).read_text(), f"{picture.name}: reproduce --docs"


def test_rows_have_names():
    assert sections.row_name("fedavg-all") == "FedAvg, the large model on all clients: an upper bound"
    ways = {cell.row.partition("-")[2] for cell in selection.cells("table1", "small")}
    assert ways == {"", *sections.WAYS}


def test_budgets_are_what_they_say():
    assert SMOKE.decides is False and SMALL.decides and PAPER.decides
    assert (
        SMALL.rounds == 300
        and SMALL.period == 40
        and "120 rounds of 10 clients" in SMALL.says
        and PAPER.rounds == paper.ROUNDS
        and PAPER.period == paper.PERIOD
    )


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_smoke_budget_of_table_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDCODIST_DATA", str(tmp_path / "none"))
    start = time.monotonic()
    assert command("table1", "--budget", "smoke", "--out", str(tmp_path), "--quiet") == 0
    seconds = time.monotonic() - start
    result = results.read(tmp_path / "table1-smoke/results.json")
    assert {cell["state"] for cell in result["cells"]} == {"done"}
    assert seconds < 600, f"{seconds:.0f} s"
    assert "(iii)" in capsys.readouterr().out
