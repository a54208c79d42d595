"""Griffe's extension for the API reference: what mkdocstrings cannot see in our docstrings.

Doctests become blocks of code, instead of running text with odd links; and a dataclass lists its fields, with the sentence that stands
beside each of them (`config_page.sentences`).
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import Any

import griffe

from tools import config_page

DOCTEST = re.compile(r"(?m)^>>> .*(?:\n.+)*")


class Docstrings(griffe.Extension):
    """Completes docstrings once an object and its members are known."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the doctests."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Show a setting's default, not its range, in a signature."""
        if isinstance(attr.value, griffe.ExprCall) and str(attr.value.function) == "setting":
            given = [value for value in attr.value.arguments if not isinstance(value, griffe.ExprKeyword)]
            attr.value = given[0] if given else None

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the fields."""
        real = getattr(importlib.import_module(cls.module.path), cls.name, None)
        if real is None or not dataclasses.is_dataclass(real) or cls.docstring is None:
            return
        said = [f"    {name}: {sentence}" for name, sentence in config_page.sentences(real).items() if sentence]
        if said:
            cls.docstring.value += "\n\n" + "\n".join(["Attributes:", *said])
