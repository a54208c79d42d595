"""Parts by name: those of this package, and those that other packages offer by an entry point, `fedcodist.methods` and so on.

A plugin's names are known without importing it; it is imported when one of them is asked for. A name of this package's own cannot be taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

PREFIX = "fedcodist."


class Registry(Mapping[str, Any]):
    """{kind: part}. `group` is what the parts are: methods, rules, works, folds, models, tasks or engines.

    >>> from dataclasses import dataclass
    >>> from typing import ClassVar
    >>> @dataclass
    ... class Own:
    ...     kind: ClassVar[str] = "own"
    >>> list(Registry("doctest", Own))
    ['own']
    """

    def __init__(self, group: str, *parts: Any):
        self.group, self._own = group, {part.kind: part for part in parts}

    @cached_property
    def _offered(self) -> dict[str, EntryPoint]:
        return {offer.name: offer for offer in entry_points(group=PREFIX + self.group) if offer.name not in self._own}

    def __getitem__(self, kind: str) -> Any:
        if kind in self._own:
            return self._own[kind]
        part = self._offered[kind].load()
        if getattr(part, "kind", None) != kind:
            raise ImportError(f"entry point {PREFIX}{self.group} {kind}: got a part of kind {getattr(part, 'kind', None)!r}")
        return part

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *self._offered])

    def __len__(self) -> int:
        return len(self._own) + len(self._offered)

    def __contains__(self, kind: object) -> bool:
        return kind in self._own or kind in self._offered
