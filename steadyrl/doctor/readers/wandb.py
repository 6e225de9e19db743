"""The ``.wandb`` file of a W&B run, as offline runs leave it, without wandb installed.

The file is a log of LevelDB: after seven bytes of its own, blocks of 32 KiB with records that have a checksum, a length
and a type; a record that crosses a block is cut into a first, middle and last piece. Each record is a protocol buffer.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steadyrl.doctor.readers.lines import MAX_LINE, parse_json
from steadyrl.doctor.readers.protobuf import BYTES, fields, real, zigzag
from steadyrl.doctor.readers.rows import TRACKER_STEP_KEYS, Rows
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.series import RawLog

MAGIC = b":W&B"
FILE_HEADER, BLOCK, HEADER = 7, 32 * 1024, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
CHUNK = 4096

# Fields of the messages, from wandb/proto/wandb_internal.proto.
RECORD_HISTORY, RECORD_CONFIG, RECORD_RUN = 2, 5, 17
HISTORY_ITEM, CONFIG_UPDATE, RUN_CONFIG = 1, 1, 4
KEY, NESTED_KEY, JSON = 1, 2, (8, 16)
NONE, INTEGER, REAL = 3, 5, 6  # written since 0.31 where the value is no JSON


def read(path: Path) -> RawLog:
    """Read the history and the config of a run."""
    rows, settings = Rows(TRACKER_STEP_KEYS), dict[str, Any]()
    log, chunk, broken = RecordLog(path), list[dict[str, Any]](), 0
    for record in log:
        try:
            row = _read_record(record, settings)
        except ValueError:
            broken += 1
            continue
        if row:
            chunk.append(row)
        if len(chunk) == CHUNK:
            rows.add(chunk)
            chunk = []
    rows.add(chunk)
    settings.pop("_wandb", None)
    lost = log.damaged + broken
    notes = [f"places where the file is torn or damaged, left out: {lost}"] if lost else []
    return rows.log(str(path), "wandb", flat_settings(settings), notes)


class RecordLog:
    """The records of a LevelDB log.

    Attributes:
        damaged: In how many places the log was torn or damaged so far; reading goes on at the next block.
    """

    def __init__(self, path: Path):
        self.path = path
        self.damaged = 0

    def __iter__(self) -> Iterator[bytes]:
        parts: list[bytes] = []
        for kind, data in self._pieces():
            if kind in (FULL, FIRST):
                self.damaged += bool(parts)
                parts = [data]
            elif parts:
                parts.append(data)
            if kind in (FULL, LAST) and parts:
                yield b"".join(parts)
                parts = []
            elif sum(map(len, parts)) > MAX_LINE:
                parts = []
        self.damaged += bool(parts)

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            at = FILE_HEADER
            while block := file.read(BLOCK):
                while at + HEADER <= len(block):
                    size, kind = int.from_bytes(block[at + 4 : at + 6], "little"), block[at + 6]
                    end = at + HEADER + size
                    if zlib.crc32(block[at + 6 : end]) != int.from_bytes(block[at : at + 4], "little") or end > len(
                        block
                    ):
                        # What is left of a block without a record is filled with zeros.
                        self.damaged += any(block[at:])
                        break
                    yield kind, block[at + HEADER : end]
                    at = end
                at = 0


def _read_record(record: bytes, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a history record, empty for other records; puts the config into ``settings``."""
    row: dict[str, Any] = {}
    for number, kind, value in fields(record):
        if kind != BYTES or not isinstance(value, bytes):
            continue
        if number == RECORD_HISTORY:
            _read_items(value, HISTORY_ITEM, row)
        elif number == RECORD_CONFIG:
            _read_items(value, CONFIG_UPDATE, settings)
        elif number == RECORD_RUN:
            for inner, _, config in fields(value):
                if inner == RUN_CONFIG and isinstance(config, bytes):
                    _read_items(config, CONFIG_UPDATE, settings)
    return row


def _read_items(message: bytes, wanted: int, into: dict[str, Any]) -> None:
    for number, _, item in fields(message):
        if number != wanted or not isinstance(item, bytes):
            continue
        path, held = list[str](), None
        for inner, kind, value in fields(item):
            if inner in (KEY, NESTED_KEY) and isinstance(value, bytes):
                path.append(value.decode("utf-8", errors="replace"))
            else:
                held = _value(inner, kind, value)
        _put(into, path, held)


def _value(number: int, kind: int, value: int | bytes) -> Any:
    """Return the value of a field; "" for one that is no number and no JSON."""
    if isinstance(value, int):
        return zigzag(value) if number == INTEGER else ""
    if number in JSON:
        try:
            # Ten times as fast as parsing JSON, and most values are numbers.
            return int(value) if value.isdigit() else float(value)
        except ValueError:
            return parse_json(value)
    if number == REAL and len(value) == 8:
        return real(value)
    return None if number == NONE else ""


def _put(into: dict[str, Any], path: list[str], value: Any) -> None:
    """Put a value at a path of keys, where a longer path wins over a value in its way."""
    for key in path[:-1]:
        inner = into.get(key)
        if not isinstance(inner, dict):
            inner = into[key] = {}
        into = inner
    if path:
        into[path[-1]] = value
