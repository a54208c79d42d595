"""A run's journal as a TensorBoard event file, `<run>/tensorboard/events.out.tfevents.fedcodist`: while it trains, or afterwards.

The file is a function of the run directory and of nothing else: every round of the journal once, under `held_out/accuracy/small` and the
like (see `scalars.scalars`), then the test metrics; the config as text and as hyper-parameters. Wall time is the start of the run plus the
seconds of training so far, so pauses do not show. A resumed run writes the file again in place, and bytes that are right already stay the
same: no round is lost or written twice (R5), and an open TensorBoard need not be started again. tensorboardX provides the messages and the
checksum; its own writer is not used, since it queues, and names files by the clock. Nothing else in the run directory is touched, and a
failure to write here never stops a run.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import stat
import struct
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedcodist import runs
from fedcodist.config import toml
from fedcodist.errors import ConfigError
from fedcodist.reports.arms import number, rounds_done, seed_of
from fedcodist.reports.scalars import scalars
from fedcodist.reports.tidy import lacks
from fedcodist.runs import directory
from fedcodist.settings import leaves, one_line
from fedcodist.storage import durable, sealed
from fedcodist.storage.durable import Damaged, RunError, as_storage_error, printable
from fedcodist.storage.journal import decode_lines
from fedcodist.storage.lock import Busy

if TYPE_CHECKING:
    from fedcodist.runs.session import Event

DIRECTORY, FILE = "tensorboard", "events.out.tfevents.fedcodist"


def check() -> None:
    """Fail with one line, before anything is trained, if event files cannot be written."""
    try:
        _messages("event")
    except (ImportError, TypeError):  # TypeError: a protobuf that does not read its messages
        line = "tensorboard needs the package tensorboardX, which is not installed: pip install 'fedcodist[track]'"
        raise ConfigError(line) from None


def track(events: Generator[Event, None, None]) -> Generator[Event, None, None]:
    """The events of a run, unchanged; its event file is brought up to date before each. A failure to do so is a note, once."""
    check()
    mirror: Mirror | None = None
    failed = False
    try:
        with closing(events):  # an interrupted run saves its last round before anything else happens
            for event in events:
                try:
                    if not failed:
                        mirror = mirror or Mirror(event.path)
                        mirror.catch_up()
                except Exception as error:  # of any kind: the file can be made again from the journal
                    failed = True
                    why = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
                    note = f"tensorboard: {why}; the run goes on without; later: fedcodist export --to tensorboard {event.path}"
                    event = replace(event, notes=(*event.notes, one_line(note)))
                yield event
    finally:
        if mirror is not None:
            with suppress(Exception), closing(mirror):
                if not failed:
                    mirror.catch_up()  # the last round of an interrupted run, for which there was no event


def write(path: str | Path) -> Path:
    """Write the event file of a recorded run, finished or not; returns its path."""
    check()
    with closing(Mirror(Path(path))) as mirror:
        mirror.catch_up()
        return mirror.file


def write_all(paths: Iterable[str | Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Write the event files of all runs at or under these paths; returns a row for each run, and a note on each that is not whole."""
    check()
    rows, notes = [], []
    for path in runs.find_all(paths):
        run = runs.read(path)
        rows.append({"run": str(path), "rounds": rounds_done(run), "events": str(write(path).parent)})
        notes.append(lacks(run))
    return rows, list(filter(None, notes))


class _At(NamedTuple):
    """How far the event file is. Replaced whole: a signal may interrupt `catch_up` anywhere, and the next call does the rest."""

    size: int = 0  # bytes of the event file that are right
    journal: int = 0  # bytes of the journal that are in it
    timing: int = 0
    last: int = 0  # round
    seconds: float = 0.0
    over: bool = False  # the result is in it


class Mirror:
    """The event file of one run, open for writing."""

    def __init__(self, path: Path):
        self.path, self.file = path, path / DIRECTORY / FILE
        self._at = _At()
        with as_storage_error(path):
            self._start = (path / directory.CONFIG).stat().st_mtime  # written once, when the run was made
        durable.make_directories(self.file.parent)
        with as_storage_error(self.file):
            self._descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                    raise OSError(0, "not a regular file")
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._descriptor)
                raise Busy(f"{printable(self.file)}: busy: another process is writing it") from None
            except BaseException:
                os.close(self._descriptor)
                raise

    def catch_up(self) -> None:
        """Write what is in the run directory and not yet in the event file."""
        at = self._at
        rows, journal = _lines_after(self.path / directory.JOURNAL, at.journal)
        times, timing = _lines_after(self.path / directory.TIMING, at.timing)
        took = {row.get("round"): seconds for row in times if (seconds := number(row.get("seconds"))) is not None}
        result = None if at.over else self._result()
        events = [] if at.size else list(_head(runs.read(self.path), self._start))
        last, seconds = at.last, at.seconds
        for row in rows:
            t = row.get("round")
            if isinstance(t, int) and t > last:
                last, seconds = t, seconds + took.get(t, 0.0)
                events.append(_event(self._start + seconds, t, _summary(scalars(row))))
        if result is not None:
            events.append(_event(self._start + seconds, last, _summary(scalars({"test": result.get("test")}))))
            events.append(_event(self._start + seconds, last, _session_end()))
        data = b"".join(map(_record, events))
        size = at.size + len(data)
        with as_storage_error(self.file):
            if os.fstat(self._descriptor).st_size > size:  # first, so that rounds which the journal no longer has are never beside new ones
                os.ftruncate(self._descriptor, size)
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], at.size + done)
        self._at = _At(size, journal, timing, last, seconds, at.over or result is not None)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _result(self) -> dict[str, Any] | None:
        if not os.path.lexists(self.path / directory.RESULT):
            return None
        try:
            result = sealed.unseal(self.path / directory.RESULT).get("result")
        except (Damaged, RunError):
            return None  # runs.read notes the damage
        return result if isinstance(result, dict) else None


def _lines_after(path: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """The intact rows of the whole lines after an offset, and the offset where these end. A file that is missing, or not ours, has none."""
    if not path.is_file() or path.is_symlink():
        return [], start
    with as_storage_error(path), open(path, "rb") as file:
        file.seek(start)
        data = file.read()
    data = data[: data.rfind(b"\n") + 1]
    rows, _odd = decode_lines(data, path.name)
    return [row for row in rows if isinstance(row, dict)], start + len(data)


# Messages. Maps are written in order: equal runs give equal bytes.


def _messages(name: str) -> Any:
    """A module of generated messages: their classes are made at import, where no type checker sees them."""
    return importlib.import_module(f"tensorboardX.proto.{name}_pb2")


def _head(run: runs.Recorded, start: float) -> Iterator[Any]:
    from tensorboardX.summary import text

    yield _messages("event").Event(wall_time=start, file_version="brain.Event:2")
    for name, table in (("config", run.config), ("environment", run.environment)):
        lines = toml.text(table).encode("utf-8", "replace").decode().splitlines()
        yield _event(start, 0, text(name, "\n".join(f"    {line}" for line in lines)))  # four spaces: code, in Markdown
    settings = {name: value for name, value in leaves(run.config) if name != "data" and value != {}}
    yield _event(start, 0, _session_start(settings | {"seed": seed_of(run)}, start))


def _event(wall_time: float, step: int, summary: Any) -> Any:
    return _messages("event").Event(wall_time=wall_time, step=step, summary=summary)


def _summary(values: dict[str, float]) -> Any:
    Summary = _messages("summary").Summary
    return Summary(value=[Summary.Value(tag=tag.encode("utf-8", "replace").decode(), simple_value=value) for tag, value in values.items()])


def _session_start(settings: dict[str, Any], start: float) -> Any:
    """The hyper-parameters. Without the message that lists them for all runs: TensorBoard would believe the first run's list."""
    messages = _messages("plugin_hparams")
    info = messages.SessionStartInfo(start_time_secs=start)
    for name, value in settings.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            info.hparams[name].number_value = value
        elif value is not None:
            info.hparams[name].string_value = value if isinstance(value, str) else json.dumps(value)
    return _hparams("session_start_info", messages.HParamsPluginData(version=0, session_start_info=info))


def _session_end() -> Any:
    messages = _messages("plugin_hparams")
    info = messages.SessionEndInfo(status=_messages("api").Status.Value("STATUS_SUCCESS"))
    return _hparams("session_end_info", messages.HParamsPluginData(version=0, session_end_info=info))


def _hparams(name: str, content: Any) -> Any:
    messages = _messages("summary")
    data = messages.SummaryMetadata.PluginData(plugin_name="hparams", content=content.SerializeToString(deterministic=True))
    value = messages.Summary.Value(tag=f"_hparams_/{name}", metadata=messages.SummaryMetadata(plugin_data=data))
    return messages.Summary(value=[value])


def _record(event: Any) -> bytes:
    """A message as the file holds it: length and message, each with its checksum."""
    from tensorboardX.record_writer import masked_crc32c

    data = event.SerializeToString(deterministic=True)
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
