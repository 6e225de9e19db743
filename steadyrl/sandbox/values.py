"""Plain values as one line of JSON, and back: all that a jailed process can say.

Numbers, text, bytes, None and the built-in containers travel; of everything else only the name of its type does. What
is rebuilt on the other side has exactly the built-in types, so that no ``__eq__`` of the sender takes part in a
comparison. Runs inside the jail too: nothing but the standard library.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

# JSON readers refuse integers of more than 4300 digits, and are slow below that; hexadecimal is linear.
_JSON_INT = 2**63


@dataclass(frozen=True)
class Opaque:
    """Stands for a value that is not plain; it equals nothing, itself included."""

    type_name: str

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]  # equal to nothing, so it must not be found in a set either


def dumps(value: object) -> str:
    """Return one line of ASCII for a value.

    Raises:
        RecursionError: It is nested too deeply, or contains itself.
    """
    return json.dumps(encode(value))


def loads(line: str | bytes) -> Any:
    """Return the value of a line, in built-in types only.

    Raises:
        ValueError: It is not what ``dumps`` writes.
    """
    try:
        return decode(json.loads(line))
    except (TypeError, KeyError, IndexError, RecursionError, AttributeError, OverflowError) as error:
        raise ValueError(f"no plain value: {type(error).__name__}") from error


def encode(value: Any) -> Any:
    """Return what JSON can hold: lists as they are, all else that JSON lacks as an object of one key."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -_JSON_INT < value < _JSON_INT else {"int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [encode(item) for item in list.__iter__(value)]
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in tuple.__iter__(value)]}
    if isinstance(value, set):
        return {"set": [encode(item) for item in set.__iter__(value)]}
    if isinstance(value, frozenset):
        return {"frozenset": [encode(item) for item in frozenset.__iter__(value)]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in dict.items(value)]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, complex):
        return {"complex": [repr(value.real), repr(value.imag)]}
    return {"opaque": type(value).__name__}


def decode(data: Any) -> Any:
    """Return the value that ``encode`` was given.

    Raises:
        ValueError, TypeError, KeyError: It is nothing that ``encode`` returns.
    """
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError("no plain value: expected one key")
    [(kind, body)] = data.items()
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](decode(item) for item in _listed(body))
    match kind:
        case "dict":
            return {decode(key): decode(item) for key, item in body}
        case "int":
            return int(body, 16)
        case "float":
            return float(body)
        case "bytes":
            return bytes.fromhex(body)
        case "complex":
            return complex(float(body[0]), float(body[1]))
        case "opaque":
            return Opaque(str(body))
    raise ValueError(f"no plain value: unknown kind {kind!r}")


_CONTAINERS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def _listed(body: Any) -> list[Any]:
    if not isinstance(body, list):
        raise ValueError("no plain value: expected a list")
    return body


def same(got: Any, expected: Any, tolerance: float = 1e-9) -> bool:
    """Compare as ``==`` does, but floats by relative tolerance (absolute below 1) and NaN equal to itself.

    Both must be plain values rebuilt by ``loads``.
    """
    try:
        return _same(got, expected, tolerance)
    except RecursionError:
        return False


def _same(got: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(got, float) or isinstance(expected, float):
        return _close(got, expected, tolerance)
    if isinstance(expected, list | tuple):
        return (
            type(got) is type(expected)
            and len(got) == len(expected)
            and all(_same(a, b, tolerance) for a, b in zip(got, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and got.keys() == expected.keys()
            and all(_same(got[key], expected[key], tolerance) for key in expected)
        )
    return bool(got == expected)


def _close(got: Any, expected: Any, tolerance: float) -> bool:
    if not isinstance(got, int | float) or not isinstance(expected, int | float):
        return bool(got == expected)
    if got == expected:
        return True
    try:
        if math.isnan(expected) or math.isnan(got):
            return math.isnan(expected) and math.isnan(got)
        return math.isfinite(got) and abs(got - expected) <= tolerance * max(1.0, abs(expected))
    except OverflowError:  # an integer too large for a float is close to none
        return False
