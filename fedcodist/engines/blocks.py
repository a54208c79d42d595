"""Answering a question in blocks of clients: cut, pack, run, join, done. Every engine is built from these five functions.

A block is a fixed number of clients in the order of their ids, so that neither workers nor machines change the order of additions. `run` is
one compiled program over a block: a scan over its clients that folds their replies as it goes, so memory does not grow with the cohort.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from fedcodist import clients, keys, tree
from fedcodist.fold import usable
from fedcodist.types import Answer, Ask, Data, Each, Examples, Folded, Key, Model, Objective, Reply, Tree

Form = Literal["scan", "vmap"]  # clients one after the other, or side by side on one device


class Part(NamedTuple):
    """The result of some blocks of a question."""

    total: Tree  # the fold's
    own: dict[str, Tree]  # {client: what it keeps}
    each: list[tuple[str, Tree, float]]  # (client, value, weight), in the order of their ids


def cut(cohort: Sequence[str], size: int) -> list[list[str]]:
    """The cohort in blocks.

    >>> cut(["c", "a", "b"], 2)
    [['a', 'b'], ['c']]
    """
    ids = sorted(cohort)
    return [ids[i : i + size] for i in range(0, len(ids), size)]


def pack(ask: Ask, examples: Mapping[str, Examples], block: Sequence[str], places: int) -> tuple[Data, np.ndarray]:
    """The data and keys of a block's clients, all padded to the pool's largest so that a pool has one program for all its rounds.

    Padded places have no rows, and so no weight.
    """
    x, y = (np.zeros((places, clients.largest(examples), *a.shape[1:]), a.dtype) for a in map(np.asarray, examples[block[0]]))
    n = np.zeros(places, np.int32)
    client_keys = np.zeros((places, 2), np.uint32)
    for place, client in enumerate(block):
        rows = examples[client]
        n[place] = len(rows.x)
        x[place, : n[place]], y[place, : n[place]] = rows.x, rows.y
        client_keys[place] = keys.derive(ask.key, client)
    return Data(x, y, n, _stacked([ask.own[client] for client in block], places) if ask.own else ()), client_keys


def run(ask: Ask, form: Form, block: Sequence[str], data: Data, client_keys: np.ndarray) -> Part:
    """Run the work of a packed block of clients."""
    frame, rates = _frame((ask.work, ask.fold))
    singly = ask.each or ask.fold.each
    statics = ask.model, ask.objective, frame, form, singly
    with _first_alone((statics, data.x.shape)):
        total, (good, weight, own, value) = jax.block_until_ready(_run(*statics, rates, ask.sent, data, client_keys))
    if not singly and not jax.tree.leaves(own):
        return Part(total, {}, [])
    good, weight, own, value = jax.device_get((good, weight, own, value))
    used = [(place, client) for place, client in enumerate(block) if good[place]]
    return Part(
        total,
        {client: _place(own, place) for place, client in used} if jax.tree.leaves(own) else {},
        [(client, _place(value, place), float(weight[place])) for place, client in used] if singly else [],
    )


def alone(ask: Ask, client: str, reply: Reply) -> Part:
    """The result of a block of one client from its reply, for replies that were computed elsewhere."""
    frame, rates = _frame(ask.fold)
    total = _alone(frame, rates, reply)
    return Part(total, {}, [(client, reply.value, float(reply.weight))] if ask.each or ask.fold.each else [])


def join(ask: Ask, a: Part, b: Part) -> Part:
    """Two parts of one answer, the earlier clients first."""
    frame, rates = _frame(ask.fold)
    return Part(_join(frame, rates, a.total, b.total), a.own | b.own, a.each + b.each)


def done(ask: Ask, part: Part) -> Answer:
    """The answer, once all blocks are joined."""
    singly = ask.each or ask.fold.each
    each = stacked(part.each) if singly else None
    frame, rates = _frame(ask.fold)
    key = keys.derive(ask.key, "fold")
    # The number of replies may differ from round to round, so a fold over all of them is not compiled: each number would be a new program.
    folded = ask.fold.done(part.total, each, key) if ask.fold.each else _done(frame, rates, part.total, key)
    return answer(ask, folded, part.own, each if ask.each else None)


def answer(ask: Ask, folded: Folded, own: Mapping[str, Tree], each: Each | None) -> Answer:
    """The answer that an engine returns: the folded replies with their costs."""
    dropped = int(folded.dropped)
    asked, reasons = len(ask.clients), {"not finite": dropped} if dropped else {}
    return Answer(*folded, own, each, reasons, asked * tree.nbytes(ask.sent), asked * tree.nbytes(folded.value))


# Works and folds are pytrees: their rates are arguments of a program, their other fields its identity. The rest is all identity.


class _Frame(NamedTuple):
    structure: Any
    fixed: tuple[Any, ...]  # the leaves that are not numbers, with None in the places of those that are

    def filled(self, rates: Sequence[Any]) -> Any:
        numbers = iter(rates)
        return jax.tree.unflatten(self.structure, [next(numbers) if leaf is None else leaf for leaf in self.fixed])


def _frame(part: Any) -> tuple[_Frame, list[np.float32]]:
    leaves, structure = jax.tree.flatten(part)
    numbers = [isinstance(leaf, int | float | np.number) for leaf in leaves]
    fixed = tuple(None if number else leaf for leaf, number in zip(leaves, numbers, strict=True))
    return _Frame(structure, fixed), [np.float32(leaf) for leaf, number in zip(leaves, numbers, strict=True) if number]


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _run(
    model: Model, objective: Objective, frame: _Frame, form: Form, singly: bool, rates: Any, sent: Tree, data: Data, client_keys: Any
) -> tuple[Tree, tuple[Any, Any, Tree, Tree]]:
    """The folded replies of a block, and for each client what it keeps and, if `singly`, its value. Data: [clients, rows, ...], padded."""
    work, fold = frame.filled(rates)

    def reply(client: tuple[Data, Any]) -> Any:
        return work(model, objective, sent, *client)

    one = jax.tree.map(lambda leaf: leaf[0], (data, client_keys))
    like = jax.eval_shape(reply, one)
    alone = singly or bool(jax.tree.leaves(like.own))

    def add(total: Tree, r: Any) -> tuple[Tree, Any]:
        return fold.add(total, r), (usable(r), r.weight, r.own, r.value if singly else ()) if alone else ((), (), (), ())

    if form == "vmap":
        return jax.lax.scan(add, fold.zero(like), jax.vmap(reply)((data, client_keys)))
    return jax.lax.scan(lambda total, client: add(total, reply(client)), fold.zero(like), (data, client_keys))


@partial(jax.jit, static_argnums=0)
def _alone(frame: _Frame, rates: Any, reply: Reply) -> Tree:
    fold = frame.filled(rates)
    return fold.add(fold.zero(reply), reply)


@partial(jax.jit, static_argnums=0)
def _join(frame: _Frame, rates: Any, a: Tree, b: Tree) -> Tree:
    return frame.filled(rates).join(a, b)


@partial(jax.jit, static_argnums=0)
def _done(frame: _Frame, rates: Any, total: Tree, key: Key) -> Folded:
    return frame.filled(rates).done(total, None, key)


def _stacked(trees: Sequence[Tree], places: int) -> Tree:
    """Stacked trees, with zeros in the places that are left."""

    def stack(*leaves: Any) -> np.ndarray:
        out = np.zeros((places, *np.shape(leaves[0])), np.asarray(leaves[0]).dtype)
        for place, leaf in enumerate(leaves):
            out[place] = leaf
        return out

    return jax.tree.map(stack, *trees)


def _place(stacked: Tree, place: int) -> Tree:
    return jax.tree.map(lambda leaf: leaf[place].copy(), stacked)  # a copy: a view would keep the whole block alive


def stacked(replies: Sequence[tuple[str, Tree, float]]) -> Each:
    """Replies, (client, value, weight), stacked."""
    names = tuple(client for client, _, _ in replies)
    values = jax.tree.map(lambda *leaves: np.stack(leaves), *[value for _, value, _ in replies]) if replies else ()
    return Each(names, values, np.array([weight for _, _, weight in replies], np.float32))


_compiling: defaultdict[Hashable, Lock] = defaultdict(Lock)
_compiled: set[Hashable] = set()


@contextmanager
def _first_alone(program: Hashable) -> Iterator[None]:
    """Let one thread make the first call of a program: several threads at once would each compile it."""
    if program in _compiled:
        yield
        return
    with _compiling[program]:
        yield
    _compiled.add(program)
