"""The wire format of protocol buffers: the fields of a message, without its schema."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
MAX_VARINT_BITS = 64


def fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield number, wire type and value of each field: an int for a varint, else the bytes.

    Raises:
        ValueError: The message is torn or none.
    """
    at, end = 0, len(message)
    while at < end:
        key, at = varint(message, at)
        kind = key & 7
        if kind == VARINT:
            value, at = varint(message, at)
            yield key >> 3, kind, value
            continue
        if kind == BYTES:
            size, at = varint(message, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if size > end - at:
            raise ValueError(f"a field of {size} bytes where {end - at} are left")
        yield key >> 3, kind, message[at : at + size]
        at += size


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number that starts at a byte, and where it ends.

    Raises:
        ValueError: It is torn, or longer than 64 bits take.
    """
    value = 0
    for shift in range(0, MAX_VARINT_BITS + 1, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a torn number before byte {at}")


def signed(value: int) -> int:
    """Return a varint as the int64 that it stands for."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def zigzag(value: int) -> int:
    """Return a varint as the sint64 that it stands for."""
    return (value >> 1) ^ -(value & 1)


def real(value: bytes) -> float:
    """Return a fixed field of four or eight bytes as the float that it stands for."""
    return float(struct.unpack("<f" if len(value) == 4 else "<d", value)[0])
