"""A run directory holds what it was given: through every kind of damage, and killed at every operation on files.

Run as a script, this file is the driver of the crash test: it forks, and a process that forks should not have started JAX.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedcodist import runs
from fedcodist.reproduce import running, selection
from fedcodist.runs import Run, checkpoint, directory, environment
from fedcodist.storage import durable as durable_storage
from fedcodist.storage import sealed

HERE = {"jax": "0.10.2", "cores": 2}
CONFIG = {"alpha": 0.5, "rounds": 3, "pools": {"small": {"filters": [16, 32]}}, "log": {"level": "info"}}
ROUNDS = 3


def numbers(seed: int = 0) -> dict:
    """A state of plain numpy in two pools."""
    return {
        "large": {"params": {"w": np.arange(6, dtype=np.float32).reshape(2, 3) + seed}, "opt": (np.int32(seed),)},
        "small": {"params": {"w": np.full((4,), seed, np.float64)}, "opt": ()},
    }


def step(state: dict, t: int) -> dict:
    """A round: the next state depends on nothing but the last, so a lost or repeated round shows."""
    return {
        "large": {"params": {"w": state["large"]["params"]["w"] * 3 + t}, "opt": (np.int32(state["large"]["opt"][0] + 1),)},
        "small": {"params": {"w": state["small"]["params"]["w"] / 7 + t}, "opt": ()},
    }


def train(path: Path, rounds: int = ROUNDS, keep: int = 2, until: int | None = None) -> list[str]:
    """The whole life of a run, from wherever it is: what a command does."""
    with Run.open(path, CONFIG, {"log"}, keep=keep, environment=HERE) as run:
        if run.finished is None:
            t, state = run.resume(numbers()) or (0, numbers())
            while t < (until or rounds):
                t, state = t + 1, step(state, t + 1)
                run.record({"round": t, "loss": float(state["small"]["params"]["w"][0])})
                run.time({"round": t, "seconds": 0.5})
                run.commit(t, state, final=t == rounds)
            if until is None:
                run.finish({"sum": float(state["small"]["params"]["w"].sum())})
        return run.notes


def contents(path: Path) -> dict[str, bytes]:
    """All files of a run by name, but the lock and the timing, which are no part of its identity."""
    found = {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    return {name: data for name, data in found.items() if name not in ("run.lock", "timing.jsonl")}


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in (path / "checkpoints").iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return runs.run_path(tmp_path, "test", "merged", 0)


@pytest.fixture
def whole(path: Path) -> Path:
    """A run with two checkpoints, stopped."""
    train(path, until=2)
    assert names(path) == ["000001", "000002"]
    return path


# Tensors


def adam_state():
    import jax.numpy as jnp
    import optax

    from fedcodist.types import PoolState

    params = {"dense0": {"w": jnp.linspace(0, 1, 6).reshape(2, 3), "b": jnp.zeros((3,), jnp.bfloat16)}, "empty": jnp.zeros((0, 2))}
    opt = optax.adam(1e-3)
    state = opt.init(params)
    _, state = opt.update(params, state)
    return {"small": PoolState(params, state)}


def test_an_adam_state_comes_back_bit_for_bit_from_shapes_or_values(path):
    import jax

    state = adam_state()
    with Run.open(path, CONFIG, environment=HERE) as run:
        assert run.resume(state) is None
        run.commit(1, state)
    for template in (state, jax.eval_shape(lambda: state)):
        with Run.open(path, CONFIG, environment=HERE) as run:
            t, back = run.resume(template)
        assert t == 1 and jax.tree.structure(back) == jax.tree.structure(state)
        for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(state), strict=True):
            assert isinstance(a, jax.Array) and a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    assert back["small"].opt[0].count.shape == () and int(back["small"].opt[0].count) == 1
    tensors = [name for name, _ in checkpoint.named(state["small"])]
    assert "params/dense0/w" in tensors and "opt/0/mu/dense0/w" in tensors and "opt/0/count" in tensors


def test_python_numbers_and_numpy_come_back_as_what_they_were():
    state = {"p": {"n": 3, "x": 0.1, "yes": True, "a": np.arange(6.0).reshape(2, 3).T, "s": np.float32(2), "z": np.zeros(())}}
    back = checkpoint.load(state, {"p": checkpoint.encode(state["p"])})["p"]
    assert (back["n"], back["x"], back["yes"]) == (3, 0.1, True) and type(back["n"]) is int and type(back["yes"]) is bool
    np.testing.assert_array_equal(back["a"], state["p"]["a"])  # not contiguous before
    assert type(back["s"]) is np.float32 and back["z"].shape == ()


def test_equal_states_give_equal_bytes_whatever_their_order():
    a = {"x": np.ones(3), "y": np.zeros((), np.int32)}
    assert checkpoint.encode(a) == checkpoint.encode(dict(reversed(a.items()))) != checkpoint.encode({**a, "x": np.zeros(3)})


def test_another_model_names_three_tensors_and_leaves_the_checkpoint(whole):
    before = contents(whole)
    other = numbers()
    other["large"]["params"] = {f"w{i}": np.zeros(i + 1, np.float32) for i in range(4)}
    other["small"]["params"]["w"] = np.zeros((5,), np.float64)
    with Run.open(whole, CONFIG, environment=HERE) as run, pytest.raises(runs.CheckpointError) as error:
        run.resume(other)
    assert "large/params/w: float32[2, 3] in the checkpoint, nothing here" in str(error.value)
    assert "and 3 more" in str(error.value) and "\n" not in str(error.value) and error.value.code == 4
    with Run.open(whole, CONFIG, environment=HERE) as run, pytest.raises(runs.CheckpointError, match="float64.4. .*float64.5. here"):
        run.resume({**numbers(), "small": other["small"]})
    with Run.open(whole, CONFIG, environment=HERE) as run, pytest.raises(runs.CheckpointError, match="pool tiny: not in"):
        run.resume({**numbers(), "tiny": numbers()["small"]})
    assert contents(whole) == before


def test_size_bytes_counts_the_tensors():
    assert checkpoint.size_bytes(numbers()) == 6 * 4 + 4 + 4 * 8


# A run


def test_a_run_in_two_parts_is_the_run_in_one(tmp_path):
    train(tmp_path / "one", rounds=5)
    for until in (1, 2, 4, 5, None):
        train(tmp_path / "two", rounds=5, until=until)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert names(tmp_path / "one") == ["000004", "000005"]


def test_a_final_checkpoint_outlives_the_keep_policy(path):
    with Run.open(path, CONFIG, keep=1, environment=HERE) as run:
        run.resume(numbers())
        for t in range(1, 5):
            run.commit(t, numbers(t), final=t == 2)
    assert names(path) == ["000002", "000004"]


def test_files_are_for_the_owner_only(path):
    old = os.umask(0)
    try:
        train(path)
    finally:
        os.umask(old)
    for entry in [path, *path.rglob("*")]:
        assert stat.S_IMODE(entry.stat().st_mode) == (0o700 if entry.is_dir() else 0o600), entry


def test_a_finished_run_says_so_and_is_not_rewritten(path):
    train(path)
    before = contents(path)
    train(path)
    with Run.open(path, CONFIG, environment=HERE) as run:
        assert run.finished == {"sum": pytest.approx(4 * (3 + 2 / 7 + 1 / 49))}
    assert contents(path) == before


def test_a_damaged_result_is_made_again(path):
    train(path)
    before = contents(path)
    (path / "result.json").write_bytes(before["result.json"][:-9])
    assert any("result.json is damaged" in note for note in train(path))
    after = contents(path)
    assert after.pop("corrupt-result.json") and after == before


def test_the_order_is_resume_record_commit(path):
    with Run.open(path, CONFIG, environment=HERE) as run:
        with pytest.raises(RuntimeError, match="resume comes first"):
            run.record({"round": 1})
        run.resume(numbers())
        run.commit(2, numbers())
        with pytest.raises(ValueError, match="round 2 is not after"):
            run.commit(2, numbers())
        with pytest.raises(ValueError, match="crc32"):
            run.record({"crc32": 1})
        with pytest.raises(runs.BadName):
            run.commit(3, {"../x": numbers()["small"]})


def test_restart_sets_everything_aside(whole):
    before = contents(whole)
    with Run.open(whole, CONFIG, environment=HERE) as run:
        run.restart()
        assert run.resume(numbers()) is None
        run.commit(1, numbers())
    assert (whole / "before/rounds.jsonl").read_bytes() == before["rounds.jsonl"]
    assert sorted(entry.name for entry in (whole / "before/checkpoints").iterdir()) == ["000001", "000002"]
    assert names(whole) == ["000001"]


# Damage


def damages(path: Path):
    """Every way to damage every file of the newest checkpoint, and the part of the journal that only it vouches for."""
    newest = path / "checkpoints/000002"
    files = sorted(newest.iterdir())
    assert len(files) == 3
    for file in files:
        data = file.read_bytes()
        for at in np.linspace(0, len(data) - 1, 12).astype(int):
            flipped = bytearray(data)
            flipped[at] ^= 1 << (at % 8)
            yield f"{file.name} flip {at}", lambda file=file, flipped=flipped: file.write_bytes(flipped)
        for size in (0, 1, len(data) // 2, len(data) - 1):
            yield f"{file.name} cut {size}", lambda file=file, size=size, data=data: file.write_bytes(data[:size])
        yield f"{file.name} longer", lambda file=file, data=data: file.write_bytes(data + b" x")
        yield f"{file.name} gone", file.unlink
        yield f"{file.name} link", lambda file=file: (file.rename(path / "elsewhere"), file.symlink_to(path / "elsewhere"))
        yield f"{file.name} directory", lambda file=file: (file.unlink(), file.mkdir())
        yield f"{file.name} pipe", lambda file=file: (file.unlink(), os.mkfifo(file))
    yield "older in its place", lambda: (shutil.rmtree(newest), shutil.copytree(path / "checkpoints/000001", newest))
    yield "empty", lambda: (shutil.rmtree(newest), newest.mkdir())
    yield "a file", lambda: (shutil.rmtree(newest), newest.touch())
    journal = path / "rounds.jsonl"
    data = journal.read_bytes()
    yield "journal torn", lambda: journal.write_bytes(data[:-3])
    yield "journal flip", lambda: journal.write_bytes(data[:-30] + b"~" + data[-29:])


def test_each_damage_falls_back_to_the_checkpoint_before_and_keeps_the_damaged_one(whole, tmp_path):
    straight = tmp_path / "straight"
    train(straight)
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    count = 0
    for what, _ in list(damages(whole)):
        shutil.rmtree(whole)
        shutil.copytree(copy, whole)
        dict(damages(whole))[what]()
        with Run.open(whole, CONFIG, environment=HERE) as run:
            t, state = run.resume(numbers())
            assert t == 1 and np.array_equal(state["small"]["params"]["w"], step(numbers(), 1)["small"]["params"]["w"]), what
            assert names(whole) == ["000001", "corrupt-000002"], what
            (note,) = run.notes
            assert re.search(r"000002 is damaged, kept as corrupt-000002: .*; going on from round 1", note), what
        assert train(whole) == [], what
        want, got = contents(straight), contents(whole)
        got = {name: data for name, data in got.items() if "corrupt" not in name and name != "elsewhere"}
        assert got == want, what
        count += 1
    assert count >= 60


def test_a_second_damage_of_the_same_round_gets_a_number(whole):
    (whole / "checkpoints/corrupt-000002").mkdir()
    (whole / "checkpoints/000002/COMMIT.json").unlink()
    train(whole, until=1)
    assert names(whole) == ["000001", "corrupt-000002", "corrupt-000002-2"]


def test_all_damaged_is_an_error_each_time_and_nothing_is_lost(whole):
    for entry in (whole / "checkpoints").iterdir():
        (entry / "small.safetensors").write_bytes(b"")
    before = contents(whole)
    for _ in range(2):
        with Run.open(whole, CONFIG, environment=HERE) as run:
            with pytest.raises(runs.CheckpointError) as error:
                run.resume(numbers())
            with pytest.raises(RuntimeError):  # and nothing can be added to a journal that fits no state
                run.record({})
        assert "000002 (small.safetensors: 0 bytes" in str(error.value) and "000001 (" in str(error.value)
        assert error.value.code == 4 and contents(whole) == before
    for name in names(whole):
        (whole / "checkpoints" / name).rename(whole / "checkpoints" / f"corrupt-{name}")
    with Run.open(whole, CONFIG, environment=HERE) as run, pytest.raises(runs.CheckpointError, match="corrupt-000001"):
        run.resume(numbers())


def test_a_later_format_is_refused_and_not_called_damaged(whole, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(sealed, "FORMAT", 2)
        commit = json.loads((whole / "checkpoints/000002/COMMIT.json").read_bytes())
        (whole / "checkpoints/000002/COMMIT.json").write_bytes(sealed.seal({k: v for k, v in commit.items() if k != "digest"}))
    with Run.open(whole, CONFIG, environment=HERE) as run, pytest.raises(runs.CheckpointError, match="format 2; this .* format 1"):
        run.resume(numbers())
    assert names(whole) == ["000001", "000002"]


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b'{"format": 1, "config": {}, "digest": "0"}'])
def test_a_damaged_config_is_an_error_before_anything_is_touched(whole, damage):
    (whole / "config.json").write_bytes(damage)
    before = contents(whole)
    with pytest.raises(runs.CheckpointError, match="config.json"):
        train(whole)
    assert contents(whole) == before


def test_a_directory_that_is_no_run_is_left_alone(path):
    path.mkdir(parents=True)
    (path / "thesis.tex").write_text("all of it")
    with pytest.raises(runs.CheckpointError, match="exists, and is no run .*thesis.tex") as error:
        train(path)
    assert error.value.code == 4 and contents(path) == {"thesis.tex": b"all of it"}


def test_a_damaged_environment_is_kept_and_written_anew(whole):
    (whole / "environment.json").write_bytes(b"?")
    assert any("environment.json is damaged" in note for note in train(whole))
    assert (whole / "corrupt-environment.json").read_bytes() == b"?"


def test_leftovers_of_dead_writers_go(whole):
    for name in (".tmp-3-1", ".trash-000000-1"):
        (whole / "checkpoints" / name).mkdir()
        (whole / "checkpoints" / name / "small.safetensors").write_bytes(b"half")
    (whole / ".tmp-config.json-1").write_bytes(b"half")
    outside = whole.parent / "outside"
    outside.mkdir()
    (whole / "checkpoints/.tmp-4-1").symlink_to(outside)
    with Run.open(whole, CONFIG, environment=HERE):
        assert names(whole) == ["000001", "000002"] and not list(whole.glob(".tmp*")) and outside.is_dir()


# The journal


def test_journal_lines_are_canonical_and_checked(path):
    with Run.open(path, CONFIG, environment=HERE) as run:
        run.resume(numbers())
        run.record({"round": 1, "b": np.float32(0.1), "a": {"z": 1e-9, "y": [True, None, float("nan")]}, "text": 'é "crc32":"00000000"}'})
        run.record({})
    line = (path / "rounds.jsonl").read_bytes().splitlines()[0]
    assert line.startswith(b'{"a":{"y":[true,null,NaN],"z":1e-09},"b":0.10000000149011612,"round":1,"text":"\\u00e9')
    assert re.search(rb'"crc32":"[0-9a-f]{8}"\}$', line)
    recorded = runs.read(path)
    assert recorded.rounds[0]["text"] == 'é "crc32":"00000000"}' and recorded.rounds[1] == {} and recorded.notes == ()


def test_a_torn_or_flipped_line_is_left_out_of_reports(whole):
    data = (whole / "rounds.jsonl").read_bytes()
    (whole / "rounds.jsonl").write_bytes(data + data[:20])
    assert [row["round"] for row in runs.read(whole).rounds] == [1, 2] and runs.read(whole).notes == ()
    (whole / "rounds.jsonl").write_bytes(data.replace(b'"round":1', b'"round":7'))
    recorded = runs.read(whole)
    assert [row["round"] for row in recorded.rounds] == [2] and recorded.notes == ("rounds.jsonl line 1: bad checksum, left out",)


def test_lines_after_the_checkpoint_are_computed_again(whole, tmp_path):
    with Run.open(whole, CONFIG, environment=HERE) as run:
        run.resume(numbers())
        run.record({"round": 3, "loss": 0})
        run.time({"round": 3})
    for name in ("rounds.jsonl", "timing.jsonl"):
        with open(whole / name, "ab") as file:
            file.write(b'{"torn')
    train(whole)
    train(tmp_path / "straight")
    assert contents(whole) == contents(tmp_path / "straight")
    assert [row["round"] for row in runs.read(whole).timing] == [1, 2, 3, 3]


def test_without_a_checkpoint_the_journal_begins_again(path):
    with Run.open(path, CONFIG, environment=HERE) as run:
        run.resume(numbers())
        run.record({"round": 1})
    with Run.open(path, CONFIG, environment=HERE) as run:
        assert run.resume(numbers()) is None and "beginning again" in run.notes[0]
    assert (path / "rounds.jsonl").read_bytes() == b""


# Config and environment


def test_a_changed_config_is_told_by_key_and_the_run_stays(whole):
    before = contents(whole)
    changed = {**CONFIG, "alpha": 0.7, "pools": {"small": {"filters": [16, 64]}}, "extra": 1, "log": {"level": "debug"}}
    with pytest.raises(runs.Mismatch) as error:
        Run.open(whole, changed, {"log"}, environment=HERE)
    assert error.value.changes == ["alpha: 0.5 -> 0.7", "extra: nothing -> 1", "pools.small.filters: [16,32] -> [16,64]"]
    assert "alpha: 0.5 -> 0.7" in str(error.value) and "\n" not in str(error.value) and error.value.code == 4
    assert contents(whole) == before
    with Run.open(whole, {**CONFIG, "log": {"level": "debug"}}, {"log.level"}, environment=HERE) as run:
        assert run.config == CONFIG and run.notes == []
    with pytest.raises(runs.Mismatch, match="alpha: 0.5 -> true"):
        Run.open(whole, {**CONFIG, "alpha": True}, environment=HERE)


def test_another_environment_is_a_note_or_strictly_an_error(whole):
    moved = {**HERE, "jax": "0.10.1"}
    with pytest.raises(runs.Mismatch, match="would not be bit-identical: jax 0.10.2 -> 0.10.1") as error:
        Run.open(whole, CONFIG, environment=moved, strict=True)
    assert error.value.code == 4
    with Run.open(whole, CONFIG, environment=moved) as run:
        assert run.notes == ["continues, not bit-identical: jax 0.10.2 -> 0.10.1"]
        assert run.resume(numbers())[0] == 2
    assert runs.read(whole).environment == moved
    assert sealed.unseal(whole / "environment.json")["earlier"] == [HERE]


def test_the_commits_that_computed_a_run_are_told(path, monkeypatch):
    for commit, until in (("a", 1), ("a", 2), ("b", None), ("c", None)):
        monkeypatch.setattr(directory, "checkout", lambda commit=commit: commit)
        assert train(path, until=until) == []
    assert runs.read(path).commits == ("a", "b")  # c found nothing to do
    stored = sealed.unseal(path / "environment.json")
    old = {key: value for key, value in stored.items() if key in ("fingerprint", "earlier")}
    durable_storage.replace_file(path / "environment.json", sealed.seal(old))
    found = runs.read(path)  # of a version that did not write them down
    assert found.commits == () and found.environment == HERE and found.notes == ()


def test_a_commit_is_read_without_git(tmp_path, monkeypatch):
    import fedcodist

    monkeypatch.setattr(fedcodist, "__file__", str(tmp_path / "fedcodist/__init__.py"))
    assert environment.checkout.__wrapped__() is None
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert environment.checkout.__wrapped__() is None
    (git / "packed-refs").write_text(f"# pack-refs\n{'b' * 40} refs/heads/main\n")
    assert environment.checkout.__wrapped__() == "b" * 40
    (git / "refs/heads/main").write_text("a" * 40 + "\n")
    assert environment.checkout.__wrapped__() == "a" * 40
    (git / "HEAD").write_text("c" * 40 + "\n")
    assert environment.checkout.__wrapped__() == "c" * 40


def test_the_fingerprint_is_plain_and_complete():
    found = runs.fingerprint()
    known = {"python", "numpy", "jax", "jaxlib", "optax", "fedcodist", "platform", "cpu", "cpu_flags", "cores", "XLA_FLAGS", "backend"}
    assert known <= set(found) and json.loads(json.dumps(found)) == found == runs.fingerprint()
    assert runs.differences(found, found) == []
    assert runs.differences(found, {**found, "XLA_FLAGS": "--x"})[0].endswith("-> --x")


# One writer


def test_a_second_writer_is_told_who_is_first_and_the_first_goes_on(path):
    holder = subprocess.Popen(
        [sys.executable, __file__, "hold", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment_of_driver()
    )
    try:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(runs.Busy, match=f"pid {holder.pid} on ") as error:
            train(path)
        assert error.value.code == 5
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    assert train(path)[0].startswith(f"took over the lock of pid {holder.pid} on ")
    assert train(path) == []


def test_two_in_one_process_are_two_writers(path):
    with Run.open(path, CONFIG, environment=HERE), pytest.raises(runs.Busy):
        Run.open(path, CONFIG, environment=HERE)
    with pytest.raises(runs.Mismatch):
        Run.open(path, {}, environment=HERE)
    with Run.open(path, CONFIG, environment=HERE):  # a refusal lets go of the lock
        pass


# Names and places


@pytest.mark.parametrize(
    "name",
    ["", "..", "../../etc/x", "/abs", ".hidden", "-dash", "a/b", "a\\b", "CON", "nul.txt", "com1", "dot.", "x" * 65, "<script>",
     "\U0001f600", "a b", "a\n", "a\0", "é", 5, None],
)  # fmt: skip
def test_odd_names_are_refused_with_the_pattern(tmp_path, name):
    for args in ((name, "merged", 0), ("x", name, 0)):
        with pytest.raises(runs.BadName) as error:
            runs.run_path(tmp_path, *args)
        assert (
            error.value.code == 2
            and durable_storage.NAME in str(error.value)
            and "\n" not in str(error.value)
            and str(error.value).isascii()
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [-1, 2**63, True, 1.0, "0"])
def test_odd_seeds_are_refused(tmp_path, seed):
    with pytest.raises(runs.BadName, match="seed"):
        runs.run_path(tmp_path, "x", "merged", seed)


def test_links_below_the_root_are_not_followed(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/x").symlink_to(tmp_path)
    with pytest.raises(runs.BadName, match="symbolic link"):
        runs.run_path(tmp_path / "root", "x", "merged", 0)
    with pytest.raises(runs.StorageError, match="not a directory"):
        Run.open(tmp_path / "root/x", CONFIG, environment=HERE)


def test_a_place_that_cannot_hold_a_run_is_refused_before_training(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file/x/y", tmp_path / ("x" * 300)):
        with pytest.raises(runs.StorageError) as error:
            Run.open(place, CONFIG, environment=HERE)
        assert error.value.code == 6 and "\n" not in str(error.value)
    with pytest.raises(runs.StorageError, match=r"MiB free; a run needs \d+ MiB"):
        Run.open(tmp_path / "large", CONFIG, environment=HERE, checkpoint_bytes=2**60)
    assert not (tmp_path / "large").exists()
    failing(monkeypatch, "mkdir", errno.EROFS)
    with pytest.raises(runs.StorageError, match="Read-only file system .EROFS."):
        Run.open(tmp_path / "new", CONFIG, environment=HERE)


def test_read_and_find(tmp_path):
    for name, arm, seed in [("b", "merged", 1), ("a", "fedavg", 0), ("a", "merged", 0)]:
        train(runs.run_path(tmp_path, name, arm, seed), until=1)
    (tmp_path / "a/loop").symlink_to(tmp_path)
    assert [str(run.relative_to(tmp_path)) for run in runs.find(tmp_path)] == ["a/fedavg/seed-0", "a/merged/seed-0", "b/merged/seed-1"]
    one = tmp_path / "a/fedavg/seed-0"
    assert runs.find(one) == [one] and runs.find(tmp_path / "nowhere") == [] and len(runs.find(tmp_path / "a")) == 2
    recorded = runs.read(one)
    assert (recorded.config, recorded.environment, recorded.result) == (CONFIG, HERE, None)
    assert recorded.timing == [{"round": 1, "seconds": 0.5}] and recorded.rounds[0]["round"] == 1
    with pytest.raises(runs.NotARun, match="not a run; nearby: .*a/merged/seed-0") as error:
        runs.read(tmp_path / "a/merged/seed-9")
    assert error.value.code == 4
    (one / "config.json").write_bytes(b"?")
    (one / "rounds.jsonl").unlink()
    assert runs.read(one).config == {} and runs.read(one).rounds == [] and "config.json" in runs.read(one).notes[0]


# A failing disk


def failing(monkeypatch, name: str, number: int, after: int = 0) -> None:
    """Let an os function fail from its `after`-th call on."""
    real, calls = getattr(os, name), iter(range(10**9))

    def fail(*args, **kwargs):
        if next(calls) >= after:
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, fail)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("name", ["open", "write", "fsync", "mkdir", "rename"])
def test_a_failed_commit_keeps_the_last_one_and_is_an_error(whole, monkeypatch, tmp_path, name, number):
    for after in range(9):
        before = contents(whole)
        with Run.open(whole, CONFIG, {"log"}, keep=2, environment=HERE) as run:
            _t, state = run.resume(numbers())
            run.record({"round": 3, "loss": 0.0})
            with monkeypatch.context() as broken:
                failing(broken, name, number, after)
                try:
                    run.commit(3, step(state, 3), final=True)
                except runs.StorageError as error:
                    assert error.code == 6 and errno.errorcode[number] in str(error) and str(whole) in str(error) and "\n" not in str(error)
                else:
                    assert after > 0
                    break  # it got through (pruning may have failed: a note)
            now = contents(whole)
            assert all(now[file] == data for file, data in before.items() if file.startswith("checkpoints/0"))
        # the disk is back: if the new one is there, it is there whole
        shutil.copytree(whole, tmp_path / f"{after}")
        with Run.open(tmp_path / f"{after}", CONFIG, {"log"}, environment=HERE) as run:
            assert run.resume(numbers())[0] in (2, 3) and run.notes == []
        shutil.rmtree(whole / "checkpoints/000003", ignore_errors=True)
    else:
        raise AssertionError("never got through")


def test_a_commit_can_be_tried_again_when_the_disk_is_back(whole, monkeypatch, tmp_path):
    with Run.open(whole, CONFIG, {"log"}, keep=2, environment=HERE) as run:
        _t, state = run.resume(numbers())
        state = step(state, 3)
        run.record({"round": 3, "loss": float(state["small"]["params"]["w"][0])})
        for name, after in (("write", 1), ("fsync", 2), ("fsync", 5), ("rename", 0)):  # fsync 5: after the rename
            with monkeypatch.context() as broken:
                failing(broken, name, errno.ENOSPC, after)
                with pytest.raises(runs.StorageError):
                    run.commit(3, state, final=True)
        run.commit(3, state, final=True)
    train(whole)
    train(tmp_path / "straight")
    assert contents(whole) == contents(tmp_path / "straight")


def test_a_failed_sync_of_the_journal_is_never_taken_back(whole, monkeypatch):
    with Run.open(whole, CONFIG, {"log"}, environment=HERE) as run:
        _, state = run.resume(numbers())
        with monkeypatch.context() as broken:
            failing(broken, "fsync", errno.EIO)
            with pytest.raises(runs.StorageError, match="rounds.jsonl: .*EIO"):
                run.commit(3, state)
        with pytest.raises(runs.StorageError, match="an earlier sync failed"):  # though fsync works again
            run.commit(3, state)
    assert names(whole) == ["000001", "000002"]


def test_half_a_line_on_a_full_disk_is_cut_off_by_the_next(whole, monkeypatch):
    with Run.open(whole, CONFIG, {"log"}, environment=HERE) as run:
        _, state = run.resume(numbers())
        real = os.write
        with monkeypatch.context() as broken:
            calls = iter([lambda file, data: real(file, data[:5])])

            def write(file, data):
                for call in calls:
                    return call(file, data)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            broken.setattr(os, "write", write)
            with pytest.raises(runs.StorageError, match="rounds.jsonl: No space left on device .ENOSPC."):
                run.record({"round": 3})
        run.record({"round": 3, "again": True})
        run.commit(3, state)
    assert runs.read(whole).rounds[-1] == {"round": 3, "again": True} and runs.read(whole).notes == ()
    assert train(whole) == []


def test_a_real_limit_on_file_size(whole):
    before = contents(whole)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    big = {**numbers(), "small": {"params": {"w": np.zeros(4)}, "opt": (np.zeros(100_000),)}}
    with Run.open(whole, CONFIG, {"log"}, environment=HERE) as run:
        run.resume(numbers())
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(runs.StorageError, match="small.safetensors: File too large .EFBIG."):
                run.commit(3, big)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {k: v for k, v in contents(whole).items() if ".tmp" not in k} == before
    train(whole)


def test_pruning_that_fails_is_a_note(whole, monkeypatch):
    with Run.open(whole, CONFIG, {"log"}, keep=1, environment=HERE) as run:
        with monkeypatch.context() as broken:
            failing(broken, "unlink", errno.EACCES)
            _, state = run.resume(numbers())
            run.commit(3, state)
        assert len(run.notes) == 3 and all("stays: " in note for note in run.notes)
    with Run.open(whole, CONFIG, {"log"}, environment=HERE):
        assert names(whole) == ["000003"]


def test_the_commit_protocol_in_order(whole, monkeypatch):
    """R3, and old ones go only after the new one is durable: also one that an earlier process renamed and did not live to sync."""
    trace = []

    def tell(what, real, where):
        def told(*args, **kwargs):
            trace.append(f"{what} {re.sub(f'-{os.getpid()}$', '', os.path.basename(where(*args)))}")
            return real(*args, **kwargs)

        return told

    with Run.open(whole, CONFIG, {"log"}, keep=1, environment=HERE) as run:
        monkeypatch.setattr(os, "fsync", tell("sync", os.fsync, lambda file: os.readlink(f"/proc/self/fd/{file}")))
        monkeypatch.setattr(os, "rename", tell("rename", os.rename, lambda old, new: new))
        monkeypatch.setattr(shutil, "rmtree", tell("remove", shutil.rmtree, lambda path: path))
        _, state = run.resume(numbers())
        old = ["sync checkpoints", "rename .trash-000001", "sync checkpoints", "remove .trash-000001"]
        assert trace == ["sync seed-0", *old]
        trace.clear()
        run.commit(3, state)
    files = ["sync rounds.jsonl", "sync large.safetensors", "sync small.safetensors", "sync COMMIT.json", "sync .tmp-3", "rename 000003"]
    assert trace == [*files, "sync checkpoints", "rename .trash-000002", "sync checkpoints", "remove .trash-000002"]


# Killed at every operation

CRASH_MODES = ("killed", "data lost", "data and names lost")
OPERATIONS = ("open", "write", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "ftruncate")


class Disk:
    """Counts operations on files and, at the n-th, dies as by SIGKILL or as by a power cut: what was not synced is gone.

    A dying write is half done. In the worse modes, files lose what was written after their last fsync, and then renames are undone that
    no fsync of the directory had confirmed: the disk may have done either.
    """

    def __init__(self, at: int, mode: str):
        self.at, self.mode, self.count = at, mode, 0
        self.real = {name: getattr(os, name) for name in OPERATIONS}
        self.files: dict[int, tuple[int, int]] = {}  # inode: a descriptor of our own, and how much of it is durable
        self.renamed: list[tuple[str, str]] = []
        for name in OPERATIONS:
            setattr(os, name, getattr(self, name, None) or self.plain(name))

    def plain(self, name: str):
        def operation(*args, **kwargs):
            self.tick()
            return self.real[name](*args, **kwargs)

        return operation

    def tick(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.die()

    def die(self) -> None:
        if self.mode != "killed":
            for file, durable in self.files.values():
                if os.fstat(file).st_size > durable:
                    self.real["ftruncate"](file, durable)
        if self.mode == "data and names lost":
            for old, new in reversed(self.renamed):
                if os.path.lexists(new) and not os.path.lexists(old):
                    self.real["rename"](new, old)
        os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path, flags, *args, **kwargs):
        self.tick()
        file = self.real["open"](path, flags, *args, **kwargs)
        inode = os.fstat(file).st_ino
        if flags & (os.O_WRONLY | os.O_RDWR) and not str(path).endswith("run.lock") and inode not in self.files:
            self.files[inode] = (os.dup(file), os.fstat(file).st_size)
        return file

    def write(self, file, data):
        self.count += 1
        if self.count == self.at:
            self.real["write"](file, bytes(data)[: len(data) // 2])
            self.die()
        return self.real["write"](file, data)

    def fsync(self, file):
        self.tick()  # and no real fsync, which would only cost time here
        status = os.fstat(file)
        if stat.S_ISDIR(status.st_mode):
            place = os.readlink(f"/proc/self/fd/{file}")
            self.renamed = [(old, new) for old, new in self.renamed if os.path.dirname(new) != place]
        elif status.st_ino in self.files:
            self.files[status.st_ino] = (self.files[status.st_ino][0], status.st_size)

    def ftruncate(self, file, size):
        self.tick()
        self.real["ftruncate"](file, size)
        inode = os.fstat(file).st_ino
        if inode in self.files:
            self.files[inode] = (self.files[inode][0], min(size, self.files[inode][1]))

    def rename(self, old, new):
        self.tick()
        self.real["rename"](old, new)
        self.renamed.append((str(old), str(new)))

    def replace(self, old, new):
        self.tick()
        self.real["replace"](old, new)
        self.renamed.append((str(old), str(new)))


def crash_everywhere(root: Path) -> dict[str, int]:
    """For each mode and each n: die at operation n, perhaps a second time on the way back, and end as if nothing had been."""
    os.fsync = lambda file: None  # nothing here depends on the real disk, and it is slow
    train(root / "straight")
    want = contents(root / "straight")
    gc.freeze()  # else each child copies the heap to look for garbage
    points = {}
    for mode in CRASH_MODES:
        for n in range(1, 10_000):
            path = root / f"{CRASH_MODES.index(mode)}-{n}"
            if fork(path, n, mode) == 0:
                break
            fork(path, 1 + n * 7 % 40, mode)  # a crash of the recovery
            notes = train(path)
            assert not any("damaged" in note for note in notes), (mode, n, notes)
            assert contents(path) == want, (mode, n)
        points[mode] = n - 1
    return points


def fork(path: Path, n: int, mode: str) -> int:
    child = os.fork()
    if child == 0:
        try:
            Disk(n, mode)
            train(path)
            os._exit(0)
        except BaseException as error:
            print(mode, n, repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL), (mode, n, status)
    return status


def environment_of_driver() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(runs.__file__).parents[2]), "PYTHONWARNINGS": "ignore"}


def test_killed_at_every_operation_the_run_ends_with_the_same_bytes(tmp_path):
    command = [sys.executable, __file__, "crash", str(tmp_path)]
    done = subprocess.run(command, env=environment_of_driver(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    points = json.loads(done.stdout)
    assert set(points) == set(CRASH_MODES) and all(n >= 90 for n in points.values()), points  # the kills did hit something


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        with Run.open(sys.argv[2], CONFIG, {"log"}, environment=HERE):
            print("open", flush=True)
            sys.stdin.read()
    else:
        print(json.dumps(crash_everywhere(Path(sys.argv[2]))))


def test_the_runs_of_reproduce_are_found_from_where_all_runs_are(tmp_path):
    place = running.run_directory(selection.cells("table1", "smoke")[0], 0, tmp_path / "runs/reproduce")
    place.mkdir(parents=True)
    for name in (directory.CONFIG, directory.LOCK):
        (place / name).touch()
    assert runs.find(tmp_path / "runs") == [place]
