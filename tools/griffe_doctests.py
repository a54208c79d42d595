"""Griffe's extension for the API reference: doctests in a docstring become blocks of code, instead of running text with odd links."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?m)^>>> .*(?:\n.+)*")


class Doctests(griffe.Extension):
    """Fence them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Each object, once it and its members are known."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
