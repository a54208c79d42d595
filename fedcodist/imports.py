"""A Python function by its name, "module:function": how a config names a user's own code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any


def function(text: str) -> Callable[..., Any]:
    """The function. Raises ValueError if the name is wrong, or any error that the module raises.

    >>> function("math:sqrt")(9)
    3.0
    >>> function("math:pi")
    Traceback (most recent call last):
    ValueError: which is no function (but float)
    """
    module, _, name = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the working directory, as with `python -m`, but last, so that it hides no other module
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"which cannot be imported ({error})") from None
    if not callable(found):
        raise ValueError(f"which is no function (but {type(found).__name__})")
    return found
