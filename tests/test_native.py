"""The native convolutions: right for every shape and instruction set, the same bits every time, within their memory, and optional."""

import os
import stat
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcodist import config, keys, native
from fedcodist.errors import ConfigError
from fedcodist.models import CNN
from fedcodist.models.layers import conv3x3, conv_pool, dense, im2col3x3, max_pool
from fedcodist.native import build
from fedcodist.objectives.images import Images
from fedcodist.runs import cost
from fedcodist.train import train

ROOT = Path(__file__).parent.parent
FOUND = native._load()
needed = pytest.mark.skipif(not FOUND.paths, reason=FOUND.why)
NUMBERS = range(1, 1 + len(FOUND.paths))  # of the instruction sets of this machine


def arrays(batch, height, width, channels, filters, pad, seed=0):
    """x, w, b and a gradient from above."""
    rng = np.random.default_rng(seed)
    shapes = [(batch, height, width, channels), (3, 3, channels, filters), (filters,)]
    shapes += [(batch, height + 2 * pad - 2, width + 2 * pad - 2, filters)]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def plain(x, w, b, grad, pad):
    """Forward, dx, dw, db in float64, a tap at a time."""
    x, w, b, grad = (np.asarray(a, np.float64) for a in (x, w, b, grad))
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    height, width = grad.shape[1:3]
    out, dx, dw = np.zeros_like(grad) + b, np.zeros_like(padded), np.zeros_like(w)
    for i in range(3):
        for j in range(3):
            seen = padded[:, i : i + height, j : j + width]
            out += seen @ w[i, j]
            dx[:, i : i + height, j : j + width] += grad @ w[i, j].T
            dw[i, j] = np.tensordot(seen, grad, ((0, 1, 2), (0, 1, 2)))
    return out, dx[:, pad : pad + x.shape[1], pad : pad + x.shape[2]], dw, grad.sum((0, 1, 2))


def ours(x, w, b, grad, pad, number):
    out, pull = jax.vjp(lambda *args: native._conv(*args, pad, number), x, w, b)
    return out, *pull(grad)


def assert_right(shape, seed=0):
    given_arrays, pad = arrays(*shape, seed=seed), shape[-1]
    want = plain(*given_arrays, pad)
    every = jax.jit(lambda *args: [ours(*args, pad, number) for number in NUMBERS])(*given_arrays)
    for number, got in zip(NUMBERS, every, strict=True):
        for name, a, b in zip(("forward", "dx", "dw", "db"), got, want, strict=True):
            scale = max(1.0, np.abs(b).max())
            assert np.abs(np.asarray(a) - b).max() <= 1e-5 * scale, (name, native.PATHS[number - 1], shape)


# batch, height, width, channels, filters, pad: the paper's, and the smallest, and one more or less than a vector or a tile.
SHAPES = [
    (20, 24, 24, 3, 16, 1),
    (7, 12, 12, 16, 32, 1),
    (20, 6, 6, 64, 64, 1),
    (3, 30, 30, 16, 32, 0),
    (1, 1, 1, 1, 1, 1),
    (20, 1, 1, 3, 2, 1),
    (7, 3, 3, 5, 15, 0),
    (1, 3, 4, 17, 33, 0),
    (7, 4, 11, 31, 17, 1),
    (2, 13, 2, 1, 64, 1),
    (1, 5, 40, 2, 48, 1),
    (20, 12, 12, 32, 64, 1),  # from here on by Winograd, with even and odd maps, and more and fewer patches than are taken at once
    (7, 7, 5, 32, 32, 1),
    (2, 14, 15, 64, 48, 0),
    (1, 2, 2, 32, 32, 1),
    (2, 5, 6, 40, 40, 1),  # one vector more than two, of eight and of four floats
    (2, 5, 6, 36, 36, 0),
]


@needed
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_a_convolution(shape):
    assert_right(shape)


@needed
@settings(max_examples=40, deadline=None)
@given(
    st.tuples(
        st.sampled_from([1, 2, 7, 20]),
        st.integers(1, 9),
        st.integers(1, 9),
        st.sampled_from([1, 3, 5, 16, 17, 31, 32, 64]),
        st.sampled_from([1, 2, 15, 16, 32, 33, 64]),
        st.sampled_from([0, 1]),
    ),
    st.integers(0, 2**32),
)
def test_it_is_a_convolution_of_any_shape(shape, seed):
    batch, height, width, channels, filters, pad = shape
    room = 2 - 2 * pad
    assert_right((batch, height + room, width + room, channels, filters, pad), seed)


@needed
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_it_is_xlas_and_the_portable_form(padding):
    x, w, b, grad = arrays(5, 8, 9, 6, 20, native.PADS[padding])

    def xla(x, w, b, padding):
        return jax.lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")) + b

    forms = native.conv3x3, xla, lambda x, w, b, padding: im2col3x3({"w": w, "b": b}, x, padding)
    got = [jax.jit(lambda *args, f=f: (f(*args, padding), jax.vjp(lambda *a: f(*a, padding), *args)[1](grad)))(x, w, b) for f in forms]
    for other in got[1:]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4), got[0], other)


@needed
@pytest.mark.parametrize("number", NUMBERS)
def test_equal_bits_whoever_computes_them(number):
    # Shapes in turn, so that scratch memory is found as another call left it.
    shapes = (6, 9, 7, 5, 19, 1), (3, 12, 12, 16, 40, 0), (7, 9, 8, 32, 32, 1), (5, 6, 7, 64, 32, 0)
    filled = [arrays(*shape) for shape in shapes]

    @partial(jax.jit, static_argnums=0)
    def run(pad, x, w, b, grad):
        out, pull = jax.vjp(lambda *args: native._pool(*args, pad, number), x, w, b)
        return *ours(x, w, b, grad, pad, number), out, *pull(out)

    def found(i):
        return jax.tree.map(np.asarray, run(shapes[i][-1], *filled[i]))

    first = [found(i) for i in range(len(shapes))]
    with ThreadPoolExecutor(4) as threads:
        again = list(threads.map(lambda i: found(i % len(shapes)), range(40)))
    for i, one in enumerate(again):
        assert all(np.array_equal(a, b) for a, b in zip(one, first[i % len(shapes)], strict=True))


@needed
def test_it_works_in_every_kind_of_program():
    x, w, b, grad = arrays(2, 5, 6, 3, 4, 1)
    want = plain(x, w, b, grad, 1)

    def loss(w, b, x):
        return jnp.sum(native.conv3x3(x, w, b, "SAME") * grad)

    def close(got, want):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)

    with jax.disable_jit():
        close(jax.grad(loss)(w, b, x), want[2])
    xs, ws = np.stack([x, 2 * x, 3 * x]), np.stack([w, w, 0 * w])
    close(jax.lax.scan(lambda total, x: (total + jax.grad(loss)(w, b, x), None), jnp.zeros_like(w), xs)[0], 6 * want[2])
    close(jax.vmap(jax.grad(loss), (0, None, 0))(ws, b, xs), np.stack([want[2], 2 * want[2], 3 * want[2]]))
    close(jax.vmap(lambda x, w: native.conv3x3(x, w, b, "SAME"))(xs, ws)[2], np.zeros_like(grad) + b)
    close(jax.jit(jax.grad(loss, 2))(w, b, x), want[1])

    def pooled(w, x):
        return jnp.sum(native.conv3x3_pool(x, w, b, "SAME") ** 2)

    plainly = jax.jit(jax.grad(pooled))(w, x)
    with jax.disable_jit():
        close(jax.grad(pooled)(w, x), plainly)
    close(jax.vmap(jax.grad(pooled), (None, 0))(w, np.stack([x, x, x]))[2], plainly)
    close(jax.lax.map(lambda x: jax.grad(pooled)(w, x), np.stack([x, x]))[1], plainly)


@needed
def test_the_first_layers_input_gradient_is_left_out():
    x, w, b, _ = arrays(2, 5, 6, 3, 3, 1)

    def loss(ws, b, x):
        for w in ws:
            x = native.conv3x3(x, w, b, "SAME")
        return jnp.sum(x)

    def count(loss):
        calls = jax.jit(jax.grad(loss)).lower([w, w, w], b, x).compile().as_text()
        return {target: n for target in native.TARGETS if (n := calls.count(f'custom_call_target="fedcodist_{target}"'))}

    assert count(loss) == {"conv3x3": 2, "conv3x3_dx": 2, "conv3x3_dw": 3}  # nor is the output of the last layer needed

    def pooled(ws, b, x):
        return loss(ws[1:], b, native.conv3x3_pool(x, ws[0], b, "SAME"))

    assert count(pooled) == {"pool": 1, "pool_dw": 1, "conv3x3": 1, "conv3x3_dx": 2, "conv3x3_dw": 2}


@needed
def test_a_call_with_wrong_shapes_is_an_error_and_no_crash():
    x, w, b, grad = arrays(2, 5, 6, 3, 4, 1)
    call = jax.ffi.ffi_call("fedcodist_conv3x3", jax.ShapeDtypeStruct(grad.shape, jnp.float32))
    for wrong in [(x, w[:, :, :2], b), (x, w[:2], b), (x, w, b[:1]), (x[0], w, b), (x[:1], w, b)]:
        with pytest.raises(Exception, match="fedcodist native"):
            jax.block_until_ready(call(*wrong, pad=np.int32(1), path=np.int32(1)))
    for numbers in [{"pad": 0, "path": 1}, {"pad": 2, "path": 1}, {"pad": 1, "path": 0}, {"pad": 1, "path": 4}]:
        with pytest.raises(Exception, match="fedcodist native"):
            jax.block_until_ready(call(x, w, b, **{name: np.int32(n) for name, n in numbers.items()}))
    assert conv_pool({"w": w, "b": b}, x[:, :1], "SAME").shape == (2, 0, 3, 4)  # in a map of one row there is no window


@needed
@pytest.mark.parametrize(
    "shape", [(20, 24, 24, 3, 16, 1), (2, 5, 7, 2, 19, 1), (3, 4, 4, 1, 1, 0), (1, 3, 4, 5, 33, 1), (9, 6, 5, 3, 3, 0)]
)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_convolution_with_a_pool_is_both_one_after_the_other_to_the_bit(shape, number):
    *_, pad = shape
    rng = np.random.default_rng(0)
    x, w, b = (rng.integers(-1, 2, array.shape).astype(np.float32) for array in arrays(*shape)[:3])  # many ties, many zeros

    @jax.jit
    def both(x, w, b):
        forms = (lambda *args: native._pool(*args, pad, number)), (lambda *args: max_pool(jax.nn.relu(native._conv(*args, pad, number))))
        outs = [jax.vjp(form, x, w, b) for form in forms]
        pull = rng.normal(size=outs[0][0].shape).astype(np.float32)
        return [(out, *back(pull)) for out, back in outs]

    ours, theirs = both(x, w, b)
    assert ours[0].size and all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@needed
def test_what_is_not_a_number_stays_so():
    w = np.zeros((3, 3, 1, 17), np.float32)
    w[1, 1] = 1.0  # what comes in goes out
    for at in np.ndindex(2, 2):
        x = np.ones((1, 4, 4, 1), np.float32)
        x[0, *(2 * i for i in at)] = np.nan
        nan = np.isnan(conv_pool({"w": w, "b": w[0, 0, 0]}, x, "SAME"))
        assert nan.all((0, 3)).sum() == nan.any((0, 3)).sum() >= 1
        assert nan[0, *at].all()
    x, w, b, _ = arrays(1, 4, 4, 3, 5, 1)
    x[0, 0, 0, 0] = np.inf
    out = np.asarray(native.conv3x3(x, w, b, "SAME"))
    assert not np.isfinite(out[0, :2, :2]).any() and np.isfinite(out[0, 2:]).all()


@pytest.mark.parametrize("kernels", ["0", "1"])
def test_operations_are_counted_whatever_computes_them(kernels, monkeypatch):
    monkeypatch.setenv(native.SWITCH, kernels)
    model = CNN((32, 64), (5,)).build((8, 8, 3), 7)
    params = jax.eval_shape(model.init, keys.root(0))
    x = jax.ShapeDtypeStruct((2, 8, 8, 3), "float32")
    first, rest = (
        64 * 27 * 32,
        16 * 288 * 64 + 4 * 64 * 5 + 5 * 7,
    )  # products: a convolution on 8 x 8, one on 4 x 4, 2 x 2 into 5, 7 classes
    assert cost.count(lambda p, x: model.apply(p, x, None), params, x) == 2 * 2 * (first + rest)
    grad = jax.grad(lambda p, x: model.apply(p, x, None).sum())
    assert cost.count(grad, params, x) == 2 * 2 * (2 * first + 3 * rest)  # nobody needs the gradient of the first layer's input
    assert "asked for" not in native.describe()


@needed
def test_the_switch(monkeypatch):
    x, w, b, _ = arrays(2, 5, 6, 3, 4, 1)
    params = {"w": w, "b": b}
    for path in FOUND.paths:
        monkeypatch.setenv(native.SWITCH, path)
        assert native.describe() == path
        assert str(jax.make_jaxpr(lambda x: conv3x3(params, x, "SAME"))(x)).count("ffi_call") == 1
    for said in ("1", ""):
        monkeypatch.setenv(native.SWITCH, said)
        assert native.describe() == FOUND.paths[-1]
    monkeypatch.setenv(native.SWITCH, "0")
    assert native.describe() == "none (FEDCODIST_NATIVE=0)"
    assert "ffi_call" not in str(jax.make_jaxpr(lambda x: conv3x3(params, x, "SAME"))(x))
    monkeypatch.setenv(native.SWITCH, "neon")
    with pytest.raises(ConfigError, match="FEDCODIST_NATIVE: got 'neon'; allowed 0, 1, sse2, avx2, avx512"):
        conv3x3(params, x, "SAME")


@needed
@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, b: (x.astype(np.float16), w, b),
        lambda x, w, b: (x, w.astype(np.float16), b),
        lambda x, w, b: (x[:0], w, b),
        lambda x, w, b: (x, w[..., :0], b[:0]),
    ],
)
def test_what_does_not_fit_takes_the_portable_form(change):
    x, w, b = change(*arrays(2, 5, 6, 3, 4, 0)[:3])
    out = conv3x3({"w": w, "b": b}, x, "VALID")
    assert out.shape == (len(x), 3, 4, w.shape[-1])
    assert not native.fits(x, w, b, "VALID")


def test_without_a_library(monkeypatch, tmp_path):
    monkeypatch.delenv(native.SWITCH, raising=False)
    monkeypatch.setattr(native, "_load", native._load.__wrapped__)
    for name, content, word in [("missing", None, "no compiled library"), ("broken", b"\x7fELF nothing", "cannot be used")]:
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / native.LIBRARY).write_bytes(content)
        monkeypatch.setattr(native, "HERE", tmp_path / name)
        said = native.describe()
        assert said.startswith("none (") and said.count("\n") == 0
        if build.supported():
            assert word in said and "python -m fedcodist.native build" in said
        x, w, b, grad = arrays(2, 5, 6, 3, 4, 1)
        assert not native.fits(x, w, b, "SAME")
        assert conv3x3({"w": w, "b": b}, x, "SAME").shape == grad.shape


@needed
def test_a_library_of_other_sources_is_not_used(monkeypatch):
    monkeypatch.setattr(native, "digest", lambda: "0" * 16)
    assert "other sources" in native._load.__wrapped__().why


@pytest.mark.skipif(not build.supported(), reason="not for this machine")
def test_why_it_is_not_compiled(monkeypatch, tmp_path):
    library = tmp_path / "x.so"
    monkeypatch.setenv("CXX", "false --with-an-option")
    assert build.build(library) == "false failed: code 1"
    monkeypatch.setattr(build, "find_headers", lambda: None)
    assert build.build(library) == "no headers of jaxlib here yet"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.build(library) == "no C++ compiler: CXX, g++ and clang++ were tried"
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    assert "riscv64" in build.build(library)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not build.supported(), reason="not for this machine")
@pytest.mark.parametrize("works", [True, False])
def test_a_wheel_is_built_with_and_without_a_compiler(works, tmp_path):
    tree = tmp_path / "tree"
    (tree / "fedcodist" / "native").mkdir(parents=True)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "fedcodist/__init__.py"):
        (tree / name).write_bytes((ROOT / name).read_bytes())
    for path in (ROOT / "fedcodist" / "native").iterdir():
        if path.suffix in (".py", ".cc", ".h"):
            (tree / "fedcodist" / "native" / path.name).write_bytes(path.read_bytes())
    compiler = tmp_path / "compiler"  # writes its last argument's file, or fails
    compiler.write_text(f"#!/bin/sh\nfor last; do :; done\n{'echo library > $last' if works else 'echo oh error >&2; exit 3'}\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    env = {**os.environ, "CXX": str(compiler), "FEDCODIST_NATIVE": "1"}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as file:
        assert (f"fedcodist/native/{build.LIBRARY}" in file.namelist()) == works
        assert {f"fedcodist/native/{source}" for source in build.SOURCES} <= set(file.namelist())
    assert wheel.name.endswith("-py3-none-any.whl") != works
    assert ("native convolutions not compiled (" in done.stdout + done.stderr) != works


DRIVER = r"""
#include "conv.cc"
int main() {
  const int32_t most = best();
  for (int32_t path = kSse2; path <= most; path++)
    for (long pad : {0, 1})
      for (long batch : {1, 3})
        for (auto [height, width] : {std::pair<long, long>{1, 1}, {2, 5}, {4, 3}, {9, 8}, {4, 13}})
          for (long channels : {3, 17, 32})
            for (long filters : {1, 16, 32, 33}) {
              const long h = height + 2 - 2 * pad, w = width + 2 - 2 * pad;
              std::vector<float> x(batch * h * w * channels), k(9 * channels * filters), b(filters), y(batch * height * width * filters);
              const long less = batch * (height / 2) * (width / 2) * filters;
              std::vector<float> small(less);
              std::vector<uint8_t> who(less);
              std::vector<float> turned(k.size());
              turn(k.data(), channels, filters, turned.data());
              const auto kernel = pick(path, sse2::forward, avx2::forward, avx512::forward);
              const auto gradient = pick(path, sse2::weight_gradient, avx2::weight_gradient, avx512::weight_gradient);
              for (bool pool : {false, true}) {
                if (pool && !less) continue;
                float* map = pool ? small.data() : y.data();
                uint8_t* mask = pool ? who.data() : nullptr;
                kernel(x.data(), k.data(), b.data(), map, batch, h, w, channels, filters, pad, nullptr, mask);
                kernel(map, turned.data(), nullptr, x.data(), batch, height, width, filters, channels, 2 - pad, mask, nullptr);
                gradient(x.data(), map, k.data(), b.data(), batch, h, w, channels, filters, pad, mask);
              }
            }
  for (int32_t path = kSse2; path <= most; path++)
    for (long rows : {1, 7, 20, 45})
      for (long inputs : {1, 6, 16, 35})
        for (long outputs : {1, 5, 64, 100}) {
          std::vector<float> x(rows * inputs), w(inputs * outputs), grad(rows * outputs), dx(x.size()), dw(w.size());
          const auto kernel = pick(path, sse2::dense_gradients, avx2::dense_gradients, avx512::dense_gradients);
          kernel(x.data(), w.data(), grad.data(), dx.data(), dw.data(), rows, inputs, outputs);
        }
  for (int32_t path = kSse2; path <= most; path++)
    for (long channels : {1, 3})
      for (auto [height, width] : {std::pair<long, long>{5, 7}, {25, 24}})
        for (long size : {1L, 4L, std::min(height, width)}) {
          std::vector<uint8_t> image(height * width * channels);
          std::vector<float> seen(size * size * channels);
          for (bool flip : {false, true})
            for (long last : {0, 1}) {
              const auto see = pick(path, sse2::see, avx2::see, avx512::see);
              see(image.data(), width, channels, last * (height - size), last * (width - size), flip, size, 0.1f, seen.data());
            }
        }
}
"""


@needed
@pytest.mark.skipif(not build.find_compiler(), reason="no compiler")
def test_no_byte_outside_is_read_or_written(tmp_path):
    source, program = tmp_path / "driver.cc", tmp_path / "driver"
    source.write_text(DRIVER)
    flags = ["-std=c++17", "-O0", "-w", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", '-DFEDCODIST_SOURCE=""']
    command = [
        *build.find_compiler(),
        *flags,
        "-I",
        str(build.HERE),
        "-isystem",
        str(build.find_headers()),
        str(source),
        "-o",
        str(program),
    ]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("the compiler has no address sanitizer")
    done = subprocess.run([program], capture_output=True, text=True, timeout=250, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
    assert done.returncode == 0 and not done.stderr, done.stderr[:2000]


@needed
@pytest.mark.parametrize("kind", FOUND.paths)
@pytest.mark.parametrize("shape", [(1, 5, 7, 1, 5), (3, 32, 32, 3, 24), (2, 28, 28, 1, 28), (4, 9, 8, 2, 3), (20, 40, 40, 3, 32)])
def test_images_are_seen_as_the_portable_form_sees_them(monkeypatch, kind, shape):
    *batch, size = shape
    x = np.random.default_rng(0).integers(0, 256, batch, dtype=np.uint8)
    for images in (
        Images(size=size),
        Images(size=size, flip=False),
        Images(size=size, pad=4),
        Images(size=size, scale="fedjax", per_batch=True),
    ):
        for key in (None, jax.random.PRNGKey(7)):
            monkeypatch.setenv(native.SWITCH, "0")
            want = images.inputs(x, key)
            monkeypatch.setenv(native.SWITCH, kind)
            assert native.fits_see(x, size)
            np.testing.assert_allclose(images.inputs(x, key), want, rtol=1e-5, atol=1e-5)


@needed
def test_a_flat_image_is_seen_as_zeros_and_a_corner_outside_is_brought_back():
    flat = np.full((2, 6, 6, 3), 200, np.uint8)
    assert not np.asarray(Images(size=4).inputs(flat, jax.random.PRNGKey(0))).any()
    x = np.arange(36, dtype=np.uint8).reshape(1, 6, 6, 1)
    seen = native.see(x, np.array([[99, -99]]), np.array([True]), 2, 0.1)[0, :, :, 0]
    centred = np.array([[25.0, 24.0], [31.0, 30.0]]) - 27.5  # rows 4 and 5, columns 0 and 1, backwards
    np.testing.assert_allclose(seen, centred / np.sqrt((centred**2).mean()), rtol=1e-5)


@needed
def test_what_see_cannot_take_goes_the_portable_way():
    x = np.zeros((2, 8, 8, 3), np.uint8)
    assert (
        native.fits_see(x, 8)
        and not native.fits_see(x, 9)
        and not native.fits_see(x.astype(np.float32), 8)
        and not native.fits_see(x[0], 4)
    )
    assert np.isfinite(Images(size=8, scale="cifar").inputs(x)).all()  # fixed means and deviations: no kernel for these


@needed
@pytest.mark.parametrize("kind", FOUND.paths)
def test_a_dense_layer_has_its_gradients(monkeypatch, kind):
    """The paper's, the smallest, and one more or less than a vector or a tile."""
    monkeypatch.setenv(native.SWITCH, kind)
    draw = np.random.default_rng(0)
    for rows, inputs, outputs in (
        (20, 1152, 64),
        (20, 128, 100),
        (1, 1, 1),
        (3, 17, 5),
        (20, 16, 16),
        (64, 33, 70),
        (21, 15, 65),
        (5, 64, 17),
    ):
        x, w, b, grad = (draw.standard_normal(s).astype(np.float32) for s in ((rows, inputs), (inputs, outputs), outputs, (rows, outputs)))
        assert native.fits_dense(x, w, b)
        out, back = jax.vjp(lambda x, w, b: dense({"w": w, "b": b}, x), x, w, b)
        wanted = (x @ w + b, grad @ w.T, x.T @ grad, grad.sum(0))
        for name, got, want in zip(("out", "dx", "dw", "db"), (out, *back(grad)), wanted, strict=True):
            assert np.abs(got - want).max() <= 1e-5 * max(1.0, np.abs(want).max()), (name, rows, inputs, outputs)


@needed
def test_what_a_dense_layer_cannot_take_goes_the_portable_way():
    x, w, b = np.zeros((native.MOST_ROWS, 3), np.float32), np.zeros((3, 2), np.float32), np.zeros(2, np.float32)
    assert native.fits_dense(x, w, b)
    assert not native.fits_dense(np.zeros((native.MOST_ROWS + 1, 3), np.float32), w, b) and not native.fits_dense(x[:0], w, b)
    assert not native.fits_dense(x.astype(np.float16), w, b) and not native.fits_dense(x[0], w, b)
    assert dense({"w": w, "b": b}, np.zeros((2, 70, 3), np.float32)).shape == (2, 70, 2)
    with pytest.raises(Exception, match="fedcodist native: these shapes"):
        native._call(
            "dense", (native._floats(64, 3), native._floats(3, 2)), x, w, np.zeros((63, 2), np.float32), path=1
        ).block_until_ready()


@needed
@pytest.mark.parametrize("shape", [(20, 3), (1, 3), (100,), (7,), (3, 5, 2), (native.FEW_BITS,), (native.FEW_BITS + 1,)])
def test_random_bits_are_jaxs_own(monkeypatch, shape):
    for key in (jax.random.PRNGKey(5), keys.derive(keys.root(2**62), "client", 3, "anna"), np.array([2**32 - 1, 2**32 - 1], np.uint32)):
        np.testing.assert_array_equal(native.bits(key, shape), jax.random.bits(key, shape))
    monkeypatch.setattr(native, "_call", lambda *_, **__: pytest.fail("the kernel draws other bits"))
    typed = jax.random.key(5)
    np.testing.assert_array_equal(native.bits(typed, shape), jax.random.bits(typed, shape))
    with jax.threefry_partitionable(False):
        np.testing.assert_array_equal(native.bits(jax.random.PRNGKey(5), shape), jax.random.bits(jax.random.PRNGKey(5), shape))


@pytest.mark.long
@needed
def test_the_same_seed_gives_the_same_curve_with_and_without_the_kernels(monkeypatch):
    """To float tolerance: rounding grows with the rounds, so these are few. One pool, because compiling is all that this costs."""
    made = config.read("quick/demo", ["rounds=3", "pools.small.cohort=3", 'method={ kind = "fedavg" }'])
    whole = config.assemble(made, made.task.load(), 0)
    alone = replace(whole.federation, pools={"small": whole.federation.pools["small"]})

    def curve() -> list[float]:
        jax.clear_caches()
        return [step.info["small"]["train_loss"] for step in train(replace(whole, federation=alone))]

    monkeypatch.setenv(native.SWITCH, "0")
    portable = curve()
    monkeypatch.delenv(native.SWITCH)
    kernels = curve()
    np.testing.assert_allclose(kernels, portable, rtol=1e-4)
    assert kernels != portable and portable[-1] < portable[0]  # both were computed, and something was learned
