"""The paper's models: their sizes, their layers against XLA's and numpy's own, their initialisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedcodist import keys, native, tree
from fedcodist.models import CNN, LSTM, MLP
from fedcodist.models.layers import conv3x3, conv_init, dense, dense_init, max_pool

LARGE = {"filters": (32, 64, 64), "dense": (128, 256)}
TRUNCATED = 0.8796  # the standard deviation of a standard normal truncated at two of its own


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("layout", ["24/same", "32/valid"])
@pytest.mark.parametrize("sizes, count", [({}, 109_348), (LARGE, 410_084)])
def test_the_papers_cnns(layout, sizes, count):
    side = int(layout[:2])
    model = CNN(layout=layout, **sizes).build((side, side, 3), 100)
    params = jax.eval_shape(model.init, keys.root(0))
    assert tree.size(params) == count
    logits = jax.eval_shape(model.apply, params, jax.ShapeDtypeStruct((7, side, side, 3), "float32"), None)
    assert logits.shape == (7, 100)


@pytest.mark.parametrize("sizes, count", [({}, 1_984_348), ({"layers": 2, "embed": 192, "hidden": 140}, 4_278_644)])
def test_the_papers_lstms(sizes, count):
    model = LSTM(**sizes).build((20,), 10_004)
    params = jax.eval_shape(model.init, keys.root(0))
    assert tree.size(params) == count
    logits = jax.eval_shape(model.apply, params, jax.ShapeDtypeStruct((7, 20), "int32"), None)
    assert logits.shape == (7, 20, 10_004)


def xla_conv(params, x, padding):
    return jax.lax.conv_general_dilated(x, params["w"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")) + params["b"]


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("height, width", [(6, 6), (5, 7), (3, 4)])
def test_our_convolution_is_xlas(padding, height, width):
    params, x = {"w": draw(3, 3, 2, 4), "b": draw(4, seed=1)}, draw(3, height, width, 2, seed=2)
    ours = conv3x3(params, x, padding)
    assert np.asarray(ours) == pytest.approx(np.asarray(xla_conv(params, x, padding)), abs=1e-5)
    pull = draw(*ours.shape, seed=3)  # a gradient from above that is different at every place

    def grads(conv):
        return jax.grad(lambda params, x: jnp.sum(conv(params, x, padding) * pull), (0, 1))(params, x)

    for a, b in zip(jax.tree.leaves(grads(conv3x3)), jax.tree.leaves(grads(xla_conv)), strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-4)


def xla_pool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@pytest.mark.parametrize("height, width", [(4, 6), (5, 7), (2, 3)])
def test_our_max_pool_is_xlas(height, width):
    # A permutation has no ties; there the gradient goes to the one largest pixel of each window.
    x = np.random.default_rng(0).permutation(2 * height * width * 3).reshape(2, height, width, 3).astype(np.float32)
    ours = max_pool(x)
    assert np.array_equal(ours, xla_pool(x))
    pull = draw(*ours.shape)
    ours, theirs = (jax.grad(lambda x, pool=pool: jnp.sum(pool(x) * pull))(x) for pool in (max_pool, xla_pool))
    assert np.array_equal(ours, theirs)


def test_a_tie_in_a_max_pool_shares_the_gradient():
    # The departure from XLA's, which picks the first of them: every ReLU's zeros are ties, and nothing of the gradient is lost.
    x = jnp.array([1.0, 1.0, 0.0, 1.0]).reshape(1, 2, 2, 1)
    grad = jax.grad(lambda x: 6.0 * jnp.sum(max_pool(x)))(x)
    assert grad.ravel().tolist() == pytest.approx([3.0, 1.5, 0.0, 1.5])  # across, and then down


@pytest.mark.parametrize("layout, pooled_after", [("24/same", (0, 1)), ("32/valid", (1, 2))])
@pytest.mark.parametrize("kernels", ["1", "0"])
def test_a_cnn_layer_by_layer(layout, pooled_after, kernels, monkeypatch):
    monkeypatch.setenv(native.SWITCH, kernels)
    side = int(layout[:2])
    model = CNN((2, 3, 4), (5, 6), layout).build((side, side, 1), 7)
    params = jax.tree.map(lambda leaf: jnp.asarray(0.3 * draw(*leaf.shape, seed=leaf.size)), jax.eval_shape(model.init, keys.root(0)))
    images, pull = draw(2, side, side, 1), draw(2, 7, seed=1)

    def layers(params, x):
        for i in range(3):
            x = jax.nn.relu(xla_conv(params[f"conv{i}"], x, layout[3:].upper()))
            x = xla_pool(x) if i in pooled_after else x
        assert x.shape == (2, 6, 6, 4)
        x = x.reshape(2, -1)
        for i in range(3):
            x = x @ params[f"dense{i}"]["w"] + params[f"dense{i}"]["b"]
            x = jax.nn.relu(x) if i < 2 else x
        return x

    def both_ways(form):
        def program(params, images, pull):
            logits, back = jax.vjp(form, params, images)
            return logits, back(pull)

        return jax.jit(program)(params, images, pull)  # one program to compile, not one for each operation

    ours, theirs = both_ways(lambda params, x: model.apply(params, x, None)), both_ways(layers)
    assert np.asarray(ours[0]) == pytest.approx(np.asarray(theirs[0]), rel=1e-4, abs=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), ours[1], theirs[1])


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def numpy_lstm(params, x, layers, hidden):
    """Position by position, as haiku writes it: gates i, g, f, o from [x, h], and 1 added to the forget gate."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    out = p["embed"][x]
    for layer in range(layers):
        h = c = np.zeros((len(x), hidden))
        positions = []
        for at in range(x.shape[1]):
            gates = np.concatenate([out[:, at], h], -1) @ p[f"lstm{layer}"]["w"] + p[f"lstm{layer}"]["b"]
            i, g, f, o = np.split(gates, 4, -1)
            c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            positions.append(np.tanh(h) @ p[f"project{layer}"]["w"] + p[f"project{layer}"]["b"])
        out = np.stack(positions, 1)
    return out @ p["out"]["w"] + p["out"]["b"]


@pytest.mark.parametrize("layers", [1, 2])
def test_the_lstm_is_a_plain_loop(layers):
    model = LSTM(layers, embed=5, hidden=3).build((6,), 11)
    params = jax.eval_shape(model.init, keys.root(0))
    params = jax.tree.map(lambda leaf: draw(*leaf.shape, seed=leaf.size), params)  # biases too: from init they are zero
    x = np.random.default_rng(0).integers(0, 11, (2, 6))
    assert np.asarray(model.apply(params, x, None)) == pytest.approx(numpy_lstm(params, x, layers, 3), rel=1e-4, abs=1e-4)


def test_no_position_sees_a_later_token():
    model = LSTM(embed=5, hidden=3).build((6,), 11)
    params = model.init(keys.root(0))
    x = np.arange(6)[None]
    other = np.where(np.arange(6) < 3, x, 10)
    a, b = (np.asarray(model.apply(params, tokens, None))[0] for tokens in (x, other))
    assert np.array_equal(a[:3], b[:3])
    assert not np.allclose(a[3:], b[3:])


def test_an_mlp_by_hand():
    model = MLP((2,)).build((3,), 2)
    params = {
        "dense0": {"w": np.array([[1.0, -1.0], [0.0, 2.0], [1.0, 0.0]]), "b": np.array([0.5, 0.0])},
        "dense1": {"w": np.array([[1.0, 2.0], [3.0, -1.0]]), "b": np.array([0.0, 1.0])},
    }
    assert jax.tree.map(np.shape, model.init(keys.root(0))) == jax.tree.map(np.shape, params)
    # hidden: relu([1 + 0.5, -1 + 4]) = [1.5, 3] and relu([-1 + 0.5, 1]) = [0, 1]
    assert model.apply(params, np.array([[1.0, 2.0, 0.0], [-1.0, 0.0, 0.0]]), None).tolist() == [[10.5, 1.0], [3.0, 0.0]]
    assert tree.size(jax.eval_shape(MLP(()).build((2, 3), 4).init, keys.root(0))) == 6 * 4 + 4  # logistic regression on 2x3 inputs


@pytest.mark.parametrize("shape", [(20, 6), (1, 6), (4, 5, 6), (native.MOST_ROWS + 1, 6)], ids=str)
@pytest.mark.parametrize("kind", ["float32", "bfloat16 inputs"])
def test_a_dense_layer_without_kernels_has_its_gradients(shape, kind):
    x, grad = draw(*shape), draw(*shape[:-1], 3, seed=1)
    params = {"w": draw(6, 3, seed=2), "b": draw(3, seed=3)}
    x = jnp.asarray(x, "float32" if kind == "float32" else "bfloat16")
    with native.portable():
        out, back = jax.vjp(dense, params, x)
    found, dx = back(jnp.asarray(grad))
    rows, grads = np.asarray(x, np.float32).reshape(-1, 6), grad.reshape(-1, 3)
    assert out == pytest.approx(np.asarray(x, np.float32) @ params["w"] + params["b"], abs=1e-5)
    assert found["w"] == pytest.approx(rows.T @ grads, abs=1e-4) and found["b"] == pytest.approx(grads.sum(0), abs=1e-4)
    assert dx.dtype == x.dtype and np.asarray(dx, np.float32) == pytest.approx(grad @ params["w"].T, rel=1e-2, abs=1e-2)
    if kind == "float32":
        assert dx == pytest.approx(grad @ params["w"].T, abs=1e-5)


@pytest.mark.parametrize("init, fan_in", [(lambda key: dense_init(key, 200, 400), 200), (lambda key: conv_init(key, 32, 250), 9 * 32)])
def test_layers_start_as_haikus(init, fan_in):
    params = init(keys.root(0))
    scaled = np.asarray(params["w"]) * fan_in**0.5
    assert scaled.std() == pytest.approx(TRUNCATED, rel=0.02)
    assert abs(scaled.mean()) < 0.02
    assert 1.9 < np.abs(scaled).max() <= 2.0 + 1e-5
    assert not np.asarray(params["b"]).any()


BUILT = {
    "cnn": CNN().build((24, 24, 3), 100),
    "lstm": LSTM(layers=2).build((20,), 500),
    "mlp": MLP((64, 64)).build((80,), 50),
}


@pytest.mark.parametrize("kind", BUILT)  # `subclass` wraps one of them
def test_every_weight_is_drawn_and_every_bias_zero(kind):
    init = jax.jit(BUILT[kind].init)
    here, there = init(keys.root(0)), init(keys.root(1))
    for (path, a), b in zip(jax.tree.leaves_with_path(here), jax.tree.leaves(there), strict=True):
        name = jax.tree_util.keystr(path)
        assert a.dtype == jnp.float32, name
        if name.endswith("['b']"):
            assert not np.asarray(a).any(), name
            continue
        fan_in = 1 if "embed" in name else a.size // a.shape[-1]  # haiku draws an embedding with standard deviation 1
        assert np.asarray(a).std() * fan_in**0.5 == pytest.approx(TRUNCATED, rel=0.1), name
        assert not np.isclose(a, b).mean() > 0.01, name
    drawn = [np.asarray(leaf).ravel()[:20] for leaf in jax.tree.leaves(here) if np.asarray(leaf).any()]
    directions = [tuple(np.round(d / np.linalg.norm(d), 3)) for d in drawn]
    assert len(set(directions)) == len(drawn)  # no key was used twice: such draws would differ by their scale only


@pytest.mark.parametrize(
    "build",
    [
        lambda **k: CNN((4, 4, 4), (8, 8), **k).build((24, 24, 3), 10),
        lambda **k: LSTM(1, 8, **k).build((20,), 50),
        lambda **k: MLP(**k).build((4,), 3),
    ],
)
def test_equal_descriptions_are_one_model(build):
    # Compiled programs are found by the model: an equal one that is another object would be compiled again.
    assert build() is build()
    other = {"CNN": {"layout": "32/valid"}, "LSTM": {"hidden": 8}, "MLP": {"hidden": (8,)}}
    assert all(build(**k) is not build() for name, k in other.items() if name in build.__code__.co_names)
