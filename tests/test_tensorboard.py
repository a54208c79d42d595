"""The event file says what the journal says, every round once: whole, killed anywhere, resumed, interrupted, and never in the run's way.

Run as a script, this file is a run that waits to be killed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcodist import runs
from fedcodist.errors import ConfigError, Interrupted
from fedcodist.runs import Run
from fedcodist.runs.session import Event
from fedcodist.storage.journal import encode_line

pytest.importorskip("tensorboardX")
from fedcodist.reports import tensorboard

HERE = {"jax": "0.10.2", "cores": 2}
CONFIG = {"name": "t", "rounds": 7, "method": {"kind": "merged", "alpha": 0.5}, "pools": {"small": {"hidden": [4, 8]}}, "data": "0123"}
ROUNDS, EVERY = 7, 3  # a checkpoint every third round: a kill loses up to two
STATE = {"small": {"w": np.zeros(2, np.float32)}}


def row(t: int) -> dict[str, Any]:
    info = {"clients": 4, "train_loss": 1 / t, "codistilled": True, "agreement": {"large": [0.25, 0.5]}}
    held_out = {"small": {"all": {"accuracy": t / 10}, "outdoors": {"accuracy": t / 20}}}
    return {"round": t, "pools": {"small": info}} | ({"held_out": held_out} if t % 2 == 0 else {})


def life(path: Path, pace: float = 1.0, restart: bool = False) -> Generator[Event, None, None]:
    """A run without training, from wherever it is. Closed early, it leaves what a kill leaves: rounds that no checkpoint vouches for."""

    def event(kind: str, t: int) -> Event:
        return Event(kind, path, None, 0, t, notes=("its own",) if kind == "started" else ())  # type: ignore[arg-type]

    with Run.open(path, CONFIG, environment=HERE) as run:
        if restart:
            run.restart()
        if run.finished is not None:
            yield event("skipped", ROUNDS)
            return
        t = (run.resume(STATE) or (0, None))[0]
        yield event("started", t)
        while t < ROUNDS:
            t += 1
            run.record(row(t))
            if t % EVERY == 0 or t == ROUNDS:
                run.commit(t, STATE, final=t == ROUNDS)
            run.time({"round": t, "seconds": pace * t})
            yield event("round", t)
        run.finish({"rounds": ROUNDS, "test": {"small": {"all": {"accuracy": 0.75}}}})
        yield event("finished", ROUNDS)


def until(events: Generator[Event, None, None], t: int) -> None:
    """Follow a run, and leave it after round t."""
    for event in events:
        if event.kind == "round" and event.t == t:
            break
    events.close()


def records(file: Path) -> list[Any]:
    """The messages of an event file, each byte of it checked."""
    from tensorboardX.proto.event_pb2 import Event as Message
    from tensorboardX.record_writer import masked_crc32c

    data, found = file.read_bytes(), []
    while data:
        (size, check), body = struct.unpack("<QI", data[:12]), data[12 : 12 + struct.unpack("<Q", data[:8])[0]]
        assert check == masked_crc32c(data[:8]) and struct.unpack("<I", data[12 + size : 16 + size])[0] == masked_crc32c(body)
        found.append(Message.FromString(body))
        data = data[16 + size :]
    assert found[0].file_version == "brain.Event:2"
    return found


def values(file: Path) -> dict[tuple[str, int], float]:
    """{(tag, step): value} of the scalars; that each is there once is checked."""
    found = [(value.tag, m.step, value.simple_value) for m in records(file) for value in m.summary.value if value.HasField("simple_value")]
    assert set(Counter((tag, step) for tag, step, _ in found).values()) <= {1}
    return {(tag, step): value for tag, step, value in found}


def expected(last: int, over: bool = False) -> dict[tuple[str, int], float]:
    """By hand: what the rounds up to `last` leave."""
    found: dict[tuple[str, int], float] = {}
    for t in range(1, last + 1):
        found |= {("train/clients/small", t): 4, ("train/train_loss/small", t): 1 / t}
        found |= {("train/agreement_before/small", t): 0.25, ("train/agreement_after/small", t): 0.5}
        if t % 2 == 0:
            found |= {("held_out/accuracy/small", t): t / 10, ("held_out/accuracy/small/outdoors", t): t / 20}
    return found | ({("test/accuracy/small", ROUNDS): 0.75} if over else {})


def rest(path: Path) -> dict[str, bytes]:
    """All files of a run but the event file, the lock, and the timing."""
    files = {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    return {name: data for name, data in files.items() if not name.startswith(("tensorboard", "run.lock", "timing"))}


@pytest.fixture
def path(tmp_path) -> Path:
    return runs.run_path(tmp_path, "t", "merged", 0)


@pytest.fixture
def file(path) -> Path:
    return path / tensorboard.DIRECTORY / tensorboard.FILE


# What it says


def test_every_value_of_every_round_once_while_it_trains(path, file):
    for event in tensorboard.track(life(path)):
        assert values(file) == pytest.approx(expected(event.t, event.kind == "finished"), rel=1e-6), event
    assert len(values(file)) == 7 * 4 + 3 * 2 + 1


def test_wall_time_is_the_start_and_the_seconds_of_training(path, file):
    *_, _last = tensorboard.track(life(path))
    start = (path / "config.json").stat().st_mtime
    times = {m.step: m.wall_time - start for m in records(file)}
    assert times == pytest.approx({0: 0, 1: 1, 2: 3, 3: 6, 4: 10, 5: 15, 6: 21, 7: 28}, abs=1e-5)


def test_config_environment_and_hyper_parameters(path, file):
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    *_, _last = tensorboard.track(life(path))
    found = {value.tag: value for m in records(file) for value in m.summary.value if not value.HasField("simple_value")}
    assert set(found) == {"config/text_summary", "environment/text_summary", "_hparams_/session_start_info", "_hparams_/session_end_info"}
    assert b'    method = { alpha = 0.5, kind = "merged" }\n' in found["config/text_summary"].tensor.string_val[0]
    assert b'    jax = "0.10.2"' in found["environment/text_summary"].tensor.string_val[0]
    data = [HParamsPluginData.FromString(found[f"_hparams_/session_{when}_info"].metadata.plugin_data.content) for when in ("start", "end")]
    settings = {name: getattr(value, value.WhichOneof("kind")) for name, value in data[0].session_start_info.hparams.items()}
    assert settings == {"name": "t", "rounds": 7, "method.kind": "merged", "method.alpha": 0.5, "pools.small.hidden": "[4, 8]", "seed": 0}
    assert data[1].session_end_info.status == 1  # success


def test_it_is_for_the_owner_only(path, file):
    old = os.umask(0)
    try:
        *_, _last = tensorboard.track(life(path))
    finally:
        os.umask(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700


# Killed, resumed, interrupted


@pytest.mark.parametrize("kills", [[t] for t in range(1, ROUNDS + 1)] + [[2, 2, 5], [4, 4, 7]], ids=str)
def test_a_killed_run_that_is_resumed_tells_no_round_twice_and_loses_none(tmp_path, path, file, kills):
    for n, t in enumerate(kills, 1):
        until(tensorboard.track(life(path, pace=n)), t)
        assert values(file) == pytest.approx(expected(t), rel=1e-6)
        with open(file, "ab") as torn, open(path / "rounds.jsonl", "ab") as journal:  # as if the kill had come in the next write
            torn.write(b"\x20\0\0\0\0\0\0\0half")
            journal.write(b'{"pools":{')
    first = next(events := tensorboard.track(life(path, pace=9)))
    assert values(file) == pytest.approx(expected(first.t), rel=1e-6)  # back to where the journal is, before anything is trained
    assert first.t == kills[-1] // EVERY * EVERY or kills[-1] == ROUNDS
    list(events)
    assert values(file) == pytest.approx(expected(ROUNDS, over=True), rel=1e-6)
    told = file.read_bytes()
    shutil.rmtree(file.parent)
    assert tensorboard.write(path).read_bytes() == told  # it depends on the run directory, and on nothing else
    list(life(tmp_path / "straight"))
    assert rest(path) == rest(tmp_path / "straight")


def test_a_reader_that_is_ahead_finds_its_place_again(path, file):
    until(tensorboard.track(life(path)), 5)
    inode, ahead = file.stat().st_ino, file.read_bytes()
    *_, _last = tensorboard.track(life(path))
    assert file.stat().st_ino == inode and len(records(file)) > 5
    assert file.read_bytes()[: len(ahead)] == ahead  # the rounds that are computed again have the same bytes in the same place


def test_kill_9(path, file):
    process = subprocess.Popen(
        [sys.executable, __file__, str(path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"5\n"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    assert values(file) == pytest.approx(expected(5), rel=1e-6)
    *_, last = tensorboard.track(life(path))
    assert last.kind == "finished" and values(file) == pytest.approx(expected(ROUNDS, over=True), rel=1e-6)


@pytest.mark.parametrize("after", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("write", [1, 2, 4, 8])
def test_a_signal_inside_a_write_loses_and_repeats_nothing(path, file, monkeypatch, write, after):
    calls, pwrite = [], os.pwrite

    def interrupted(descriptor: int, data: bytes, at: int) -> int:
        calls.append(at)
        if len(calls) == write:
            pwrite(descriptor, data[: int(after * len(data))], at)
            raise Interrupted(signal.SIGTERM)
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", interrupted)
    with pytest.raises(Interrupted):
        list(tensorboard.track(life(path)))
    assert values(file) == pytest.approx(expected(write - 1), rel=1e-6)  # the first write is the head
    list(tensorboard.track(life(path)))
    assert values(file) == pytest.approx(expected(ROUNDS, over=True), rel=1e-6)


def test_a_round_that_nobody_was_told_of_is_in_it_too(path, file):
    def cut_short() -> Generator[Event, None, None]:
        for event in life(path):
            if event.t == 4:
                raise Interrupted(signal.SIGINT)
            yield event

    with pytest.raises(Interrupted):
        list(tensorboard.track(cut_short()))
    assert values(file) == pytest.approx(expected(4), rel=1e-6)


def test_whoever_stops_looking_stops_the_run(path, file):
    run = life(path)
    until(tensorboard.track(run), 4)
    assert run.gi_frame is None and values(file) == pytest.approx(expected(4), rel=1e-6)


def test_only_whole_new_lines_are_read(tmp_path):
    file, lines = tmp_path / "rounds.jsonl", [encode_line({"round": t}) for t in (1, 2, 3)]
    assert tensorboard._lines_after(file, 0) == ([], 0)
    file.write_bytes(lines[0] + lines[1][:5])
    assert tensorboard._lines_after(file, 0) == ([{"round": 1}], len(lines[0]))
    file.write_bytes(b"".join(lines))
    assert tensorboard._lines_after(file, len(lines[0])) == ([{"round": 2}, {"round": 3}], len(b"".join(lines)))


def test_a_finished_run_is_written_where_it_was_not_and_left_where_it_was(path, file):
    list(life(path))
    assert [event.kind for event in tensorboard.track(life(path))] == ["skipped"]
    told = file.read_bytes()
    assert values(file) == pytest.approx(expected(ROUNDS, over=True), rel=1e-6)
    list(tensorboard.track(life(path)))
    assert file.read_bytes() == told


def test_begun_again_it_holds_the_new_rounds_only(path, file):
    list(tensorboard.track(life(path)))
    until(tensorboard.track(life(path, pace=3, restart=True)), 2)
    assert values(file) == pytest.approx(expected(2), rel=1e-6)
    assert records(file)[-1].wall_time - (path / "config.json").stat().st_mtime == pytest.approx(9, abs=1e-5)


# In nobody's way


def test_a_real_run_is_the_same_with_it_interrupted_or_not(tmp_path):
    from fedcodist import config
    from fedcodist.runs import session

    read = config.read("quick/toy", ["rounds=5", "checkpoint_every=2", "evaluate_every=2"])
    experiment = config.build(read, 0)
    list(session.perform(experiment, tmp_path / "plain"))
    told = []

    def stopped_in_round_3() -> None:
        for event in tensorboard.track(session.perform(experiment, tmp_path / "tracked")):
            told.append(event.t)
            if event.t == 3:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        stopped_in_round_3()
    assert told == [0, 1, 2, 3]
    path = runs.run_path(tmp_path / "tracked", "toy", "merged", 0)
    *_, last = tensorboard.track(session.perform(experiment, tmp_path / "tracked"))
    assert last.kind == "finished" and last.result is not None
    found = values(path / tensorboard.DIRECTORY / tensorboard.FILE)
    for pool in ("small", "large"):
        for what in ("train_loss", "grad_norm", "dist_norm", "cosine", "alpha", "distill_loss_after", "agreement_after"):
            assert {t for tag, t in found if tag == f"train/{what}/{pool}"} == {1, 2, 3, 4, 5}, what
        for what in (f"accuracy/{pool}", f"loss/{pool}", f"accuracy/{pool}/first"):
            assert {t for tag, t in found if tag == f"held_out/{what}"} == {2, 4, 5}, what
        assert found[f"test/accuracy/{pool}", 5] == pytest.approx(last.result["test"][pool]["all"]["accuracy"])
    with_it, without = rest(path), rest(runs.run_path(tmp_path / "plain", "toy", "merged", 0))
    for name, data in without.items():  # a stop commits its round, so of the checkpoints only the last need be the same
        assert re.match(r"checkpoints/00000[1-4]/", name) or with_it[name] == data, name
    assert {"rounds.jsonl", "result.json", "config.json", "checkpoints/000005/COMMIT.json"} < without.keys()


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda place: place.write_text("mine"), r"tensorboard: .*tensorboard: not a directory \(ENOTDIR\); the run goes on without"),
        (lambda place: (place.mkdir(), (place / tensorboard.FILE).mkdir()), r"tensorboard: .*Is a directory \(EISDIR\); the run goes on"),
        (lambda place: (place.mkdir(), os.mkfifo(place / tensorboard.FILE)), r"tensorboard: .*not a regular file; the run goes on"),
        (lambda place: (place.mkdir(), (place / tensorboard.FILE).symlink_to("/dev/null")), r"tensorboard: .*\(ELOOP\); the run goes on"),
    ],
)
def test_an_event_file_that_cannot_be_is_one_note_and_the_run_goes_on(path, spoil, said):
    next(life(path)).path.mkdir(exist_ok=True)
    spoil(path / tensorboard.DIRECTORY)
    notes = [note for event in tensorboard.track(life(path)) for note in event.notes]
    assert len(notes) == 2 and notes[0] == "its own" and runs.read(path).result is not None
    assert re.match(said, notes[1]) and notes[1].endswith(f"; later: fedcodist export --to tensorboard {path}")


def test_a_full_disk_is_one_note_and_the_run_goes_on(path, file, monkeypatch):
    calls, pwrite = [], os.pwrite

    def full(*args: Any) -> int:
        calls.append(args)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        return pwrite(*args)

    monkeypatch.setattr(os, "pwrite", full)
    notes = [note for event in tensorboard.track(life(path)) for note in event.notes]
    assert len(notes) == 2 and "events.out.tfevents.fedcodist: No space left on device (ENOSPC); the run goes on" in notes[1]
    assert runs.read(path).result is not None and len(calls) == 4 and values(file) == pytest.approx(expected(2), rel=1e-6)


def test_one_writer(path, file):
    events = tensorboard.track(life(path))
    for _ in range(3):
        next(events)
    before = file.read_bytes()
    with pytest.raises(runs.Busy, match="fedcodist: busy: another process is writing it"):
        tensorboard.write(path)
    assert file.read_bytes() == before
    events.close()
    tensorboard.write(path)


def test_without_tensorboardx_one_line_says_what_to_install_before_anything_is_written(path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorboardX")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    for start in (tensorboard.check, lambda: next(tensorboard.track(life(path))), lambda: tensorboard.write(path)):
        with pytest.raises(ConfigError, match=r"^tensorboard needs the package tensorboardX, .*: pip install 'fedcodist\[track\]'$"):
            start()
    assert not path.exists()


# Afterwards


def test_what_a_damaged_run_has_is_written(path, file):
    list(life(path))
    lines = (path / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (path / "rounds.jsonl").write_bytes(
        b"".join([*lines[:2], b"junk\n", lines[3].replace(b"0.25", b"0.35"), *lines[4:], lines[2], b'{"torn'])
    )
    (path / "result.json").write_bytes(b"{")
    (path / "timing.jsonl").unlink()
    tensorboard.write(path)
    assert values(file) == pytest.approx({(tag, t): value for (tag, t), value in expected(ROUNDS).items() if t not in (3, 4)}, rel=1e-6)
    (path / "rounds.jsonl").unlink()
    os.mkfifo(path / "rounds.jsonl")
    tensorboard.write(path)
    assert values(file) == {}
    with pytest.raises(runs.StorageError, match="No such file"):
        tensorboard.write(path.parent / "nowhere")


if __name__ == "__main__":
    for told in tensorboard.track(life(Path(sys.argv[1]))):
        if told.t == 5:
            print(told.t, flush=True)
            signal.pause()
