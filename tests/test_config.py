"""Configs: what is read, what is refused and in which words, and that no input whatever ends in anything but a Config or a ConfigError."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcodist import config
from fedcodist import settings as parts
from fedcodist.config import Config, identity, plain, read, shipped, twin
from fedcodist.config.toml import parse
from fedcodist.errors import ConfigError
from fedcodist.methods import FedAvg, PeriodicCodist
from fedcodist.models import MODELS
from fedcodist.reports.report import runnable
from fedcodist.tasks import TASKS
from fedcodist.work import LocalSGD, Prox

TEXT = """\
rounds = 3
task = "toy"

[pools.small]
model = { kind = "mlp", hidden = [4] }
cohort = 4
work = { kind = "local_sgd", lr = 0.1 }

[pools.large]
like = "small"
model = "mlp"

[method]
kind = "merged"
alpha = 0.7
"""


@pytest.fixture
def write(tmp_path):
    """A function that writes a config and gives back its path."""

    def write(text: str | bytes, name: str = "first.toml") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refused(path: Path, *assignments: str) -> list[str]:
    """The lines of the ConfigError, with the directory taken out."""
    with pytest.raises(ConfigError) as caught:
        read(path, assignments)
    return [line.replace(f"{path.parent}/", "") for line in caught.value.lines]


# -- what is wrong, and where --


def test_a_problem_names_field_value_range_file_and_line(write):
    assert refused(write(TEXT.replace("0.7", "1.7"))) == [
        "method.alpha: got 1.7; allowed a number >= 0 and <= 1, a schedule, or a table of these by pool (first.toml:15)"
    ]


def test_all_problems_are_told_at_once_each_with_its_line(write):
    text = TEXT.replace("rounds = 3", "rounds = 0").replace("cohort = 4", "cohort = 0").replace('"toy"', '"toi"')
    lines = refused(write(text))
    assert [re.search(r"\((first.toml:\d+)\)", line)[1] for line in lines] == ["first.toml:6", "first.toml:2", "first.toml:1"]
    assert lines[1] == f"task: got 'toi'; allowed {' | '.join(TASKS)} (first.toml:2) did you mean toy?"


def test_a_key_in_an_inline_table_has_the_line_of_the_table(write):
    assert refused(write(TEXT.replace("lr = 0.1", "lr = -1"))) == [
        "pools.small.work.lr: got -1.0; allowed a number > 0 and <= 1000 (first.toml:7)"
    ]


def test_a_missing_key_has_the_line_of_its_table(write):
    text = TEXT.replace('like = "small"\nmodel = "mlp"\n', "cohort = 2\n")
    assert refused(write(text)) == [
        f"pools.large.model: got nothing; allowed a name or a table with kind = {' | '.join(MODELS)} (first.toml:9)"
    ]


def test_twenty_problems_are_enough(write):
    lines = refused(write(TEXT + "".join(f"odd{i} = 1\n" for i in range(30))))
    assert len(lines) == 21
    assert lines[-1] == "config: got 10 more problems; allowed none (first.toml)"


def test_a_problem_of_an_assignment_says_so(write):
    assert refused(write(TEXT), "rounds=-1") == ["rounds: got -1; allowed an integer >= 1 and <= 1e+07 (--set)"]


def test_a_duplicate_names_both_lines(write):
    (line,) = refused(write("rounds = 3\nrounds = 4\n"))
    assert line.startswith("first.toml:2: not TOML: ") and line.endswith("first in line 1")


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-1" + "0" * 400, "9" * 5000, "0x" + "f" * 5000, "1e400", "nan", "-inf"])
@pytest.mark.parametrize("key", ["rounds", "pools.small.work.lr", "pools.small.work.batch", "method.alpha", "topology.small.large"])
def test_numbers_that_no_float_can_hold_are_refused(write, key, number):
    """Python raises three different errors for these, in float(), in repr() and in the TOML parser."""
    lines = refused(write(TEXT), f"{key}={number}")
    assert len(lines) == 1 and lines[0].startswith(f"{key}: got ")
    if "." not in key:
        refused(write(TEXT.replace("rounds = 3", f"rounds = {number}")))


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "\u2028", "a b", "ä", "x" * 300, "\x1b[31m", "<b>", ".."])
def test_odd_names_of_pools_stay_on_one_line(write, name):
    for body in ("model = 'mlp'", "model = 'nope'", "like = 'nobody'", "cohort = 'x'\nmodel = 'mlp'"):
        lines = refused(write(TEXT + f"[pools.{json.dumps(name)}]\n{body}\n"))
        assert all(line.startswith("pools") and line.isascii() and line.isprintable() for line in lines)


def test_an_odd_path_stays_on_one_line(tmp_path):
    for name in ("a\nb", "\x1b[2J", "\0"):
        (line,) = refused(tmp_path / name)
        assert line.isprintable() and "allowed a TOML file" in line


def test_deep_nesting_is_refused_in_a_file_and_in_an_assignment(write):
    for depth in (20, 400, 5000):
        assert "nested too deeply" in refused(write("a = " + "[" * depth + "]" * depth))[0]
        (line,) = refused(write(TEXT), "method.alpha=" + "{a = " * depth + "1" + "}" * depth)
        assert "nested too deeply" in line or line.startswith("method.alpha: got ")


# -- pools that are like others --


def test_like_takes_what_is_not_given(write):
    pools = read(write(TEXT)).pools
    assert pools["large"].cohort == 4 and pools["large"].work == pools["small"].work
    assert pools["large"].model.hidden != (4,)  # given, so not inherited, not even in part


def test_like_goes_on_over_several_pools_in_any_order(write):
    text = TEXT.replace("[pools.small]", '[pools.tiny]\nlike = "large"\ncohort = 2\n\n[pools.small]')
    tiny = read(write(text)).pools["tiny"]
    assert tiny.cohort == 2 and tiny.work == LocalSGD(lr=0.1) and tiny.model == read(write(text)).pools["large"].model


@pytest.mark.parametrize("other", ["'large'", "'nobody'", "3", "['small']", "{ a = 1 }", "nan"])
def test_like_nobody_or_itself_is_refused(write, other):
    lines = refused(write(TEXT.replace('like = "small"', f"like = {other}")))
    assert lines[0].startswith("pools.large.like: got ") and lines[0].endswith("; allowed small (first.toml:10)")


def test_a_cycle_of_likes_is_refused(write):
    lines = refused(write(TEXT.replace("[pools.small]\n", '[pools.small]\nlike = "large"\n')))
    assert {line.split(":")[0] for line in lines} <= {"pools.small.like", "pools.large.like"} and lines


def test_a_problem_that_is_inherited_is_told_once_at_its_source(write):
    lines = refused(write(TEXT.replace("cohort = 4", "chort = 4\nlearns = { lr = 0 }")))
    assert [line.split(":")[0] for line in lines] == ["pools.small.chort", "pools.small.learns.lr"]
    lines = refused(write(TEXT.replace("cohort = 4", "cohort = 0") + "[pools.large.work]\nkind = 'prox'\nmu = -1\n"))
    assert [line.split(":")[0] for line in lines] == ["pools.small.cohort", "pools.large.work.mu"]


# -- files that are like others --


def test_a_file_takes_what_it_does_not_give_from_the_one_it_is_like(write):
    base = read(write(TEXT))
    there = read(
        write('like = "first.toml"\nname = "second"\nrounds = 5\n[pools.large]\nlike = "small"\nmodel = "mlp"\ncohort = 2\n', "second.toml")
    )
    assert (there.name, there.rounds, there.method) == ("second", 5, base.method)
    assert there.pools["small"] == base.pools["small"] and there.pools["large"] == dataclasses.replace(base.pools["large"], cohort=2)
    assert read(write('like = "quick/toy"\nname = "toy"', "third.toml")) == read("quick/toy")


@pytest.mark.parametrize("other", ["'second.toml'", "'nowhere.toml'", "3", "''", "'a\\u0000b'", "['quick/toy']"])
def test_a_file_like_itself_or_like_no_file_is_refused(write, other):
    (line,) = refused(write(f"like = {other}\nrounds = 5", "second.toml"))
    assert re.match(r"like: got .* \(second.toml:1\)|.*; allowed a TOML file", line) and line.isprintable()


def test_pools_that_are_no_table_are_refused_whatever_they_are_like(write):
    (line,) = refused(write('like = "quick/toy"\npools = 3\n'))
    assert line == "pools: got 3; allowed a table (first.toml:2)"


# -- assignments --


@pytest.mark.parametrize(
    "assignment, value",
    [
        ("rounds=7", lambda c: c.rounds == 7),
        ("rounds = 7", lambda c: c.rounds == 7),
        ("method.alpha=1e-1", lambda c: c.method.alpha(1) == 0.1),
        ("method.alpha=1", lambda c: c.method.alpha(1) == 1.0),
        ("method.alpha={ small = 0.2 }", lambda c: (c.method.alpha_of("small")(1), c.method.alpha_of("large")(1)) == (0.2, 1.0)),
        ('method.alpha={ kind = "every", k = 2, value = 0.5 }', lambda c: [c.method.alpha(t) for t in (1, 2)] == [1.0, 0.5]),
        ("name=second", lambda c: c.name == "second"),
        ('name="2"', lambda c: c.name == "2"),
        ("method=fedavg", lambda c: c.method == FedAvg()),
        ("pools.small.work=prox", lambda c: c.pools["small"].work == Prox() == c.pools["large"].work),
        ("pools.small.work.epochs=3", lambda c: c.pools["small"].work == LocalSGD(lr=0.1, epochs=3)),
        ('pools.small.work={ kind = "prox", mu = 0.5 }', lambda c: c.pools["small"].work == Prox(mu=0.5)),
        ("pools.large.work.mu=0.5", None),  # work is inherited, so a table of its own has only mu: no field of the default
        ("pools.large.work.lr=0.5", lambda c: c.pools["large"].work == LocalSGD(lr=0.5)),
        ("engine.workers=2", lambda c: c.engine.workers == 2),  # a table without kind is of the default's
        ("task.clients=5", lambda c: c.task.clients == 5),  # task = "toy" becomes a table
        ("seeds=[3, 4]", lambda c: c.seeds == (3, 4)),
        ("topology={ small = { large = 1 } }", lambda c: c.topology == {"small": {"large": 1.0}}),
        ("rounds=seven", None),
        ("rounds.x=1", None),
        ("method.kind=feddf", lambda c: c.method.kind == "feddf"),  # alpha is of the other kind, and goes with it
    ],
)
def test_set(write, assignment, value):
    if value is None:
        assert len(refused(write(TEXT), assignment)) == 1
    else:
        assert value(read(write(TEXT), [assignment]))


@pytest.mark.parametrize("assignment", ["", "=", "rounds", "rounds=", "=3", "a b=3", "a..b=3", ".a=3", "a.=3", "a\nb=3", "ä=3"])
def test_what_is_no_assignment_is_refused(write, assignment):
    (line,) = refused(write(TEXT), assignment)
    assert line.startswith("--set: got ") and "KEY=VALUE" in line


def test_later_assignments_win_and_the_file_is_left_alone(write):
    path = write(TEXT)
    assert read(path, ["rounds=5", "rounds=6"]).rounds == 6
    assert path.read_text() == TEXT


# -- bytes --


def test_bom_crlf_and_tabs_are_accepted(write):
    want = read(write(TEXT))
    assert read(write(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").replace(" = ", "\t=\t").encode())) == want


@pytest.mark.parametrize(
    "data, said",
    [
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (b"rounds = 3\nname = '\xff'", "offset 19"),
        (b"\x00\x01\x02", "not TOML"),
        (b"[1, 2]", "not TOML|unknown key"),
        (b'{"rounds": 3}', "not TOML"),
        (b"# " + b"x" * 2**20, "1 MiB"),
    ],
)
def test_other_files_are_refused(write, data, said):
    assert re.search(said, refused(write(data))[0])


# -- shipped configs, and what a config is --


def every_config() -> list[str]:
    return sorted(shipped())


@pytest.mark.parametrize("name", every_config())
def test_shipped_configs_read_warn_of_nothing_and_survive_a_round_trip(name):
    there = read(name)
    assert config.warnings(there) == []
    problems: list[parts.Problem] = []
    assert parts.read_part(Config, json.loads(json.dumps(plain(there))), "", problems) == there
    assert not problems


@pytest.mark.parametrize("name", every_config())
def test_what_a_report_shows_is_a_config_that_reads_the_same(name, write):
    there = read(name)
    assert read(write(runnable(plain(there) | {"data": "600ed8ec"}))) == there  # as a run keeps it, with the digest of its data


def test_the_name_is_the_file_s_unless_it_is_given(write):
    assert read(write(TEXT, "mine.toml")).name == "mine"
    assert "name: got 'not mine'" in refused(write(TEXT, "not mine.toml"))[0]


HARMLESS = ["name=other", "seeds=[5]", "engine.workers=2", "evaluate_after=[1]", "evaluate_every=7", "checkpoint_every=3", "keep=1"]
HARMFUL = [
    "rounds=4",
    "method.alpha=0.6",
    "method.distill.steps=31",
    "method.distill.eps=1e-4",
    "pools.small.cohort=3",
    "pools.large.work.lr=0.2",
    "pools.small.teaches.temperature=2",
    "engine.block=4",
    "topology=ring",
    "task.split_seed=1",
]


def test_identity_does_not_see_harmless_keys_and_sees_all_others(write):
    path = write(TEXT)
    base = identity(read(path))
    assert {key.split("=")[0] for key in HARMLESS} | {"engine.address", "engine.allow_public", "privacy.budget"} == config.HARMLESS
    assert {identity(read(path, [a])) for a in HARMLESS} == {base}
    clusters = ("", ", workers=3", ", address='10.0.0.1:6379'", ", address='8.8.8.8:6379', allow_public=true")
    assert len({identity(read(path, [f"engine={{kind='ray'{more}}}"])) for more in clusters}) == 1
    others = {identity(read(path, [a])) for a in HARMFUL} | {identity(read(path), "other data")}
    assert len(others) == len(HARMFUL) + 1 and base not in others


def test_identity_does_not_see_how_a_config_is_written(write):
    spelled = (
        TEXT.replace("alpha = 0.7", 'alpha = { kind = "constant", value = 0.7 }')
        .replace('like = "small"', "")
        .replace('model = "mlp"', 'model = "mlp"\ncohort = 4\nwork = { kind = "local_sgd", lr = 0.1, epochs = 1 }')
    )
    assert identity(read(write(TEXT))) == identity(read(write(spelled)))


def test_the_twin_differs_in_the_method_alone(write):
    there = read(write(TEXT))
    assert twin(there).method == FedAvg()
    assert dataclasses.replace(twin(there), method=there.method) == there
    assert identity(twin(there)) != identity(there)


def test_warnings(write):
    path = write(TEXT)
    assert config.warnings(read(path)) == []
    never = dataclasses.replace(read(path), method=PeriodicCodist(4))  # in a file it is an error
    assert "codistillation never happens" in config.warnings(never)[0]
    assert config.warnings(read(path, ['method={ kind = "periodic", period = 3 }'])) == []
    assert "plain FedAvg" in config.warnings(read(path, ["method.alpha=1"]))[0]
    assert config.warnings(read(path, ["method.alpha={ small = 1, large = 0.5 }"])) == []
    assert "only the length" in config.warnings(read(path, ["method.alpha=0"]))[0]


# -- fuzz: anything is a Config or a ConfigError --

SEEDS = [parse(path.read_bytes(), name).table for name, path in shipped().items()] + [parse(TEXT.encode(), "first").table]
ODD_NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e-300, 1e300, math.nan, math.inf, -math.inf, True, False]
ODD_TEXTS = ["", " ", "kl", "mlp", "\n", "\u2028", "\0", "\ud7ff", "ä", "🙂", "../x", "a.b", "a:b", "nan", "0,5", "x" * 300, "'\"\\", "[a]"]
WORDS = ["kind", "like", "alpha", "value", "lr", "pools", "method", "task", "name", "seeds", "path", "args", "ids", "where", "small", "x"]

scalars = st.sampled_from(ODD_NUMBERS + ODD_TEXTS) | st.integers() | st.floats() | st.text(max_size=12)
keys = st.sampled_from(WORDS) | st.sampled_from(ODD_TEXTS) | st.text(max_size=6)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6)


def places(table: Any, path: tuple = ()) -> list[tuple]:
    """Every key in a nest of tables."""
    found = []
    for key, value in table.items():
        found.append((*path, key))
        if isinstance(value, dict):
            found += places(value, (*path, key))
    return found


@st.composite
def mutated(draw) -> dict[str, Any]:
    """A good config with one to four things done to it."""
    table = json.loads(json.dumps(draw(st.sampled_from(SEEDS))))
    for _ in range(draw(st.integers(1, 4))):
        there = places(table)
        if not there:
            break
        *outer, last = draw(st.sampled_from(there))
        inside = table
        for key in outer:
            inside = inside[key]
        match draw(st.sampled_from(["replace", "delete", "typo", "add", "nest", "quote", "move"])):
            case "replace":
                inside[last] = draw(values)
            case "delete":
                del inside[last]
            case "typo":
                at = draw(st.integers(0, len(last)))
                inside[last[:at] + draw(st.sampled_from(["", "x", "_", " ", "\n", "é", last[:1]])) + last[at + 1 :]] = inside.pop(last)
            case "add":
                inside[draw(keys)] = draw(values)
            case "nest":
                inside[last] = {draw(keys): inside[last]}
            case "quote":
                inside[last] = str(inside[last])
            case "move":
                table[draw(keys)] = inside.pop(last)
    return table


def text_of(value: Any) -> str:
    """A value as TOML, tables inline."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{quoted(k)} = {text_of(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(text_of, value)) + "]"
    return quoted(value) if isinstance(value, str) else repr(value)


def quoted(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for those beyond 16 bits and for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


FIELDS = tuple(f.name for f in dataclasses.fields(Config))
FUZZ = settings(max_examples=200, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def check_outcome(path: Path, assignments: list[str], own_keys: set[str]) -> None:
    """Either a Config, or an error whose every line is printable and names a field or a key of the user's own."""
    try:
        assert isinstance(read(path, assignments), Config)
    except ConfigError as error:
        assert error.code == 2 and error.lines
        for line in error.lines:
            assert line.isascii() and line.isprintable()
            if not re.match(rf"({re.escape(str(path.parent))}.*?|--set|config): ", line):  # a file that cannot be read, or that is no TOML
                field = re.match(r"('.*?'|\".*?\"|[^.:\[]+)[.:\[]", line)
                assert field and (field[1] in FIELDS or field[1] in own_keys), line
                assert re.search(r": got .*; allowed ", line), line


@FUZZ
@given(table=mutated())
def test_any_table_is_a_config_or_a_config_error(table, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_text("\n".join(f"{quoted(key)} = {text_of(value)}" for key, value in table.items()), "utf-8")
    check_outcome(path, [], {parts.join("", key) for key in table})


@FUZZ
@given(data=st.data())
def test_any_assignment_is_a_config_or_a_config_error(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "set.toml"
    path.write_text(TEXT, "utf-8")
    known = [".".join(place) for place in places(SEEDS[-1])] + [
        "seeds",
        "topology",
        "engine.workers",
        "keep",
        "pools.new.model",
        "method.x",
    ]
    anything = st.text(st.characters(codec="utf-8"), max_size=20)
    pairs = st.builds("{}={}".format, st.sampled_from(known), values.map(text_of) | anything)
    assignments = data.draw(st.lists(pairs | anything, min_size=1, max_size=3))
    check_outcome(path, assignments, {a.split("=")[0].split(".")[0].strip() for a in assignments})


@FUZZ
@given(cut=st.integers(0, len(TEXT)), junk=st.binary(max_size=6), skip=st.integers(0, 6))
def test_any_bytes_are_a_config_or_a_config_error(cut, junk, skip, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "bytes.toml"
    path.write_bytes(TEXT.encode()[:cut] + junk + TEXT.encode()[cut + skip :])
    try:
        assert isinstance(read(path), Config)
    except ConfigError as error:
        assert all(line.isascii() and line.isprintable() for line in error.lines)


def test_a_table_is_laid_over_the_one_of_the_file_it_is_like(write):
    base = read("quick/toy")
    changed = read(write('like = "quick/toy"\n[pools.small]\ncohort = 3\n[method]\nalpha = 0.9', "fourth.toml"))
    assert changed.pools["small"].cohort == 3 and changed.pools["small"].model == base.pools["small"].model
    assert changed.method.alpha.value == 0.9 and changed.method.distill == base.method.distill
    whole = read(write('like = "quick/toy"\n[method]\nkind = "merged"', "fifth.toml"))
    assert whole.method.distill != base.method.distill  # its own kind: nothing is taken over


def test_a_misspelt_pool_is_not_only_told_to_have_no_model():
    with pytest.raises(ConfigError, match=r"^pools\.smal\.model: got nothing; .* did you mean small\?$"):
        config.read("quick/toy", ["pools.smal.cohort=3"])
    with pytest.raises(ConfigError, match=r"^pools\.third\.model: got nothing; [^?]*$"):
        config.read("quick/toy", ["pools.third.cohort=3"])
    with pytest.raises(ConfigError, match=r"^[^?]*$"):  # neither is one that there is
        config.read("quick/toy", ["pools.mid1.cohort=3", "pools.mid2.cohort=3"])
