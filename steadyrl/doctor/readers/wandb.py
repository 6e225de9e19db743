"""The ``.wandb`` file of a W&B run, as offline runs leave it, without wandb installed.

The file is a log of LevelDB: after seven bytes of its own, blocks of 32 KiB with records that have a checksum, a length
and a type; a record that crosses a block is cut into a first, middle and last piece. Each record is a protocol buffer.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.lines import MAX_LINE, parse_json, text_of
from steadyrl.doctor.readers.protobuf import Message
from steadyrl.doctor.readers.rows import TRACKER_STEP_KEYS, Rows
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.series import RawLog

MAGIC = b":W&B"
FILE_HEADER, BLOCK, HEADER = 7, 32 * 1024, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

# Fields of the messages, from wandb/proto/wandb_internal.proto.
HISTORY = (2, 1)  # a record, its items
CONFIGS = ((5, 1), (17, 4, 1))  # of a change of the config, and of the start of a run
KEY, NESTED_KEY, JSON = 1, 2, (8, 16)
NONE, INTEGER, REAL = 3, 5, 6  # written since 0.31 where the value is no JSON


def read(path: Path) -> RawLog:
    """Read the history and the config of a run."""
    rows, settings, damage = Rows(TRACKER_STEP_KEYS), dict[str, Any](), list[str]()
    for record in _records(path, damage):
        row: dict[str, Any] = {}
        try:
            message = Message(record)
            for item in message.inside(*HISTORY):
                _put(row, item)
            for item in (item for fields in CONFIGS for item in message.inside(*fields)):
                _put(settings, item)
        except ValueError as error:
            damage.append(str(error))
        else:
            if row:
                rows.put(row)
    settings.pop("_wandb", None)
    notes = [f"places where the file is torn or damaged, left out: {len(damage)}"] if damage else []
    return rows.log(str(path), "wandb", flat_settings(settings), notes)


def _records(path: Path, damage: list[str]) -> Iterator[bytes]:
    """Yield the records of a LevelDB log, and put into ``damage`` what is torn; reading goes on at the next block."""
    pieces: list[bytes] = []
    for kind, data in _pieces(path, damage):
        if kind in (FULL, FIRST):
            damage += ["a record without its end"] if pieces else []
            pieces = [data]
        elif pieces:
            pieces.append(data)
        if kind in (FULL, LAST) and pieces:
            yield b"".join(pieces)
            pieces = []
        elif sum(map(len, pieces)) > MAX_LINE:
            pieces = []
    damage += ["a record without its end"] if pieces else []


def _pieces(path: Path, damage: list[str]) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        offset = FILE_HEADER
        while block := file.read(BLOCK):
            while offset + HEADER <= len(block):
                size, kind = int.from_bytes(block[offset + 4 : offset + 6], "little"), block[offset + 6]
                end = offset + HEADER + size
                is_intact = zlib.crc32(block[offset + 6 : end]) == int.from_bytes(block[offset : offset + 4], "little")
                if not is_intact or end > len(block):
                    # What is left of a block without a record is filled with zeros.
                    damage += ["a wrong checksum"] if any(block[offset:]) else []
                    break
                yield kind, block[offset + HEADER : end]
                offset = end
            offset = 0


def _put(target: dict[str, Any], item: Message) -> None:
    """Put the value of an item at its path of keys, where a longer path wins over a value in its way."""
    path = [text_of(key) for number in (KEY, NESTED_KEY) for key in item.payloads(number)]
    for key in path[:-1]:
        inner = target.get(key)
        if not isinstance(inner, dict):
            inner = target[key] = {}
        target = inner
    if path:
        target[path[-1]] = _value(item)


def _value(item: Message) -> Any:
    """Return the value of an item; "" for one that is no number and no JSON."""
    json_text = next((item.payload(number) for number in JSON if number in item), None)
    if json_text is not None:
        return parse_json(json_text)
    if INTEGER in item:
        number = (item.integers(INTEGER) or [0])[-1]
        return (number >> 1) ^ -(number & 1)  # as sint64 is written
    return item.real(REAL) if REAL in item else None if NONE in item else ""
