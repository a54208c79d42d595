"""The text task on small stores: views of the same ids, domains, attributes, and opening many clients without reading them."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from fedcodist import config
from fedcodist.data import prepare
from fedcodist.data.store import Writer, locate, open_store
from fedcodist.errors import ConfigError, DataError
from fedcodist.objectives.next_token import BOS, EOS, PAD
from fedcodist.tasks import Text


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCODIST_DATA", str(tmp_path / "stores"))
    return tmp_path


def table(rows: list[tuple[str, str, str, str]]) -> str:
    return "client\ttype\tsplit\ttokens\n" + "".join("\t".join(row) + "\n" for row in rows)


ROWS = [
    ("anna", "question", "train", "how do i sort a list"),
    ("anna", "answer", "train", "sort the list"),
    ("bert", "answer", "train", "the list is sorted"),
    ("cleo", "question", "train", "is the list empty"),
    ("dora", "answer", "public", "a list is empty"),
    ("emil", "question", "held_out", "why do i sort"),
    ("fred", "answer", "test", "sort the zebra"),
]


def prepared(place, rows=None, name="mine", **settings) -> None:
    path = place / f"{name}.tsv"
    path.write_text(table(ROWS if rows is None else rows))
    prepare.prepare(prepare.read("text", {"length": 4, **settings}), path, lambda *_: None, name=name)


def test_sentences_as_a_model_reads_them(place):
    prepared(place)
    task = Text(data="mine").load()
    assert open_store("mine").text("vocabulary")[:2] == ["list", "the"]  # the most frequent of what is read of the federated sentences
    assert list(task.clients) == ["anna", "bert", "cleo"] and task.clients.sizes() == {"anna": 2, "bert": 1, "cleo": 1}
    anna = task.clients["anna"]
    assert anna.x.shape == (2, 4) and (anna.x[:, 0] == BOS).all()
    assert np.array_equal(anna.x[:, 1:], anna.y[:, :-1])
    short = anna.x[1].tolist(), anna.y[1].tolist()
    assert short[1][3] == EOS and PAD not in short[1] and short[0][3] != EOS  # three words, and the end
    assert task.public.y is None and len(task.public.x) == 1
    assert (np.asarray(task.test.y) == task.objective.oov).sum() == 1  # zebra: only the test has it


def test_the_test_may_begin_on_a_day(place):
    rows = [(f"c{k % 6}", "answer", f"20{16 + k % 3}-05-01", f"word{k} list sort") for k in range(36)]
    path = place / "dated.tsv"
    path.write_text("client\ttype\tdate\ttokens\n" + "".join("\t".join(row) + "\n" for row in rows))
    dated = prepare.read("text", {"test_from": "2018-01-01", "length": 4, "overlap": "allow"})
    prepare.prepare(dated, path, lambda *_: None, name="dated")
    store = open_store("dated")
    words = store.text("vocabulary")
    assert (
        store.facts["examples"]["test"] == 12 and store.facts["examples"]["held_out"] > 0
    )  # a third of all rows, by day and not by client
    late = {f"word{k}" for k in range(36) if k % 3 == 2}
    assert not late & set(words) and set(store.text("test_clients")) == {"c2", "c5"}
    path.write_text("client\tdate\tsplit\ttokens\nc1\t2017-01-01\ttrain\tsort\n")
    with pytest.raises(DataError, match="row 1: got 'train' for split, and test_from; allowed one of the two"):
        prepare.prepare(dated, path, lambda *_: None, name="dated")
    path.write_text("client\ttype\tdate\ttokens\nc1\tanswer\t\tsort\n")
    with pytest.raises(DataError, match="dated.tsv: row 1: got nothing for date; allowed a date in each row"):
        prepare.prepare(dated, path, lambda *_: None, name="dated")


def test_domains_and_attributes(place):
    prepared(place)
    task = Text(data="mine").load()
    assert task.domains == ("answer", "question")
    assert task.attributes["has_question"] == {"anna": "yes", "bert": "no", "cleo": "yes"}
    assert task.attributes["main_domain"]["bert"] == "answer" and set(task.attributes["capacity"]) == {"anna", "bert", "cleo"}
    only = task.clients.only(["anna", "bert"], domain=0)
    assert only.sizes() == {"anna": 1, "bert": 1}
    assert task.test.domain.tolist() == [0] and task.held_out.domain.tolist() == [1]


def test_one_domain_is_none(place):
    prepared(place, [(c, "", s, t) for c, _, s, t in ROWS])
    task = Text(data="mine").load()
    assert task.domains == ("all",) and task.test.domain is None and list(task.attributes) == ["capacity"]


def test_public_text_from_elsewhere_has_to_speak_the_same_ids(place):
    prepared(place)
    path = place / "else.tsv"
    path.write_text("tokens\nsort the list\nzebra zebra\n")
    public = prepare.read("text", {"client": "", "vocabulary": "mine", "length": 4})
    prepare.prepare(public, path, lambda *_: None, name="else")
    task = Text(data="mine", public="else").load()
    assert task.public.x.shape == (2, 4)
    prepared(place, name="other", vocab=2)
    with pytest.raises(DataError, match=r"data other: got a vocabulary of 6 \([0-9a-f]{8}\).*allowed that of mine: "):
        Text(data="mine", public="other").load()
    with pytest.raises(DataError, match="data else: got no federated sentence"):
        Text(data="else").load()


def test_scale_is_the_mean_length_unless_given(place):
    prepared(place)
    assert Text(data="mine").load().objective.scale == pytest.approx(4.8, abs=0.05)  # 4 + 3 + 4 + 4 words and 4 ends, of 4 sentences
    assert Text(data="mine", scale=13.3).load().objective.scale == 13.3


def test_public_size(place):
    prepared(place, [*ROWS, *((f"p{k}", "answer", "public", f"word{k} list") for k in range(9))])
    assert len(Text(data="mine", public_size=3).load().public.x) == 3
    with pytest.raises(DataError, match="public_size: got 11; allowed at most the 10 public sentences"):
        Text(data="mine", public_size=11).load()


def test_a_run_from_a_config(place):
    prepared(place, [*ROWS, *((f"c{k}", "answer" if k % 2 else "question", "train", f"sort list {k}") for k in range(8))], overlap="allow")
    path = place / "c.toml"
    path.write_text(
        'rounds = 1\ntask = { kind = "text", data = "mine" }\n'
        '[pools.a]\nmodel = { kind = "lstm", embed = 4, hidden = 4 }\nclients = { where = { has_answer = "yes" } }\n'
        'domain = "answer"\ncohort = 2\n'
        '[pools.b]\nlike = "a"\nclients = { where = { has_question = "yes" } }\ndomain = "question"\n'
    )
    made = config.load(path)
    assert set(made.federation.pools["a"].clients) == {"anna", "bert", "c1", "c3", "c5", "c7"}
    assert all(len(e.x) == 1 for e in made.federation.pools["a"].clients.values())
    assert config.digest(made.federation.task) == config.digest(config.load(path).federation.task)


@pytest.mark.parametrize("name", sorted(name for name in config.shipped() if name.startswith(("paper/", "study/"))))
def test_every_preset_reads_and_says_what_it_is(name):
    read = config.read(name)
    header = config.shipped()[name].read_text("utf-8").split("\n")
    assert read.rounds in (300, 1500) and set(read.pools) - {"quarter"} == {"small", "large"}
    assert header[0].startswith("# ") and "#" in header[:4] and any(f"fedcodist run {name}" in line for line in header[:8])
    first = header[0]
    if name.startswith("paper/"):
        assert "The paper: " in header[1] and first.startswith(("# Table 1", "# Table 2", "# Figure"))
        assert read.pools["small"].cohort == 20 and read.pools["small"].work.batch == 20 and read.pools["small"].server.eps == 1e-5
        assert getattr(read.method, "period", 200) == 200
        assert (
            getattr(getattr(read.method, "distill", None), "steps", None)
            in {"periodic": (200,), "merged": (32,), "fedavg": (None,)}[read.method.kind]
        )
    else:
        assert ("CIFAR-100" if "/cifar-" in name else "StackExchange") in first and "Stack Overflow" not in first


def test_presets_have_the_papers_models():
    import jax

    for name, counts in (
        ("cifar-fedavg-4700", (109_348, 410_084)),
        ("stackoverflow-fedavg-296k", (1_984_348, 4_278_644)),
        ("shift-merged", (1_984_348, 4_278_644)),
    ):
        read = config.read(f"paper/{name}")
        shape, classes = ((24, 24, 3), 100) if name.startswith("cifar") else ((20,), 10_004)
        for pool, count in zip(("small", "large"), counts, strict=True):
            params = jax.eval_shape(read.pools[pool].model.build(shape, classes).init, jax.ShapeDtypeStruct((2,), "uint32"))
            assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count


def test_a_preset_without_its_data_says_what_to_do():
    with pytest.raises(DataError, match="data cifar100: got nothing at this path; .*fedcodist data prepare cifar100"):
        config.build(config.read("paper/cifar-merged-4700"), 0)
    with pytest.raises(ConfigError, match="an unknown key"):
        config.read("paper/cifar-merged-4700", ["task.publik=1"])


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_many_clients_are_opened_and_not_read(place):
    clients, each, length = 30_000, 40, 20
    facts = {"federated": clients * each, "public": 100, "held_out": 100, "test": 100}
    with Writer(locate("many"), {}) as writer:
        block = np.ones((10_000, length + 1), np.uint16)
        for part, rows in facts.items():
            owners = clients if part == "federated" else 10
            for start in range(0, rows, len(block)):
                writer.append(f"{part}_line", block[: min(len(block), rows - start)])
            writer.append(f"{part}_domain", (np.arange(rows) % 2).astype(np.uint8))
            writer.append(f"{part}_ends", (np.arange(1, owners + 1) * (rows // owners)).astype(np.int64))
            writer.write_text(f"{part}_clients", (f"user{k:06d}" for k in range(owners)))
        known = {"size": 10_004, "oov": 10_003, "sha256": "0" * 64, "kind": "words"}
        counts = {"examples": facts, "tokens": facts, "unknown_tokens": dict.fromkeys(facts, 0), "clients": {"federated": clients}}
        writer.finish(kind="text", options={}, vocabulary=known, domains=["answer", "question"], length=length, notes=[], **counts)
    program = """
        import time
        from fedcodist import config, keys
        from fedcodist.tasks import Text
        begin = time.monotonic()
        task = Text(data="many").load()
        some = task.clients.only(list(task.clients)[:30_000], domain=1)
        first = task.clients["user000007"]
        config.digest(task)
        peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024  # ru_maxrss remembers whoever forked this
        print(len(task.clients), len(some), first.x.shape, time.monotonic() - begin, peak)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, check=True)
    count, some, *shape, seconds, megabytes = done.stdout.split()
    assert (count, some, shape) == ("30000", "30000", ["(40,", "20)"])
    assert int(megabytes) < 500, done.stdout  # JAX and all
    assert float(seconds) < 30, done.stdout  # seconds here; a slow and busy machine gets its time
