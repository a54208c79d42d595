"""What a device does with a question: the parts are built again from their text, and the reply of its own data is computed.

The program is the simulation's, a block of one client padded to the pool's largest, so the bits are the simulation's too. A device knows
no other client, no fold and no server optimizer; it gets its own key and its pool's model, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedcodist import settings, tree
from fedcodist.engines import blocks, wire
from fedcodist.engines.roll import Declared
from fedcodist.engines.wire import Parcel, Rejected
from fedcodist.errors import DataError, Failure
from fedcodist.models import MODELS
from fedcodist.objectives import OBJECTIVES
from fedcodist.settings import Problem
from fedcodist.task import Row
from fedcodist.types import Ask, Data, Each, Examples, Folded, Key, Reply, Tree
from fedcodist.work import WORKS

MOST_PLACES = 10**7


class Refused(Failure):
    """A device cannot do what it is asked."""

    code = 10


@tree.node()
@dataclass(frozen=True)
class Alone:
    """No fold at all: the reply as it is, for the server to check and to fold."""

    each: ClassVar[bool] = False

    def zero(self, reply: Reply) -> Tree:
        return tree.zeros(reply._replace(info=dict(reply.info)))

    def add(self, total: Tree, reply: Reply) -> Tree:
        return reply._replace(info=dict(reply.info))

    def join(self, a: Tree, b: Tree) -> Tree:
        raise NotImplementedError

    def done(self, total: Tree, each: Each | None, key: Key) -> Folded:
        raise NotImplementedError


class Question(NamedTuple):
    """One pool's question as it arrived."""

    identity: list[Any]
    ask: Ask
    key: np.ndarray
    places: int


def part(registry: Mapping[str, Any], table: Any, path: str) -> Any:
    """A part from its text; only what is registered can be named."""
    problems: list[Problem] = []
    made = settings.read_kind(registry, table, path, problems)
    if problems:
        raise Refused("\n".join(map(str, problems)))
    return made


def check(examples: Examples, rows: Mapping[str, Any], where: str) -> None:
    """Refuse data that is not of the kind which the server's task has."""
    labels = examples.y
    if labels is None or len(examples.x) != len(labels) or not len(labels):
        raise DataError(f"{where}: got {len(examples.x)} rows, {0 if labels is None else len(labels)} labels; allowed a label for each row")
    for name, array in (("x", examples.x), ("y", labels)):
        shape, dtype = rows[name]
        if Row.of(array) != Row(tuple(shape), dtype):
            raise DataError(f"{where}: {name}: got rows of {Row.of(array)}; allowed {Row(tuple(shape), dtype)}")
    found, allowed = np.asarray(labels), int(rows["classes"])
    if found.min() < 0 or found.max() >= allowed:
        raise DataError(f"{where}: y: got {found.min()} to {found.max()}; allowed 0 to {allowed - 1}")


def introduce(question: Parcel, examples: Examples, attributes: Mapping[str, str], where: str = "data") -> Parcel:
    """The answer to the question what a device has."""
    check(examples, wire.read(question.text)["rows"], where)
    return Parcel(wire.written(Declared(len(examples.x), dict(attributes))._asdict()), {})


def seconds(parcel: Parcel) -> float:
    """How long the server waits for the answer."""
    return float(wire.read(parcel.text)["seconds"])


def work(parcel: Parcel, examples: Examples) -> Parcel:
    """The answers to all questions of a parcel."""
    identities, arrays = [], {}
    for place, question in enumerate(_questions(parcel)):
        identities.append(question.identity)
        arrays |= wire.tree_packed(_reply(question, examples), str(place))
    return Parcel(wire.written({"answers": identities}), arrays)


def _questions(parcel: Parcel) -> list[Question]:
    found = []
    for place, said in enumerate(wire.read(parcel.text)["questions"]):
        spec, identity = said["model"], said["identity"]
        arrays = {name.split("/", 1)[1]: data for name, data in parcel.arrays.items() if name.startswith(f"{place}/")}
        if wire.digest(arrays) != identity[-1]:
            raise Rejected("the model is not the one that was sent")
        model = part(MODELS, spec["part"], "model").build(tuple(spec["shape"]), spec["classes"])
        objective, todo = part(OBJECTIVES, said["objective"], "objective"), part(WORKS, said["work"], "work")
        sent = wire.formed(said["form"], arrays, "sent")
        key, places = np.array(said["key"], np.uint32), int(said["places"])
        if not 1 <= places <= MOST_PLACES:
            raise Refused(f"places: got {places}; allowed 1 to {MOST_PLACES}")
        ask = Ask(identity[1], ("here",), model, objective, todo, Alone(), sent, key, identity[2])
        found.append(Question(identity, ask, key, places))
    return found


def _reply(question: Question, examples: Examples) -> Reply:
    places = max(question.places, len(examples.x))  # this device may have more by now than it said
    x, y = (np.zeros((1, places, *a.shape[1:]), a.dtype) for a in map(np.asarray, examples))
    n = len(examples.x)
    x[0, :n], y[0, :n] = np.asarray(examples.x), np.asarray(examples.y)
    part = blocks.run(question.ask, "scan", ["here"], Data(x, y, np.array([n], np.int32)), question.key[None])
    return part.total
