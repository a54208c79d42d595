"""The prepared stores that the paper's experiments and the StackExchange study need, and the command that prepares each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedcodist.data import store
from fedcodist.errors import DataError, data_error

PREPARE = {
    "cifar100": "fedcodist data prepare cifar100 --from PATH, or --fetch",
    "cifar10": "fedcodist data prepare cifar10 --from PATH, or --fetch",
    "stackoverflow": "fedcodist data prepare stackoverflow --from PATH",
    "c4": "fedcodist data prepare c4 --from PATH",
    "stackoverflow-shift": "fedcodist data prepare stackoverflow --name stackoverflow-shift --set clients=85000 --from PATH",
    "stackexchange": "fedcodist data prepare text --name stackexchange --set min_examples=10 --set held_out_size=5000 "
    "--set test_size=10000 --from SENTENCES.tsv; sentences of your own, as in docs/data.md",
    "reddit": "fedcodist data prepare text --name reddit --set 'client=\"\"' --set vocabulary=stackexchange "
    "--from SENTENCES.tsv; sentences of your own, as in docs/data.md",
    "movies": "fedcodist data prepare text --name movies --set 'client=\"\"' --set vocabulary=stackexchange "
    "--from SENTENCES.tsv; sentences of your own, as in docs/data.md",
}


def needed(task: Any) -> list[str]:
    """The names of the stores that a task opens; none for embedded data.

    >>> from fedcodist.tasks import Cifar100, Toy
    >>> needed(Cifar100(public="cifar10")), needed(Toy())
    (['cifar100', 'cifar10'], [])
    """
    if task.kind not in ("cifar100", "text"):
        return []
    return [task.data, *([task.public] if task.public != "in_domain" else [])]


def absent(task: Any) -> list[str]:
    """Those that are not prepared."""
    return [name for name in needed(task) if not (store.locate(name) / store.META).is_file()]


def missing(tasks: Iterable[Any]) -> list[str]:
    """A line for each store that is not there, and how to prepare it."""
    wrong = []
    for name in dict.fromkeys(name for task in tasks for name in absent(task)):
        how = PREPARE.get(name, "fedcodist data prepare; a config's header says how")
        wrong += data_error(f"data {name}", "no store of this name", "a prepared one", how).lines
    return wrong


def check(tasks: Iterable[Any]) -> None:
    """DataError with these lines, if there are any."""
    if wrong := missing(tasks):
        raise DataError("\n".join(wrong))
