"""Sealed JSON: a document that carries its own digest, so that a reader trusts only what it has verified (R3)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcodist.storage.durable import CheckpointError, Damaged, printable, read_file

FORMAT = 1  # `format` and `digest` keep their meaning in every later format, so that an older reader can say what it met


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, floats by repr; numpy and JAX scalars are numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def digest(value: Any) -> str:
    """SHA-256 of the canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def seal(document: Mapping[str, Any]) -> bytes:
    """The document with format and digest, as a file for people too."""
    body = json.loads(canonical({**document, "format": FORMAT}))
    return (json.dumps({**body, "digest": digest(body)}, sort_keys=True, indent=1) + "\n").encode()


def unseal(path: Path, exact: bool = False) -> dict[str, Any]:
    """The document in a sealed file (still with its digest), or Damaged. Spaces may differ (people open such files) unless `exact`."""
    data = read_file(path)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path.name}: not JSON") from error
    body = {key: value for key, value in document.items() if key != "digest"} if isinstance(document, dict) else {}
    if not body or document.get("digest") != digest(body):
        raise Damaged(f"{path.name}: digest differs")
    if document.get("format") != FORMAT:
        raise CheckpointError(f"{printable(path)}: format {document.get('format')}; this version reads format {FORMAT}")
    if exact and data != seal(body):
        raise Damaged(f"{path.name}: not as it was written")
    return document


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # numpy and JAX
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")
