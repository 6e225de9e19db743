"""Reads the rows of data files: JSON lines and lists, CSV, parquet, and the Arrow files that ``datasets`` saved.

Parquet, Arrow and CSV files are read by pyarrow, the package under ``datasets``. A row is a plain dict, whatever it was
read from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from steadyrl.core.errors import DataError
from steadyrl.core.plugins import require
from steadyrl.core.rundir import parse_json
from steadyrl.loop.tasks.data_files import kind_of_file
from steadyrl.loop.tasks.jsonl import kind_of, read_lines, read_objects, refuse_constant

_BATCH = 1024  # rows of a parquet file that are held as Python objects at once


def read_rows(files: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of files: where each stands (the file and the line or row, from 1), and its columns.

    A file is read by its ending, see ``data_files.KINDS``; one of another ending as JSON lines.

    Raises:
        DataError: While iterating, if something cannot be read.
        MissingExtraError: pyarrow is needed and not installed.
    """
    readers = {"parquet": _parquet, "arrow": _arrow, "csv": _csv}
    for file in files:
        reader = readers.get(kind_of_file(file))
        what, rows = ("row", reader(file)) if reader else _json(file)
        for number, row in rows:
            yield f"{file}, {what} {number}", row


def _json(path: Path) -> tuple[str, Iterator[tuple[int, dict[str, Any]]]]:
    """Return what the rows of JSON are called, and the rows: the lines, or the items of one list."""
    first = next(read_lines(path), (1, ""))[1]
    if not path.name.lower().removesuffix(".gz").endswith(".json") or not first.lstrip().startswith("["):
        return "line", read_objects(path)
    return "item", _items(path)


def _items(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        items = parse_json("\n".join(line for _, line in read_lines(path)), parse_constant=refuse_constant)
    except ValueError as error:
        raise DataError(
            f"{path}: not valid JSON ({error}); expected one list of objects, or an object per line"
        ) from error
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise DataError(f"{path}, item {number}: got {kind_of(item)}; expected a JSON object, as in {{...}}")
        yield number, item


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    arrow, csv = require("pyarrow"), require("pyarrow.csv")
    tabs = ".tsv" in path.name.lower()
    layout = csv.ParseOptions(delimiter="\t" if tabs else ",", newlines_in_values=True)
    try:
        table = csv.read_csv(path, parse_options=layout)
        # Whatever looks like a date stays a text, as it does in ``datasets``.
        texts = {field.name: arrow.string() for field in table.schema if arrow.types.is_temporal(field.type)}
        if texts:
            options = csv.ConvertOptions(column_types=texts)
            table = csv.read_csv(path, parse_options=layout, convert_options=options)
    except (OSError, arrow.ArrowException) as error:
        raise _unreadable(path, error) from error
    yield from _numbered(path, table.to_batches(max_chunksize=_BATCH))


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
    if isinstance(error, FileNotFoundError):
        return DataError(f"there is no file {path}; check the path")
    first_line = str(error).partition("\n")[0]
    return DataError(f"cannot read '{path}' ({first_line:.200}); expected a whole {path.suffix[1:]} file")
