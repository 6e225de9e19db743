"""Plain values as one line of JSON, and back: all that a jailed process can say.

Numbers, text, bytes, None, the built-in types and containers travel; of everything else only the name of its type does.
On the wire a value is None, a bool, a number, text, or a list whose first item names its kind: ["set", 1, 2]. A line
has no JSON objects at all. So whoever reads one hashes nothing that its sender chose, and reading takes time in
proportion to its length: values that a candidate chose are compared on the wire, and rebuilt nowhere but in a jail.
Runs inside the jail too: nothing but the standard library.
"""

from __future__ import annotations

import builtins
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 100  # containers in containers; far below what recursion allows on any interpreter
# JSON readers refuse integers of more than 4300 digits, and are slow below that; hexadecimal is linear.
_JSON_INT = 2**63
_TYPES = {name: value for name, value in vars(builtins).items() if isinstance(value, type)} | {"NoneType": type(None)}
_CONTAINERS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_HEX_INT, _HEX_BYTES = re.compile(r"-?0x[0-9a-f]+"), re.compile(r"(?:[0-9a-f]{2})*")
_ODD_FLOATS = [["float", "nan"], ["float", "inf"], ["float", "-inf"]]
_BRACKETS = {"list": "[]", "tuple": "()", "dict": ("{", "}"), "set": ("{", "}"), "frozenset": ("{", "}")}


@dataclass(frozen=True)
class Opaque:
    """Stands for a value that is not plain; it equals nothing, itself included."""

    type_name: str

    def __eq__(self, value: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]  # equal to nothing, so it must not be found in a set either


class Reference:
    """Refers to the value of an earlier step, which stays in the process that has it."""

    def __init__(self, number: int):
        object.__setattr__(self, "number", number)  # subclasses have other uses for attributes


def line(value: Any) -> bytes:
    """Return nested lists of JSON values as a line without a brace, which would be the mark of an object."""
    return json.dumps(value).replace("{", "\\u007b").encode() + b"\n"


def read_line(data: bytes) -> Any:
    """Return what ``line`` was given.

    Raises:
        ValueError, RecursionError: It is no such line.
    """
    if b"{" in data:
        raise ValueError("a brace")
    return json.loads(data.decode("ascii"))


def encode(value: Any, room: int = MAX_DEPTH) -> Any:
    """Return the wire form of a value.

    Args:
        value: Any object.
        room: How many containers deep it may be.

    Raises:
        ValueError: It is nested more deeply, or contains itself.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -_JSON_INT < value < _JSON_INT else ["int", hex(value)]
    if isinstance(value, float):
        return _encode_float(float(value))
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list | tuple | set | frozenset | dict):
        if room == 0:
            raise ValueError(f"a value is nested more than {MAX_DEPTH} deep")
        if isinstance(value, dict):
            return ["dict", *(encode(part, room - 1) for pair in dict.items(value) for part in pair)]
        kind: Any = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
        return [kind.__name__, *(encode(item, room - 1) for item in kind.__iter__(value))]
    if isinstance(value, bytes | bytearray):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, complex):
        return ["complex", _encode_float(value.real), _encode_float(value.imag)]
    if isinstance(value, Reference):
        return ["reference", object.__getattribute__(value, "number")]
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return ["type", value.__name__]
    return ["opaque", type(value).__name__]


def _encode_float(value: float) -> Any:
    return value if math.isfinite(value) else ["float", repr(value)]


def decode(wire: Any, results: Sequence[Any] = ()) -> Any:
    """Return the value of a wire form. Only for a jail, or for what nobody hostile has written: it hashes.

    Args:
        wire: What ``encode`` returned.
        results: What the steps so far gave, for values that mean one of them.

    Raises:
        TypeError: A set or the keys of a dict hold what cannot be hashed.
    """
    if not isinstance(wire, list):
        return wire
    kind, body = wire[0], wire[1:]
    if kind in _CONTAINERS:
        return _CONTAINERS[kind]([decode(item, results) for item in body])
    match kind:
        case "dict":
            return {
                decode(key, results): decode(item, results) for key, item in zip(body[::2], body[1::2], strict=True)
            }
        case "reference":
            return results[body[0]]
        case "bytes":
            return bytes.fromhex(body[0])
        case "type":
            return _TYPES[body[0]]
        case "opaque":
            return Opaque(body[0])
    return number(wire)


def check(wire: Any, room: int = MAX_DEPTH) -> None:
    """Check that a wire form is one that a candidate may send.

    Raises:
        ValueError: It is none, or nested too deeply.
    """
    if not isinstance(wire, list):
        return
    match wire:
        case ["list" | "tuple" | "set" | "frozenset" | "dict" as kind, *body]:
            if room == 0:
                raise ValueError(f"a value is nested more than {MAX_DEPTH} deep")
            if kind == "dict" and len(body) % 2:
                raise ValueError("a key without a value")
            for part in body:
                check(part, room - 1)
            return
        case ["int", str(text)] if _HEX_INT.fullmatch(text):
            return
        case ["bytes", str(text)] if _HEX_BYTES.fullmatch(text):
            return
        case ["float", _] if wire in _ODD_FLOATS:
            return
        case ["complex", real, imaginary] if _is_float(real) and _is_float(imaginary):
            return
        case ["type", str(name)] if name in _TYPES:
            return
        case ["opaque", str()]:
            return
    raise ValueError("no plain value")


def _is_float(wire: Any) -> bool:
    return isinstance(wire, float) or wire in _ODD_FLOATS


def number(wire: Any) -> int | float | complex | None:
    """Return the number that a checked wire form stands for, None where it is none."""
    match wire:
        case int() | float():
            return wire
        case ["int", text]:
            return int(text, 16)
        case ["float", text]:
            return float(text)
        case ["complex", real, imaginary]:
            real_number, imaginary_number = number(real), number(imaginary)
            assert isinstance(real_number, float) and isinstance(imaginary_number, float), "checked before"
            return complex(real_number, imaginary_number)
    return None


def same(wire: Any, expected: Any, tolerance: float = 1e-9) -> bool:
    """Compare as ``==`` does, but floats by relative tolerance (absolute below 1) and NaN equal to itself.

    Only values of ``expected`` are hashed; the time is linear in the length of both, sorting sets within sets apart.

    Args:
        wire: The checked wire form of a value that a candidate chose.
        expected: A plain value of a problem's author.
        tolerance: Of floats.
    """
    if isinstance(expected, bool | int | float | complex):
        numeric = number(wire)
        return numeric is not None and _close(numeric, expected, tolerance)
    if expected is None or isinstance(expected, str):
        return wire is None if expected is None else isinstance(wire, str) and wire == expected
    if not isinstance(wire, list):
        return False
    kind, body = wire[0], wire[1:]
    if isinstance(expected, list | tuple):
        return (
            kind == type(expected).__name__
            and len(body) == len(expected)
            and all(same(a, b, tolerance) for a, b in zip(body, expected, strict=True))
        )
    if isinstance(expected, dict):
        if kind != "dict" or len(body) != 2 * len(expected):
            return False
        right = {_key(encode(key)): item for key, item in expected.items()}
        left = {_key(key): item for key, item in zip(body[::2], body[1::2], strict=True)}
        return left.keys() == right.keys() and all(same(left[key], right[key], tolerance) for key in right)
    if isinstance(expected, set | frozenset):
        # Every one that is expected has to be there: a sender may well repeat one.
        keys = {_key(encode(item)) for item in expected}
        return kind in ("set", "frozenset") and len(body) == len(keys) and set(map(_key, body)) == keys
    return kind == "bytes" and isinstance(expected, bytes | bytearray) and body == [bytes(expected).hex()]


def _key(wire: Any) -> str:
    """Return a text that two wire forms share exactly if the values are equal as keys: 1, 1.0 and True are."""
    numeric = number(wire)
    if numeric is not None:
        return _number_key(numeric)
    if not isinstance(wire, list):
        return json.dumps(wire)
    kind, keys = wire[0], [_key(item) for item in wire[1:]]
    if kind in ("set", "frozenset"):
        kind, keys = "set", sorted(keys)
    return f"[{kind} {','.join(keys)}]"


def _number_key(value: int | float | complex) -> str:
    if isinstance(value, complex):
        real = _number_key(value.real)
        return real if value.imag == 0 else f"({real} {_number_key(value.imag)})"
    if isinstance(value, float) and not value.is_integer():
        return repr(value)
    return hex(int(value))


def _close(actual: int | float | complex, expected: int | float | complex, tolerance: float) -> bool:
    if isinstance(actual, complex) or isinstance(expected, complex) or actual == expected:
        return actual == expected
    if not isinstance(actual, float) and not isinstance(expected, float):
        return False
    try:
        if math.isnan(expected) or math.isnan(actual):
            return math.isnan(expected) and math.isnan(actual)
        return math.isfinite(actual) and abs(actual - expected) <= tolerance * max(1.0, abs(expected))
    except OverflowError:  # an integer too large for a float is close to none
        return False


def short_repr(wire: Any, room: int = 60) -> str:
    """Return a checked wire form as a reader would write the value, cut to so many characters."""
    text = _repr(wire, room)
    return text if len(text) <= room else f"{text[: room - 3]}..."


def _repr(wire: Any, room: int) -> str:
    match wire:
        case ["list" | "tuple" | "set" | "frozenset" | "dict" as kind, *body]:
            return _container_repr(kind, body, room)
        case ["int", text]:
            return f"an integer of {int(text, 16).bit_length()} bits"  # writing it in decimal may be refused
        case ["bytes", text]:
            return repr(bytes.fromhex(text[: 2 * room]))
        case ["type", name]:
            return str(name)
        case ["opaque", name]:
            return f"an object of type {name[:room]!r}"
    numeric = number(wire)
    return repr(wire[:room]) if isinstance(wire, str) else repr(wire if numeric is None else numeric)


def _container_repr(kind: str, body: Sequence[Any], room: int) -> str:
    opening, closing = _BRACKETS[kind]
    text = opening
    for index, item in enumerate(body):
        if len(text) > room:
            return text
        text += ("" if index == 0 else ": " if kind == "dict" and index % 2 else ", ") + _repr(item, room - len(text))
    return text + ("," if kind == "tuple" and len(body) == 1 else "") + closing
