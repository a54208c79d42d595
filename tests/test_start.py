"""What a run does before its first round: few programs, compiled side by side, to the same bits as one by one."""

from __future__ import annotations

import subprocess
import sys

import jax
import numpy as np

from fedcodist import config, keys
from fedcodist.evaluate import ensemble, evaluate
from fedcodist.models.layers import dense_inits, normals
from fedcodist.runs.programs import compile_evaluation


def test_layers_drawn_as_one_vector_are_jax_s_draws_one_by_one():
    shapes = [(9, 8), (5, 3), (1, 1), (7,), (64, 33)]
    given = [keys.derive(keys.root(7), i) for i in range(len(shapes))]
    together = jax.jit(lambda given: normals(given, shapes))(given)
    for key, shape, drawn in zip(given, shapes, together, strict=True):
        np.testing.assert_array_equal(drawn, jax.random.truncated_normal(key, -2.0, 2.0, shape))


def test_a_typed_key_is_drawn_by_jax_itself():
    key = jax.random.key(3)
    (layer,) = dense_inits([key], [(4, 5)])
    np.testing.assert_array_equal(layer["w"], jax.random.truncated_normal(key, -2.0, 2.0, (4, 5)) * 4**-0.5)


def test_evaluation_is_compiled_before_it_is_needed():
    compiled = []

    def listen(event: str, seconds: float, **more: object) -> None:
        if "backend_compile" in event:
            compiled.append(more.get("fun_name"))

    experiment = config.load("quick/toy", ["pools.small.model.hidden=[5]"], rounds=1)  # a shape that no other test has
    fed = experiment.federation
    models = experiment.method.models(fed, experiment.method.init(fed, keys.root(0)))
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        compile_evaluation(fed, models)
        assert compiled  # the listener hears of them
        compiled.clear()
        evaluate(fed, models)
        ensemble(fed, models, "test")
        assert not [name for name in compiled if "row_sums" in str(name)]
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_starting_needs_no_scipy():
    check = "import sys, fedcodist.cli.main; sys.exit(any(name in sys.modules for name in ('scipy.stats', 'scipy.optimize', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
