"""The models of a run, to be used: `open_run(path).model("small").predict(rows)`.

A model is the last good checkpoint's parameters, the network as the run's config describes it, and how raw rows become its inputs. What the
task is comes from the run's result, so that its data need not be there; of an unfinished run it comes from the task itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedcodist import keys, settings
from fedcodist.config import Config
from fedcodist.errors import ConfigError, data_error
from fedcodist.objectives import OBJECTIVES
from fedcodist.objectives.classify import Classify
from fedcodist.runs import checkpoint, recorded
from fedcodist.runs.directory import CHECKPOINTS
from fedcodist.runs.recorded import Recorded
from fedcodist.settings import Problem
from fedcodist.storage.durable import CheckpointError, Damaged, as_storage_error, printable
from fedcodist.task import Row, Spec, Task
from fedcodist.types import Array, Model, Params

ROWS = 100  # of a batch


def described(task: Task) -> dict[str, Any]:
    """What a model of this task must be told of it, as a plain table for the result of a run."""
    spec = task.spec
    rows = {name: {"shape": list(row.shape), "dtype": row.dtype} for name, row in (("x", spec.x), ("y", spec.y))}
    return {"objective": settings.plain(spec.objective), **rows, "classes": spec.classes, "labels": list(task.labels)}


@dataclass(frozen=True, eq=False)
class Trained:
    """One pool's model after its run. Call it with raw rows, as they stand in the data, for logits."""

    pool: str
    round: int
    part: Any  # what the config says of the network
    model: Model
    params: Params
    spec: Spec
    labels: tuple[str, ...] = ()
    origin: str = ""  # the run's path

    def __call__(self, x: Any) -> np.ndarray:
        """Logits: [rows, classes], or [rows, length, classes] for text."""
        x = self.rows(x)
        parts = []
        for start in range(0, len(x), ROWS):
            some = x[start : start + ROWS]
            short = ROWS - len(some) if start else 0  # one shape, one program
            parts.append(np.asarray(self._logits(np.concatenate([some, np.repeat(some[:1], short, 0)])))[: len(some)])
        return np.concatenate(parts)

    def predict(self, x: Any) -> np.ndarray:
        """The likeliest class of each row: its name if the classes have names, else its number; for text a token id at every position."""
        best = self(x).argmax(-1)
        return np.array(self.labels)[best] if self.labels else best

    def probabilities(self, x: Any) -> np.ndarray:
        """The softmax of the logits."""
        return np.asarray(jax.nn.softmax(self(x)))

    def rows(self, x: Any) -> np.ndarray:
        """Raw rows in the type of the task's data; DataError if they are none. Grey images may lack their axis of channels."""
        shape, dtype = self.spec.x
        x = np.asarray(x)
        if shape[-1:] == (1,) and x.shape[1:] == shape[:-1]:
            x = x[..., None]
        if x.shape[1:] != shape or not len(x) or x.dtype.kind not in "biuf":
            raise data_error(f"model {self.pool}", f"{x.dtype} of shape {list(x.shape)}", f"[rows, {', '.join(map(str, shape))}], {dtype}")
        with np.errstate(invalid="ignore", over="ignore"):
            same = x.astype(dtype)
        if np.dtype(dtype).kind in "iu" and not np.array_equal(same, x):
            raise data_error(f"model {self.pool}", f"rows of {x.dtype}, {x.min()} to {x.max()}", f"{dtype}, as the data it was trained on")
        return same

    @cached_property
    def _logits(self) -> Any:
        return jax.jit(lambda x: self.model.apply(self.params, self.spec.objective.inputs(x), None))


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run as it was recorded, with its models."""

    recorded: Recorded
    config: Config

    @property
    def pools(self) -> tuple[str, ...]:
        """The names of its pools."""
        return tuple(self.config.pools)

    def model(self, pool: str | None = None) -> Trained:
        """The model of a pool, which need not be named if there is one, from the newest good checkpoint."""
        name = self.pools[0] if pool is None and len(self.pools) == 1 else pool
        if name not in self.config.pools:
            got = "nothing" if name is None else settings.show(name)
            hint = settings.nearest(name, self.pools) if name else ""
            raise ConfigError(str(Problem("pool", got, " | ".join(self.pools), hint)))
        spec, labels = self._task
        part = self.config.pools[name].model
        model = part.build(spec.inputs, spec.classes)
        round, data = self._newest(name)
        shapes = jax.eval_shape(lambda: model.init(keys.root(0)))
        return Trained(name, round, part, model, checkpoint.parameters(shapes, name, data), spec, labels, str(self.recorded.path))

    @cached_property
    def _task(self) -> tuple[Spec, tuple[str, ...]]:
        told = (self.recorded.result or {}).get("task")
        objective = settings.read_kind(OBJECTIVES, told["objective"], "objective", []) if told else None
        if told is None or objective is None:  # a run that is not over, or the objective of a plugin
            task = self.config.task.load()
            return task.spec, task.labels
        x, y = (Row(tuple(told[name]["shape"]), told[name]["dtype"]) for name in ("x", "y"))
        return Spec(objective, x, y, told["classes"]), tuple(told["labels"])

    def _newest(self, pool: str) -> tuple[int, bytes]:
        place = self.recorded.path / CHECKPOINTS
        with as_storage_error(place):
            found = sorted((entry for entry in place.iterdir() if entry.name.isdigit()), key=lambda entry: int(entry.name), reverse=True)
        why = []
        for directory in found:
            try:
                commit, files = checkpoint.verify(directory)
                return commit["round"], files[pool]
            except (Damaged, KeyError) as error:
                why.append(f"{directory.name} ({error})")
        raise CheckpointError(
            f"{printable(place)}: no good checkpoint" + (f": {'; '.join(why)}" if why else "; the run has saved none yet")
        )


def open_run(path: str | Path) -> OpenRun:
    """A run, finished or not, to use its models: `open_run("runs/toy/merged/seed-0").model("small")`."""
    found = recorded.read(path)
    problems: list[Problem] = []
    config = settings.read_part(Config, {key: value for key, value in found.config.items() if key != "data"}, "", problems)
    if config is None or problems:
        raise ConfigError("\n".join(f"{printable(Path(path))}: {problem}" for problem in problems))
    return OpenRun(found, config)


def card(model: Trained) -> dict[str, Any]:
    """What whoever uses the model without fedcodist must know, as a plain table that goes into every exported file."""
    spec = model.spec
    images = spec.objective.images if isinstance(spec.objective, Classify) else None
    return {
        "made by": "fedcodist",
        "run": model.origin,
        "pool": model.pool,
        "round": model.round,
        "network": settings.plain(model.part),
        "rows": {"shape": list(spec.x.shape), "dtype": spec.x.dtype},
        "inputs": list(spec.inputs),
        "preprocessing": _preprocessing(images, spec),
        "objective": settings.plain(spec.objective),
        "classes": spec.classes,
        "labels": list(model.labels),
    }


def _preprocessing(images: Any, spec: Spec) -> str:
    if images is None:
        if getattr(spec.objective, "standard", None) is not None:
            return "each feature minus its mean, over its standard deviation (objective.standard), as float32"
        return "none: rows are the inputs, as float32" if isinstance(spec.objective, Classify) else "none: rows are token ids"
    how = {"image": "each image minus its mean, over its standard deviation (at least 1/sqrt(numbers))"}
    scaled = how.get(images.scale, f"the scale {images.scale} of fedcodist.objectives.images")
    return f"the central {images.size} x {images.size} pixels, as float32; {scaled}"


def named_parameters(model: Trained) -> Mapping[str, Array]:
    """{path in the tree of parameters: array}."""
    return dict(checkpoint.named(model.params))
