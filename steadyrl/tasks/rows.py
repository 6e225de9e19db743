"""Reads the rows of a data set: JSON lines, parquet files, and folders that Hugging Face's ``datasets`` saved.

Parquet and Arrow files are read by pyarrow, the package under ``datasets``. A row is a plain dict, whatever it was
read from.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steadyrl.errors import DataError
from steadyrl.plugins import require
from steadyrl.tasks.jsonl import read_objects

_BATCH = 1024  # rows of a parquet file that are held as Python objects at once


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a file or a folder: where it stands (the file and the line or row, from 1), and its columns.

    A file is read by its ending: ``.parquet``, ``.arrow``, and JSON lines for everything else. Of a folder all parquet
    files are read in the order of their names, or, where there are none, all Arrow files.

    Raises:
        DataError: While iterating, if something cannot be read, or a folder holds nothing to read.
        MissingExtraError: pyarrow is needed and not installed.
    """
    for file in _files(path):
        what = "row"
        if file.suffix == ".parquet":
            rows = _parquet(file)
        elif file.suffix == ".arrow":
            rows = _arrow(file)
        else:
            what, rows = "line", read_objects(file)
        for number, row in rows:
            yield f"{file}, {what} {number}", row


def _files(path: Path) -> list[Path]:
    if not path.exists() and not path.suffix:
        raise DataError(
            f"there is no file or folder '{path}'; of a data set on the hub write a file first, as "
            "load_dataset(...).to_parquet('train.parquet') does"
        )
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.parquet")) or sorted(path.glob("*.arrow"))
    if found:
        return found
    inside = sorted(part.name for part in path.iterdir() if part.is_dir() and any(part.glob("*.arrow")))
    if inside:
        raise DataError(f"'{path}' holds the splits {', '.join(inside)}; name one of them, as in {path / inside[0]}")
    raise DataError(f"'{path}' is a folder without parquet or arrow files; expected some, or the path of a file")


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            yield from _numbered(path, file.iter_batches(batch_size=_BATCH))
    except (OSError, arrow.ArrowException) as error:
        raise _unreadable(path, error) from error


def _arrow(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    arrow = require("pyarrow")
    try:
        with arrow.memory_map(str(path)) as source, arrow.ipc.open_stream(source) as stream:
            yield from _numbered(path, stream)
    except (OSError, arrow.ArrowException) as error:
        raise _unreadable(path, error) from error


def _numbered(path: Path, batches: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    for batch in batches:
        for row in _dicts(path, batch):
            number += 1
            yield number, row


def _dicts(path: Path, batch: Any) -> list[dict[str, Any]]:
    columns: dict[str, list[Any]] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns[name] = column.to_pylist()
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"cannot read '{name}' of '{path}' ({error!s:.200}); expected values that Python can hold: convert the "
                "column or leave it out"
            ) from error
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _unreadable(path: Path, error: Exception) -> DataError:
    first_line = str(error).partition("\n")[0]
    return DataError(f"cannot read '{path}' ({first_line:.200}); expected a whole {path.suffix[1:]} file")
