"""Sub-models: exact sizes, exact slices, and features that end in the model's own logits."""

import jax
import numpy as np
import pytest

from fedcodist import keys, tree
from fedcodist.models import CNN, LSTM, MLP

IMAGE = (24, 24, 3)
CASES = {
    "cnn": (CNN((4, 6, 6), (8, 10)).build((12, 12, 3), 5), np.random.default_rng(0).normal(size=(3, 12, 12, 3)).astype(np.float32)),
    "valid": (
        CNN((4, 6, 6), (8,), "32/valid").build((20, 20, 1), 5),
        np.random.default_rng(0).normal(size=(2, 20, 20, 1)).astype(np.float32),
    ),
    "lstm": (LSTM(2, 6, 4).build((5,), 11), np.random.default_rng(0).integers(0, 11, (3, 5))),
    "mlp": (MLP((6, 4)).build((3, 2), 5), np.random.default_rng(0).normal(size=(3, 3, 2)).astype(np.float32)),
}


def test_the_papers_cnn_has_exact_sub_models():
    large = CNN((32, 64, 64), (128, 256)).build(IMAGE, 100)
    sizes = {rate: tree.size(jax.eval_shape(large.narrow(rate).model.init, keys.root(0))) for rate in (0.25, 0.5, 1.0)}
    assert sizes == {0.25: 30_788, 0.5: 109_348, 1.0: 410_084}
    assert large.narrow(0.5).model is CNN().build(IMAGE, 100)  # the paper's small model itself


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rate", [0.5, 0.3])
def test_a_sub_model_is_the_whole_with_zeros_elsewhere(name, rate):
    model, x = CASES[name]
    params = jax.tree.map(lambda leaf: leaf + 0.1, model.init(keys.root(1)))  # no bias is zero
    sub = model.narrow(rate)
    part = sub.cut(params)
    assert jax.tree.map(np.shape, part) == jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(sub.model.init, keys.root(0)))
    masked = sub.paste(tree.zeros(params), part)
    assert tree.size(part) < tree.size(params)
    assert np.asarray(sub.model.apply(part, x, None)) == pytest.approx(np.asarray(model.apply(masked, x, None)), abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_what_was_cut_can_be_pasted(name):
    model, _ = CASES[name]
    params, other = model.init(keys.root(1)), model.init(keys.root(2))
    sub = model.narrow(0.5)
    pasted = sub.paste(params, sub.cut(other))
    for a, b in zip(jax.tree.leaves(sub.cut(pasted)), jax.tree.leaves(sub.cut(other)), strict=True):
        assert np.array_equal(a, b)
    changed = sum(
        int(np.sum(np.asarray(a) != np.asarray(b))) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(pasted), strict=True)
    )
    assert 0 < changed <= tree.size(sub.cut(params))
    whole = model.narrow(1.0)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(whole.cut(params)), jax.tree.leaves(params), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_features_end_in_the_models_own_logits(name):
    model, x = CASES[name]
    params = model.init(keys.root(1))
    logits, seen = model.features(params, x, None)
    assert np.asarray(logits) == pytest.approx(np.asarray(model.apply(params, x, None)), abs=1e-5)
    assert seen and all(len(layer) == len(x) for layer in seen.values())
    assert model.spec.part.build(model.spec.shape, model.spec.classes) is model


def test_a_rate_outside_its_range_is_refused():
    with pytest.raises(ValueError, match="narrow: got rate 0; allowed a number > 0 and <= 1"):
        CASES["mlp"][0].narrow(0)
