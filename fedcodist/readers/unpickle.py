"""The data of a pickle, without running it: a small interpreter of the opcodes that describe data, for files that exist in no other form.

A pickle is a program that may call anything. Only the opcodes and names listed here are accepted, and everything else is a DataError, so
`read` can give nothing but dicts, lists, tuples, str, bytes, int, float, bool, None and numpy arrays of uint8 and int64. Opcodes and their
short arguments are parsed by the standard library's table, which executes nothing. Arrays are views of the given bytes, so a large file
is not copied. Deliberately absent: classes, persistent ids, protocol 5, and writing.
"""

from __future__ import annotations

import enum
import io
import math
import pickletools
import warnings
from typing import Any

import numpy as np

from fedcodist.errors import DataError, data_error
from fedcodist.settings import show

OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
MOST_DEPTH = 32  # of nesting
LONGEST = 2**16  # bytes of a string that is not the content of an array
# Opcodes of a string preceded by its length, and the number of bytes of the length; texts are decoded.
STRINGS = {"SHORT_BINSTRING": 1, "BINSTRING": 4, "SHORT_BINBYTES": 1, "BINBYTES": 4, "BINBYTES8": 8}
TEXTS = {"SHORT_BINUNICODE": 1, "BINUNICODE": 4, "BINUNICODE8": 8}
VALUES = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE"}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
PUTS, GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
# What a malformed argument, or an opcode whose operands are not on the stack, may raise.
BROKEN = (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, EOFError, MemoryError)


class _Name(enum.Enum):
    """The only names that a pickle may call. None of them is called: `_Machine.reduce` knows what each would have made."""

    RECONSTRUCT = enum.auto()
    NDARRAY = enum.auto()
    DTYPE = enum.auto()
    ENCODE = enum.auto()


NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy", "ndarray"): _Name.NDARRAY,
    ("numpy", "dtype"): _Name.DTYPE,
    ("_codecs", "encode"): _Name.ENCODE,
}
DTYPES = {"u1": np.dtype(np.uint8), "i8": np.dtype("<i8")}


class _Mark:
    """Where a list of items on the stack begins."""


class _Dtype:
    def __init__(self, dtype: np.dtype):
        self.dtype = dtype


class _Array:
    """An array that was declared by REDUCE; BUILD gives it its content."""

    array: np.ndarray | None = None


def read(where: str, data: bytes | bytearray) -> Any:
    """The value that the pickle in `data` describes; DataError that names the opcode if that is not plain data.

    >>> read("labels", b"(dp0\\nS'x'\\np1\\n(lp2\\nI1\\naI2\\nas.")
    {b'x': [1, 2]}
    >>> read("evil", b"cos\\nsystem\\n(S'true'\\ntR.")
    Traceback (most recent call last):
    fedcodist.errors.DataError: evil: got the name os.system at byte 0; allowed plain data, and arrays of numpy (it was not run)
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes in a string of the file, which the user cannot change
        return _run(where, data)


def _run(where: str, data: bytes | bytearray) -> Any:
    machine = _Machine(where, data)
    file = io.BytesIO(data)
    while True:
        machine.at = file.tell()
        code = file.read(1)
        if not code:
            raise data_error(where, f"no end of the pickle in {len(data)} bytes", "a whole file", "truncated?")
        opcode = OPCODES.get(code.decode("latin-1"))
        if opcode is None:
            raise data_error(where, f"byte {code!r} at byte {machine.at}, which is no opcode", "a pickle")
        try:
            if opcode.name == "STOP":
                (value,) = machine.stack
                break
            machine.step(opcode, file)
        except DataError:
            raise
        except BROKEN as error:
            raise data_error(where, f"opcode {opcode.name} at byte {machine.at} without what it needs", "a whole pickle") from error
    machine.check_plain(value)
    return value.array if isinstance(value, _Array) else value


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self, where: str, data: bytes | bytearray):
        self.where, self.view, self.at = where, memoryview(data).toreadonly(), 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def refuse(self, what: str, hint: str = "it was not run") -> DataError:
        return data_error(self.where, f"{what} at byte {self.at}", "plain data, and arrays of numpy", hint)

    def step(self, opcode: pickletools.OpcodeInfo, file: io.BytesIO) -> None:
        name, stack = opcode.name, self.stack
        if name in STRINGS or name in TEXTS:
            stack.append(self.string(name, file))
            return
        argument: Any = opcode.arg.reader(file) if opcode.arg else None
        if name in VALUES:
            stack.append(argument)
        elif name == "STRING":
            stack.append(argument.encode("latin-1"))  # Python 2 text is bytes
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in PUTS or name == "MEMOIZE":
            self.put(len(self.memo) if name == "MEMOIZE" else argument)
        elif name in GETS:
            stack.append(_filled(self.memo[argument]))
        elif name == "MARK":
            stack.append(_Mark())
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name in ("LIST", "TUPLE"):
            items = self.items()
            stack.append(items if name == "LIST" else tuple(items))
        elif name in TUPLES:
            count = TUPLES[name]
            items = [self.pop() for _ in range(count)][::-1]
            stack.append(tuple(items))
        elif name == "DICT":
            items = self.items()
            stack.append({})
            self.set_items(items)
        elif name in ("APPEND", "APPENDS"):
            items = [self.pop()] if name == "APPEND" else self.items()
            self.top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [self.pop(), self.pop()][::-1] if name == "SETITEM" else self.items()
            self.set_items(items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            pair = tuple(argument.split(" ", 1)) if name == "GLOBAL" else (self.pop(), self.pop())[::-1]
            if pair not in NAMES:
                raise self.refuse(f"the name {'.'.join(map(str, pair))[:80]}")
            stack.append(NAMES[pair])
        elif name == "REDUCE":
            arguments, called = self.pop(), self.pop()
            stack.append(self.reduce(called, arguments))
        elif name == "BUILD":
            state = self.pop()
            self.stack[-1] = self.build(self.stack[-1], state)
        elif name == "PROTO":
            if argument > 4:
                raise self.refuse(f"protocol {argument}", "protocols 0 to 4 are read")
        elif name == "POP":
            self.pop()
        elif name != "FRAME":  # a frame is only a hint for reading ahead
            raise self.refuse(f"opcode {name}")

    def string(self, name: str, file: io.BytesIO) -> Any:
        width = STRINGS.get(name) or TEXTS[name]
        size = int.from_bytes(file.read(width), "little")
        start = file.tell()
        if size > len(self.view) - start:
            raise data_error(
                self.where, f"a string of {size} bytes at byte {self.at}", f"at most the {len(self.view) - start} that follow", "truncated?"
            )
        file.seek(size, io.SEEK_CUR)
        view = self.view[start : start + size]
        if name in TEXTS:
            return str(view, "utf-8", "surrogatepass")
        return bytes(view) if size <= LONGEST else view

    def pop(self) -> Any:
        value = self.stack.pop()
        if isinstance(value, _Mark):
            raise IndexError
        return value

    def items(self) -> list[Any]:
        """Pop all items above the last mark."""
        items: list[Any] = []
        while not isinstance(value := self.stack.pop(), _Mark):
            items.append(value)
        return items[::-1]

    def top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise IndexError
        return self.stack[-1]

    def put(self, index: int) -> None:
        # Keys below the size of the file cannot be chosen so that their hashes collide.
        if not 0 <= index <= len(self.view) or isinstance(self.stack[-1], _Mark):
            raise self.refuse(f"place {show(index)} of the memory")
        self.memo[index] = self.stack[-1]

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, bytes):  # other hashes may be slow, or be made to collide
                raise self.refuse(f"a key of type {type(key).__name__.strip('_')}", "keys are strings")
            target[key] = value

    def reduce(self, called: Any, arguments: Any) -> Any:
        match called, arguments:
            case _Name.ENCODE, (str() as text, "latin1" | "latin-1" | b"latin1" | b"latin-1"):
                raw = text.encode("latin-1")
                return raw if len(raw) <= LONGEST else memoryview(raw)
            case _Name.DTYPE, (str() | bytes() as code, 0 | 1, 0 | 1):
                text = code.decode("latin-1") if isinstance(code, bytes) else code
                if text in DTYPES:
                    return _Dtype(DTYPES[text])
                raise self.refuse(f"an array of {show(text)}", "uint8 and int64 are read")
            case _Name.RECONSTRUCT, (_Name.NDARRAY, (0,), "b" | b"b"):
                return _Array()
        raise self.refuse("opcode REDUCE, a call,")

    def build(self, target: Any, state: Any) -> Any:
        match target, state:
            case _Dtype(), (3 | 4, "|" | "<" | b"|" | b"<", None, None, None, -1, -1, 0):
                return target
            case _Array(array=None), (1, tuple() as shape, _Dtype() as kind, 0 | 1 as fortran, bytes() | memoryview() as raw):
                if (
                    not all(type(n) is int and n >= 0 for n in shape)
                    or math.prod(shape) * kind.dtype.itemsize != len(raw)
                    or len(shape) > 32
                ):
                    raise data_error(
                        self.where, f"an array of {len(raw)} bytes at byte {self.at}", f"{kind.dtype.itemsize} * {show(list(shape))} bytes"
                    )
                flat = np.frombuffer(raw, kind.dtype)
                target.array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
                return target.array
        raise self.refuse("opcode BUILD on something that is no array,")

    def check_plain(self, value: Any) -> None:
        """DataError if a value contains anything but plain data, or is nested too deeply; each object is visited once."""
        level, seen = [value], {id(value)}
        for _ in range(MOST_DEPTH):
            below: list[Any] = []
            for item in level:
                if isinstance(item, memoryview):
                    raise data_error(self.where, f"a string of {len(item)} bytes", f"at most {LONGEST}, but for arrays")
                if isinstance(item, _Dtype | _Name | _Mark) or (isinstance(item, _Array) and item.array is None):
                    raise data_error(
                        self.where, f"something unfinished ({type(item).__name__.strip('_').lower()})", "plain data, and whole arrays"
                    )
                if isinstance(item, dict | list | tuple):
                    inside = item.values() if isinstance(item, dict) else item
                    below += [
                        x for x in inside if not isinstance(x, int | float | str | bytes | None) and not (id(x) in seen or seen.add(id(x)))
                    ]
            if not below:
                return
            level = below
        raise data_error(self.where, f"more than {MOST_DEPTH} levels of lists", f"at most {MOST_DEPTH}")


def _filled(value: Any) -> Any:
    return value.array if isinstance(value, _Array) and value.array is not None else value
