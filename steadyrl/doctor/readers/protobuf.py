"""The wire format of protocol buffers: the fields of a message by their numbers, without its schema."""

from __future__ import annotations

import struct

from steadyrl.doctor.readers.lines import text_of

VARINT, BYTES = 0, 2  # wire types; the others are of fixed size
SIZES = {1: 8, 5: 4}
MAX_VARINT_BITS = 64


class Message:
    """The fields of a message; of one that is there several times and asked for once the last counts.

    Raises:
        ValueError: It is torn, or no message.
    """

    def __init__(self, content: bytes):
        self._fields: dict[int, list[int | bytes]] = {}
        offset, end = 0, len(content)
        while offset < end:
            key, offset = varint(content, offset)
            value: int | bytes
            if key & 7 == VARINT:
                value, offset = varint(content, offset)
            else:
                size, offset = varint(content, offset) if key & 7 == BYTES else (SIZES.get(key & 7, end), offset)
                if size > end - offset:
                    raise ValueError(f"a field of {size} bytes where {end - offset} are left")
                value, offset = content[offset : offset + size], offset + size
            self._fields.setdefault(key >> 3, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def payloads(self, number: int) -> list[bytes]:
        """Return what a field holds that is no varint, each time that it is there."""
        return [value for value in self._fields.get(number, ()) if isinstance(value, bytes)]

    def integers(self, number: int) -> list[int]:
        """Return the varints of a field, packed or not, each as the int64 that it stands for."""
        varints = []
        for value in self._fields.get(number, ()):
            offset = 0
            while isinstance(value, bytes) and offset < len(value):
                integer, offset = varint(value, offset)
                varints.append(integer)
            varints += [value] if isinstance(value, int) else []
        # A negative int64 is written as its two's complement, an unsigned number of 64 bits.
        return [(integer & (1 << 64) - 1) - (integer >> 63 & 1) * (1 << 64) for integer in varints]

    def payload(self, number: int) -> bytes:
        """Return the last of ``payloads``; empty if there is none."""
        return (self.payloads(number) or [b""])[-1]

    def text(self, number: int) -> str:
        """Return the last of ``payloads`` as text."""
        return text_of(self.payload(number))

    def real(self, number: int) -> float | None:
        """Return the last of ``payloads`` as the float that it stands for, or None if it is none."""
        value = self.payload(number)
        layout = {4: "<f", 8: "<d"}.get(len(value))
        return float(struct.unpack(layout, value)[0]) if layout else None

    def inside(self, *path: int) -> list[Message]:
        """Return the messages that are found by following field numbers downwards."""
        messages = [self]
        for number in path:
            messages = [Message(payload) for message in messages for payload in message.payloads(number)]
        return messages


def varint(content: bytes, offset: int) -> tuple[int, int]:
    """Return the unsigned number that starts at a byte, and where it ends.

    Raises:
        ValueError: It is torn, or longer than 64 bits take.
    """
    value = 0
    for shift in range(0, MAX_VARINT_BITS + 1, 7):
        if offset >= len(content):
            break
        byte = content[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise ValueError(f"a torn number before byte {offset}")
