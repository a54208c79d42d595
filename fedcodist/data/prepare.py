"""Preparing a dataset: files become a store, once, and again only if the files or the settings have changed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedcodist import settings
from fedcodist.data import download, store
from fedcodist.data.datasets import DATASETS
from fedcodist.data.published import Dataset, Progress
from fedcodist.data.store import Store
from fedcodist.data.text import WORD_FILES
from fedcodist.errors import ConfigError, DataError, data_error
from fedcodist.readers import files
from fedcodist.settings import Problem
from fedcodist.storage import sealed
from fedcodist.storage.durable import BadName, StorageError, check_name, printable

GOING_ON = "going on where the last preparation stopped"
MOST_FILES = 10_000_000
FAILURES = (DataError, StorageError)


def read(kind: str, table: Mapping[str, Any]) -> Any:
    """A dataset by name, with a table of its settings; ConfigError with everything that is wrong."""
    if kind not in DATASETS:
        hint = settings.nearest(kind, DATASETS)
        raise ConfigError(f"data: got {settings.show(kind)}; allowed {', '.join(sorted(DATASETS))}" + (f" ({hint})" if hint else ""))
    problems: list[Problem] = []
    dataset = settings.read_part(DATASETS[kind], dict(table), "", problems)
    if problems:
        raise ConfigError("\n".join(map(str, problems)))
    return dataset


def prepare(
    dataset: Dataset, source: Path | None, progress: Progress, name: str | None = None, fetch: bool = False, again: bool = False
) -> tuple[Store, bool]:
    """The store, and whether it was made now. Without a source, `fetch` downloads the published file."""
    name = name or dataset.kind
    check_name("--name", name)
    if name in ("downloads",) or name.endswith((".partial", ".old")):
        raise BadName(f"--name: got {name}; allowed another name")
    path = store.locate(name)
    if source is None:
        source = _fetched(dataset, progress, fetch)
    plan = {"dataset": dataset.kind, "settings": settings.plain(dataset), "files": _files(source), "vocabulary": _vocabulary(dataset)}
    if (path / store.META).is_file() and not again:
        with suppress(*FAILURES):  # a damaged store, or one of another version, is prepared again
            known = store.open_store(path)
            if known.facts.get("plan") == sealed.digest(plan):
                store.tidy(path)
                return known, False
    with store.Writer(path, plan) as writer:
        if writer.state:
            progress(0, None, GOING_ON)
        try:
            facts = dict(dataset.prepare(source, writer, progress))
        except DataError:
            if not writer.state:
                writer.discard()
            raise
        options = {key: value for key, value in settings.plain(dataset).items() if key != "kind"}
        return writer.finish(**facts, dataset=dataset.kind, options=options, plan=sealed.digest(plan)), True


def _fetched(dataset: Dataset, progress: Progress, fetch: bool) -> Path:
    offers = [offer for offer in dataset.published if offer.sha256]
    if offers and fetch:
        return download.fetch(offers[0], store.home() / "downloads", progress)
    place = store.home() / "downloads"
    for offer in offers:
        if (place / offer.name).is_file():
            download.check(place / offer.name, offer)
            return place / offer.name
    where = "; ".join(
        f"{offer.address}" + (f" ({offer.bytes:,} bytes, SHA-256 {offer.sha256})" if offer.sha256 else "")
        for offer in dataset.published[:1]
    )
    hint = f"it is to be had at {where}" if where else ""
    hint += ", or let --fetch get it" if offers else ""
    raise data_error(f"data prepare {dataset.kind}", "no --from", f"--from PATH, with {dataset.wants}", hint)


def _vocabulary(dataset: Dataset) -> Any:
    """What identifies a given vocabulary, of another store or a file: with another one the store would be another."""
    named = getattr(dataset, "vocabulary", None)
    if named is None:
        return None
    if named.endswith(WORD_FILES):
        files.open_file(named).close()  # report a missing file before anything is read
        return _file(named, Path(named))
    return store.open_store(named, "text").facts["vocabulary"]["sha256"]


def _files(source: Path) -> list[tuple[str, int, int]]:
    """(name, size, time) of all files at a path: if any changes, the preparation begins anew."""
    found = files.kind(source)
    if found == "a file":
        return [_file(source.name, source)]
    if found != "a directory":
        raise data_error(str(source), found, "a file or a directory")
    listed: list[tuple[str, int, int]] = []
    for folder, folders, names in os.walk(source):
        folders.sort()
        for name in sorted(names):
            place = Path(folder) / name
            if files.kind(place) == "a file":
                listed.append(_file(str(place.relative_to(source)), place))
            if len(listed) > MOST_FILES:
                raise data_error(str(source), f"more than {MOST_FILES} files", f"at most {MOST_FILES}")
    return listed


def _file(name: str, place: Path) -> tuple[str, int, int]:
    found = place.stat()
    return name, found.st_size, found.st_mtime_ns


def rows() -> list[dict[str, Any]]:
    """All datasets, and the stores prepared from each: for `data list`."""
    made = {name: _facts(path) for name, path in store.stores().items()}
    table = []
    for kind, cls in sorted(DATASETS.items()):
        mine = [name for name, facts in made.items() if facts.get("dataset") == kind]
        size = sum(facts["bytes"] for name, facts in made.items() if name in mine)
        table.append({"dataset": kind, "prepared": ", ".join(mine) or "-", "bytes": size, "is": _first(cls), "from": cls.wants})
    return table


def _facts(path: Path) -> Mapping[str, Any]:
    try:
        opened = store.open_store(path)
        return {**opened.facts, "bytes": sum(column["bytes"] for column in opened.columns.values())}
    except FAILURES:
        return {"bytes": 0}


def _first(cls: Any) -> str:
    return re.sub(r"\s+", " ", (cls.__doc__ or "").split("\n\n")[0]).strip()


def describe(opened: Store) -> str:
    """A summary of a store, for the end of a preparation."""
    size, facts = sum(column["bytes"] for column in opened.columns.values()), opened.facts
    lines = [f"prepared: {printable(opened.path)} ({size / 1e6:,.1f} MB)"]
    if facts["kind"] == "text":
        for part, examples in facts["examples"].items():
            if examples:
                share = 100 * facts["unknown_tokens"][part] / max(facts["tokens"][part], 1)
                lines.append(
                    f"  {part}: {examples:,} sentences of {facts['clients'][part]:,} clients, {share:.1f} % of their words unknown"
                )
        lines.append(f"  vocabulary: {facts['vocabulary']['size']:,} ids; domains: {', '.join(filter(None, facts['domains'])) or 'one'}")
    else:
        for name, found in opened.columns.items():
            if name.removeprefix("public_").split("_")[-1] == "x":
                clients = opened.columns.get(f"{name.removesuffix('_x')}_clients", {}).get("shape", [None])[0]
                lines.append(f"  {name}: {found['shape'][0]:,} rows" + (f" of {clients:,} clients" if clients else ""))
    return "\n".join([*lines, *(f"  {note}" for note in facts.get("notes", []))])
