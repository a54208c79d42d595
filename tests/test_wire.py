"""What arrives is read by ourselves: every header that lies is refused before an array is made."""

import io

import jax.numpy as jnp
import numpy as np
import pytest

from fedcodist.engines import wire
from fedcodist.engines.wire import Rejected


def header(text, payload=b""):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + payload


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "i8", "u1", "b1"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (1, 1, 2)])
def test_arrays_come_back_to_the_bit(dtype, shape):
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    back = wire.unpacked(wire.packed(array), array)
    assert back.dtype == array.dtype and back.shape == shape and back.tobytes() == array.tobytes()


def test_columns_first_becomes_rows_first():
    turned = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert wire.unpacked(wire.packed(turned)).tolist() == turned.tolist()


def npy(array, **how):
    out = io.BytesIO()
    np.save(out, array, **how)
    return out.getvalue()


WRONG = {
    "nothing": (b"", "malformed"),
    "a zip": (b"PK\x03\x04" + bytes(60), "malformed"),
    "a pickle": (b"\x80\x04K\x01.", "malformed"),
    "objects": (npy(np.array([{}], object), allow_pickle=True), "malformed"),
    "columns first": (npy(np.asfortranarray(np.zeros((2, 3)))), "malformed"),
    "big-endian": (npy(np.zeros(2, ">f4")), "malformed"),
    "records": (npy(np.zeros(2, [("a", "<f4")])), "malformed"),
    "complex": (npy(np.zeros(2, "<c8")), "dtype"),
    "a text that is no header": (header(b"__import__('os')\n"), "malformed"),
    "3.6 TiB": (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }\n"), "size"),
    "a negative length": (header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }\n"), "malformed"),
    "a byte less": (wire.packed(np.zeros(3, np.float32))[:-1], "size"),
    "a byte more": (wire.packed(np.zeros(3, np.float32)) + b"\0", "size"),
    "a header that ends nowhere": (b"\x93NUMPY\x01\x00\xff\xff{'descr'", "malformed"),
}


@pytest.mark.parametrize("what", WRONG)
def test_bytes_that_are_no_plain_array_are_refused(what):
    data, reason = WRONG[what]
    with pytest.raises(Rejected, match=f"^{reason}$"):
        wire.unpacked(data)


@pytest.mark.parametrize("other,reason", [(np.zeros(3), "dtype"), (np.zeros(1, np.float32), "shape"), (np.zeros((), np.float32), "shape")])
def test_another_type_or_shape_than_the_template_is_refused(other, reason):
    with pytest.raises(Rejected, match=reason):
        wire.unpacked(wire.packed(other), np.zeros(3, np.float32))


def test_what_cannot_go_over_the_wire_is_not_sent():
    with pytest.raises(TypeError, match="bfloat16"):
        wire.packed(jnp.zeros(2, jnp.bfloat16))
    with pytest.raises(TypeError, match="dicts and tuples of arrays"):
        wire.form([np.zeros(2)])


def test_trees_need_exactly_their_names():
    tree = ({"w": np.ones(2, np.float32)}, np.ones((), np.float32))
    arrays = wire.tree_packed(tree, "sent")
    assert sorted(arrays) == ["sent/0/w", "sent/1"]
    back = wire.formed(wire.form(tree), arrays, "sent")
    assert isinstance(back, tuple) and back[0]["w"].tolist() == [1, 1]
    for wrong in ({"sent/0/w": arrays["sent/0/w"]}, arrays | {"sent/2": arrays["sent/1"]}):
        with pytest.raises(Rejected, match="names"):
            wire.tree_unpacked(wrong, tree, "sent")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": NaN}', "[" * 100_000, "1"])
def test_text_that_is_no_table_is_refused(text):
    with pytest.raises(Rejected, match="malformed"):
        wire.read(text)


def test_numbers_come_back_to_the_bit():
    table = {"lr": 0.1, "tiny": 5e-324, "n": 2**63}
    assert wire.read(wire.written(table)) == table
    with pytest.raises(ValueError):
        wire.written({"lr": float("nan")})
