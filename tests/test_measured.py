"""Numbers that were measured: README and docs have them from files in the repository, in blocks that must be what these files give."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from faults import kills

from fedcodist.config import toml
from fedcodist.errors import DataError
from fedcodist.reproduce import cells
from fedcodist.reproduce.results import ENVIRONMENT

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"<!-- (?:(\w+): from .*? by make docs|results: .*?) -->(.*?)<!-- end.*? -->", re.DOTALL)
GENERATED = ("cli.md", "parts.md", "results.md", "all-results.md", "findings.md")  # or compared with their tables when the page is made
TYPED = re.compile(r"\d+ (?:points?|seconds?|ms)\b|\d\.\d+ ?%|\[-?\d+\.\d+, -?\d+\.\d+\]|\d \+- \d|±|\d times (?:faster|slower)")


@pytest.fixture
def tool(monkeypatch):
    """A program of tools/ as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("README.md", "highlights"),
        ("README.md", "fastest"),
        ("docs/first-run.md", "demo"),
        ("docs/first-run.md", "demo_gains"),
        ("docs/runs.md", "kills"),
        ("docs/speed.md", "speed"),
    ],
)
def test_a_changed_digit_is_stale_and_mended(tmp_path, tool, where, name):
    docs, page = tool("make_docs"), tmp_path / Path(where).name
    text = (ROOT / where).read_text("utf-8")
    page.write_text(text)
    assert docs.stale_blocks(page) == []
    begin, end = next(match.span(2) for match in BLOCK.finditer(text) if match[1] == name)
    places = [begin + match.start() for match in re.finditer(r"\d", text[begin:end])]
    for at in (places[0], places[len(places) // 2], places[-1]):
        page.write_text(f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}")
        assert docs.stale_blocks(page) == [f"{page.name} ({name})"]
    assert docs.stale_blocks(page, write=True) == [f"{page.name} ({name})"]
    assert page.read_text() == text


def test_only_a_whole_and_quiet_benchmark_is_quoted(tmp_path, tool):
    docs, history = tool("make_docs"), tmp_path / "history.jsonl"
    text = (ROOT / "benches/history.jsonl").read_text("utf-8")
    row = next(row for row in map(json.loads, reversed(text.splitlines())) if row["bench"] == "peers")

    def after(others: float, workloads: int) -> str:
        results = json.loads(json.dumps(row["results"][:workloads]))
        results[0]["sides"]["torch"] |= {"others": others, "ratio": {"median": 77.7}}
        history.write_text(f"{text}{json.dumps(row | {'results': results})}\n")
        return docs.speed_table(history)

    assert "| 77.7 |" in after(0.0, 2)
    assert after(0.5, 2) == after(0.0, 1) == docs.speed_table(ROOT / "benches/history.jsonl")


def test_another_file_makes_the_page_stale(tmp_path, tool, monkeypatch):
    docs, page = tool("make_docs"), tmp_path / "page.md"
    page.write_text("<!-- kills: from kills.json by make docs -->\n<!-- end of kills -->\n")
    monkeypatch.setattr(docs, "DOCS", tmp_path / "docs")
    found = json.loads((ROOT / "docs/measured/kills.json").read_text())
    for identical in (found["identical"], 7):
        (tmp_path / "kills.json").write_text(json.dumps(found | {"identical": identical}))
        assert docs.stale_blocks(page, write=True) == ["page.md (kills)"] and docs.stale_blocks(page) == []
    assert f"7 of the {found['runs']} ended byte-identical" in page.read_text().replace("\n", " ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- kils: from a.json by make docs -->\n<!-- end of kils -->", "page.md: got a block of kils; allowed speed, demo"),
        ("<!-- kills: from a.json by make docs -->\n1\n<!-- end of kill -->", "1 marks of measured numbers, 0 of them with an end"),
    ],
)
def test_a_block_that_cannot_be_made_is_refused(tmp_path, tool, text, said):
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(DataError, match=said):
        tool("make_docs").stale_blocks(tmp_path / "page.md")


def test_no_measured_number_is_typed_by_hand():
    """By its looks: an accuracy, a gain, an interval or a time outside of the blocks."""
    for page in [ROOT / "README.md", *(path for path in (ROOT / "docs").rglob("*.md") if path.name not in GENERATED)]:
        assert TYPED.findall(BLOCK.sub("", page.read_text("utf-8"))) == [], page.name


def test_the_demo_is_kept_as_it_is_printed(tool):
    def run(method, seed, accuracy):
        table = {"small": {"all": {"accuracy": accuracy}}}
        result = {"seed": seed, "test": table, "held_out": table, "cost": {"client_bytes": 8, "server_steps": 40 * (method == "merged")}}
        config = {"name": "demo", "method": {"kind": method}, "pools": {"small": {}}}
        path = Path(f"runs/demo/{method}/seed-{seed}")
        return SimpleNamespace(path=path, config=config, environment=dict.fromkeys(ENVIRONMENT, "x"), rounds=[], timing=[], result=result)

    found = tool("make_demo").collect([run("fedavg", 0, 0.5), run("fedavg", 1, 0.6), run("merged", 0, 0.6), run("merged", 1, 0.7)], 7.4)
    assert found["seconds"] == 7 and set(found["on"]) == set(ENVIRONMENT) and found == json.loads(json.dumps(found))
    lines = tool("make_docs").printed(found).splitlines()
    assert lines[3].split() == ["MergedCodist", "small", "2", "65.0", "+-", "7.1", "+10.0", "[10.0,", "10.0]"]
    assert lines[5].startswith("MergedCodist against its FedAvg twin, test accuracy over 2 paired seeds: small +10.0 points [10.0, 10.0].")
    assert lines[-1] == "report: runs/demo/report.html"


def test_kills_are_kept_with_what_they_were_tried_on(tmp_path, tool, monkeypatch):
    def storm(*args, **kwargs):
        tally = kills.Tally(runs=3, wrong=["run-1 after 1 kills: stdout"])
        tally.phases.update({"start-up": 1, "save": 2, "distillation": 4})
        yield tally

    monkeypatch.setattr(kills, "storm", storm)
    monkeypatch.setattr(kills.tempfile, "tempdir", str(tmp_path))
    file = tmp_path / "kills.json"
    assert kills.main(["--json", str(file)]) == 1
    found = json.loads(file.read_text())
    assert set(found["on"]) == set(ENVIRONMENT) and found["fell"] == {"start-up": 1, "training": 0, "save": 2, "distillation": 4}
    said = tool("make_docs").kills(file).replace("\n", " ")
    assert "7 times `kill -9`" in said and "2 of the 3 ended" in said and "2 kills fell inside a save, 4 inside a distillation" in said


def test_of_a_winner_only_what_was_searched_is_kept(tool):
    settings = tool("make_tuned").settings
    pool = {"cohort": 20, "work": {"lr": 0.0301234, "batch": 20}, "server": {"lr": 0.003, "eps": 1e-5}}
    pool |= {"learns": {"lr": 1e-3, "decay": 0.1, "self_weight": 0.05}, "teaches": {"temperature": 1.23456}}
    best = {"rounds": 9, "pools": {"a": pool}, "method": {"kind": "merged", "alpha": {"kind": "constant", "value": 0.87654}}}
    kept = {"work": {"lr": 0.0301}, "server": {"lr": 0.003}}
    teaching = {"learns": {"lr": 1e-3, "decay": 0.1, "self_weight": 0.05}, "teaches": {"temperature": 1.23}}
    assert settings(best) == {"pools": {"a": kept | teaching}, "method": {"alpha": {"kind": "constant", "value": 0.877}}}
    assert settings(best | {"method": {"kind": "fedavg"}}) == {"pools": {"a": kept}}


def test_a_study_says_whether_its_start_has_won(tool, tmp_path):
    best = {"rounds": 9, "pools": {"a": {"work": {"lr": 0.1}, "server": {"lr": 0.003}}}, "method": {"kind": "fedavg"}}
    (tmp_path / "best.toml").write_text(toml.text(best))
    about = {"study": {"seed": 100, "data": "d", "space": {}}, "trials": 2}
    (tmp_path / "study.json").write_text(json.dumps(about))

    def study(*rows, key="pools.a.work.lr"):
        names = ("trial", "state", "value", key, "rounds")
        (tmp_path / "trials.jsonl").write_text("".join(json.dumps(dict(zip(names, row, strict=False))) + "\n" for row in rows))
        return tool("make_tuned").study(tmp_path)

    lost, again, other = (0, "lost", 0.0, 0.1), (1, "complete", 0.50004, 0.1), (2, "complete", 0.50001, 0.2)
    found = study(lost, again, other)
    assert (found["best"], found["start"], [t["trial"] for t in found["trials"]]) == (1, True, [1, 2])
    assert found["trials"][0]["value"] == found["trials"][1]["value"], "as many digits as nobody could tell them apart by"
    found = study(lost, again, (2, "complete", 0.6, 0.2))
    assert (found["best"], found["start"]) == (2, False)
    with pytest.raises(SystemExit, match=r"method\.distill\.steps was searched"):
        study(again, other, key="method.distill.steps")
    found = study(again, (2, "pruned", 0.4, 0.2, 3))
    assert (found["asked"], found["trials"][1]["pruned at round"]) == (2, 3) and "pruned at round" not in found["trials"][0]
    (tmp_path / "study.json").write_text(json.dumps({"study": about["study"]}))
    with pytest.raises(SystemExit, match="does not say how many trials it was asked for"):
        study(again)


def test_predicted_times_stand_beside_real_ones(tool, tmp_path, monkeypatch):
    made, docs = tool("make_clock"), tool("make_docs")
    run = {"model": "CNN", "config": "quick/demo", "method": "merged", "rounds": 40, "timed": 4}
    run |= {"predicted": [10.0, 8.0], "real": [12.0, 8.8]}
    monkeypatch.setattr(made, "FILE", tmp_path / "clock.json")
    for share in (0.02, 0.9):
        made.write([{**run, "others": {"measuring": 0.01, "training": share}}])
        said = docs.clock(tmp_path / "clock.json")
        assert "| MergedCodist, CNN, 40 rounds | 10 s | 12 s | 1.20 | 1.10 |" in " ".join(said.split()) and f"1% / {share:.0%}" in said
        assert ("The machine was busy" in said) == (share > 0.1)


def test_an_unfinished_study_is_told_and_ships_no_settings(tool, tmp_path, monkeypatch, capsys):
    made = tool("make_tuned")
    for folder in ("docs/measured", "fedcodist/configs/tuned", "studies/merged"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "studies/merged/best.toml").write_text("")
    trial = {"trial": 0, "state": "complete", "value": 0.5, "accuracy a": 0.5}
    settings = {"pools": {"a": {"work": {"lr": 0.1}}}}
    found = {"rounds": 9, "seed": 1, "asked": 2, "trials": [trial], "best": 0, "start": True, "settings": settings}
    monkeypatch.setattr(made, "ROOT", tmp_path)
    monkeypatch.setattr(made, "study", lambda place: found)
    monkeypatch.setattr("sys.argv", ["make_tuned.py", "images", "paper", str(tmp_path / "studies")])
    file, shipped = tmp_path / "docs/measured/tuning-images-paper.json", tmp_path / "fedcodist/configs/tuned/images-merged-paper.toml"
    assert made.main() == 0
    assert "merged: 1 of 2 trials: no settings are shipped" in capsys.readouterr().out and not shipped.exists()
    assert json.loads(file.read_text())["methods"] == {"merged": found}
    assert "| MergedCodist | 1 of 2, not shipped yet |" in tool("make_docs").tuning(file)
    found["trials"].append({**trial, "trial": 1})
    assert made.main() == 0 and shipped.is_file()
    assert "| MergedCodist | 2 | " in tool("make_docs").tuning(file)
    before, found["asked"] = file.read_bytes(), 3
    with pytest.raises(SystemExit, match="2 of 3 trials, and settings of a complete study are shipped: nothing was written"):
        made.main()
    assert file.read_bytes() == before


def test_a_method_without_a_study_keeps_its_settings(tool, tmp_path, monkeypatch):
    made = tool("make_tuned")
    for folder in ("docs/measured", "fedcodist/configs/tuned", "studies/periodic"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "docs/measured/tuning-images-small.json").write_text(json.dumps({"methods": {"fedavg": "old", "periodic": "old"}}))
    (tmp_path / "studies/periodic/best.toml").write_text("")
    found = {"rounds": 9, "seed": 1, "asked": 0, "trials": [], "settings": {"pools": {}}}
    monkeypatch.setattr(made, "ROOT", tmp_path)
    monkeypatch.setattr(made, "study", lambda place: found)
    monkeypatch.setattr("sys.argv", ["make_tuned.py", "images", "small", str(tmp_path / "studies")])
    assert made.main() == 0
    assert json.loads((tmp_path / "docs/measured/tuning-images-small.json").read_text())["methods"] == {"fedavg": "old", "periodic": found}


def test_tuned_settings_are_those_of_the_studies():
    for file in sorted((ROOT / "docs/measured").glob("tuning-*.json")):
        found = json.loads(file.read_text())
        for method, one in found["methods"].items():
            if len(one["trials"]) < one.get("asked", 0):
                continue
            path = cells.TUNED / f"{found['family']}-{method}-{found['budget']}.toml"
            assert tomllib.loads(path.read_text()) == one["settings"], path.name
            best = next(trial for trial in one["trials"] if trial["trial"] == one["best"])
            assert best["state"] == "complete" and best["value"] == max(t["value"] for t in one["trials"] if t["state"] == "complete")
            for key in (key for key in best if key.startswith("pools.")):
                _, pool, part, name = key.split(".")
                assert one["settings"]["pools"][pool][part][name] == best[key], key
