"""What runs on the devices of `test_deploy_live`: each loads its client's rows, notes what it was sent, and may answer with something else.

A site names `onsite:client_007`, a function of this module; which client misbehaves in which round stands in the file that ONSITE names.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedcodist import config
from fedcodist.deploy import device
from fedcodist.engines import wire
from fedcodist.engines.wire import Parcel
from fedcodist.types import Examples


def __getattr__(name: str) -> Callable[[], Examples]:
    if not name.startswith("client_"):
        raise AttributeError(name)

    def load() -> Any:
        story = json.loads(Path(os.environ["ONSITE"]).read_text("utf-8"))
        client = name.replace("_", "-")
        device.work = _misled(client, story, device.work)
        return tuple(config.read(story["config"]).task.load().clients[client])

    return load


def _misled(client: str, story: Mapping[str, Any], work: Callable[..., Parcel]) -> Callable[..., Parcel]:
    def instead(question: Parcel, examples: Examples) -> Parcel:
        _note(Path(story["seen"]) / f"{client}.jsonl", question)
        t = json.loads(question.text)["questions"][0]["identity"][2]
        spoil = story["spoil"].get(client, {}).get(str(t))
        if spoil == "silent":
            time.sleep(10**6)
        answer = work(question, examples)
        return SPOILS[spoil](answer) if spoil else answer

    return instead


def _note(path: Path, question: Parcel) -> None:
    """One line of all arrays in a message: their shapes and digests, whether they are one number throughout, and their pools."""
    pools = [one["identity"][1] for one in json.loads(question.text)["questions"]]
    rows = []
    for name, data in question.arrays.items():
        array = wire.unpacked(data)
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        rows.append([pools[int(name.split("/")[0])], list(array.shape), digest, bool((array == array.flat[0]).all())])
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"bytes": sum(map(len, question.arrays.values())), "arrays": rows}) + "\n")


def _value(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Parcel], Parcel]:
    def spoil(answer: Parcel) -> Parcel:
        arrays = dict(answer.arrays)
        name = next(name for name in arrays if name.startswith("0/value"))
        return Parcel(answer.text, arrays | {name: wire.packed(change(wire.unpacked(arrays[name])))})

    return spoil


def _weight(number: float) -> Callable[[Parcel], Parcel]:
    return lambda answer: Parcel(answer.text, {**answer.arrays, "0/weight": wire.packed(np.float32(number))})


SPOILS: dict[str, Callable[[Parcel], Parcel]] = {
    "NaN": _value(lambda a: np.full_like(a, np.nan)),
    "shape": _value(lambda a: a.reshape(-1)[:1]),
    "1e30": _value(lambda a: np.full_like(a, 1e30)),
    "float64": _value(lambda a: a.astype(np.float64)),
    "weight 1e12": _weight(1e12),
    "weight -5": _weight(-5),
    "extra": lambda answer: Parcel(answer.text, {**answer.arrays, "0/value/more": answer.arrays["0/weight"]}),
}
