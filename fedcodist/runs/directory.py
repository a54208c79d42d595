"""The directory of one run: `<root>/<name>/<arm>/seed-<n>/`, one writer, any number of readers, and safe to kill at any instant.

`config.json` says what the run is, `environment.json` on what it was computed, `rounds.jsonl` what happened in each round (no clock in it:
the same training gives the same bytes), `timing.jsonl` how long it took, `checkpoints/` where to go on, `result.json` that it is over.
A checkpoint names the length and digest of the journal at its round; resuming cuts the journal back to it, so that no round is lost or
told twice (R5). Deliberately absent: the training loop, printing (see `Run.notes`), and deleting anything that is damaged.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcodist.runs import checkpoint
from fedcodist.runs.environment import checkout, differences, fingerprint
from fedcodist.settings import leaves, show
from fedcodist.storage import durable, sealed
from fedcodist.storage import lock as lock_file
from fedcodist.storage.durable import BadName, CheckpointError, Damaged, RunError, StorageError, as_storage_error, printable
from fedcodist.storage.journal import Lines
from fedcodist.storage.sealed import canonical

if TYPE_CHECKING:
    from fedcodist.types import State

MARGIN_BYTES = 64 * 2**20
JOURNAL, TIMING, LOCK = "rounds.jsonl", "timing.jsonl", "run.lock"
CONFIG, ENVIRONMENT, RESULT, CHECKPOINTS = "config.json", "environment.json", "result.json", "checkpoints"


class Mismatch(RunError):
    """The run is there, but it is another one: `changes` says in what."""

    code = 4

    def __init__(self, message: str, changes: list[str]):
        self.changes = changes
        super().__init__(message)


def run_path(root: str | Path, name: str, arm: str, seed: int) -> Path:
    """Where a run lives. Names are checked, and no link below root is followed, so the path cannot leave root.

    >>> run_path("runs", "first", "merged", 0).as_posix()
    'runs/first/merged/seed-0'
    """
    durable.check_name("name", name)
    durable.check_name("arm", arm)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise BadName(f"seed: got {show(seed)}; allowed 0 to 2**63 - 1")
    if "\0" in str(root):
        raise BadName(f"root: got {show(str(root))}; allowed a path")
    path = Path(root)
    for part in (name, arm, f"seed-{seed}"):
        path = path / part
        with as_storage_error(path):
            linked = path.is_symlink()
        if linked:
            raise BadName(f"name: {printable(path)} is a symbolic link; allowed a directory under {printable(root)}")
    return path


class Run:
    """A run open for writing: `with Run.open(...) as run`, then `resume`, then `record` and `commit` by round, then `finish`."""

    def __init__(self, path: Path, lock: int, config: dict[str, Any], config_digest: str, keep: int):
        self.path = path
        self.config = config
        self.notes: list[str] = []  # one line each, for whoever has a screen
        self._lock, self._keep, self._config_digest = lock, keep, config_digest
        self._environment_digest = ""
        self._checkpoints = path / CHECKPOINTS
        self._journal: Lines | None = None
        self._timing: Lines | None = None
        self._last = -1  # the last committed round

    @classmethod
    def open(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        harmless: AbstractSet[str] = frozenset(),
        *,
        checkpoint_bytes: int = 0,
        keep: int = 3,
        environment: Mapping[str, Any] | None = None,
        strict: bool = False,
    ) -> Run:
        """Create the run or reopen it, and lock it. The config must be the run's, up to the dotted keys in `harmless` (and what is below
        them); the environment may be another, with a note, unless `strict`. Nothing of an existing run is touched before that is known."""
        if keep < 1:
            raise ValueError(f"keep: got {keep}; allowed >= 1")
        path = Path(os.path.abspath(path))
        wanted: dict[str, Any] = json.loads(canonical(config))  # as it will be read back
        with as_storage_error(path):
            if not (path / RESULT).exists():
                _preflight(path, 2 * checkpoint_bytes + MARGIN_BYTES)  # R7
            durable.make_directories(path)
        lock, gone = lock_file.take(path / LOCK, "run")
        try:
            stored = _stored_config(path)
            run = cls(path, lock, wanted if stored is None else stored["config"], "" if stored is None else stored["digest"], keep)
            if gone:
                run.notes.append(f"took over the lock of {gone}, which no longer runs")
            if stored is not None:
                changes = _changes(stored["config"], wanted, harmless)
                if changes:
                    more = f", and {len(changes) - 20} more" if len(changes) > 20 else ""
                    message = f"{printable(path)}: this run has another config: {', '.join(changes[:20])}{more}; use another --name"
                    raise Mismatch(message, changes)
            found = json.loads(canonical(fingerprint() if environment is None else environment))
            run._settle_environment(found, strict)  # before config.json: with a config, a run is complete
            if stored is None:
                durable.replace_file(path / CONFIG, sealed.seal({"config": wanted}))
                run._config_digest = sealed.unseal(path / CONFIG)["digest"]
            run._sweep(path)
            run._make_checkpoints()
            return run
        except Damaged as error:
            lock_file.release(lock)
            raise CheckpointError(f"{printable(path)}: {error}; nothing was changed") from error
        except BaseException:
            lock_file.release(lock)
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of files and lock. Rounds recorded after the last commit are computed again on resume."""
        self._close_lines()
        if self._lock >= 0:
            lock_file.release(self._lock)
            self._lock = -1

    def resume(self, template: State) -> tuple[int, State] | None:
        """The newest checkpoint that is good to the last byte, as (round, state); None to begin at the beginning. Call it once, first."""
        for pool in template:
            durable.check_name("pool", pool)
        self._close_lines()
        try:
            self._journal = Lines(self.path / JOURNAL)
            self._timing = Lines(self.path / TIMING)
            self._timing.cut(self._timing.whole_bytes())
            durable.sync_directory(self.path)
            with as_storage_error(self._checkpoints):
                return self._newest_good(template, self._journal)
        except BaseException:
            self._close_lines()  # a journal that does not fit the state must not be written to
            raise

    def _newest_good(self, template: State, journal: Lines) -> tuple[int, State] | None:
        bad: dict[Path, str] = {}
        for directory in reversed(self._numbered()):
            try:
                commit, files = checkpoint.verify(directory)
                self._check_belongs(commit, journal)
                try:
                    state = checkpoint.load(template, files)
                except CheckpointError as error:  # whole, but of another model: not damaged, and not to be stepped over
                    raise CheckpointError(f"{printable(directory)}: {error}") from error
            except Damaged as error:
                bad[directory] = str(error)
                continue
            for damaged, why in bad.items():
                self._set_aside(damaged, f"{why}; going on from round {commit['round']}")
            journal.cut(commit["journal"]["bytes"])
            self._last = commit["round"]
            durable.sync_directory(self._checkpoints)  # its rename may not be durable yet; older ones go only after it is
            self._prune()
            return commit["round"], state
        # Damaged ones keep their names here: were they set aside, the next start would find nothing and begin again, unasked.
        bad |= dict.fromkeys(sorted(self._checkpoints.glob("corrupt-*")), "set aside earlier")
        if bad:
            listed = "; ".join(f"{directory.name} ({why})" for directory, why in bad.items())
            raise CheckpointError(f"{printable(self._checkpoints)}: no good checkpoint: {listed}; all kept; --restart begins again")
        if journal.size:
            self.notes.append(f"no checkpoint yet: beginning again ({journal.size} bytes of {JOURNAL} dropped)")
        journal.cut(0)
        return None

    def restart(self) -> None:
        """Set everything computed so far aside into `before-<n>/` and begin again. Deletes nothing. Call it before `resume`."""
        if self._journal is not None:
            raise RuntimeError("restart comes before resume")
        if not any(os.path.lexists(self.path / name) for name in (RESULT, JOURNAL, TIMING)) and not any(self._checkpoints.iterdir()):
            return  # a new run
        aside = _free(self.path / "before")
        durable.make_directory(aside)
        for name in (RESULT, JOURNAL, TIMING, CHECKPOINTS):  # checkpoints last: without a journal they are refused, not the reverse
            if os.path.lexists(self.path / name):
                durable.rename(self.path / name, aside / name)
                durable.sync_directory(self.path)
        self._make_checkpoints()
        self.notes.append(f"restarted; the previous files are in {aside.name}")

    def record(self, row: Mapping[str, Any]) -> None:
        """Add a round to the journal. It must not hold anything that differs between two equal trainings, such as time."""
        self._opened()[0].append(row)

    def time(self, row: Mapping[str, Any]) -> None:
        """Add a line of timing, which is no part of the run's identity: a round that was computed twice is in it twice."""
        self._opened()[1].append(row)

    def commit(self, round: int, state: State, final: bool = False) -> None:
        """Save the state after a round, with the journal as recorded so far. On StorageError it is not saved, and the last one still is."""
        journal, _ = self._opened()
        if round <= self._last:
            raise ValueError(f"round {round} is not after the last committed round {self._last}")
        self._sweep(self._checkpoints)  # what a failed commit of this process left
        journal.sync()  # before the commit, which vouches for it
        facts = {
            "config": self._config_digest,
            "environment": self._environment_digest,
            "final": final,
            "journal": {"bytes": journal.size, "sha256": journal.sha256()},
        }
        checkpoint.write(self._checkpoints, round, state, facts)
        self._last = round
        self._prune()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result: the run is over."""
        if self._journal is not None:
            self._journal.sync()
        durable.replace_file(self.path / RESULT, sealed.seal({"result": result}))

    @property
    def finished(self) -> dict[str, Any] | None:
        """The result, if the run is over. A damaged one is set aside, to be made again from the last checkpoint."""
        path = self.path / RESULT
        if not os.path.lexists(path):
            return None
        try:
            return sealed.unseal(path)["result"]
        except (Damaged, KeyError) as error:
            self._set_aside(path, str(error))
            return None

    def _close_lines(self) -> None:
        for lines in (self._journal, self._timing):
            if lines is not None:
                lines.close()
        self._journal = self._timing = None

    def _opened(self) -> tuple[Lines, Lines]:
        if self._journal is None or self._timing is None:
            raise RuntimeError("resume comes first: it brings the journal to where the state is")
        return self._journal, self._timing

    def _make_checkpoints(self) -> None:
        if not self._checkpoints.is_dir():
            durable.make_directory(self._checkpoints)
            durable.sync_directory(self.path)
        self._sweep(self._checkpoints)

    def _numbered(self) -> list[Path]:
        with as_storage_error(self._checkpoints):
            found = [entry for entry in self._checkpoints.iterdir() if re.fullmatch(r"\d{6,}", entry.name)]
        return sorted(found, key=lambda entry: int(entry.name))

    def _check_belongs(self, commit: dict[str, Any], journal: Lines) -> None:
        try:
            if commit["config"] != self._config_digest:
                raise Damaged(f"{checkpoint.COMMIT}: is of another config")
            want = commit["journal"]
            if journal.size < want["bytes"]:
                raise Damaged(f"{JOURNAL}: {journal.size} bytes, not {want['bytes']}")
            if journal.sha256(want["bytes"]) != want["sha256"]:
                raise Damaged(f"{JOURNAL}: sha256 differs")
        except (KeyError, TypeError) as error:
            raise Damaged(f"{checkpoint.COMMIT}: incomplete") from error

    def _set_aside(self, path: Path, why: str) -> None:
        kept = _free(path.with_name(f"corrupt-{path.name}"))
        durable.rename(path, kept)
        durable.sync_directory(path.parent)
        self.notes.append(f"{path.name} is damaged, kept as {kept.name}: {why}")

    def _sweep(self, directory: Path) -> None:
        """Remove what an interrupted write or removal left. Under the lock, whoever made it is gone, or is us."""
        for entry in [*directory.glob(".tmp-*"), *directory.glob(".trash-*")]:
            try:
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    os.unlink(entry)
            except OSError as error:  # in nobody's way: what must be new is created as new
                self.notes.append(f"{entry.name} stays: {error.strerror}")

    def _prune(self) -> None:
        """Remove all but the last few and final ones. That it failed is a note: the new checkpoint is safe."""
        try:
            trash = []
            for directory in self._numbered()[: -self._keep]:
                try:
                    if sealed.unseal(directory / checkpoint.COMMIT).get("final"):
                        continue
                except Damaged as error:
                    self._set_aside(directory, str(error))
                    continue
                trash.append(directory.with_name(f".trash-{directory.name}-{os.getpid()}"))
                durable.rename(directory, trash[-1])
            if trash:
                durable.sync_directory(self._checkpoints)  # else a power cut could bring back half of one under its number
            for directory in trash:
                with as_storage_error(directory):
                    shutil.rmtree(directory)
        except (StorageError, CheckpointError) as error:
            self.notes.append(f"an old checkpoint stays: {error}")

    def _settle_environment(self, new: dict[str, Any], strict: bool) -> None:
        path, earlier, commits = self.path / ENVIRONMENT, [], []
        mine = None if os.path.lexists(self.path / RESULT) else checkout()  # told to readers, not compared: most commits change no bit
        if os.path.lexists(path):
            try:
                stored = sealed.unseal(path)
                old, earlier, commits = stored["fingerprint"], stored["earlier"], stored.get("commits", [])
            except (Damaged, KeyError) as error:
                self._set_aside(path, str(error))
            else:
                changes = differences(old, new)
                if not changes and mine in (None, *commits):
                    self._environment_digest = stored["digest"]
                    return
                if changes and strict:
                    raise Mismatch(f"{printable(self.path)}: would not be bit-identical: {', '.join(changes)}", changes)
                if changes:
                    self.notes.append(f"continues, not bit-identical: {', '.join(changes)}")
                    earlier = [*earlier, old]
        if mine not in (None, *commits):
            commits = [*commits, mine]
        durable.replace_file(path, sealed.seal({"fingerprint": new, "earlier": earlier, "commits": commits}))
        self._environment_digest = sealed.unseal(path)["digest"]


def _changes(old: Any, new: Any, harmless: AbstractSet[str]) -> list[str]:
    """`alpha: 0.5 -> 0.7` for each leaf that differs and matters."""
    before, after = dict(leaves(old)), dict(leaves(new))
    found = []
    for path in sorted(set(before) | set(after)):
        if any(path == key or path.startswith(f"{key}.") for key in harmless):
            continue
        texts = [canonical(table[path]) if path in table else "nothing" for table in (before, after)]
        if texts[0] != texts[1]:
            found.append(f"{path}: {' -> '.join(text if len(text) <= 60 else text[:57] + '...' for text in texts)}")
    return found


def _stored_config(path: Path) -> dict[str, Any] | None:
    """The sealed config of the run here; None if there is nothing yet but the beginnings of one."""
    if os.path.lexists(path / CONFIG):
        stored = sealed.unseal(path / CONFIG)
        if not isinstance(stored.get("config"), dict):
            raise Damaged(f"{CONFIG}: holds no config")
        return stored
    with as_storage_error(path):
        odd = sorted(entry.name for entry in path.iterdir() if entry.name not in (LOCK, ENVIRONMENT) and not entry.name.startswith(".tmp-"))
    if odd:
        raise CheckpointError(
            f"{printable(path)}: exists, and is no run ({CONFIG} is missing beside {printable(odd[0])}); use another --name"
        )
    return None


def _preflight(path: Path, needs: int) -> None:
    """StorageError if the disk has no room for a run."""
    free, place = durable.free_space(path)
    if free < needs:
        raise StorageError(f"{printable(place)}: {free / 2**20:.0f} MiB free; a run needs {needs / 2**20:.0f} MiB")


def _free(path: Path) -> Path:
    """This path, or the first with a number that is not taken."""
    taken, n = path, 1
    while os.path.lexists(taken):
        n += 1
        taken = path.with_name(f"{path.name}-{n}")
    return taken
