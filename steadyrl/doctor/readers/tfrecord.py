"""TFRecord files: length, checksum of the length, data, checksum of the data, again and again.

The checksum of the data is not computed: in plain Python it would take longer than all the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from steadyrl.doctor.readers.lines import MAX_LINE

HEADER = 12  # bytes: a length and its checksum
MASK = 0xFFFFFFFF


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


CRC32C_TABLE = _crc32c_table()


def is_header(header: bytes) -> bool:
    """Return whether the checksum of a record's length is right (CRC-32C, rotated and shifted)."""
    crc = MASK
    for byte in header[:8]:
        crc = crc >> 8 ^ CRC32C_TABLE[(crc ^ byte) & 0xFF]
    crc ^= MASK
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & MASK == int.from_bytes(header[8:HEADER], "little")


class Records:
    """The data of each record of a file, in order; large ones, such as graphs and images, are passed over.

    Attributes:
        damage: What is wrong with the file, "" if nothing was found so far.
    """

    def __init__(self, path: Path, first_byte: bytes):
        """Look at a file.

        Args:
            path: Of the file.
            first_byte: Of the data of every record: tells data behind a wrong checksum from a lost place in the file.
        """
        self.path = path
        self.damage = ""
        self._first_byte = first_byte

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = 0
            while len(header := file.read(HEADER)) == HEADER:
                length = int.from_bytes(header[:8], "little")
                if length > size - at - HEADER - 4:
                    break
                if length > MAX_LINE:
                    file.seek(length + 4, os.SEEK_CUR)
                else:
                    data = file.read(length + 4)[:length]
                    if not is_header(header) and data[:1] != self._first_byte:
                        break
                    yield data
                at += HEADER + length + 4
            if at < size:
                self.damage = f"'{self.path.name}' is torn or damaged at byte {at} of {size}; the rest is left out"
