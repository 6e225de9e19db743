"""TensorBoard event files: every scalar of a folder, with neither TensorFlow nor tensorboard installed.

Scalars are written as ``simple_value`` by torch and as a tensor of one number by TensorFlow 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.doctor.readers.columns import Points
from steadyrl.doctor.readers.lines import parse_json
from steadyrl.doctor.readers.protobuf import BYTES, FIXED32, FIXED64, VARINT, fields, real, signed, varint
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.readers.tfrecord import HEADER, Records, is_header
from steadyrl.doctor.series import RawLog

# Fields of the messages, from tensorflow/core: util/event.proto, framework/summary.proto, framework/tensor.proto; and
# tensorboard/plugins/hparams/plugin_data.proto.
EVENT_STEP, EVENT_SUMMARY, SUMMARY_VALUE = 2, 5, 1
VALUE_TAG, VALUE_SIMPLE, VALUE_TENSOR, VALUE_METADATA = 1, 2, 8, 9
TENSOR_DTYPE, TENSOR_CONTENT, TENSOR_STRING = 1, 4, 8
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
TENSOR_FLOATS = {5: "<f4", 6: "<f8"}
TENSOR_INTEGERS = (7, 10)
METADATA_PLUGIN, PLUGIN_CONTENT, HPARAMS_START, HPARAMS_MAP = 1, 2, 3, 1
# google.protobuf.Value as a hyperparameter: a number, a text or a bool.
SETTING_KINDS = {2: FIXED64, 3: BYTES, 4: VARINT}

ARGS_TAG = "args/text_summary"  # where Hugging Face's Trainer writes its arguments as JSON
EVENT_FIRST_BYTE = b"\x09"  # its time comes first


def is_events(head: bytes) -> bool:
    """Return whether a file that starts with these bytes is an event file."""
    return is_header(head[:HEADER]) and head[HEADER : HEADER + 1] == EVENT_FIRST_BYTE


def read(paths: Sequence[Path]) -> RawLog:
    """Read the event files of one folder, the older first: their names hold the time."""
    points, settings, notes = Points(), dict[str, Any](), list[str]()
    for path in sorted(paths):
        records, broken = Records(path, EVENT_FIRST_BYTE), 0
        for event in records:
            try:
                _read_event(event, points, settings)
            except ValueError:
                broken += 1
        if broken:
            notes.append(f"records of '{path.name}' left out, for they are no events: {broken}")
        if records.damage:
            notes.append(records.damage)
    name = paths[0] if len(paths) == 1 else paths[0].parent
    return points.log(str(name), "tensorboard", settings, notes)


def _read_event(event: bytes, points: Points, settings: dict[str, Any]) -> None:
    step, summaries = 0, []
    for number, kind, value in fields(event):
        if number == EVENT_STEP and isinstance(value, int):
            step = signed(value)
        elif number == EVENT_SUMMARY and kind == BYTES and isinstance(value, bytes):
            summaries.append(value)
    for message in _inside(summaries, (SUMMARY_VALUE,)):
        _read_value(message, step, points, settings)


def _read_value(message: bytes, step: int, points: Points, settings: dict[str, Any]) -> None:
    held: dict[int, bytes] = {VALUE_TAG: b"", VALUE_TENSOR: b"", VALUE_METADATA: b""}
    scalar: float | None = None
    for number, kind, value in fields(message):
        if number == VALUE_SIMPLE and kind == FIXED32 and isinstance(value, bytes):
            scalar = real(value)
        elif kind == BYTES and isinstance(value, bytes):
            held[number] = value
    tag = _text(held[VALUE_TAG])
    if scalar is None and held[VALUE_TENSOR]:
        scalar = tensor_scalar(held[VALUE_TENSOR])
    if b"hparams" in held[VALUE_METADATA]:
        settings.update(_hparams(held[VALUE_METADATA]))
    elif scalar is not None and tag:
        points.add(tag, step, scalar)
    elif tag == ARGS_TAG:
        for text in _inside([held[VALUE_TENSOR]], (TENSOR_STRING,)):
            args = parse_json(text)
            settings.update(flat_settings(args) if isinstance(args, dict) else {})


def tensor_scalar(tensor: bytes) -> float | None:
    """Return the number of a TensorProto, or None if it holds none or several."""
    dtype, found = 0, list[float]()
    for number, _, value in fields(tensor):
        if number == TENSOR_DTYPE and isinstance(value, int):
            dtype = value
        elif number == TENSOR_CONTENT and isinstance(value, bytes) and dtype in DTYPES:
            found += _array(value, DTYPES[dtype])
        elif number in TENSOR_FLOATS and isinstance(value, bytes):
            found += _array(value, TENSOR_FLOATS[number])
        elif number in TENSOR_INTEGERS:
            found += [float(signed(value))] if isinstance(value, int) else _packed(value)
    return found[0] if len(found) == 1 and dtype in DTYPES else None


def _array(content: bytes, dtype: str) -> list[float]:
    """Return the numbers of an array, two at most: a scalar has one."""
    width = np.dtype(dtype).itemsize
    return [float(x) for x in np.frombuffer(content[: len(content) // width * width], dtype)[:2]]


def _packed(content: bytes) -> list[float]:
    """Return the packed integers of an array, two at most."""
    found, at = list[float](), 0
    while at < len(content) and len(found) < 2:
        value, at = varint(content, at)
        found.append(float(signed(value)))
    return found


def _hparams(metadata: bytes) -> dict[str, Any]:
    """Return the hyperparameters that ``SummaryWriter.add_hparams`` puts into the metadata of a summary."""
    found: dict[str, Any] = {}
    for entry in _inside([metadata], (METADATA_PLUGIN, PLUGIN_CONTENT, HPARAMS_START, HPARAMS_MAP)):
        pair = {number: value for number, _, value in fields(entry)}
        name, setting = pair.get(1), pair.get(2)
        if not isinstance(name, bytes) or not isinstance(setting, bytes):
            continue
        for number, kind, value in fields(setting):
            if SETTING_KINDS.get(number) == kind:
                found[_text(name)] = _setting(kind, value)
    return found


def _setting(kind: int, value: int | bytes) -> Any:
    if isinstance(value, int):
        return bool(value)
    return real(value) if kind == FIXED64 else _text(value)


def _inside(messages: list[bytes], path: Sequence[int]) -> list[bytes]:
    """Return the messages that are found by following field numbers downwards."""
    for wanted in path:
        parts = [part for message in messages for part in fields(message)]
        messages = [value for number, _, value in parts if number == wanted and isinstance(value, bytes)]
    return messages


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")
