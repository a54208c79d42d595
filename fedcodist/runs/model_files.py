"""A trained model as a file that needs no fedcodist: safetensors (its parameters), StableHLO (a program for JAX, IREE and others), ONNX.

StableHLO and ONNX files take raw rows, as they stand in the data, and give logits: what is done to the rows first is part of the program,
and the number of rows is free (one in some ONNX files). Every file has a card, a JSON text that says what the rows and the classes are.
Programs are traced with the portable forms of all layers, never with the kernels of this machine, and an ONNX file is run beside the model
before it is written.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedcodist import native
from fedcodist.errors import ConfigError
from fedcodist.objectives.classify import Classify
from fedcodist.objectives.images import standardise
from fedcodist.runs.trained import Trained, card, named_parameters
from fedcodist.settings import Problem, nearest, one_line, show
from fedcodist.storage import durable
from fedcodist.types import Array

CARD, PROGRAM, TEXT = "card.json", "program.jax", "program.stablehlo"  # the members of a StableHLO archive
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
CLOSE = 1e-4  # of the largest logit: how far an ONNX file's may be from the model's
SUFFIXES = {"safetensors": ".safetensors", "stablehlo": ".stablehlo.zip", "onnx": ".onnx"}


def export(model: Trained, to: str, out: str | Path | None = None) -> Path:
    """Write the model to `out`, or to a file named after its pool, and return the path."""
    if to not in FORMATS:
        raise ConfigError(str(Problem("--to", show(to), " | ".join(FORMATS), nearest(to, FORMATS))))
    path = Path(out) if out is not None else Path(f"{model.pool}{SUFFIXES[to]}")
    data = FORMATS[to](model)
    durable.make_directories(Path(os.path.abspath(path)).parent)
    durable.replace_file(path, data)
    return path


def to_safetensors(model: Trained) -> bytes:
    """The parameters under their paths, and the card in the file's metadata."""
    from safetensors.numpy import save

    tensors = {name or "params": np.ascontiguousarray(value) for name, value in named_parameters(model).items()}
    return save(dict(sorted(tensors.items())), {"card": _card(model)})


def to_stablehlo(model: Trained) -> bytes:
    """A ZIP archive of the card, the program as `jax.export` reads it, and as portable StableHLO bytecode for one row, whose shapes are all
    known, as most compilers want them."""
    _library("flatbuffers", "stablehlo", "export")  # which jax.export writes with
    logits = jax.jit(_one_by_one(model))
    with native.portable():
        free, one = (
            jax.export.export(logits, platforms=PLATFORMS)(_argument(model, rows)) for rows in (*jax.export.symbolic_shape("rows"), 1)
        )
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in ((CARD, _card(model).encode()), (PROGRAM, bytes(free.serialize())), (TEXT, one.mlir_module_serialized)):
            archive.writestr(name, data)
    return held.getvalue()


def to_onnx(model: Trained) -> bytes:
    """An ONNX model with the card in its metadata; refused if ONNX Runtime gives other logits.

    The number of rows is free, or one where the converter cannot leave it free, as with the padding of a convolution.
    """
    jax2onnx, onnxruntime = (_library(name, "onnx", "onnx") for name in ("jax2onnx", "onnxruntime"))
    some = np.random.Generator(np.random.PCG64(0)).integers(0, 2, (2, *model.spec.x.shape)).astype(model.spec.x.dtype)
    wanted, why = model(some), ""
    for rows in (*jax.export.symbolic_shape("rows"), 1):
        try:
            with native.portable():
                made = jax2onnx.to_onnx(_one_by_one(model), [_argument(model, rows)], model_name=model.pool)
            entry = made.metadata_props.add()
            entry.key, entry.value = "card", _card(model)
            data = made.SerializeToString()
            session = onnxruntime.InferenceSession(data)
            name = session.get_inputs()[0].name
            said = np.concatenate([session.run(None, {name: part})[0] for part in ([some] if rows != 1 else [some[:1], some[1:]])])
        except Exception as error:  # of the converter, for an operation that it does not know
            why = f"got a network that jax2onnx cannot convert ({_first(error)})"
            continue
        if said.shape == wanted.shape and np.allclose(said, wanted, rtol=0, atol=CLOSE * max(1.0, float(np.abs(wanted).max()))):
            return data
        why = "got a network that jax2onnx converts wrongly (ONNX Runtime gives other logits)"
    raise ConfigError(one_line(f"--to onnx: {why}; allowed safetensors | stablehlo for it"))


FORMATS: dict[str, Callable[[Trained], bytes]] = {"safetensors": to_safetensors, "stablehlo": to_stablehlo, "onnx": to_onnx}


def _library(name: str, to: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"--to {to} needs the package {name}, which is not installed: pip install 'fedcodist[{extra}]'") from None


def _one_by_one(model: Trained) -> Callable[[Array], Array]:
    """The logits of raw rows, as a function of each row: then the number of rows may be unknown, whatever a network does with it."""

    def logits(row: Array) -> Array:
        return model.model.apply(model.params, _seen(model, row[None]), None)[0]

    return jax.vmap(logits)


def _seen(model: Trained, x: Array) -> Array:
    """As the objective sees rows in evaluation; the crop of images is a plain slice, which every converter knows."""
    images = model.spec.objective.images if isinstance(model.spec.objective, Classify) else None
    if images is None:
        return model.spec.objective.inputs(x)
    top, left = ((side - images.size) // 2 for side in x.shape[1:3])
    return standardise(x[:, top : top + images.size, left : left + images.size], images.scale)


def _argument(model: Trained, rows: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, *model.spec.x.shape), jnp.dtype(model.spec.x.dtype))


def _card(model: Trained) -> str:
    return json.dumps(card(model), sort_keys=True)


def _first(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
