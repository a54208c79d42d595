"""Topologies: {student: {teacher: weight}}. The weights of a student's teachers sum to 1; its own share comes from `self_weight`.

A preset is a function of the pools' names in their canonical order, which is by capacity (parameter count). A table in the config is
the same thing by hand: `{ small = { large = 1.0 } }` teaches one way, and a pool that has no teacher keeps its own gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedcodist.settings import Problem, nearest

Table = dict[str, dict[str, float]]


def complete(names: Sequence[str]) -> Table:
    """Everybody learns from everybody else.

    >>> complete(["a", "b", "c"])["a"]
    {'b': 0.5, 'c': 0.5}
    """
    return {s: _equal([t for t in names if t != s]) for s in names}


def chain(names: Sequence[str]) -> Table:
    """Each learns from its neighbours in capacity: bounds the gap between teacher and student.

    >>> chain(["a", "b", "c"])
    {'a': {'b': 1.0}, 'b': {'a': 0.5, 'c': 0.5}, 'c': {'b': 1.0}}
    """
    return {s: _equal([names[j] for j in (i - 1, i + 1) if 0 <= j < len(names)]) for i, s in enumerate(names)}


def ring(names: Sequence[str]) -> Table:
    """Each learns from the one before it; the first from the last.

    >>> ring(["a", "b", "c"])
    {'a': {'c': 1.0}, 'b': {'a': 1.0}, 'c': {'b': 1.0}}
    """
    return {s: _equal([names[i - 1]] if len(names) > 1 else []) for i, s in enumerate(names)}


def star(names: Sequence[str]) -> Table:
    """The largest model is the hub: it learns from all, and all learn from it.

    >>> star(["a", "b", "hub"])
    {'a': {'hub': 1.0}, 'b': {'hub': 1.0}, 'hub': {'a': 0.5, 'b': 0.5}}
    """
    hub = names[-1]
    return {s: _equal([hub] if s != hub else [t for t in names if t != hub]) for s in names}


def none(names: Sequence[str]) -> Table:
    """No teaching: every pool is trained on its own.

    >>> none(["a", "b"])
    {'a': {}, 'b': {}}
    """
    return {s: {} for s in names}


def alone(names: Sequence[str]) -> Table:
    """Every pool is taught only by its own start, at its own temperature: distillation without another teacher, as a control.

    >>> alone(["a", "b"])
    {'a': {'a': 1.0}, 'b': {'b': 1.0}}
    """
    return {s: {s: 1.0} for s in names}


TOPOLOGIES: dict[str, Callable[[Sequence[str]], Table]] = {f.__name__: f for f in (complete, chain, ring, star, none)} | {"self": alone}


def weigh(table: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> Table:
    """An explicit table, normalised to weights that sum to 1, in the canonical order of its teachers.

    >>> weigh({"a": {"b": 3, "c": 1}}, ["a", "b", "c"])
    {'a': {'b': 0.75, 'c': 0.25}, 'b': {}, 'c': {}}
    """
    full: Table = {}
    for student in names:
        given = {t: float(table.get(student, {}).get(t, 0.0)) for t in names if t != student}
        total = sum(given.values())
        full[student] = {t: w / total for t, w in given.items() if w > 0}
    return full


def problems(table: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> list[Problem]:
    """The problems of an explicit table."""
    found = []
    for student, teachers in table.items():
        where = f"topology.{student}"
        if student not in names:
            found.append(Problem(where, "an unknown pool", ", ".join(names), nearest(student, names)))
            continue
        for teacher, weight in teachers.items():
            if teacher == student:
                found.append(Problem(f"{where}.{teacher}", "a pool that teaches itself", f"pools.{student}.learns.self_weight instead"))
            elif teacher not in names:
                found.append(Problem(f"{where}.{teacher}", "an unknown pool", ", ".join(names), nearest(teacher, names)))
            elif not 0 <= weight < float("inf"):
                found.append(Problem(f"{where}.{teacher}", repr(weight), "a number >= 0"))
    return found


def too_few(pools: Sequence[str]) -> list[Problem]:
    """The problem of a method that needs two pools and has fewer."""
    allowed = ">= 2 non-empty pools for codistillation, >= 1 for fedavg"
    return [] if len(pools) >= 2 else [Problem("pools", f"{len(pools)} of them", allowed)]


def _equal(teachers: Sequence[str]) -> dict[str, float]:
    return {t: 1.0 / len(teachers) for t in teachers}
