"""TensorBoard event files: every scalar of a folder, with neither TensorFlow nor tensorboard installed.

A file is a row of records: length, checksum of the length, data, checksum of the data. The checksums are not computed:
in plain Python that would take longer than all the rest. Scalars are written as ``simple_value`` by torch and as a
tensor of one number by TensorFlow 2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steadyrl.doctor.readers.lines import MAX_LINE, parse_json
from steadyrl.doctor.readers.protobuf import Message
from steadyrl.doctor.readers.rows import POINT, Rows
from steadyrl.doctor.readers.spelling import flat_settings
from steadyrl.doctor.series import RawLog

MAGIC = b"brain.Event:"  # in the first event of each file
HEADER, FOOTER = 12, 4  # bytes around the data
FIRST_BYTE = b"\x09"  # of the data of every record: its time comes first
# Fields of the messages, from tensorflow/core: util/event.proto, framework/summary.proto, framework/tensor.proto; and
# tensorboard/plugins/hparams/plugin_data.proto.
EVENT_STEP, EVENT_SUMMARY, SUMMARY_VALUE = 2, 5, 1
VALUE_TAG, VALUE_SIMPLE, VALUE_TENSOR, VALUE_METADATA = 1, 2, 8, 9
TENSOR_DTYPE, TENSOR_CONTENT, TENSOR_STRING = 1, 4, 8
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
TENSOR_FLOATS = {5: "<f4", 6: "<f8"}
TENSOR_INTEGERS = (7, 10)
HPARAMS = (1, 2, 3, 1)  # metadata, plugin, its content, the start of a session, its map of hyperparameters
NUMBER, TEXT, FLAG = 2, 3, 4  # of google.protobuf.Value

ARGS_TAG = "args/text_summary"  # where Hugging Face's Trainer writes its arguments as JSON


def read(paths: Sequence[Path]) -> RawLog:
    """Read the event files of one folder, the older first: their names hold the time."""
    rows, settings, notes = Rows((POINT,)), dict[str, Any](), list[str]()
    for path in sorted(paths):
        broken = 0
        for record in _records(path, notes):
            try:
                event = Message(record)
                step = (event.integers(EVENT_STEP) or [0])[-1]
                for value in event.inside(EVENT_SUMMARY, SUMMARY_VALUE):
                    _read_value(value, step, rows, settings)
            except ValueError:
                broken += 1
        if broken:
            notes.append(f"records of '{path.name}' left out, for they are no events: {broken}")
    name = paths[0] if len(paths) == 1 else paths[0].parent
    return rows.log(str(name), "tensorboard", settings, notes)


def _records(path: Path, notes: list[str]) -> Iterator[bytes]:
    """Yield the data of each record of a file; large ones, such as graphs and images, are passed over."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = 0
        while len(header := file.read(HEADER)) == HEADER:
            length = int.from_bytes(header[:8], "little")
            if length > size - offset - HEADER - FOOTER:
                break
            if length > MAX_LINE:
                file.seek(length + FOOTER, os.SEEK_CUR)
            else:
                data = file.read(length + FOOTER)[:length]
                if data[:1] != FIRST_BYTE:
                    break
                yield data
            offset += HEADER + length + FOOTER
        if offset < size:
            notes.append(f"'{path.name}' is torn or damaged at byte {offset} of {size}; the rest is left out")


def _read_value(value: Message, step: int, rows: Rows, settings: dict[str, Any]) -> None:
    tag, metadata, tensors = value.text(VALUE_TAG), value.payload(VALUE_METADATA), value.inside(VALUE_TENSOR)
    scalar = value.real(VALUE_SIMPLE)
    if scalar is None and tensors:
        scalar = _scalar(tensors[-1])
    if b"hparams" in metadata:
        settings.update(_hparams(Message(metadata)))
    elif scalar is not None and tag:
        rows.put({POINT: step, tag: scalar})
    elif tag == ARGS_TAG and tensors:
        for text in tensors[-1].payloads(TENSOR_STRING):
            args = parse_json(text)
            settings.update(flat_settings(args) if isinstance(args, dict) else {})


def _scalar(tensor: Message) -> float | None:
    """Return the number of a TensorProto, or None if it holds none or several."""
    dtype = DTYPES.get((tensor.integers(TENSOR_DTYPE) or [0])[-1])
    if dtype is None:
        return None
    arrays = [(dtype, payload) for payload in tensor.payloads(TENSOR_CONTENT)]
    arrays += [(kind, payload) for field, kind in TENSOR_FLOATS.items() for payload in tensor.payloads(field)]
    numbers = [number for field in TENSOR_INTEGERS for number in tensor.integers(field)]
    for kind, payload in arrays:
        aligned = payload[: len(payload) - len(payload) % np.dtype(kind).itemsize]
        numbers += np.frombuffer(aligned, kind)[:2].tolist()  # two are enough to see that it is no scalar
    return float(numbers[0]) if len(numbers) == 1 else None


def _hparams(metadata: Message) -> dict[str, Any]:
    """Return the hyperparameters that ``SummaryWriter.add_hparams`` puts into the metadata of a summary."""
    hparams: dict[str, Any] = {}
    for pair in metadata.inside(*HPARAMS):
        for value in pair.inside(2):
            if (number := value.real(NUMBER)) is not None:
                hparams[pair.text(1)] = number
            elif TEXT in value:
                hparams[pair.text(1)] = value.text(TEXT)
            elif FLAG in value:
                hparams[pair.text(1)] = any(value.integers(FLAG))
    return hparams
