"""Reads the rows of data files: JSON lines and lists, CSV, parquet, and the Arrow files that ``datasets`` saved.

Parquet, Arrow and CSV files are read by pyarrow, the package under ``datasets``. A row is a plain dict, whatever it was
read from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from steadyrl.core.errors import DataError
from steadyrl.core.places import from_here
from steadyrl.core.plugins import require
from steadyrl.core.rundir import is_lfs_pointer, parse_json
from steadyrl.loop.tasks.data_files import kind_of_file
from steadyrl.loop.tasks.jsonl import kind_of, read_lines, read_objects

_BATCH = 1024  # rows of a parquet file that are held as Python objects at once
_CODE = r"^[+-]?0\d"
_SEPARATOR = re.compile(r"(?i)sep=(.)")  # the first line of a table of Excel
_ARROW_FILE = b"ARROW1"  # how files of Arrow begin that are no stream: polars, pandas and Feather write them


def read_rows(files: Sequence[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of files: where each stands (the file and the line or row, from 1), and its columns.

    A file is read by its ending, see ``data_files.KINDS``; one of another ending as JSON lines.

    Raises:
        DataError: While iterating, if something cannot be read.
        MissingExtraError: pyarrow is needed and not installed.
    """
    readers = {"parquet": _parquet, "arrow": _arrow, "csv": _csv}
    for file in files:
        with suppress(OSError):  # its reader says why it cannot be read
            if is_lfs_pointer(file):
                raise DataError(f"'{file}' is a pointer of Git LFS, and not the file itself; run `git lfs pull`")
        reader = readers.get(kind_of_file(file))
        yield from _arrow_rows(file, reader) if reader else _json(file)


def _json(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of JSON: the lines, or the items of one list."""
    first = next(read_lines(path), (1, ""))[1]
    if not first.lstrip().startswith("["):
        yield from ((str(line), line.record) for line in read_objects(path))
        return
    try:
        items = parse_json("\n".join(line for _, line in read_lines(path)), strict=True)
    except ValueError as error:
        raise DataError(
            f"{path}: not valid JSON ({error}); expected one list of objects, or an object per line"
        ) from error
    for number, item in enumerate(items, start=1):
        location = f"{path}, item {number}"
        if not isinstance(item, dict):
            raise DataError(f"{location}: got {kind_of(item)}; expected a JSON object, as in {{...}}")
        yield location, item


def _arrow_rows(path: Path, batches: Callable[[Path], Iterable[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    arrow = require("pyarrow")
    try:
        rows = (row for batch in batches(path) for row in _dicts(path, batch))
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}{from_here(path)}; check the path") from error
    except (OSError, arrow.ArrowException) as error:
        first_line = str(error).partition("\n")[0]
        raise DataError(f"cannot read '{path}' ({first_line:.200}); expected a whole {path.suffix[1:]} file") from error


def _csv(path: Path) -> Iterable[Any]:
    arrow, csv, compute = require("pyarrow"), require("pyarrow.csv"), require("pyarrow.compute")
    first = next(read_lines(path), (1, ""))[1]
    header = re.sub(r'"[^"]*"', "", first)  # names in quotes may hold any character
    # Spreadsheets write semicolons where a comma stands before decimals, and some say so in a line of its own.
    separators, stated = "\t,;" if ".tsv" in path.name.lower() else ",;\t", _SEPARATOR.fullmatch(first)
    delimiter = stated[1] if stated else next((mark for mark in separators if mark in header), separators[0])
    layout = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    begin = csv.ReadOptions(skip_rows=1 if stated else 0)
    table = csv.read_csv(path, read_options=begin, parse_options=layout)
    _require_distinct(path, table.schema.names)
    # Whatever looks like a date stays a text, as it does in ``datasets``. So do numbers with zeros before them, for
    # the code 007 is another answer than 7.
    inferred = [field for field in table.schema if arrow.types.is_primitive(field.type)]
    names = [field.name for field in inferred]
    options = csv.ConvertOptions(column_types=dict.fromkeys(names, arrow.string()), include_columns=names)
    texts = csv.read_csv(path, begin, layout, options) if names else table
    for field in inferred:
        text = texts.column(field.name)
        if arrow.types.is_temporal(field.type) or compute.any(compute.match_substring_regex(text, _CODE)).as_py():
            table = table.set_column(table.schema.get_field_index(field.name), field.name, text)
    if undecoded := [field.name for field in table.schema if arrow.types.is_binary(field.type)]:
        raise DataError(f"'{path}': the column '{undecoded[0]}' is not valid UTF-8; save the file as UTF-8")
    batches: Iterable[Any] = table.to_batches(max_chunksize=_BATCH)
    return batches


def _parquet(path: Path) -> Iterable[Any]:
    with require("pyarrow.parquet").ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=_BATCH)


def _arrow(path: Path) -> Iterable[Any]:
    arrow = require("pyarrow")
    with arrow.memory_map(str(path)) as source:
        if source.read(len(_ARROW_FILE)) == _ARROW_FILE:
            file = arrow.ipc.open_file(source)
            yield from map(file.get_batch, range(file.num_record_batches))
            return
        source.seek(0)
        with arrow.ipc.open_stream(source) as stream:
            yield from stream


def _dicts(path: Path, batch: Any) -> list[dict[str, Any]]:
    _require_distinct(path, batch.schema.names)
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


def _require_distinct(path: Path, columns: Sequence[str]) -> None:
    """Refuse two columns of one name, of which a row could hold one alone."""
    if copies := [name for name, count in Counter(columns).items() if count > 1]:
        raise DataError(f"'{path}' has two columns called '{copies[0]}'; rename or remove one of them")
