"""What a name stands for where data is looked at: the task of a config, the usual task of a prepared store, or a store of public data."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from fedcodist import settings
from fedcodist.config import toml
from fedcodist.config.reader import read, shipped
from fedcodist.data import store
from fedcodist.data.store import Store
from fedcodist.errors import ConfigError, data_error
from fedcodist.tasks import Arrays, Cifar100, Text


def public(what: str) -> Store | None:
    """A store that is only public data, and so no task by itself."""
    if not (store.locate(what) / store.META).is_file():
        return None
    opened = store.open_store(what)
    facts = opened.facts
    other = facts["kind"] == "labelled_images" and facts["classes"] != 100
    return opened if other or (facts["kind"] == "text" and not facts["examples"]["federated"]) else None


def task(what: str, assignments: list[str]) -> Any:
    """The task of a config, or the usual task of a store. Overlaps are left in, for they are what is looked for."""
    if (store.locate(what) / store.META).is_file():
        opened = store.open_store(what)
        tasks = {"labelled_images": (Cifar100, {"data": what}), "text": (Text, {"data": what}), "own": (Arrays, {"path": str(opened.path)})}
        if opened.facts["kind"] not in tasks:
            raise data_error(f"data {what}", f"a store of {opened.facts['kind']}", f"one of {', '.join(tasks)}")
        cls, place = tasks[opened.facts["kind"]]
        problems: list[settings.Problem] = []
        made: Any = settings.read_part(cls, toml.assigned(assignments) | place, "", problems)
        if problems:
            raise ConfigError("\n".join(map(str, problems)))
    elif what in shipped() or os.path.lexists(what):
        made = read(what, assignments).task
    else:
        known = [*store.stores(), *shipped()]
        hint = settings.nearest(what, known)
        raise ConfigError(
            str(settings.Problem("data show", settings.show(what), "a prepared store, or a config", hint or "fedcodist data list"))
        )
    if isinstance(made, Text):
        return replace(made, public_labels=True)  # they say where a sentence ends
    return replace(made, overlap="allow") if hasattr(made, "overlap") else made
