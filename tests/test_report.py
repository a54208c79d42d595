"""The page about runs: complete, self-contained, escaped, the same for the same runs, and honest about what is missing."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedcodist.config import toml
from fedcodist.errors import ConfigError
from fedcodist.reports import drawing, plots, report, spending
from fedcodist.reports.plots import PLOTS
from fedcodist.storage.durable import StorageError

EVIL = "<script>alert(1)</script>"
LIFT = {"fedavg": 0.0, "periodic": 0.02, "merged": 0.05}


def make_run(
    kind: str, seed: int, pools: list[str], domains: list[str], rounds: int = 16, stop: int | None = None, name: str = "demo"
) -> Any:
    """A plausible run: the twins share the seed's luck, teaching lifts the accuracy, a run with `stop` crashed there."""
    luck = random.Random(seed)
    base = {(p, d): 0.55 + 0.06 * i - 0.07 * j + luck.gauss(0, 0.01) for i, p in enumerate(pools) for j, d in enumerate(domains)}
    noise = random.Random(f"{kind} {seed}")
    rows = []
    for t in range(1, (stop or rounds) + 1):
        infos: dict[str, Any] = {}
        for i, pool in enumerate(pools):
            infos[pool] = {"clients": 10, "examples": 500, "train_loss": 2 * math.exp(-t / 20), "grad_norm": (1 + i) * math.exp(-t / 30)}
            infos[pool]["grad_norm"] *= 1 + 0.1 * noise.random()
            if kind == "merged" or (kind == "periodic" and t % 5 == 0):
                infos[pool] |= {"codistilled": True, "dist_norm": 0.2 + 0.05 * noise.random(), "distill_loss": [0.06, 0.05]}
                infos[pool]["agreement"] = {other: [0.74, 0.79 + 0.01 * i] for other in pools if other != pool}
            if kind == "merged":
                infos[pool] |= {"alpha": 0.5, "cosine": 0.12 + 0.05 * noise.gauss(0, 1)}
        row: dict[str, Any] = {"round": t, "pools": infos}
        if t == 1 or t % 2 == 0:
            row["held_out"] = {
                p: {d: metrics(base[p, d] * (1 - math.exp(-t / 5)) + (LIFT[kind] + noise.gauss(0, 0.004)) * t / rounds) for d in domains}
                for p in pools
            }
        rows.append(row)
    size = {pool: 109_348 * (i + 1) ** 2 for i, pool in enumerate(pools)}
    taught = {p: {q: 1 / (len(pools) - 1) for q in pools if q != p} for p in pools}
    events = {"fedavg": 0, "periodic": rounds // 5, "merged": rounds}[kind]
    result = {
        "seed": seed, "method": kind, "rounds": rounds, "table": taught, "parameters": size,
        "test": {p: {d: metrics(base[p, d] + LIFT[kind] + noise.gauss(0, 0.003)) for d in domains} for p in pools},
        "held_out": {p: {d: metrics(base[p, d] + LIFT[kind]) for d in domains} for p in pools},
        "client_quantiles": {p: {d: [(base[p, d] + LIFT[kind]) * (0.6 + 0.04 * i) for i in range(21)] for d in domains} for p in pools},
        "labels": {
            p: {"classes": 10, "clients": 300, "read": 200, "skew": 0.5, "distinct": 4.5, "counts": [dealt(c) for c in range(40)]}
            for p in pools
        },
        "cost": {
            "client_bytes": {p: 8 * size[p] * 10 * rounds for p in pools},
            "client_flops": {p: 6.0 * size[p] * 500 * rounds for p in pools},
            "server_flops": {p: 8.0 * size[p] * 32 * 128 * events for p in pools},
            "server_steps": 32 * events * len(pools),
        },
    }  # fmt: skip
    method: dict[str, Any] = {"kind": kind}
    if kind != "fedavg":
        method |= {"distill": {"steps": 32, "batch": 128}}
    config = {
        "name": name, "rounds": rounds, "task": {"kind": "fashion", "public": "in_domain"}, "topology": "complete", "method": method,
        "pools": {
            p: {"model": {"kind": "cnn", "filters": [16, 32]}, "cohort": 10, "teaches": {"temperature": 1.0 + i}, "learns": {"lr": 1e-3}}
            for i, p in enumerate(pools)
        },
    }  # fmt: skip
    return SimpleNamespace(
        path=Path("/somewhere/runs") / name / kind / f"seed-{seed}",
        config=config,
        rounds=rows,
        timing=[{"round": row["round"], "seconds": 0.5} for row in rows],
        result=None if stop else result,
        notes=["python 3.11, jax 0.10.2, 2 cores"] + (["killed in round 9"] if stop else []),
    )


def metrics(value: float) -> dict[str, float]:
    return {"accuracy": value, "loss": 2 - value, "calibration": 0.1, "accuracy_clients": value - 0.01}


def dealt(client: int) -> dict[str, int]:
    """A client with many examples of one label, and a few of its neighbours."""
    return {str((client + i) % 10): n for i, n in enumerate((30, 10, 5, 1))}


def study(pools: list[str], domains: list[str], kinds: tuple[str, ...] = tuple(LIFT), seeds: int = 2, **more: Any) -> list[Any]:
    return [make_run(kind, seed, pools, domains, **more) for kind in kinds for seed in range(seeds)]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> tuple[Path, str]:
    """Two pools, three methods, two seeds."""
    out = tmp_path_factory.mktemp("report")
    path = report.write(study(["small", "large"], ["all"]), out)
    return out, path.read_text(encoding="utf-8")


class Outline(HTMLParser):
    """The tags, attributes and words of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_has_every_part_in_order(page):
    out, text = page
    words = Outline(text[text.index("<body>") :]).words
    parts = ["demo", "MergedCodist against its FedAvg twin", "Results", "Accuracy over rounds", "Gain over the twin"]
    parts += ["Accuracy against cost", "Loss and calibration", "How clients differ", "300 (200 read)", "Who teaches whom"]
    parts += ["The two gradients", "Cost of an average run", "0 extra client bytes", "Runs and reproduction"]
    parts += ["fedcodist run demo-merged.toml --twin --seeds 0,1", "[pools.small]", "jax 0.10.2", "rows.csv"]
    places = [words.find(part) for part in parts]
    assert -1 not in places and places == sorted(places), dict(zip(parts, places, strict=True))
    files = set(PLOTS)
    assert {p.name for p in (out / "plots").iterdir()} == {f"{f}.{ext}" for f in files for ext in ("png", "svg")}
    assert (out / "plots" / "cost.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_is_self_contained(page):
    _, text = page
    tags = Outline(text).tags
    policy = [a["content"] for tag, a in tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert not {"script", "iframe", "object", "embed", "base", "form", "img"} & {tag for tag, _ in tags}
    for _, attributes in tags:
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        for name in ("href", "xlink:href"):
            assert re.match(r"#|data:,$|plots/\w+\.(png|svg)$|rows\.csv$", attributes.get(name) or "#")
    bare = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    assert "http://" not in bare and "https://" not in bare and "@import" not in bare and not re.search(r"url\((?!#)", bare)


def test_ids_are_unique_and_found(page):
    tags = Outline(page[1]).tags
    ids = [a["id"] for _, a in tags if a.get("id")]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:url\(|xlink:href=")#([^)"]+)', page[1]))
    assert used and used <= set(ids)


def test_pictures_follow_the_theme(page):
    pictures = re.findall(r"<svg .*?</svg>", page[1], flags=re.DOTALL)
    assert len([p for p in pictures if "axes_1" in p]) == len(PLOTS)
    for picture in pictures:
        assert not re.search(r": #[0-9a-f]{6}", picture)  # every colour is one of the page's variables
        assert "mathdefault" not in picture


def test_same_runs_same_bytes(page, tmp_path):
    out, _ = page
    report.write(study(["small", "large"], ["all"]), tmp_path)
    for name in ("report.html", "rows.csv", *(f"plots/{n}.{e}" for n in PLOTS for e in ("svg", "png"))):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes(), name


def test_three_pools_two_domains_and_a_crash(tmp_path):
    pools, domains = ["phone", "tablet", "desktop"], ["all", "code"]
    runs = study(pools, domains)
    runs[-1] = make_run("merged", 1, pools, domains, stop=9)
    words = Outline(report.write(runs, tmp_path).read_text(encoding="utf-8")).words
    assert "Partial report: MergedCodist, seed 1, stopped after round 9 of 16 and has no result." in words
    assert "One seed: a hint, not evidence." in words and "over 2 paired seeds: phone" in words
    assert "killed in round 9 (MergedCodist seed 1)" in words
    for teacher in pools:
        for student in pools:
            assert (f"{teacher}→{student}" in words) == (teacher != student)
    svg = (tmp_path / "plots" / "accuracy.svg").read_text()
    assert all(f"{pool} · {domain}" in svg for pool in pools for domain in domains)


def test_names_with_html_are_text(tmp_path):
    runs = study([EVIL, "$a_{b}$"], ["all", EVIL], kinds=("fedavg", "merged"), seeds=1, name=EVIL)
    runs[0].notes.append(f'"><img src=x onerror=alert(1)>{EVIL}')
    text = report.write(runs, tmp_path).read_text(encoding="utf-8")
    outline = Outline(text)
    assert "<script" not in text and not {"script", "img"} & {tag for tag, _ in outline.tags}
    assert f"{EVIL} +5" in outline.words or f"{EVIL} +4" in outline.words  # the verdict says the pool's name as it is
    assert "$a_{b}$" in outline.words
    for path in (tmp_path / "plots").glob("*.svg"):
        assert "<script" not in path.read_text()
    assert ">$a_{b}$ · all<" in (tmp_path / "plots" / "accuracy.svg").read_text()  # and no formula


@pytest.mark.parametrize("kinds", [("merged",), ("fedavg",)])
def test_one_run_without_a_twin(kinds):
    words = Outline(report.render(study(["a", "b"], ["all"], kinds=kinds, seeds=1), {})).words
    assert ("No twin: run with --twin." in words) == (kinds == ("merged",))
    assert "test accuracy over one seed: a " in words and "Partial" not in words


def test_one_seed_has_no_interval():
    words = Outline(report.render(study(["a", "b"], ["all"], seeds=1), {})).words
    assert "one seed: no interval" in words and "a hint, not evidence" in words


def test_empty_crashed_and_foreign_runs_give_a_page(tmp_path):
    assert "no runs here" in report.write([], tmp_path / "none").read_text(encoding="utf-8")
    crashed = make_run("merged", 0, ["a", "b"], ["all"], stop=1)
    crashed.rounds, crashed.timing = [], []
    assert "has no recorded round" in report.write([crashed], tmp_path / "crashed").read_text(encoding="utf-8")
    rounds = [{"round": 1, "held_out": {"a": 3}}, 7, {"round": 2, "pools": []}]
    odd = SimpleNamespace(path=Path("x"), config={}, rounds=rounds, timing=[{}], result={"test": []}, notes=[])
    assert "No round was evaluated" in report.write([odd], tmp_path / "odd").read_text(encoding="utf-8")
    assert not list((tmp_path / "odd" / "plots").iterdir())


def test_environment_and_damage_are_told():
    runs = study(["a", "b"], ["all"], kinds=("fedavg", "merged"), seeds=1)
    for run in runs:
        run.environment = {"jax": "0.10.2", "XLA_FLAGS": ""}
    runs[0].notes.append("left out: rounds.jsonl line 3")
    runs.append(runs[1])
    words = Outline(report.render(runs, {})).words
    assert "Damaged files were left out of FedAvg" in words and "left out: rounds.jsonl line 3 (FedAvg seed 0)" in words
    assert words.count("jax 0.10.2, 2 cores") == 1 and "XLA_FLAGS" not in words
    assert "1 of 3 runs repeat a method and seed" in words


def test_csv_is_tidy_and_starts_no_formula():
    run = make_run("merged", 3, ["=1+1", "b"], ["all"], rounds=2, name="@evil")
    run.rounds[0]["held_out"]["b"]["all"]["loss"] = -0.5
    lines = report.rows_csv([run]).splitlines()
    assert lines[0] == "run,seed,method,round,pool,domain,metric,value" and len(lines) == 1 + 2 * 2 * 4
    assert lines[1].startswith("'@evil,3,merged,1,'=1+1,all,accuracy,0.")
    assert "'@evil,3,merged,1,b,all,loss,-0.5" in lines
    assert [report.safe_cell(v) for v in ("=a", "+a", "-a", "@a", "\t=a", "-1e3", "a=", -1.5)] == [
        "'=a", "'+a", "'-a", "'@a", "'\t=a", "-1e3", "a=", -1.5,
    ]  # fmt: skip


def test_the_shown_configuration_is_toml():
    import tomllib

    config = make_run("merged", 0, ["a b", "c"], ["all"]).config | {"topology": {"c": {"a b": 1.0}}, "text": 'a "quote"\n', "seeds": [0, 1]}
    assert tomllib.loads(toml.text(config)) == config
    assert toml.text({"a": None, "b": {"c": None}}) == "b = {}"


def test_a_forest_has_zero_on_its_axis_and_cuts_what_is_too_wide():
    wide = {"difference": 0.02, "low": -0.5, "high": 0.54}
    least, most = report.span([wide])
    assert (least, most) == pytest.approx((-0.06, 0.06))
    shown = report.forest(wide, least, most)
    assert shown["cut_low"] and shown["cut_high"] and 0 < shown["low"] < shown["zero"] == 50 < shown["dot"] < shown["high"] < 100
    least, most = report.span([{"difference": 0.0, "low": None, "high": None}])
    assert least <= 0 < most


def test_a_narrow_screen_gets_each_panel(page):
    panels = re.findall(r'<svg viewBox="([^"]+)" style="[^"]+"><use href="#(\w+)-figure_1"/></svg>', page[1])
    shown = {name: [box for box, of in panels if of == name] for name in PLOTS}
    assert {name: len(boxes) for name, boxes in shown.items() if name != "gradients"} == {
        "accuracy": 2, "gain": 2, "loss": 2, "calibration": 2, "spending": 8, "clients": 2, "labels": 2, "cost": 4,
    }  # fmt: skip
    assert len(panels) == len(set(panels))
    for box, name in panels:
        x, y, width, height = map(float, box.split())
        whole = re.search(rf'viewBox="0 0 ([\d.]+) ([\d.]+)"(?=[^>]*>(?:(?!<svg).)*id="{name}-figure_1")', page[1], flags=re.DOTALL)
        assert whole and -9 < x < x + width < float(whole[1]) + 9 and -9 < y < y + height < float(whole[2]) + 9


def test_costs_of_rounds_add_up():
    run = make_run("periodic", 0, ["a", "b"], ["all"], rounds=10)
    for row, examples in zip(run.rounds, range(100, 1100, 100), strict=True):
        row["pools"]["a"]["examples"] = examples  # 100, 200 ... 1,000, of 5,500
    run.result["cost"]["client_flops"] = {"a": 5500.0, "b": 1000.0}
    flops = spending.spent(run, "client_flops")
    assert [flops[t] for t in (1, 2, 10)] == pytest.approx([100 + 100, 300 + 200, 6500])
    taught = spending.spent(run, "server_flops")
    assert [taught[t] / taught[10] for t in (4, 5, 9, 10)] == pytest.approx([0, 0.5, 0.5, 1])
    assert spending.spent(run, "client_bytes")[5] * 2 == sum(run.result["cost"]["client_bytes"].values())
    assert spending.spent(run, "seconds") == {t: t / 2 for t in range(1, 11)}
    run.timing[0]["seconds"] = 30.5  # which compiles
    assert spending.spent(run, "seconds")[10] == 5
    run.result = None
    assert spending.spent(run, "client_bytes") == {}


def test_compared_panels_have_equal_axes():
    from fedcodist.reports import distributions, plots
    from fedcodist.reports.arms import group

    arms = group(study(["small", "large"], ["all"], seeds=2))
    with drawing.style():
        for draw in (plots.accuracy, plots.gain, plots.loss, distributions.clients):
            figure = draw(arms)
            assert figure is not None and len({ax.get_ylim() for ax in figure.axes}) == 1
        figure = spending.draw(arms)
        assert figure is not None and len({ax.get_ylim() for ax in figure.axes}) == 1
        assert [ax.get_xlim() for ax in figure.axes[:4]] == [ax.get_xlim() for ax in figure.axes[4:]]
        figure = plots.accuracy(arms)
        assert figure is not None
        thin = [line for line in figure.axes[0].lines if line.get_linewidth() == 0.7]
        assert len(thin) == 3 * 2  # each seed of each method


def test_runs_without_what_is_newly_recorded_still_report():
    runs = study(["a", "b"], ["all"], seeds=2)
    for run in runs:
        del run.result["client_quantiles"], run.result["labels"]
    words = Outline(report.render(runs, {})).words
    assert "How clients differ" not in words and "Results" in words


def test_without_matplotlib_the_report_has_no_plots(monkeypatch, tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None; import fedcodist.reports.report; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1], check=True)
    assert done.stdout.strip() == "False"
    monkeypatch.setattr(report, "available", lambda: False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = Outline(report.write([make_run("merged", 0, ["a", "b"], ["all"])], tmp_path / "out").read_text(encoding="utf-8")).words
    assert report.NO_PLOTS in words and "Results" in words and not (tmp_path / "out" / "plots").exists()
    with pytest.raises(ConfigError, match="plots need matplotlib"):
        drawing.load_matplotlib()


def test_long_runs_are_thinned(tmp_path):
    from fedcodist.reports.drawing import MOST_POINTS, thin

    line = thin([(float(t), float(t)) for t in range(1, 1502)])
    assert len(line) <= MOST_POINTS + 1 and line[-1] == (1501.0, 1501.0) and line[0] == (4.0, 4.0)


def test_a_report_replaces_its_files_and_follows_no_link(tmp_path, monkeypatch):
    """A link that somebody put in the place of a file is replaced by the file; what it pointed to stays as it was."""
    monkeypatch.setattr(report, "available", lambda: False)
    precious, out = tmp_path / "precious", tmp_path / "out"
    precious.write_text("mine")
    out.mkdir()
    for name in ("report.html", "rows.csv"):
        (out / name).symlink_to(precious)
    report.write([make_run("merged", 0, ["a", "b"], ["all"], rounds=4)], out)
    assert precious.read_text() == "mine"
    assert all((out / name).is_file() and not (out / name).is_symlink() for name in ("report.html", "rows.csv"))
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "rows.csv"]


def test_plots_go_into_no_linked_directory(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "plots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="plots: a symbolic link; allowed a directory"):
        plots.draw([], tmp_path / "plots")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_absurd_numbers_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "available", lambda: False)
    run = make_run("merged", 0, ["a", "b"], ["all"], rounds=4)
    run.rounds[0]["held_out"]["a"]["all"]["accuracy"] = 10**400
    run.rounds[1]["held_out"]["a"]["all"]["accuracy"] = 1e308
    run.result["cost"]["client_bytes"] = 10**400
    assert "accuracy" in report.write([run], tmp_path).read_text(encoding="utf-8")
